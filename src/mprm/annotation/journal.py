"""Runs that can be stopped at any moment: a journal of the work that is done, and a scheduler that does the rest."""

from __future__ import annotations

import errno
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from math import isnan
from pathlib import Path
from time import monotonic
from typing import Any, Self, TypeVar

import msgspec
import xxhash

from mprm.annotation.annotate import RunConfig, RunSummary
from mprm.annotation.checker import AnswerChecker
from mprm.annotation.samplers.sampler import Answered, Request, Sampler, derived_seed
from mprm.answers.extract import last_box
from mprm.data.images import image_files
from mprm.data.output import PARTIAL, Outputs, atomic_write, check_overwrite, output_entry, printable
from mprm.data.questions import prompt_of
from mprm.data.types import Chain, Question, StepScorer, scorer_name
from mprm.errors import ConfigError, DataError, MprmError, shown
from mprm.progress import Advance, Progress

FAILED_SUFFIX = ".failed"
APPLICATION_ID = int.from_bytes(b"mprm")  # tells journals from other SQLite files
NOT_A_JOURNAL = "was not made by mprm, which saves its work under that name; move the file away, or rename the output"
SYNC_S = 1.0  # records come by the hundred a second: only so often are they forced onto the disk
SAME_REASON = 32  # so many questions that fail for one reason, before any is done, stop the run
COUNTS = ("n_correct", "n_incorrect", "n_truncated", "n_failed")  # what can become of a continuation
NOT_OF_RECORDS = (
    "rollouts_from",
    "files",
    "format",
    "image_root",
    "skip_bad",
    "check_timeout_s",
    "allow_failures",
    "force",
)
"""Options on which no record depends."""
LINES = msgspec.json.Encoder()

Key = tuple[str, str]  # source and id of a question
Chains = list[Chain]  # whose steps are to be scored
Outcome = dict[str, Any]
"""Of a request: n_tokens, and completions or, of continuations that are graded, the number of each of COUNTS. Of
chains: scores, a list for each."""
Work = Generator[Mapping[str, Request | Chains], dict[str, Outcome], dict[str, Any]]
"""Yields requests and chains by name, is sent their outcomes, and returns ``records`` of the output and ``stats`` to
sum up; raises `QuestionFailedError` where nothing can be written of the question."""
CHAINS_TOGETHER = 128  # so many chains of several questions are scored in one call, where as many are there
T = TypeVar("T", bound="Task")


class Journal(AbstractContextManager["Journal"]):
    """The work that is done, in the SQLite file ``OUT.partial`` (with ``OUT.partial-wal`` while it is open).

    A record belongs to a question, by ``source`` and ``id``; where a question is done in parts, it has a ``part``. It
    survives the end of the process once it is added, and the end of the machine a second later. A second process is
    refused, and so is another ``run``, the settings of a run, unless ``force`` begins anew. A file that is no journal
    is never touched.
    """

    def __init__(self, out: str, *, run: Mapping[str, Any], force: bool = False) -> None:
        self.path = Path(out + PARTIAL).expanduser()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._synced = monotonic()
        with self._errors(), ExitStack() as on_error:
            self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None)
            on_error.callback(self._db.close)
            # locks the file until the process ends, however it ends; a WAL then needs no shared memory,
            # which network file systems have not
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("BEGIN EXCLUSIVE")
            with self._db:
                self._open(msgspec.json.encode(run), force=force)
            # 40,000 commits/s that survive a kill -9; a rollback journal makes 2,000
            self._db.execute("PRAGMA journal_mode = WAL")
            on_error.pop_all()

    def _open(self, run: bytes, *, force: bool) -> None:
        if not self.path.exists():
            raise ConfigError(f"another process has just finished the work of {self.path}; look at its output first")
        [application_id] = self._db.execute("PRAGMA application_id").fetchone()
        if not self.path.stat().st_size:
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute("CREATE TABLE run (settings BLOB)")
            self._db.execute("INSERT INTO run VALUES (?)", [run])
            columns = "source TEXT, id TEXT, part TEXT, record BLOB, PRIMARY KEY (source, id, part)"
            self._db.execute(f"CREATE TABLE records ({columns}) WITHOUT ROWID")
            return
        if application_id != APPLICATION_ID:
            raise ConfigError(f"{self.path} {NOT_A_JOURNAL}")
        [settings] = self._db.execute("SELECT settings FROM run").fetchone()
        before, now = msgspec.json.decode(settings), msgspec.json.decode(run)
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        is_empty = self._db.execute("SELECT 1 FROM records LIMIT 1").fetchone() is None
        if changed and not (force or is_empty):
            words = (f"{printable(name)} was {before.get(name)!r}, now {now.get(name)!r}" for name in changed)
            remedy = "Continue with the same ones, or begin anew with --force (in Python: force=True)"
            raise ConfigError(f"{self.path} was begun with other settings: {'; '.join(words)}. {remedy}")
        if changed:
            self._db.execute("DELETE FROM records")
            self._db.execute("UPDATE run SET settings = ?", [run])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended part
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                problem = f"another process is working on {self.path}; wait for it, or choose another output"
                raise ConfigError(problem) from error
            if code == sqlite3.SQLITE_NOTADB:
                raise ConfigError(f"{self.path} {NOT_A_JOURNAL}") from error
            if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                number = errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO
                raise OSError(number, str(error), str(self.path)) from error
            raise DataError(f"{self.path} is damaged ({error}); remove the file to begin anew") from error

    def __contains__(self, key: Key) -> bool:
        return self._select("1", key, "") is not None

    def get(self, key: Key, part: str = "", *, type: Any = dict[str, Any]) -> Any:
        record = self._select("record", key, part)
        return None if record is None else msgspec.json.decode(record, type=type)

    def _select(self, column: str, key: Key, part: str) -> Any:
        query = f"SELECT {column} FROM records WHERE source = ? AND id = ? AND part = ?"
        with self._errors():
            row = self._db.execute(query, (*key, part)).fetchone()
        return row and row[0]

    def add(self, record: Mapping[str, Any]) -> None:
        """Save one more record, with ``source`` and ``id``; one without ``part`` replaces the question's parts."""
        source, id_, part = record["source"], record["id"], record.get("part", "")
        is_due = monotonic() - self._synced >= SYNC_S
        with self._errors():
            self._db.execute(f"PRAGMA synchronous = {'FULL' if is_due else 'NORMAL'}")
            self._db.execute("BEGIN")
            with self._db:
                if not part:
                    self._db.execute("DELETE FROM records WHERE source = ? AND id = ?", (source, id_))
                values = source, id_, part, msgspec.json.encode(record)
                self._db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", values)
        if is_due:
            self._synced = monotonic()

    def forget(self, key: Key) -> None:
        with self._errors():
            self._db.execute("DELETE FROM records WHERE source = ? AND id = ?", key)

    def remove(self) -> None:
        """Delete the file, once its records are in the output; locked to the last."""
        with self._errors():
            self._db.execute("PRAGMA journal_mode = DELETE")  # the WAL goes first
        self.path.unlink(missing_ok=True)
        self._db.close()

    def __exit__(self, *_: object) -> None:
        self._db.close()


class QuestionFailedError(Exception):
    """Its arguments say why nothing can be written of a question."""


@dataclass(slots=True, kw_only=True)
class Task:
    """A question with what its work needs."""

    question: Question
    prompt: str
    images: tuple[Path, ...]
    config: RunConfig
    gold: Question | None = None  # what answers are checked against, where it is not the question

    @classmethod
    def of(cls, question: Question, config: RunConfig, prompt: str | None = None) -> Self:
        images = image_files(question, config.image_root)
        return cls(question=question, prompt=prompt or prompt_of(question), images=images, config=config)

    @property
    def key(self) -> Key:
        return self.question.source, self.question.id

    def digest(self) -> bytes:
        """Changes with whatever the records depend on; of images, with their names and sizes."""
        fields = [self.question, self.prompt, [path.stat().st_size for path in self.images]]
        return xxhash.xxh3_128_digest(msgspec.json.encode(fields))

    def request(self, n: int, *seed_names: str, prefix: str = "") -> Request:
        seed, sampling = derived_seed(self.config.seed, *seed_names), self.config.sampling
        return Request(prompt=self.prompt, images=self.images, prefix=prefix, n=n, seed=seed, sampling=sampling)

    def record(self, candidates: list[dict[str, Any]]) -> dict[str, Any]:
        """The question with its candidates, as `mprm.data.candidates` reads it."""
        names = ("id", "source", "question", "answer", "images", "options")
        return {name: getattr(self.question, name) for name in names} | {"candidates": candidates}


def run_resumable(
    command: str,
    out: str,
    tasks: Sequence[T],
    work: Callable[[T], Work],
    sampler: Sampler | Callable[[], Sampler],
    config: RunConfig,
    *,
    inputs: list[dict[str, Any]],
    progress: Progress,
    checker: AnswerChecker | None = None,
    scorer: StepScorer | None = None,
) -> RunSummary:
    """Do the work of tasks that no earlier run has done, then write the records of all to ``out``, in their order.

    ``inputs`` are the manifest's entries of the files that the tasks come from. With a ``checker`` continuations are
    graded instead of kept; chains need a ``scorer``.
    """
    started, n_extracted = monotonic(), sum(task.question.is_extracted for task in tasks)
    sampler = sampler() if callable(sampler) else sampler
    prm = {} if scorer is None else {"prm": scorer_name(scorer), "prm_weights": getattr(scorer, "fingerprint", None)}
    run = {
        **prm,
        # the policy's weights must be the same for a run to go on; its name, where they are not known
        **({} if sampler.settings.get("weights") else {"policy": sampler.name}),
        **sampler.settings,
        **{name: value for name, value in config.as_dict().items() if name not in NOT_OF_RECORDS},
        "questions": xxhash.xxh3_128_hexdigest(b"".join(task.digest() for task in tasks)),
    }
    with Journal(out, run=run, force=config.force) as journal:
        check_overwrite(out, force=config.force)  # again: nobody else can finish it from now on
        todo = [task for task in tasks if task.key not in journal]
        failures: dict[Key, list[str]] = {}
        if todo:
            with progress(command, len(tasks)) as advance:
                advance(len(tasks) - len(todo))
                failures = Scheduler(journal, sampler, checker, advance, scorer).run(todo, work)
        failed_to = out + FAILED_SUFFIX
        if failures:
            with atomic_write(failed_to) as temporary:
                entries = ({"id": id_, "source": source, "errors": why} for (source, id_), why in failures.items())
                temporary.write_bytes(LINES.encode_lines(entries))
        else:  # the list of an earlier run goes
            Path(failed_to).expanduser().unlink(missing_ok=True)
        if failures and (not config.allow_failures or len(failures) == len(tasks)):
            [(reason, n)] = Counter(reason for some in failures.values() for reason in set(some)).most_common(1)
            raise MprmError(
                f"{len(failures):,} of {len(tasks):,} questions failed, {n:,} of them with: {reason}. Each has its"
                f" reason in {failed_to}; what is done is kept in {journal.path}. The same command samples the failed"
                " ones again; with --allow-failures it goes on without those that fail"
            )
        check_overwrite(out, force=config.force)
        stats = Counter[str]()
        sources: dict[str, Counter[str]] = {}
        with Outputs(out, force=True) as outputs:
            temporary = outputs.add(out)
            with temporary.open("wb") as lines:
                for task in tasks:
                    counts = sources.setdefault(task.key[0], Counter(read=0, done=0, failed=0))
                    entry = journal.get(task.key) or {"records": [], "stats": {}}
                    has_failed = task.key in failures
                    counts.update(read=1, done=not has_failed, failed=has_failed, **entry["stats"])
                    stats.update(entry["stats"])
                    lines.write(LINES.encode_lines(entry["records"]))
            run = {"policy": sampler.name, **run, "n_extracted_golds": n_extracted, **stats}
            manifest = outputs.add_manifest(
                out, command=command, config=run, inputs=inputs, sources=sources, output=output_entry(out, temporary)
            )
        journal.remove()
    return RunSummary(
        out=out,
        n_questions=len(tasks),
        n_done=len(tasks) - len(failures),
        n_failed=len(failures),
        n_resumed=len(tasks) - len(todo),
        stats=dict(stats),
        failed_to=failed_to if failures else None,
        manifest=manifest,
        seconds=monotonic() - started,
        n_extracted=n_extracted,
    )


@dataclass(slots=True)
class _Active:
    task: Task
    work: Work
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # of the requests that it yielded last
    n_pending: int = 0
    errors: set[str] = field(default_factory=set)


_Pending = tuple[_Active, str, Request]  # a request with its name


class Scheduler:
    """Keeps the sampler busy until every task is done or has failed; grades, scores and saves what comes."""

    def __init__(
        self,
        journal: Journal,
        sampler: Sampler,
        checker: AnswerChecker | None,
        advance: Advance,
        scorer: StepScorer | None = None,
    ) -> None:
        self._journal, self._sampler, self._checker, self._advance = journal, sampler, checker, advance
        self._scorer = scorer
        self._queue: deque[_Pending] = deque()
        self._unscored: deque[tuple[_Active, str, Chains]] = deque()
        self._pending: dict[int, _Pending] = {}  # requests under way, by index
        self._failures: dict[Key, list[str]] = {}
        self._totals, self._n_done, self._started = Counter[str](), 0, monotonic()
        self._kept = f"what is done is kept in {journal.path}"

    def run(self, tasks: Iterable[T], work: Callable[[T], Work]) -> dict[Key, list[str]]:
        """Why questions failed."""
        actives = (_Active(task, work(task)) for task in tasks)
        with closing(self._sampler.sample(self._requests(actives))) as batches:
            for batch in batches:
                self._take(batch)
        if self._pending:
            raise MprmError(f"{self._sampler.name} left {len(self._pending):,} requests unanswered; {self._kept}")
        return self._failures

    def _requests(self, upcoming: Iterator[_Active]) -> Iterator[Request | None]:
        """What to sample next; None while that depends on completions under way."""
        indices = count()
        while True:
            # tasks that are begun go on before others begin
            while not self._queue and self._n_unscored() >= CHAINS_TOGETHER:
                self._score()
            while not self._queue and (active := next(upcoming, None)) is not None:
                self._continue(active)
            if self._queue:
                pending = self._pending[next(indices)] = self._queue.popleft()
                yield pending[2]
            elif self._unscored and not self._pending:
                self._score()
            elif self._pending:
                yield None
            else:
                return

    def _continue(self, active: _Active) -> None:
        """Queue the requests that the task needs next and no earlier run has done; save the task at its end."""
        source, id_ = key = active.task.key
        while not active.n_pending:
            try:
                if active.errors:
                    raise QuestionFailedError(*sorted(active.errors))
                requests = active.work.send(active.outcomes or None)  # type: ignore[arg-type]
            except StopIteration as end:
                self._n_done += 1
                self._journal.add({"source": source, "id": id_, **end.value})
                self._report(1)
                return
            except QuestionFailedError as failure:
                self._fail(active, list(failure.args))
                return
            active.outcomes = {}
            for part, request in requests.items():
                outcome = self._journal.get(key, part)
                if outcome is not None:
                    active.outcomes[part] = outcome
                    continue
                active.n_pending += 1
                if isinstance(request, Request):
                    self._queue.append((active, part, request))
                else:
                    self._unscored.append((active, part, request))

    def _fail(self, active: _Active, reasons: list[str]) -> None:
        if not active.errors:
            self._journal.forget(active.task.key)  # what is saved would fail again
        self._failures[active.task.key] = reasons
        all_reasons = {reason for some in self._failures.values() for reason in some}
        if not self._n_done and len(self._failures) == SAME_REASON and len(all_reasons) == 1:
            problem = f"the first {SAME_REASON} questions all failed, and none was done: {reasons[0]}"
            raise MprmError(f"{problem}; {self._kept}")
        self._report(1)

    def _take(self, batch: Sequence[Answered]) -> None:
        """Grade the completions, and save each request as soon as all of it is graded."""
        pairs: list[tuple[str, Question]] = []
        indices: list[int] = []
        outcomes: dict[int, Outcome] = {}

        def add(index: int, name: str) -> None:
            outcomes[index][name] += 1
            if sum(outcomes[index][name] for name in COUNTS) == self._pending[index][2].n:
                self._settle(index, outcomes[index])

        for index, completions in batch:
            n = self._pending[index][2].n if index in self._pending else 0
            if not completions or len(completions) != n:
                gave = f"{self._sampler.name} gave {len(completions)} answers to request {index}"
                raise MprmError(f"{gave}, of which {n} were requested; {self._kept}")
            active, _, request = self._pending[index]
            if errors := {c.error or "no reason given" for c in completions if c.finish_reason == "error"}:
                active.errors |= errors
                self._settle(index, None)
                continue
            outcome: Outcome = {"n_tokens": sum(completion.n_tokens or 0 for completion in completions)}
            if not request.prefix or self._checker is None:
                # what is no character in UTF-8, half of a surrogate pair, cannot be written
                outcome["completions"] = [
                    {
                        "text": c.text.encode("utf-8", "replace").decode(),
                        "finish_reason": c.finish_reason,
                        "n_tokens": c.n_tokens or 0,
                    }
                    for c in completions
                ]
                self._settle(index, outcome)
                continue
            outcomes[index] = outcome | dict.fromkeys(COUNTS, 0)
            for completion in completions:
                # of a truncated text only a box that it closes itself is sure to be its answer
                if completion.finish_reason == "length" and last_box(completion.text) is None:
                    add(index, "n_truncated")
                else:
                    pairs.append((request.prefix + completion.text, active.task.gold or active.task.question))
                    indices.append(index)
        if self._checker is not None:
            self._checker.check_many(pairs, on_checked=lambda i, graded: add(indices[i], f"n_{graded.grade}"))

    def _settle(self, index: int, outcome: Outcome | None) -> None:
        """Save what came of a request, None where it failed, and continue with its task."""
        active, part, _ = self._pending.pop(index)
        if outcome is not None:
            self._save(active, part, outcome)
            self._totals.update({name: n for name, n in outcome.items() if name != "completions"})
            self._report(0)
        active.n_pending -= 1
        self._continue(active)

    def _save(self, active: _Active, part: str, outcome: Outcome) -> None:
        source, id_ = active.task.key
        self._journal.add({"source": source, "id": id_, "part": part, **outcome})
        active.outcomes[part] = outcome

    def _n_unscored(self) -> int:
        return sum(len(chains) for _, _, chains in self._unscored)

    def _score(self) -> None:
        """Score chains of several tasks in one call, save the scores, and continue with those tasks."""
        jobs = [self._unscored.popleft()]
        while self._unscored and sum(len(chains) for _, _, chains in jobs) < CHAINS_TOGETHER:
            jobs.append(self._unscored.popleft())
        assert self._scorer is not None
        given = self._scorer.score_many([chain for _, _, chains in jobs for chain in chains])
        name, rows = scorer_name(self._scorer), iter(given)
        for active, part, chains in jobs:
            try:
                scores = [[float(score) for score in row] for row in islice(rows, len(chains))]
            except (TypeError, ValueError):
                raise DataError(f"{name} gives {shown(given)}; expected a list of scores for each chain") from None
            if [len(row) for row in scores] != [len(chain.steps) for chain in chains]:
                raise DataError(f"{name} does not give one score for each step; {self._kept}")
            if odd := [score for row in scores for score in row if not (0 <= score <= 1 or isnan(score))]:
                raise DataError(f"{name} gives a step the score {odd[0]}; expected 0 to 1; {self._kept}")
            self._save(active, part, {"scores": scores})
            active.n_pending -= 1
            self._continue(active)

    def _report(self, n: int) -> None:
        seconds = max(1e-9, monotonic() - self._started)
        n_continuations = sum(self._totals[name] for name in COUNTS)
        notes = [f"{self._totals['n_tokens'] / seconds:,.0f} tokens/s"] if self._totals["n_tokens"] else []
        if n_continuations:
            notes.insert(0, f"{n_continuations / seconds:,.1f} continuations/s")
            notes.append(f"{self._totals['n_correct'] / n_continuations:.0%} correct")
        self._advance(n, ", ".join(notes))

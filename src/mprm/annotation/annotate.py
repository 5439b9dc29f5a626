"""How long work lets others see how far it is.

The work of annotating: the sampler is kept busy, and what it answers is judged and saved at once.

``mprm annotate``: rollouts whose steps carry Monte-Carlo success rates.

What annotating would cost, from a few questions done for a trial.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import xxhash

from mprm.annotation.adaptive import AdaptiveRule
from mprm.annotation.checker import AnswerChecker
from mprm.annotation.journal import Journal, Key, check_output, commonest, write_failed
from mprm.annotation.monte_carlo import ROLLOUTS, Annotation, AnnotationStats, FixedBudget, Procedure, check_numbers
from mprm.annotation.samplers.sampler import Answered, Completion, Request, Sampler, SamplingParams, identity_of
from mprm.annotation.task import Shard, Task, question_tasks, rollout_tasks
from mprm.answers.extract import last_box
from mprm.answers.grade import GradedAnswer
from mprm.data.candidate_formats import split_steps
from mprm.data.corpus import hash_file, write_manifest
from mprm.data.output import Dropped, DroppedRecords, atomic_write, check_not_inputs, check_overwrite, dropped_path
from mprm.data.questions import given_questions, input_entries
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError, MprmError

Advance = Callable[[int], None]
"""Called with the number of things done since the last call."""
Watch = Callable[[str, int], AbstractContextManager[Advance]]
"""``with watch("scoring", 160) as advance``: a piece of work, and of how many things it is made."""


@contextmanager
def unwatched_watch(_title: str, _total: int) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda _n: None


Note = Callable[[int, str], None]
"""Called with the number of questions done since the last call, and how things stand."""
NotedWatch = Callable[[str, int], AbstractContextManager[Note]]

HOPELESS = 32
"""So many questions that fail for one reason, before any is done, stop the run."""


@contextmanager
def unwatched_work(_title: str, _total: int) -> Iterator[Note]:
    """Show nothing."""
    yield lambda _n, _text: None


@dataclass(slots=True)
class _Asked:
    annotation: Annotation
    part: str
    n: int


class Work:
    """Keeps the sampler busy until every task is done or has failed."""

    def __init__(
        self, journal: Journal, sampler: Sampler, procedure: Procedure, note: Note, *, timeout_s: float
    ) -> None:
        self._journal, self._sampler, self._procedure, self._note = journal, sampler, procedure, note
        self._timeout_s = timeout_s
        self._under_way: dict[int, _Asked] = {}
        self._ready: deque[tuple[_Asked, Request]] = deque()
        self._n_open: dict[Key, int] = {}
        self._reasons: dict[Key, list[str]] = {}
        self._n_done = 0
        self._tally, self._began = AnnotationStats(), monotonic()

    def do(self, tasks: Iterable[Task]) -> dict[Key, list[str]]:
        """The reasons of the tasks that failed."""
        with (
            AnswerChecker(self._timeout_s) as checker,
            closing(self._sampler.sample(self._requests(tasks))) as batches,
        ):
            for answered in batches:
                self._take(answered, checker)
        if self._under_way:
            raise MprmError(
                f"{self._sampler.name} left {len(self._under_way):,} requests unanswered;"
                f" what is done is kept in {self._journal.path}"
            )
        return self._reasons

    def _requests(self, tasks: Iterable[Task]) -> Iterator[Request | None]:
        """What is to be sampled next; None while that depends on answers under way."""
        following, index = iter(tasks), 0
        while True:
            while not self._ready and (task := next(following, None)) is not None:
                self._go_on(Annotation(task, self._procedure))
            if self._ready:
                self._under_way[index], request = self._ready.popleft()
                index += 1
                yield request
            elif self._under_way:
                yield None
            else:
                return

    def _go_on(self, annotation: Annotation) -> None:
        """Ask for what the question wants next, unless an earlier run has it; save it when it wants nothing."""
        key = annotation.task.key
        known = self._journal.parts(key)
        is_new = True
        while is_new:
            is_new = False
            for part, request in annotation.wanted():
                if part in known:
                    self._take_known(annotation, part)
                    is_new = True
                elif not annotation.errors:
                    self._ready.append((_Asked(annotation, part, request.n), request))
                    self._n_open[key] = self._n_open.get(key, 0) + 1
        if not self._n_open.get(key):
            self._end(annotation)

    def _take_known(self, annotation: Annotation, part: str) -> None:
        key = annotation.task.key
        try:
            annotation.take(part, msgspec.json.decode(self._journal.line(key, part)))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{self._journal.path}: the line of part {part} of question {key[1]!r} of {key[0]!r} is damaged"
                f" ({type(error).__name__} {error}); remove the line, or the file to begin anew"
            ) from error

    def _take(self, answered: Sequence[Answered], checker: AnswerChecker) -> None:
        """Judge what was answered, and save each request as soon as it is judged."""
        self._check_odd(answered)
        pairs: list[tuple[str, Question]] = []
        slots: list[tuple[int, int]] = []
        verdicts: dict[int, list[GradedAnswer | None]] = {}
        for number, completions in answered:
            asked = self._under_way[number]
            if asked.part == ROLLOUTS or any(c.finish_reason == "error" for c in completions):
                self._settle(number, completions, [])
                continue
            prefix, question = asked.annotation.prefix_of(asked.part), asked.annotation.task.judged_as
            verdicts[number] = [None] * len(completions)
            slots += [(number, place) for place in range(len(completions))]
            pairs += [(prefix + completion.text, question) for completion in completions]
        given = dict(answered)

        def note(pair: int, judged: GradedAnswer) -> None:
            number, place = slots[pair]
            verdicts[number][place] = judged
            found = [verdict for verdict in verdicts[number] if verdict is not None]
            if len(found) == len(given[number]):
                self._settle(number, given[number], found)

        checker.check_many(pairs, on_checked=note)

    def _check_odd(self, answered: Sequence[Answered]) -> None:
        """Stop where a sampler does not keep to what `Session` says: its counts could not be trusted."""
        for number, completions in answered:
            asked = self._under_way.get(number)
            if asked is None or len(completions) != asked.n:
                wanted = "which was not asked for" if asked is None else f"of which {asked.n} were asked for"
                raise MprmError(
                    f"{self._sampler.name} gave {len(completions)} answers to request {number}, {wanted};"
                    f" what is done is kept in {self._journal.path}"
                )

    def _settle(self, number: int, completions: Sequence[Completion], judged: Sequence[GradedAnswer]) -> None:
        """Save what came of a request, and go on with its question."""
        asked = self._under_way.pop(number)
        annotation, part = asked.annotation, asked.part
        key = annotation.task.key
        errors = {c.error or "no reason given" for c in completions if c.finish_reason == "error"}
        self._n_open[key] -= 1
        if errors:
            annotation.errors |= errors
        else:
            outcome = _rollouts(completions) if part == ROLLOUTS else _counts(completions, judged)
            self._journal.add({"source": key[0], "id": key[1], "part": part, **outcome})
            annotation.take(part, outcome)
            self._count(outcome)
        self._go_on(annotation)

    def _end(self, annotation: Annotation) -> None:
        key = annotation.task.key
        self._n_open.pop(key, None)
        problems = sorted(annotation.errors)
        if not problems and (annotation.unscored or not annotation.chains):
            problems = annotation.unscored or [f"all {annotation.n_empty} rollouts are empty"]
            self._journal.forget(key)  # what is saved would fail again
        if problems:
            self._reasons[key] = problems
            self._check_hopeless()
        else:
            self._n_done += 1
            records, tally = annotation.records(), annotation.tally()
            self._journal.add({"source": key[0], "id": key[1], "records": records, "tally": tally})
        self._tell(1)

    def _check_hopeless(self) -> None:
        """Stop when all questions fail, and all for one reason: the others would as well."""
        reasons = {reason for some in self._reasons.values() for reason in some}
        if not self._n_done and len(self._reasons) == HOPELESS and len(reasons) == 1:
            raise MprmError(
                f"the first {HOPELESS} questions all failed, and none was done: {reasons.pop()}."
                f" What is done is kept in {self._journal.path}"
            )

    def _count(self, outcome: dict[str, Any]) -> None:
        tally = self._tally
        tally.n_tokens += outcome["n_tokens"]
        if "n_correct" in outcome:
            tally.n_correct += outcome["n_correct"]
            tally.n_continuations += sum(outcome[f"n_{fate}"] for fate in ("correct", "incorrect", "cut", "failed"))
            self._tell(0)

    def _tell(self, n: int) -> None:
        tally, seconds = self._tally, max(1e-9, monotonic() - self._began)
        share = f", {tally.n_correct / tally.n_continuations:.0%} correct" if tally.n_continuations else ""
        tokens = f", {tally.n_tokens / seconds:,.0f} tokens/s" if tally.n_tokens else ""
        self._note(n, f"{tally.n_continuations / seconds:,.1f} continuations/s{tokens}{share}")


def _rollouts(completions: Sequence[Completion]) -> dict[str, Any]:
    return {
        # what is no character in UTF-8, half of a surrogate pair, cannot be written
        "rollouts": [
            {"text": c.text.encode("utf-8", "replace").decode(), "finish_reason": c.finish_reason}
            for c in completions
        ],
        "n_tokens": sum(c.n_tokens or 0 for c in completions),
    }


def _counts(completions: Sequence[Completion], judged: Sequence[GradedAnswer]) -> dict[str, Any]:
    """How many continuations came to which end; with the reasons of the checker's failures."""
    fates = {"correct": 0, "incorrect": 0, "cut": 0, "failed": 0}
    for completion, verdict in zip(completions, judged, strict=True):
        # of a text that was cut off only a box that it closes itself is sure to be its answer
        is_cut = completion.finish_reason == "length" and last_box(completion.text) is None
        fates["cut" if is_cut else verdict.grade] += 1
    outcome: dict[str, Any] = {f"n_{fate}": n for fate, n in fates.items()}
    outcome["n_tokens"] = sum(c.n_tokens or 0 for c in completions)
    failures = sorted({verdict.reason or "" for verdict in judged if verdict.grade == "failed"})
    return outcome | ({"failures": failures} if failures else {})


SYNC_S = 1.0
"""Parts come by the hundred a second: only so often is each forced onto the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateConfig:
    """How steps are annotated; the defaults are those of VisualPRM400K-v1.1."""

    rollouts: int = 4
    """Rollouts of each question."""
    continuations: int = 16
    """N, continuations of each prefix."""
    max_steps: int | None = 12
    """Most steps a rollout is split into; as many as it has blank lines when None."""
    early_stop: bool = False
    """Leave out the steps after a first one that never succeeded; they count as negative."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    adaptive: AdaptiveRule | None = None
    """Stop a prefix when its label is decided, before all N continuations."""
    audit: float = 0.05
    """Share of the prefixes that are drawn in full all the same, to measure what adaptive stopping changes."""
    shard: Shard = field(default_factory=Shard)
    timeout_s: float = 5.0
    """Longest time that the comparison of two answers may take."""

    def __post_init__(self) -> None:
        check_numbers(rollouts=self.rollouts, continuations=self.continuations)
        split_steps("", self.max_steps)
        if self.sampling.temperature == 0 and self.continuations > 1:
            raise ConfigError(
                f"at temperature 0 all {self.continuations} continuations would be the same; raise the temperature"
            )
        if not 0 <= self.audit <= 1:
            raise ConfigError(f"audit must be a share from 0 to 1, got {self.audit}")
        if self.adaptive is not None and self.adaptive.n_max != self.continuations:
            raise ConfigError(
                f"the adaptive rule is made for {self.adaptive.n_max} continuations, not for {self.continuations}"
            )

    def procedure(self, *, is_fresh: bool = False) -> Procedure:
        """What each question is done by."""
        return Procedure(
            rollouts=self.rollouts,
            continuations=self.continuations,
            max_steps=self.max_steps,
            early_stop=self.early_stop,
            sampling=self.sampling,
            seed=self.seed,
            budget=self.adaptive or FixedBudget(self.continuations),
            is_fresh=is_fresh,
            audit=self.audit if self.adaptive else 0.0,
        )

    def identity(self) -> dict[str, Any]:
        """What the records depend on."""
        fields = asdict(self)
        del fields["timeout_s"]
        return {**fields.pop("sampling"), **fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateSummary:
    """What became of the questions: questions = done + failed."""

    out: str
    n_questions: int
    n_done: int
    n_failed: int
    n_continued: int
    """Of those done, the ones that an earlier run had done."""
    tally: AnnotationStats
    seconds: float
    renamed_images: dict[str, str]
    """Images that lie under the image root by another name than the question's: that name, by the question's."""
    failed_to: str | None
    has_images: bool
    n_dropped: int
    """Records of ``rollouts_from`` that could not be used."""
    dropped_to: str | None
    manifest: str


def annotate(
    questions: Any,
    sampler: Sampler,
    out: str,
    *,
    rollouts_from: Any = None,
    fresh: bool = False,
    config: AnnotateConfig | None = None,
    format: str | None = None,
    image_root: str | Path | None = None,
    allow_failures: bool = False,
    skip_bad: bool = False,
    force: bool = False,
    watch: NotedWatch = unwatched_work,
) -> AnnotateSummary:
    """Write rollouts with a Monte-Carlo score for each step to ``out``, in v1.1-Raw form.

    Each answer of the policy is saved in ``OUT.partial`` as soon as it is judged; the same call continues
    there after whatever stopped it. A question of which an answer could not be had fails: it is listed with
    its reasons in ``OUT.failed``, and tried again by the next call.

    Parameters
    ----------
    questions
        Whatever `mprm.data.questions.read_questions` takes, or a list of `Question`; None with
        ``rollouts_from``.
    rollouts_from
        Rollouts to annotate instead of new ones: a corpus of any format that has gold answers, or candidates.
        Counts that they carry are added to, up to ``config.continuations``.
    fresh
        Draw all continuations anew, whatever counts the rollouts carry.
    image_root
        Folder of the images; paths that leave it are refused.
    allow_failures
        Write ``out`` without the questions that failed, instead of stopping before it.
    skip_bad
        Leave out the records of ``rollouts_from`` that cannot be used, each with its reason in
        ``OUT.dropped.jsonl``, instead of stopping at the first.
    watch
        Shows how far the work is.
    """
    began = monotonic()
    out, config = str(out), config or AnnotateConfig()
    given = questions if rollouts_from is None else rollouts_from
    check_output(out, given, force=force)
    if (questions is None) == (rollouts_from is None):
        raise ConfigError("annotate either questions or the rollouts of rollouts_from")
    renamed: dict[str, str] = {}
    dropped = DroppedRecords()
    tasks, inputs = tasks_of(
        questions,
        rollouts_from,
        config,
        renamed,
        format=format,
        image_root=image_root,
        fresh=fresh,
        on_bad=dropped if skip_bad else None,
    )
    check_not_inputs({path for task in tasks for path in task.images} if Path(out).exists() else (), [out])
    run = {**identity_of(sampler), **config.identity(), "tasks": _digest(tasks)}
    with Journal(out, run=run, force=force, sync_s=SYNC_S) as journal:
        check_overwrite(out, force=force)  # again: nobody else can finish it from now on
        todo = [task for task in tasks if task.key not in journal]
        reasons: dict[Key, list[str]] = {}
        if todo:
            with watch("annotating", len(tasks)) as note:
                note(len(tasks) - len(todo), "")
                procedure = config.procedure(is_fresh=fresh)
                reasons = Work(journal, sampler, procedure, note, timeout_s=config.timeout_s).do(todo)
        failed_to = write_failed(out, reasons)
        if reasons and (not allow_failures or len(reasons) == len(tasks)):
            raise MprmError(
                f"{len(reasons):,} of {len(tasks):,} questions failed, {commonest(reasons)}. Each has its reason in"
                f" {failed_to}; what is done is kept in {journal.path}. The same command asks for the failed ones"
                " again; with --allow-failures it goes on without those that fail"
            )
        check_overwrite(out, force=force)
        tally, manifest = _write(out, journal, tasks, reasons, inputs, {"policy": sampler.name, **run})
        dropped_to = dropped_path(out) if len(dropped) else None
        if dropped_to is not None:
            dropped.write(dropped_to)
        journal.remove()
    return AnnotateSummary(
        out=out,
        n_questions=len(tasks),
        n_done=len(tasks) - len(reasons),
        n_failed=len(reasons),
        n_continued=len(tasks) - len(todo),
        tally=tally,
        seconds=monotonic() - began,
        renamed_images=renamed,
        failed_to=failed_to,
        has_images=any(task.images for task in tasks),
        n_dropped=len(dropped),
        dropped_to=dropped_to,
        manifest=manifest,
    )


def tasks_of(
    questions: Any,
    rollouts_from: Any,
    config: AnnotateConfig,
    renamed: dict[str, str],
    *,
    format: str | None,
    image_root: str | Path | None,
    fresh: bool,
    on_bad: Callable[[Dropped], None] | None = None,
) -> tuple[list[Task], list[dict[str, Any]]]:
    """The shard's tasks, and the manifest's entries of the files they come from."""
    if rollouts_from is None:
        entries, inputs = given_questions(questions, format, image_root, renamed)
        return list(question_tasks(config.shard.of(entries), image_root)), inputs
    found = rollout_tasks(
        rollouts_from,
        image_root=image_root,
        max_steps=config.max_steps,
        fresh=fresh,
        input_format=format,
        on_bad=on_bad,
    )
    tasks = config.shard.of(found)
    if not found:
        raise DataError(f"{rollouts_from}: no rollouts; expected at least one")
    return tasks, input_entries(rollouts_from)


def _digest(tasks: Sequence[Task]) -> str:
    digest = xxhash.xxh3_128()
    for task in tasks:
        digest.update(task.digest())
    return digest.hexdigest()


def _write(
    out: str,
    journal: Journal,
    tasks: Sequence[Task],
    reasons: dict[Key, list[str]],
    inputs: list[dict[str, Any]],
    run: dict[str, Any],
) -> tuple[AnnotationStats, str]:
    """Write the records in the tasks' order; returns the sums, and the manifest."""
    sources: dict[str, dict[str, int]] = {}
    total = AnnotationStats()
    with atomic_write(out) as temporary:
        with temporary.open("wb") as lines:
            for task in tasks:
                counts = sources.setdefault(task.question.source, {"read": 0, "done": 0, "failed": 0, "rollouts": 0})
                counts["read"] += 1
                if task.key in reasons:
                    counts["failed"] += 1
                    continue
                done = msgspec.json.decode(journal.line(task.key))
                counts["done"] += 1
                counts["rollouts"] += len(done["records"])
                total.add(done["tally"])
                for record in done["records"]:
                    lines.write(msgspec.json.encode(record) + b"\n")
        output = {"path": out, "n_bytes": temporary.stat().st_size, "xxh3_128": hash_file(str(temporary))}
        manifest = write_manifest(
            out, command="annotate", config={**run, **asdict(total)}, inputs=inputs, sources=sources, output=output
        )
    return total, manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The cost of a run, at the rate of the questions that were tried."""

    n_questions: int
    n_tried: int
    n_rollouts: float
    n_steps: float
    n_continuations: float
    n_tokens: float
    """Tokens that the policy writes; 0 where its server does not tell."""
    seconds: float
    """At the speed of the trial, which fills a large batch or a busy server less well than the run would."""
    share_correct: float


def estimate(
    questions: Any,
    sampler: Sampler,
    *,
    rollouts_from: Any = None,
    fresh: bool = False,
    config: AnnotateConfig | None = None,
    format: str | None = None,
    image_root: str | Path | None = None,
    skip_bad: bool = False,
    n_tried: int = 8,
    watch: NotedWatch = unwatched_work,
) -> Estimate:
    """Annotate some questions from all over the input, keep nothing, and scale up what it took."""
    config = config or AnnotateConfig()
    if n_tried < 1:
        raise ConfigError(f"n_tried must be 1 or more, got {n_tried}")
    tasks, _ = tasks_of(
        questions,
        rollouts_from,
        config,
        {},
        format=format,
        image_root=image_root,
        fresh=fresh,
        on_bad=DroppedRecords() if skip_bad else None,
    )
    n_tried = min(n_tried, len(tasks))
    tried = [tasks[number * len(tasks) // n_tried] for number in range(n_tried)]
    began, tally = monotonic(), AnnotationStats()
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "trial.jsonl")
        with Journal(out, run={}) as journal, watch("trying", n_tried) as note:
            reasons = Work(journal, sampler, config.procedure(), note, timeout_s=config.timeout_s).do(tried)
            if reasons:
                first = next(iter(reasons.values()))[0]
                raise MprmError(f"{len(reasons)} of {n_tried} questions failed in the trial, the first with: {first}")
            for task in tried:
                tally.add(msgspec.json.decode(journal.line(task.key))["tally"])
    scale = len(tasks) / max(1, n_tried)
    return Estimate(
        n_questions=len(tasks),
        n_tried=n_tried,
        n_rollouts=scale * tally.n_rollouts,
        n_steps=scale * tally.n_steps,
        n_continuations=scale * tally.n_continuations,
        n_tokens=scale * tally.n_tokens,
        seconds=scale * (monotonic() - began),
        share_correct=tally.n_correct / max(1, tally.n_continuations),
    )

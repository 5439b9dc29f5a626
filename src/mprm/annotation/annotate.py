"""``mprm annotate``: rollouts whose steps carry Monte-Carlo success rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import xxhash

from mprm.annotation.adaptive import AdaptiveRule
from mprm.annotation.given_questions import given_questions, input_entries
from mprm.annotation.journal import Journal, Key
from mprm.annotation.monte_carlo import FixedBudget, Procedure, Tally, refuse_numbers
from mprm.annotation.outputs import commonest, refuse_output, write_failed
from mprm.annotation.samplers.sampler import Decoding, Sampler, identity_of
from mprm.annotation.split_steps import split_steps
from mprm.annotation.task import Shard, Task, question_tasks, rollout_tasks
from mprm.annotation.work import NotedWatch, Work, unwatched
from mprm.errors import ConfigError, DataError, MprmError
from mprm.rollouts.atomic_write import atomic_write, refuse_existing
from mprm.rollouts.dropped import Dropped, DroppedRecords, dropped_path
from mprm.rollouts.manifest import hash_file, write_manifest
from mprm.rollouts.refuse_inputs import refuse_inputs

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
    decoding: Decoding = field(default_factory=Decoding)
    seed: int = 0
    adaptive: AdaptiveRule | None = None
    """Stop a prefix when its label is decided, before all N continuations."""
    audit: float = 0.05
    """Share of the prefixes that are drawn in full all the same, to measure what adaptive stopping changes."""
    shard: Shard = field(default_factory=Shard)
    timeout_s: float = 5.0
    """Longest time that the comparison of two answers may take."""

    def __post_init__(self) -> None:
        refuse_numbers(rollouts=self.rollouts, continuations=self.continuations)
        split_steps("", self.max_steps)
        if self.decoding.temperature == 0 and self.continuations > 1:
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
            decoding=self.decoding,
            seed=self.seed,
            budget=self.adaptive or FixedBudget(self.continuations),
            is_fresh=is_fresh,
            audit=self.audit if self.adaptive else 0.0,
        )

    def identity(self) -> dict[str, Any]:
        """What the records depend on."""
        fields = asdict(self)
        del fields["timeout_s"]
        return {**fields.pop("decoding"), **fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateSummary:
    """What became of the questions: questions = done + failed."""

    out: str
    n_questions: int
    n_done: int
    n_failed: int
    n_continued: int
    """Of those done, the ones that an earlier run had done."""
    tally: Tally
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
    watch: NotedWatch = unwatched,
) -> AnnotateSummary:
    """Write rollouts with a Monte-Carlo score for each step to ``out``, in v1.1-Raw form.

    Each answer of the policy is saved in ``OUT.partial`` as soon as it is judged; the same call continues
    there after whatever stopped it. A question of which an answer could not be had fails: it is listed with
    its reasons in ``OUT.failed``, and tried again by the next call.

    Parameters
    ----------
    questions
        Whatever `mprm.annotation.questions.read.read_questions` takes, or a list of `Question`; None with
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
    refuse_output(out, given, force=force)
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
    refuse_inputs({path for task in tasks for path in task.images} if Path(out).exists() else (), [out])
    run = {**identity_of(sampler), **config.identity(), "tasks": _digest(tasks)}
    with Journal(out, run=run, force=force, sync_s=SYNC_S) as journal:
        refuse_existing(out, force=force)  # again: nobody else can finish it from now on
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
        refuse_existing(out, force=force)
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
) -> tuple[Tally, str]:
    """Write the records in the tasks' order; returns the sums, and the manifest."""
    sources: dict[str, dict[str, int]] = {}
    total = Tally()
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

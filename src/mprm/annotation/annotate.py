"""``mprm annotate``: rollouts whose steps carry Monte-Carlo success rates; and what that would cost."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import msgspec

from mprm.annotation.adaptive import AdaptiveRule
from mprm.annotation.journal import Journal, Key
from mprm.annotation.monte_carlo import STATS, AnnotationTask
from mprm.annotation.run import RunConfig, RunSummary, Scheduler, check_output, run_resumable
from mprm.annotation.samplers.sampler import Sampler
from mprm.answers.options import LETTERS
from mprm.config import Option, SkipBad, takes
from mprm.data.candidate_formats import JOINT, LAYOUTS, read_candidates, split_steps
from mprm.data.corpus import PlacedRollout, is_blank, open_corpus
from mprm.data.output import Dropped, DroppedRecords, check_not_inputs, dropped_path
from mprm.data.questions import given_questions, input_entries
from mprm.data.records import chunks_of, corpus_files, lines_of
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError, MprmError
from mprm.progress import Progress, silent


@dataclass(frozen=True, kw_only=True)
class AnnotateConfig(AdaptiveRule, RunConfig):
    """How steps are annotated; the defaults are those of VisualPRM400K-v1.1."""

    rollouts_from: Annotated[
        tuple[str, ...],
        Option("Annotate these rollouts or candidates; counts that they carry are added to.", "FILE", group="input"),
    ] = ()
    skip_bad: SkipBad = False
    shard: Annotated[str, Option("Do one of several equal parts, such as 3/64.", "I/N", group="input")] = "1/1"
    rollouts: Annotated[int, Option("Rollouts of each question.", "N", group="annotation", at_least=1)] = 4
    max_steps: Annotated[
        int | None, Option("Most steps a rollout is split into.", "N", group="annotation", at_least=1)
    ] = 12
    early_stop: Annotated[
        bool,
        Option("Leave out the steps after a first one that never succeeded; they are negative.", group="annotation"),
    ] = False
    fresh: Annotated[
        bool, Option("Sample all continuations anew, whatever counts the rollouts carry.", group="annotation")
    ] = False
    check_timeout_s: Annotated[
        float, Option("Time limit of the comparison of two answers.", "SECONDS", group="annotation", above=0)
    ] = 5.0
    adaptive: Annotated[
        bool, Option("Stop a prefix once its label and its reliability are decided.", group="adaptive")
    ] = False
    audit: Annotated[
        float,
        Option(
            "Share of the prefixes sampled in full all the same.", "SHARE", group="adaptive", at_least=0, at_most=1
        ),
    ] = 0.05

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.temperature == 0 and self.continuations > 1:
            raise ConfigError(
                f"at temperature 0 all {self.continuations} continuations would be the same; raise the temperature"
            )
        shard = re.fullmatch(r"(\d{1,6})/(\d{1,6})", self.shard)
        if shard is None or not 1 <= int(shard[1]) <= int(shard[2]):
            raise ConfigError(f"shard {self.shard!r}: expected I/N with I from 1 to N, such as 3/64")


@takes(AnnotateConfig)
def annotate(
    questions: Any,
    sampler: Sampler,
    out: str | Path,
    config: AnnotateConfig | None = None,
    *,
    progress: Progress = silent,
    **options: Any,
) -> RunSummary:
    """Write rollouts with a Monte-Carlo score for each step to ``out``, in v1.1-Raw form.

    Each answer of the policy is saved in ``OUT.partial`` as soon as it is graded; the same call continues
    there after whatever stopped it. A question of which an answer could not be had fails: it is listed with
    its reasons in ``OUT.failed``, and tried again by the next call. docs/annotation.md explains the
    summary's stats.

    Parameters
    ----------
    questions
        Files, globs or folders, or a list of `Question`; None with ``rollouts_from``.
    config, options
        See `AnnotateConfig`: ``mprm.annotate("questions.jsonl", sampler, "raw.jsonl", rollouts=4)``.
    """
    config, out = AnnotateConfig.of(config, options), str(out)
    check_output(out, config.rollouts_from or questions, force=config.force)
    renamed: dict[str, str] = {}
    dropped = DroppedRecords()
    tasks, inputs = _tasks(questions, config, renamed, dropped)
    check_not_inputs({path for task in tasks for path in task.images} if Path(out).exists() else (), [out])
    dropped_to = dropped_path(out) if len(dropped) else None
    if dropped_to is not None:
        dropped.write(dropped_to)
    summary = run_resumable(
        "annotate",
        out,
        tasks,
        sampler,
        config,
        inputs=inputs,
        renamed_images=renamed,
        progress=progress,
        check_timeout_s=config.check_timeout_s,
    )
    stats = {**dict.fromkeys(STATS, 0), **summary.stats}
    return replace(summary, stats=stats, n_dropped=len(dropped), dropped_to=dropped_to)


def _tasks(
    questions: Any, config: AnnotateConfig, renamed: dict[str, str], dropped: DroppedRecords
) -> tuple[list[AnnotationTask], list[dict[str, Any]]]:
    """The shard's tasks, and the manifest's entries of the files they come from."""
    if (questions is None) == (not config.rollouts_from):
        raise ConfigError("annotate either questions or the rollouts of rollouts_from")
    index, count = map(int, config.shard.split("/"))
    # every N-th, so that each shard has its share of every source
    shard = slice(index - 1, None, count)
    if not config.rollouts_from:
        entries, inputs = given_questions(questions, config.format, config.image_root, renamed)
        return [AnnotationTask.of(question, config) for question in entries[shard]], inputs
    tasks = _rollout_tasks(config, on_bad=dropped if config.skip_bad else None)
    if not tasks:
        raise DataError(f"{', '.join(config.rollouts_from)}: no rollouts; expected at least one")
    return tasks[shard], input_entries(config.rollouts_from)


def _rollout_tasks(config: AnnotateConfig, on_bad: Callable[[Dropped], None] | None) -> list[AnnotationTask]:
    """The rollouts of ``rollouts_from``, by question: of any corpus, or candidates as ``mprm sample`` writes them.

    Steps of a corpus stay as they are; candidates are split into steps. ``on_bad`` is called with records that
    cannot be used; the first stops the run when it is None.
    """
    if _are_candidates(config.rollouts_from):
        return list(_candidate_tasks(config))
    tasks: dict[Key, AnnotationTask] = {}
    corpus = open_corpus(config.rollouts_from, format=config.format, text_only=True)
    for row, placed in enumerate(corpus.placed(on_bad=on_bad)):
        extra = _extra_fields(placed.raw)
        task = _corpus_task(placed, extra, row, config)
        first = tasks.get(task.key, task)
        if (first.question, first.prompt) != (task.question, task.prompt):  # an id that stands for several questions
            task.question = replace(task.question, id=f"#{row}")
            first = task
        tasks[first.key] = first
        _add_rollout(first, placed, extra)
    return list(tasks.values())


class _ExtraStep(msgspec.Struct):
    num_mc_cut: int = 0
    num_mc_failed: int = 0


class _Extra(msgspec.Struct):
    """What `mprm annotate` writes beyond the format."""

    id: str | None = None
    rollout: int | None = None
    finish_reason: str | None = None
    options: tuple[str, ...] = ()
    steps_with_score: tuple[_ExtraStep, ...] = ()


def _extra_fields(raw: bytes) -> _Extra:
    try:
        return msgspec.json.decode(raw, type=_Extra)
    except (ValueError, RecursionError, msgspec.MsgspecError):  # another format, or other fields of these names
        return _Extra()


def _corpus_task(placed: PlacedRollout, extra: _Extra, row: int, config: AnnotateConfig) -> AnnotationTask:
    """The question of a rollout, without the rollout."""
    rollout = placed.rollout
    if rollout.answer is None or not rollout.answer.strip():
        raise DataError(
            f'{placed.file}:{placed.line}: the rollout has no gold answer; expected one as text in "answer",'
            " to tell which continuations are right. Take it out, or annotate from questions"
        )
    question = Question(
        id=f"#{row}" if extra.id is None else extra.id,
        question=rollout.question,
        answer=rollout.answer,
        images=rollout.images,
        source=placed.source,
        options=extra.options,
    )
    task = AnnotationTask.of(question, config, rollout.prompt)
    letter = question.answer.strip()
    if not question.options and letter in tuple(LETTERS):
        # a gold answer of one capital letter is an option's, though the corpus does not give the options
        task.gold = replace(question, options=tuple(LETTERS[: max(4, LETTERS.index(letter) + 1)]))
    return task


def _add_rollout(task: AnnotationTask, placed: PlacedRollout, extra: _Extra) -> None:
    """Add the rollout, with the counts that it carries unless they are to be sampled anew."""
    rollouts = task.rollouts or {}
    number = extra.rollout or 0
    number = number if number not in rollouts else max(rollouts) + 1
    given_steps = placed.rollout.steps
    counts = task.add_rollout(number, [step.text for step in given_steps], extra.finish_reason)
    for index, (given, step) in enumerate(zip(given_steps, counts, strict=True)):
        if task.config.fresh or not given.n_total or given.n_correct is None:
            continue
        more = extra.steps_with_score[index] if index < len(extra.steps_with_score) else _ExtraStep()
        step.n_correct, step.n_truncated, step.n_failed = given.n_correct, more.num_mc_cut, more.num_mc_failed
        step.n_incorrect = given.n_total - given.n_correct - more.num_mc_cut
        step.n_sampled = given.n_total


def _candidate_tasks(config: AnnotateConfig) -> Iterator[AnnotationTask]:
    for entry in read_candidates(config.rollouts_from):
        if not entry.question.answer:
            raise DataError(
                f'{entry.place}: the question has no gold answer; expected one in "answer",'
                " to tell which continuations are right"
            )
        task = AnnotationTask.of(entry.question, config)
        for number, candidate in enumerate(entry.candidates):
            steps = split_steps(JOINT.join(candidate.steps), config.max_steps)
            task.add_rollout(number, steps, candidate.finish_reason)
        yield task


def _are_candidates(paths: Any) -> bool:
    """Whether the first record of the files has several answers to a question."""
    lines = (line for file in corpus_files(paths) for chunk in chunks_of(file) for line in lines_of(chunk))
    first = next((line for line in lines if not is_blank(line)), b"")
    try:
        record = msgspec.json.decode(first, type=dict[str, Any])
    except (ValueError, msgspec.MsgspecError):
        return False
    return any(layout.telltale in record for layout in LAYOUTS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """The cost of a run, at the rate of the questions that were tried."""

    n_questions: int
    n_tried: int
    seconds: float
    """At the speed of the trial, which fills a large batch or a busy server less well than the run would."""
    stats: dict[str, float]


@takes(AnnotateConfig)
def estimate_cost(
    questions: Any,
    sampler: Sampler,
    config: AnnotateConfig | None = None,
    *,
    n_tried: int = 8,
    progress: Progress = silent,
    **options: Any,
) -> CostEstimate:
    """Annotate some questions from all over the input, keep nothing, and scale up what it took."""
    config = AnnotateConfig.of(config, options)
    if n_tried < 1:
        raise ConfigError(f"n_tried must be at least 1, got {n_tried}")
    tasks, _ = _tasks(questions, config, {}, DroppedRecords())
    n_tried = min(n_tried, len(tasks))
    trial = [tasks[number * len(tasks) // n_tried] for number in range(n_tried)]
    started, stats = monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, Journal(f"{folder}/trial.jsonl", run={}) as journal:
        with progress("trying", n_tried) as advance:
            failures = Scheduler(journal, sampler, advance).run(trial, config.check_timeout_s)
        if failures:
            first = next(iter(failures.values()))[0]
            raise MprmError(f"{len(failures)} of {n_tried} questions failed in the trial, the first with: {first}")
        for task in trial:
            stats.update((journal.get(task.key) or {})["stats"])
    scale = len(tasks) / max(1, n_tried)
    return CostEstimate(
        n_questions=len(tasks),
        n_tried=n_tried,
        seconds=scale * (monotonic() - started),
        stats={name: scale * stats[name] for name in STATS},
    )

"""``mprm annotate``: rollouts whose steps carry Monte-Carlo success rates; and what that would cost."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mprm.annotation.adaptive import AdaptiveRule
from mprm.annotation.run import RunConfig, RunSummary, check_output
from mprm.config import Option, SkipBad, takes
from mprm.errors import ConfigError, MprmError
from mprm.progress import Progress, silent

if TYPE_CHECKING:
    from mprm.annotation.samplers.sampler import Sampler


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
    # here and not above: these would slow the command line's help
    from mprm.annotation.monte_carlo import STATS, AnnotationTask, annotation_tasks
    from mprm.annotation.scheduler import run_resumable
    from mprm.data.output import DroppedRecords, check_not_inputs, dropped_path

    config, out = AnnotateConfig.of(config, options), str(out)
    check_output(out, config.rollouts_from or questions, force=config.force)
    renamed: dict[str, str] = {}
    dropped = DroppedRecords()
    tasks, inputs = annotation_tasks(questions, config, renamed, dropped)
    check_not_inputs({path for task in tasks for path in task.images} if Path(out).exists() else (), [out])
    dropped_to = dropped_path(out) if len(dropped) else None
    if dropped_to is not None:
        dropped.write(dropped_to)
    summary = run_resumable(
        "annotate",
        out,
        tasks,
        AnnotationTask.work,
        sampler,
        config,
        inputs=inputs,
        renamed_images=renamed,
        progress=progress,
        check_timeout_s=config.check_timeout_s,
    )
    stats = {**dict.fromkeys(STATS, 0), **summary.stats}
    return replace(summary, stats=stats, n_dropped=len(dropped), dropped_to=dropped_to)


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
    import tempfile
    from collections import Counter
    from time import monotonic

    from mprm.annotation.journal import Journal
    from mprm.annotation.monte_carlo import STATS, AnnotationTask, annotation_tasks
    from mprm.annotation.scheduler import Scheduler
    from mprm.data.output import DroppedRecords

    config = AnnotateConfig.of(config, options)
    if n_tried < 1:
        raise ConfigError(f"n_tried must be at least 1, got {n_tried}")
    tasks, _ = annotation_tasks(questions, config, {}, DroppedRecords())
    n_tried = min(n_tried, len(tasks))
    trial = [tasks[number * len(tasks) // n_tried] for number in range(n_tried)]
    started, stats = monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, Journal(f"{folder}/trial.jsonl", run={}) as journal:
        with progress("trying", n_tried) as advance:
            failures = Scheduler(journal, sampler, advance).run(trial, AnnotationTask.work, config.check_timeout_s)
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

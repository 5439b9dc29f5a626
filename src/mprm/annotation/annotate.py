"""``mprm annotate``, rollouts whose steps carry Monte-Carlo success rates, and ``mprm sample``, candidates."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mprm.annotation.samplers.sampler import Sampler, SamplingParams
from mprm.config import (
    Config,
    Force,
    HubFiles,
    ImageRoot,
    InputFormat,
    Seed,
    SkipBad,
    adapt,
    annotation,
    inputs,
    output,
    takes,
)
from mprm.errors import ConfigError, MprmError
from mprm.progress import Progress, silent

if TYPE_CHECKING:
    from mprm.annotation.journal import Task, Work

Decision = Literal["positive-reliable", "positive-unreliable", "negative", "undecided"]


@dataclass(frozen=True, kw_only=True)
class RunConfig(SamplingParams):
    """Options that `mprm.annotate` and `mprm.sample` share."""

    files: HubFiles = ()
    format: InputFormat = None
    image_root: ImageRoot = None
    seed: Seed = 0
    allow_failures: Annotated[
        bool, output("Write the output without the questions that failed, instead of stopping.")
    ] = False
    force: Force = False

    @cached_property
    def sampling(self) -> SamplingParams:
        return self.narrowed(SamplingParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What became of the questions: questions = done + failed."""

    out: str
    n_questions: int
    n_done: int
    n_failed: int
    n_resumed: int  # of those done, the ones that an earlier run had done
    stats: dict[str, Any]  # sums over the questions that are done
    failed_to: str | None
    manifest: str
    seconds: float
    n_extracted: int  # gold answers that were read out of longer ones, such as a rationale that ends in ``#### 18``
    renamed_images: dict[str, str] = field(default_factory=dict)
    """Images that lie under the image root by another name than the question's: that name, by the question's."""
    n_dropped: int = 0
    dropped_to: str | None = None


def check_output(out: str, inputs: Any, *, force: bool) -> None:
    """Stop when nothing can be written to ``out``."""
    # here and not above: these would slow the command line's help
    from mprm.annotation.journal import FAILED_SUFFIX
    from mprm.data.output import MANIFEST_SUFFIX, PARTIAL, check_not_inputs, check_overwrite
    from mprm.data.questions import is_in_memory
    from mprm.data.records import find_files, is_url

    if is_url(out) or out.endswith((".gz", ".zst", ".parquet", "/")):
        raise ConfigError(f"{out}: answers are written as plain JSON lines; name a local file such as raw.jsonl")
    if len(Path(out).name.encode()) > 220:  # file systems take 255
        raise ConfigError(f"{out}: the name is too long for the files beside it; take a shorter one")
    beside = [out + suffix for suffix in (PARTIAL, FAILED_SUFFIX, MANIFEST_SUFFIX)]
    for path in beside:
        if Path(path).expanduser().is_dir():
            raise ConfigError(f"{path} is a folder, and would be a file beside the output; choose another output")
    if inputs is not None and not is_in_memory(inputs):
        check_not_inputs([file.path for file in find_files(inputs)], [out, *beside])
    check_overwrite(out, force=force)


@dataclass(frozen=True, kw_only=True)
class AdaptiveRule(Config):
    """When a step has enough continuations: they are sampled in rounds, until its label and reliability are decided.

    The model is the paper's: a step's success rate is ``r ~ Beta(a, b)``, of n continuations ``k ~ Binomial(n, r)``
    succeed, and so ``r | k ~ Beta(a + k, b + n - k)``, whatever rule stopped the sampling. The default prior is
    uniform; `mprm.theory.beta_binomial.fit_beta` takes another from counts that were sampled before.
    """

    continuations: Annotated[int, annotation("N, continuations of each prefix.", at_least=1)] = 16
    delta: Annotated[float, adapt("Risk of a wrong decision.", above=0, below=0.5)] = 0.05
    reliable: Annotated[float, adapt("Success rate from which a step is reliable.", above=0, below=1)] = 0.5
    prior: Annotated[tuple[float, ...], adapt("a, b of the Beta prior.", above=0)] = (1.0, 1.0)
    round: Annotated[int, adapt("Continuations sampled between two decisions.", at_least=1)] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.prior) != 2:
            raise ConfigError(f"prior takes two numbers, a and b, got {len(self.prior)}")

    def decision(self, k: int, n: int) -> Decision:
        """What is known of a step with k successes of n.

        - ``negative``: ``k = 0``, and ``all_fail(n, N) >= 1 - delta``
        - ``positive-reliable``: ``k > 0``, and ``eta_eff(k, n) <= delta``
        - ``positive-unreliable``: ``k > 0``, and ``eta_eff(k, n) >= 1 - delta``
        - ``undecided``: none of them. After N continuations such a step is positive all the same.
        """
        from mprm.theory.beta_binomial import all_fail, eta_eff  # numpy is not for the command line's help

        a, b = self.prior
        if n == 0:
            return "undecided"  # a prior alone labels nothing
        if k == 0:
            is_negative = n >= self.continuations or all_fail(n, self.continuations, a=a, b=b) >= 1 - self.delta
            return "negative" if is_negative else "undecided"
        noise = eta_eff(k, n, tau=self.reliable, a=a, b=b)
        if noise <= self.delta:
            return "positive-reliable"
        return "positive-unreliable" if noise >= 1 - self.delta else "undecided"

    def n_next(self, k: int, n: int) -> int:
        """How many more continuations to sample now; 0 when the step is decided or has all of them."""
        if n >= self.continuations or self.decision(k, n) != "undecided":
            return 0
        return min(self.round, self.continuations - n)


@dataclass(frozen=True, kw_only=True)
class AnnotateConfig(AdaptiveRule, RunConfig):
    """How steps are annotated; the defaults are those of VisualPRM400K-v1.1."""

    rollouts_from: Annotated[
        tuple[str, ...], inputs("Annotate these rollouts or candidates; their counts are added to.", "FILE")
    ] = ()
    skip_bad: SkipBad = False
    shard: Annotated[str, inputs("Do one of several equal parts, such as 3/64.", "I/N")] = "1/1"
    rollouts: Annotated[int, annotation("Rollouts of each question.", at_least=1)] = 4
    max_steps: Annotated[int | None, annotation("Most steps of a rollout.", at_least=1)] = 12
    early_stop: Annotated[bool, annotation("Leave out steps after one that never succeeded; they are negative.")] = (
        False
    )
    fresh: Annotated[bool, annotation("Sample all anew, whatever counts the rollouts carry.")] = False
    check_timeout_s: Annotated[float, annotation("Time limit of a comparison.", "SECONDS", above=0)] = 5.0
    adaptive: Annotated[bool, adapt("Stop once label and reliability are decided.")] = False
    audit: Annotated[
        float, adapt("Share of prefixes sampled in full all the same.", "SHARE", at_least=0, at_most=1)
    ] = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0 and self.continuations > 1:
            raise ConfigError(f"at temperature 0 all {self.continuations} continuations would be the same; raise it")
        shard = re.fullmatch(r"(\d{1,6})/(\d{1,6})", self.shard)
        if shard is None or not 1 <= int(shard[1]) <= int(shard[2]):
            raise ConfigError(f"shard {self.shard!r}: expected I/N with I from 1 to N, such as 3/64")


def _with_files(questions: Any, config: AnnotateConfig) -> tuple[Any, AnnotateConfig]:
    """Questions and rollouts with the option ``files`` in them."""
    from mprm.data.hub import dataset_files

    if config.rollouts_from:
        return questions, replace(config, rollouts_from=dataset_files(config.rollouts_from, config.files), files=())
    return dataset_files(questions, config.files), config


@takes(AnnotateConfig)
def annotate(
    questions: Any,
    sampler: Sampler | Callable[[], Sampler],
    out: str | Path,
    config: AnnotateConfig | None = None,
    *,
    progress: Progress = silent,
    **options: Any,
) -> RunSummary:
    """Write rollouts with a Monte-Carlo score for each step to ``out``, in v1.1-Raw form.

    ``questions`` are files, globs or folders, or a list of `Question`; None with ``rollouts_from``. ``sampler`` may
    be a function that loads one, called when the questions are read. Each answer of the policy is saved in
    ``OUT.partial`` as soon as it is graded; the same call continues there after whatever stopped it. A question of
    which an answer could not be had fails: it is listed with its reasons in ``OUT.failed``, and tried again by the
    next call. docs/annotation.md explains the summary's stats.
    """
    # here and not above: these would slow the command line's help
    from mprm.annotation.checker import AnswerChecker
    from mprm.annotation.journal import run_resumable
    from mprm.annotation.monte_carlo import STATS, AnnotationTask, annotation_tasks
    from mprm.data.output import DroppedRecords, check_not_inputs, dropped_path

    config, out = AnnotateConfig.of(config, options), str(out)
    questions, config = _with_files(questions, config)
    check_output(out, config.rollouts_from or questions, force=config.force)
    renamed, dropped = dict[str, str](), DroppedRecords()
    tasks, inputs = annotation_tasks(questions, config, renamed, dropped)
    check_not_inputs({path for task in tasks for path in task.images} if Path(out).exists() else (), [out])
    dropped_to = dropped_path(out) if len(dropped) else None
    if dropped_to is not None:
        dropped.write(dropped_to)
    work = AnnotationTask.work
    with AnswerChecker(config.check_timeout_s) as checker:
        summary = run_resumable(
            "annotate", out, tasks, work, sampler, config, inputs=inputs, progress=progress, checker=checker
        )
    stats = {**dict.fromkeys(STATS, 0), **summary.stats}
    return replace(summary, stats=stats, renamed_images=renamed, n_dropped=len(dropped), dropped_to=dropped_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """The cost of a run, at the rate of the questions that were tried."""

    n_questions: int
    n_tried: int
    seconds: float  # at the speed of the trial, which fills a batch or a busy server less well than the run would
    stats: dict[str, float]


@takes(AnnotateConfig)
def estimate_cost(
    questions: Any,
    sampler: Sampler | Callable[[], Sampler],
    config: AnnotateConfig | None = None,
    *,
    n_tried: int = 8,
    trial_s: float = 20.0,
    progress: Progress = silent,
    **options: Any,
) -> CostEstimate:
    """Annotate some questions from all over the input, keep nothing, and scale up what it took.

    The first is tried alone; of the others as many, up to ``n_tried`` in all, as fit into ``trial_s`` at its speed.
    """
    import tempfile
    from collections import Counter
    from time import monotonic

    from mprm.annotation.checker import AnswerChecker
    from mprm.annotation.journal import Journal, Scheduler
    from mprm.annotation.monte_carlo import STATS, AnnotationTask, annotation_tasks
    from mprm.data.output import DroppedRecords

    questions, config = _with_files(questions, AnnotateConfig.of(config, options))
    if n_tried < 1:
        raise ConfigError(f"n_tried must be at least 1, got {n_tried}")
    tasks, _ = annotation_tasks(questions, config, {}, DroppedRecords())
    n_tried = min(n_tried, len(tasks))
    trial = [tasks[number * len(tasks) // n_tried] for number in range(n_tried)]
    sampler = sampler() if callable(sampler) else sampler
    stats = Counter[str]()
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal(f"{folder}/trial.jsonl", run={}) as journal,
        AnswerChecker(config.check_timeout_s) as checker,
        progress("trying", n_tried) as advance,
    ):
        started, scheduler = monotonic(), Scheduler(journal, sampler, checker, advance)
        failures = scheduler.run(trial[:1], AnnotationTask.work)
        seconds = monotonic() - started
        trial = trial[: max(1, int(trial_s / max(seconds, 1e-3)))]
        if len(trial) > 1 and not failures:
            started = monotonic()
            failures = scheduler.run(trial[1:], AnnotationTask.work)
            seconds = (monotonic() - started) / (len(trial) - 1)  # the first one's time has the start in it
        if failures:
            first = next(iter(failures.values()))[0]
            raise MprmError(f"{len(failures)} of {len(trial)} questions failed in the trial, the first with: {first}")
        for task in trial:
            stats.update(journal.get(task.key)["stats"])
    scaled = {name: len(tasks) / max(1, len(trial)) * stats[name] for name in STATS}
    return CostEstimate(n_questions=len(tasks), n_tried=len(trial), seconds=len(tasks) * seconds, stats=scaled)


@dataclass(frozen=True, kw_only=True)
class SampleConfig(RunConfig):
    """What is sampled; the defaults are the paper's for best-of-N."""

    n: Annotated[int, annotation("Candidates of each question.", at_least=1)] = 16
    max_steps: Annotated[int | None, annotation("Most steps of a candidate.", at_least=1)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0 and self.n > 1:
            raise ConfigError(f"at temperature 0 all {self.n} candidates would be the same; ask for n = 1")


@takes(SampleConfig)
def sample(
    questions: Any,
    sampler: Sampler | Callable[[], Sampler],
    out: str | Path,
    config: SampleConfig | None = None,
    *,
    progress: Progress = silent,
    **options: Any,
) -> RunSummary:
    """Write each question with its candidates to ``out``, in the questions' order.

    Arguments, ``OUT.partial`` and ``OUT.failed`` are as in `annotate`. The summary's stats are ``n_candidates`` and
    ``n_truncated``, those of them that the token limit cut off.
    """
    # here and not above: these would slow the command line's help
    from mprm.annotation.journal import Task, run_resumable
    from mprm.data.hub import dataset_files
    from mprm.data.questions import given_questions

    config, out = SampleConfig.of(config, options), str(out)
    questions = dataset_files(questions, config.files)
    check_output(out, questions, force=config.force)
    renamed: dict[str, str] = {}
    entries, inputs = given_questions(questions, config.format, config.image_root, renamed)
    tasks, work = [Task.of(question, config) for question in entries], partial(_candidates, config=config)
    summary = run_resumable("sample", out, tasks, work, sampler, config, inputs=inputs, progress=progress)
    return replace(summary, renamed_images=renamed)


def _candidates(task: Task, config: SampleConfig) -> Work:
    from mprm.data.types import split_steps

    outcomes = yield {"candidates": task.request(config.n, *task.key)}
    candidates = [
        {"text": c["text"], "steps": split_steps(c["text"], config.max_steps), "finish_reason": c["finish_reason"]}
        for c in outcomes["candidates"]["completions"]
    ]
    n_truncated = sum(candidate["finish_reason"] == "length" for candidate in candidates)
    stats = {"n_candidates": len(candidates), "n_truncated": n_truncated}
    return {"records": [task.record(candidates)], "stats": stats}

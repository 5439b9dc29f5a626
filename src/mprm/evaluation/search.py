"""``mprm search``: solutions that a process reward model guides while a policy writes them, step by step.

Candidates come out as `mprm.sample` writes them, with their step scores, so that `mprm.rerank` compares all methods.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from mprm.annotation.annotate import RunConfig, RunSummary, check_output
from mprm.annotation.journal import Chains, Outcome, QuestionFailedError, Task, Work, run_resumable
from mprm.annotation.samplers.sampler import Request, Sampler
from mprm.config import annotation, evaluation, takes
from mprm.data.hub import dataset_files
from mprm.data.questions import given_questions
from mprm.data.types import STEP_SEPARATOR, Chain, StepScorer, split_steps
from mprm.errors import ConfigError, shown
from mprm.evaluation.best_of_n import AggregateName, aggregate
from mprm.progress import Progress, silent


@dataclass(frozen=True, kw_only=True)
class SearchConfig(RunConfig):
    """Search for solutions step by step, guided by a process reward model."""

    method: Annotated[
        Literal["beam", "dvts", "best-of-n"],
        evaluation("Beam search, diverse verifier tree search, or whole answers without guidance."),
    ] = "beam"
    n: Annotated[int, annotation("Candidates of each question, and steps sampled at each level.", at_least=1)] = 16
    beam_width: Annotated[
        int, evaluation("Continuations of each kept step; n / WIDTH steps are kept.", "WIDTH", at_least=2)
    ] = 4
    max_steps: Annotated[int, annotation("Most steps of a candidate; longer ones are cut off.", at_least=1)] = 40
    aggregate: Annotated[AggregateName, evaluation("Aggregate of step scores that steps are kept by.")] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0 and self.n > 1:
            raise ConfigError(f"at temperature 0 all {self.n} candidates would be the same; raise it")
        if self.method == "dvts" and self.n % self.beam_width:
            raise ConfigError(f"dvts splits n into trees of beam_width: {self.n} is no multiple of {self.beam_width}")

    @property
    def tree_sizes(self) -> list[int]:
        """Candidates of each tree: one of n in beam search; in DVTS so many that each keeps its best step alone."""
        return [self.n] if self.method == "beam" else [self.beam_width] * (self.n // self.beam_width)


@takes(SearchConfig)
def search(
    questions: Any,
    sampler: Sampler | Callable[[], Sampler],
    model: StepScorer | Callable[[], StepScorer],
    out: str | Path,
    config: SearchConfig | None = None,
    *,
    progress: Progress = silent,
    **options: Any,
) -> RunSummary:
    """Write each question with the ``n`` candidates of a guided search to ``out``, in the questions' order.

    ``model`` is a `StepScorer`, such as `mprm.PRM` or `mprm.RemotePRM`, or a function that loads one. The other
    arguments, ``OUT.partial`` and ``OUT.failed`` are as in `mprm.annotate`; scores are kept there too.

    - ``beam``: n first steps are sampled; the best ``n / beam_width`` are each continued ``beam_width`` times, and so
      on. A candidate that has ended leaves the search with its place, so that n come out.
    - ``dvts``: ``n / beam_width`` searches side by side, each of which keeps its best step alone.
    - ``best-of-n``: n whole answers, the same as those of `mprm.sample`, with their scores.

    The summary's stats: ``n_candidates``; ``n_truncated`` of them by the limit of tokens or steps; ``n_tokens`` that
    were sampled, dropped steps included; ``n_scored`` steps; ``n_unscored`` that the model truncated. A question none
    of whose steps gets a score fails.
    """
    config, out = SearchConfig.of(config, options), str(out)
    questions = dataset_files(questions, config.files)
    check_output(out, questions, force=config.force)
    renamed: dict[str, str] = {}
    entries, inputs = given_questions(questions, config.format, config.image_root, renamed)
    tasks = [Task.of(question, config) for question in entries]
    # the reward model first: a policy takes a share of the memory that is left
    scorer = model if hasattr(model, "score_many") else model()
    if not callable(getattr(scorer, "score_many", None)):
        raise ConfigError(f"the model is {shown(scorer)}; expected mprm.PRM or mprm.RemotePRM")
    work = partial(_search, config=config)
    summary = run_resumable(
        "search", out, tasks, work, sampler, config, inputs=inputs, progress=progress, scorer=scorer
    )
    return replace(summary, renamed_images=renamed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """A solution as far as it is written."""

    text: str = ""
    scores: tuple[float | None, ...] = ()
    n_tokens: int = 0
    finish_reason: str | None = None
    """None while it can be continued."""

    @property
    def steps(self) -> tuple[str, ...]:
        return split_steps(self.text)

    def value(self, how: str) -> float:
        """What it is ranked by; one without any score comes last."""
        value = aggregate(self.scores, how)
        return -1.0 if math.isnan(value) else value

    def continued(self, completion: Mapping[str, Any], *, max_tokens: int, is_last: bool) -> Beam:
        """The beam with one more step, or with all that is left."""
        n_tokens, reason = self.n_tokens + completion["n_tokens"], completion["finish_reason"]
        text = self.text + completion["text"]
        if reason == "stop_string":
            text += STEP_SEPARATOR
            reason = "length" if is_last or n_tokens >= max_tokens else None
        return replace(self, text=text, n_tokens=n_tokens, finish_reason=reason)


def _search(task: Task, config: SearchConfig) -> Work:
    stats = Counter(n_candidates=config.n, n_truncated=0, n_tokens=0, n_scored=0, n_unscored=0)
    if config.method == "best-of-n":
        outcomes = yield {"candidates": task.request(config.n, *task.key)}
        stats["n_tokens"] = outcomes["candidates"]["n_tokens"]
        answers = outcomes["candidates"]["completions"]
        beams = [Beam().continued(answer, max_tokens=0, is_last=True) for answer in answers]
        candidates = yield from _scored("scores", beams, task, stats)
    else:
        candidates = yield from _grown(task, config, stats)
    if stats["n_unscored"] and not stats["n_scored"]:
        raise QuestionFailedError("the reward model gives no step a score; is the question beyond its length?")
    stats["n_truncated"] = sum(beam.finish_reason == "length" for beam in candidates)
    written = [
        {"text": beam.text, "steps": beam.steps, "scores": beam.scores, "finish_reason": beam.finish_reason}
        for beam in candidates
    ]
    return {"records": [task.record(written)], "stats": stats}


_Beams = Generator[Mapping[str, Request | Chains], dict[str, Outcome], list[Beam]]


def _grown(task: Task, config: SearchConfig, stats: Counter[str]) -> _Beams:
    """The candidates of all trees, which grow a step at a time."""
    ended: list[list[Beam]] = [[] for _ in config.tree_sizes]
    kept = [[Beam()] for _ in config.tree_sizes]
    for number in range(config.max_steps):
        requests: dict[str, Request] = {}
        parents: dict[str, tuple[int, Beam]] = {}
        for tree, size in enumerate(config.tree_sizes):
            for index, (beam, n) in enumerate(_shares(kept[tree], size - len(ended[tree]))):
                part = f"{number}.{tree}.{index}"
                parents[part], requests[part] = (tree, beam), _next_step(task, beam, n, part)
        if not requests:
            break
        outcomes, trees, children = (yield requests), list[int](), list[Beam]()
        for part, (tree, beam) in parents.items():
            stats["n_tokens"] += outcomes[part]["n_tokens"]
            continued = partial(
                beam.continued, max_tokens=config.max_new_tokens, is_last=number + 1 == config.max_steps
            )
            grown = [continued(completion) for completion in outcomes[part]["completions"]]
            children += grown
            trees += [tree] * len(grown)
        children = yield from _scored(f"{number}.scores", children, task, stats)
        for tree in range(len(ended)):
            own = [child for child, of in zip(children, trees, strict=True) if of == tree]
            ended[tree] += [beam for beam in own if beam.finish_reason is not None]
            kept[tree] = best_beams([beam for beam in own if beam.finish_reason is None], config)
    return [beam for tree in ended for beam in tree]


def best_beams(beams: Sequence[Beam], config: SearchConfig) -> list[Beam]:
    """One in ``beam_width``, the best first; equal texts count once, of equal values the first goes first."""
    distinct: dict[str, Beam] = {}
    for beam in beams:
        distinct.setdefault(beam.text, beam)
    ranked = sorted(distinct.values(), key=lambda beam: -beam.value(config.aggregate))
    return ranked[: -(-len(beams) // config.beam_width)]


def _shares(beams: Sequence[Beam], n: int) -> list[tuple[Beam, int]]:
    """How often each beam is continued, ``n`` times in all; the first ones once more where n cannot be divided."""
    each, n_more = divmod(n, len(beams) or 1)
    return [(beam, each + (index < n_more)) for index, beam in enumerate(beams)]


def _next_step(task: Task, beam: Beam, n: int, part: str) -> Request:
    request = task.request(n, *task.key, part, prefix=beam.text)
    n_left = task.config.max_new_tokens - beam.n_tokens
    return replace(request, stop=STEP_SEPARATOR, sampling=replace(request.sampling, max_new_tokens=n_left))


def _scored(part: str, beams: list[Beam], task: Task, stats: Counter[str]) -> _Beams:
    """The beams with the scores of their steps, those of equal steps scored once."""
    question = task.question
    chains = {steps: Chain(question.question, steps, question.images) for beam in beams if (steps := beam.steps)}
    scores: dict[tuple[str, ...], tuple[float | None, ...]] = {(): ()}
    if chains:
        outcomes = yield {part: [*chains.values()]}
        for steps, row in zip(chains, outcomes[part]["scores"], strict=True):
            scores[steps] = tuple(None if score is None or math.isnan(score) else score for score in row)
    known = [score is not None for row in scores.values() for score in row]
    stats.update(n_scored=sum(known), n_unscored=len(known) - sum(known))
    return [replace(beam, scores=scores[beam.steps]) for beam in beams]

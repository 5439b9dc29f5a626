"""What annotating would cost, from a few questions done for a trial."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from mprm.annotation.annotate import AnnotateConfig, tasks_of
from mprm.annotation.journal import Journal
from mprm.annotation.monte_carlo import Tally
from mprm.annotation.samplers.sampler import Sampler
from mprm.annotation.work import NotedWatch, Work, unwatched
from mprm.errors import ConfigError, MprmError
from mprm.rollouts.dropped import DroppedRecords


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
    watch: NotedWatch = unwatched,
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
    began, tally = monotonic(), Tally()
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

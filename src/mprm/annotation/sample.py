"""``mprm sample``: several answers of a policy to each question."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mprm.annotation.run import RunConfig, RunSummary, check_output
from mprm.config import Option, takes
from mprm.errors import ConfigError
from mprm.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Callable

    from mprm.annotation.journal import Task, Work
    from mprm.annotation.samplers.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class SampleConfig(RunConfig):
    """What is sampled; the defaults are the paper's for best-of-N."""

    n: Annotated[int, Option("Candidates of each question.", "N", "annotation", at_least=1)] = 16
    max_steps: Annotated[
        int | None, Option("Most steps a candidate is split into.", "N", "annotation", at_least=1)
    ] = None

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

    ``questions`` are files, globs or folders, or a list of `Question`; ``sampler`` may be a function that loads one,
    called when the questions are read. Each is saved in ``OUT.partial`` as soon as it
    is done; the same call continues there after whatever stopped it. A question of which a candidate could not be had
    fails: it is listed with its reasons in ``OUT.failed``, and tried again by the next call. The summary's stats are
    ``n_candidates`` and ``n_truncated``, those of them that the token limit cut off.
    """
    # here and not above: these would slow the command line's help
    from mprm.annotation.journal import Task, run_resumable
    from mprm.data.questions import given_questions

    config, out = SampleConfig.of(config, options), str(out)
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
    names = ("id", "source", "question", "answer", "images", "options")
    record = {name: getattr(task.question, name) for name in names} | {"candidates": candidates}
    n_truncated = sum(candidate["finish_reason"] == "length" for candidate in candidates)
    return {"records": [record], "stats": {"n_candidates": len(candidates), "n_truncated": n_truncated}}

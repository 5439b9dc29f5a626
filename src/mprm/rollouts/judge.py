"""What must hold of every rollout, whatever file it came from."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath

from mprm.rollouts.problem import Report
from mprm.rollouts.rollout import Rollout

MODEL_TOKEN = re.compile(
    r"<prm>|</?img>|<IMG_CONTEXT>|<\|?(?:vision_start|vision_end|vision_pad|image_pad|video_pad|im_start|im_end)\|?>"
)
"""Tokens of the two backbones that must not come out of data."""
IMAGE_MARK = re.compile(r"<image(?:[ _]?\d+)?>")
"""The place of an image: at home in a question, not in a step."""
COUNT_TOLERANCE = 1e-6
"""Files that write scores with six digits or more are consistent; fewer digits are worth a look."""


def judge(
    rollout: Rollout,
    report: Report,
    *,
    needs_image: bool,
    image_root: Path | None = None,
    forbids: str | None = None,
) -> None:
    """Report everything that is wrong with the rollout, errors and warnings."""
    if not rollout.question.strip():
        report("empty_question", "the question is empty; expected text")
    if not rollout.steps:
        report("no_steps", "the rollout has no steps; expected at least one")
    for number, step in enumerate(rollout.steps):
        if not step.text.strip():
            report("empty_step", f"step {number} is {step.text!r}; expected text")
        if step.n_total is not None and step.n_correct is not None:
            _judge_counts(number, step.score, step.n_correct, step.n_total, report)
    _judge_sampling(rollout, report)
    _judge_tokens(rollout, report, forbids)
    if needs_image and not rollout.images:
        report("no_image", "the record names no image; expected a path (text-only data: --text-only)")
    for path in rollout.images:
        _judge_image(path, image_root, report)


def _judge_counts(number: int, score: float, n_correct: int, n_total: int, report: Report) -> None:
    expected = n_correct / n_total if n_total > 0 else 0.0
    if not 0 <= n_correct <= n_total or abs(expected - score) > COUNT_TOLERANCE:
        report(
            "score_not_count_ratio",
            f"step {number} has score {score} and {n_correct} of {n_total} correct; expected {expected:.6g}",
        )


def _judge_sampling(rollout: Rollout, report: Report) -> None:
    unsampled = [number for number, step in enumerate(rollout.steps) if step.never_sampled]
    if unsampled:
        report(
            "never_sampled",
            f"{len(unsampled)} of {len(rollout.steps)} steps, from step {unsampled[0]} on, were never sampled"
            " (num_mc_total 0) and count as negative",
        )


def _judge_tokens(rollout: Rollout, report: Report, forbids: str | None) -> None:
    places = [("the question", rollout.question)]
    places += [(f"step {number}", step.text) for number, step in enumerate(rollout.steps)]
    for place, text in places:
        if forbids is not None and forbids in text:
            report("separator_in_text", f"{place} holds {forbids!r}, which ends a step in the output format")
        if "<" not in text:
            continue
        found = MODEL_TOKEN.search(text) or (None if place == "the question" else IMAGE_MARK.search(text))
        if found:
            report("special_token", f"{place} holds the literal token {found.group()!r}")


def leaves_root(path: str) -> bool:
    """Whether a relative path is absolute after all, or climbs above where it starts."""
    windows = PureWindowsPath(path)
    if PurePosixPath(path).is_absolute() or windows.drive or windows.root:
        return True
    depth = 0
    for part in windows.parts:
        depth += -1 if part == ".." else part != "."
        if depth < 0:
            return True
    return "\0" in path


def _judge_image(path: str, image_root: Path | None, report: Report) -> None:
    if leaves_root(path):
        report("image_outside_root", f"image path {path!r} leaves the image root; expected a path below it")
    elif image_root is not None and not _exists(image_root / path):
        report("image_missing", f"image {path!r} is not under {image_root}")


@lru_cache(maxsize=1 << 16)
def _exists(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than the file system takes
        return False

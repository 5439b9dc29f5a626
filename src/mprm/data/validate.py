"""What can be wrong with a record, and which of it makes the record unusable.

What must hold of every rollout, whatever file it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath

from mprm.data.types import Rollout

ERRORS: dict[str, str] = {
    "not_json": "the line is not one JSON object",
    "not_utf8": "the line holds bytes that are not UTF-8",
    "missing_field": "a field that the format needs is not there",
    "wrong_type": "a field holds a value of another type",
    "no_steps": "the rollout has no steps",
    "empty_step": "a step is empty or only white space",
    "empty_question": "the question is empty or only white space",
    "score_not_a_number": "a step's score is not a number",
    "score_out_of_range": "a step's score is not between 0 and 1",
    "score_not_count_ratio": "a step's score is not num_mc_correct / num_mc_total",
    "labels_and_steps_differ": "there are more labels than steps, or fewer",
    "no_image": "the record names no image",
    "image_outside_root": "an image path is absolute or climbs out of the image root",
    "image_missing": "an image file is not under the image root",
    "separator_in_text": "the text holds the mark that ends a step, so the steps could not be told apart",
}
"""Kinds that make a record unusable, with what each means."""

CHECK_ONLY = frozenset({"image_outside_root", "image_missing"})
"""Errors that only a check looks for; stages that open no image leave image paths be."""

WARNINGS: dict[str, str] = {
    "never_sampled": "steps after the first 0 were never sampled (num_mc_total 0) and count as negative",
    "special_token": "the text holds a literal <prm> or image token",
    "empty_file": "the file holds no record",
    "duplicate": "the record is byte for byte the same as an earlier one",
    "unrated_step": "a step that nobody rated was left out",
    "odd_field": "a field that mprm does not need holds a value of another type",
}
"""Kinds that leave a record usable."""

Report = Callable[[str, str], None]
"""Called with a kind and a sentence for each problem found."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with one record."""

    file: str
    line: int
    kind: str
    text: str

    @property
    def is_error(self) -> bool:
        """Whether the record cannot be used."""
        return self.kind in ERRORS

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


class Problems:
    """Collects what is reported of one record; call it as a `Report`."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def __call__(self, kind: str, text: str) -> None:
        """Take one more."""
        self.found.append((kind, text))

    def first_error(self) -> tuple[str, str] | None:
        """The first problem that makes the record unusable to the stages after check, if there is one."""
        return next(((kind, text) for kind, text in self.found if kind in ERRORS and kind not in CHECK_ONLY), None)

    def pass_on(self, report: Report) -> None:
        """Report everything again, to someone else."""
        for kind, text in self.found:
            report(kind, text)


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

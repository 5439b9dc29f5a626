"""Every check of a record, with its name and its message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mprm.data.images import IMAGE_MARK, image_exists, leaves_root
from mprm.data.types import Rollout

ERRORS: dict[str, str] = {
    "not_json": "the line is not one JSON object",
    "not_utf8": "the line holds bytes that are not UTF-8",
    "missing_field": "a field that the format needs is missing",
    "wrong_type": "a field holds a value of another type",
    "no_steps": "the rollout has no steps",
    "empty_step": "a step is empty or only white space",
    "empty_question": "the question is empty or only white space",
    "score_not_a_number": "a step's score is not a number",
    "score_out_of_range": "a step's score is not between 0 and 1",
    "score_not_count_ratio": "a step's score is not num_mc_correct / num_mc_total",
    "labels_and_steps_differ": "there are more labels than steps, or fewer",
    "no_image": "the record names no image",
    "image_outside_root": "an image path is absolute or leaves the image root",
    "image_missing": "an image file is not under the image root",
    "separator_in_text": "the text holds the mark that ends a step, so the steps could not be separated",
}
"""Kinds that make a record unusable, with what each means."""

CHECK_ONLY = frozenset({"image_outside_root", "image_missing"})
"""Errors that only ``mprm check`` looks for; stages that open no image ignore image paths."""

WARNINGS: dict[str, str] = {
    "never_sampled": "steps after the first 0 were never sampled (num_mc_total 0) and count as negative",
    "special_token": "the text holds a literal <prm> or image token",
    "empty_file": "the file holds no record",
    "duplicate": "the record is byte for byte the same as an earlier one",
    "unrated_step": "a step without a rating was left out",
    "odd_field": "a field that mprm does not need holds a value of another type",
    "error_past_the_end": "PRMBench: a step that is said to be wrong lies beyond the last step",
}
"""Kinds that leave a record usable."""

MODEL_TOKEN = re.compile(
    r"<prm>|</?img>|<IMG_CONTEXT>|<\|?(?:vision_start|vision_end|vision_pad|image_pad|video_pad|im_start|im_end)\|?>"
)
"""Tokens of the two backbones that must not come out of data."""
COUNT_TOLERANCE = 1e-6
"""Files that write scores with six digits or more are consistent; fewer digits are worth a look."""


@dataclass(frozen=True, slots=True)
class Issue:
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


class Issues:
    """Collects what is wrong with one record, as (kind, text)."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[tuple[str, str]] = []

    def add(self, kind: str, text: str) -> None:
        """Add an issue; an error makes the record unusable."""
        self.entries.append((kind, text))

    def add_bad(self, bad: BadRecord) -> None:
        """Add the error that made a record unusable."""
        self.add(bad.kind, str(bad))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.entries)

    def first_error(self) -> tuple[str, str] | None:
        """The first issue that makes the record unusable to the stages after check, if there is one."""
        return next(((kind, text) for kind, text in self if kind in ERRORS and kind not in CHECK_ONLY), None)


class BadRecord(ValueError):  # noqa: N818 - never leaves mprm.data: the reader adds FILE:LINE and raises a DataError
    """A record that cannot be used, and the kind of error."""

    def __init__(self, text: str, kind: str = "wrong_type") -> None:
        super().__init__(text)
        self.kind = kind


class StrictIssues(Issues):
    """Stops at the first error or odd field, so that a parser can go on as if every field were right."""

    def add(self, kind: str, text: str) -> None:
        """Add a warning, or raise `BadRecord`."""
        if kind in ERRORS or kind == "odd_field":
            raise BadRecord(text, kind)
        super().add(kind, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """What a rollout must satisfy, beyond what every rollout must."""

    text_only: bool = False
    """Records need no image."""
    image_root: Path | None = None
    """Folder that must hold every image."""
    forbids: str | None = None
    """Text that the output format cannot hold inside a step."""


def validate(rollout: Rollout, issues: Issues, options: ValidationOptions, *, has_images: bool) -> None:
    """Add everything that is wrong with the rollout, errors and warnings; ``has_images``: its format names images."""
    if not rollout.question.strip():
        issues.add("empty_question", "the question is empty; expected text")
    if not rollout.steps:
        issues.add("no_steps", "the rollout has no steps; expected at least one")
    for index, step in enumerate(rollout.steps):
        if not step.text.strip():
            issues.add("empty_step", f"step {index} is {step.text!r}; expected text")
        if step.n_total is not None and step.n_correct is not None:
            ratio = step.n_correct / step.n_total if step.n_total > 0 else 0.0
            if step.n_correct > step.n_total or abs(ratio - step.score) > COUNT_TOLERANCE:
                counts = f"{step.n_correct} of {step.n_total} correct"
                text = f"step {index} has score {step.score} and {counts}; expected {ratio:.6g}"
                issues.add("score_not_count_ratio", text)
    unsampled = [index for index, step in enumerate(rollout.steps) if step.never_sampled]
    if unsampled:
        issues.add(
            "never_sampled",
            f"{len(unsampled)} of {len(rollout.steps)} steps, from step {unsampled[0]} on, were never sampled"
            " (num_mc_total 0) and count as negative",
        )
    _validate_text("the question", rollout.question, issues, options.forbids, has_marks=True)
    for index, step in enumerate(rollout.steps):
        _validate_text(f"step {index}", step.text, issues, options.forbids, has_marks=False)
    if has_images and not options.text_only and not rollout.images:
        issues.add("no_image", "the record names no image; expected a path (text-only data: --text-only)")
    for path in rollout.images:
        if leaves_root(path):
            issues.add("image_outside_root", f"image path {path!r} leaves the image root; expected a path below it")
        elif options.image_root is not None and not image_exists(options.image_root / path):
            issues.add("image_missing", f"image {path!r} is not under {options.image_root}")


def _validate_text(where: str, text: str, issues: Issues, forbids: str | None, *, has_marks: bool) -> None:
    if forbids is not None and forbids in text:
        issues.add("separator_in_text", f"{where} holds {forbids!r}, which ends a step in the output format")
    if "<" not in text:
        return
    token = MODEL_TOKEN.search(text) or (None if has_marks else IMAGE_MARK.search(text))
    if token:
        issues.add("special_token", f"{where} holds the literal token {token.group()!r}")

"""What can be wrong with a record, and which of it makes the record unusable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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

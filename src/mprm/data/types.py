"""What flows between the stages: rollouts, questions, solutions, candidates; and what makes a rollout valid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
import xxhash

from mprm.data.images import IMAGE_MARK, image_exists, leaves_root
from mprm.errors import ConfigError
from mprm.progress import Progress

Score = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class Step(msgspec.Struct, frozen=True, gc=False):
    """One reasoning step and its Monte-Carlo score.

    ``score`` is the success rate of the continuations sampled after the step, in [0, 1]; a label set by hand or by
    threshold is 1.0 or 0.0. The counts are None where the file has none. The names in ``msgspec.field`` are those of
    v1.1-Raw, whose steps decode to this.
    """

    text: str = msgspec.field(name="step")
    score: Score
    n_correct: Count | None = msgspec.field(default=None, name="num_mc_correct")
    n_total: Count | None = msgspec.field(default=None, name="num_mc_total")

    @property
    def never_sampled(self) -> bool:
        """Whether no continuation was sampled, so that the score of 0 is an assumption."""
        return self.n_total == 0


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of scored steps that answers a question about some images."""

    question: str
    """The question alone, as the reward model sees it."""
    steps: tuple[Step, ...]
    images: tuple[str, ...] = ()
    prompt: str | None = None
    """The question with the answer instruction that the policy saw, where the file has both."""
    answer: str | None = None
    source: str | None = None
    """The data set it comes from, where the record says so; else the file's name is the source."""

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(step.score for step in self.steps)

    @property
    def chain(self) -> Chain:
        return Chain(self.question, tuple(step.text for step in self.steps), self.images)


@dataclass(frozen=True, slots=True)
class Chain:
    """A question, its images, and steps without labels: what a process reward model scores."""

    question: str
    steps: tuple[str, ...]
    images: tuple[Any, ...] = ()
    """Paths as the data names them, or PIL images."""


class StepScorer(Protocol):
    """Scores the steps of chains; `mprm.PRM` is one."""

    def score_many(self, chains: Sequence[Chain], *, progress: Progress = ...) -> list[list[float]]:
        """Probability that each step is correct, in [0, 1]; nan for a step that truncation cut off."""


def scorer_name(scorer: StepScorer) -> str:
    """What manifests call a scorer."""
    return str(getattr(scorer, "name", type(scorer).__name__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A problem to be solved, with its gold answer."""

    id: str
    question: str
    """The question as a person reads it, options of a multiple choice included."""
    answer: str
    """The gold answer; the letter of the option for multiple choice."""
    images: tuple[str, ...] = ()
    source: str = ""
    options: tuple[str, ...] = ()
    """The texts of options A, B, C, …; empty for open answers."""
    is_extracted: bool = False
    """Whether the answer was read out of a longer one, such as a rationale that ends in ``#### 18``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One sampled solution of a question."""

    text: str
    steps: tuple[str, ...]
    finish_reason: str | None = None
    is_correct: bool | None = None
    """The label that the file gives; None where it gives none and the answer must be checked."""
    step_scores: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSet:
    """A question with its candidates, at least one."""

    question: Question
    candidates: tuple[Candidate, ...]
    location: str

    @property
    def key(self) -> tuple[str, str]:
        """Source and id: no two sets have the same."""
        return self.question.source, self.question.id

    @property
    def solutions(self) -> list[Solution]:
        """The candidates as solutions without labels; candidate k of a question has its id with "#k" behind it."""
        question = self.question
        problem = problem_key(question.question, question.images)
        return [
            Solution(
                id=f"{question.id}#{index}",
                source=question.source,
                problem=problem,
                question=question.question,
                steps=candidate.steps,
                images=question.images,
                location=self.location,
            )
            for index, candidate in enumerate(self.candidates)
        ]

    @property
    def is_labelled(self) -> bool:
        return all(candidate.is_correct is not None for candidate in self.candidates)


CORRECT, IGNORED, INCORRECT = 1, 0, -1
"""Labels of a step; an ignored one is neutral, or nobody labelled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A question, steps that answer it, and the label of each step: one item of a step benchmark."""

    id: str = ""
    source: str = ""
    """The data set or kind that per-source metrics group by."""
    problem: str
    """Key of the problem: solutions with the same key are held out, and resampled, together."""
    question: str
    steps: tuple[str, ...]
    labels: tuple[int, ...] = ()
    """1 correct, -1 incorrect, 0 ignored; one for each step."""
    images: tuple[str, ...] = ()
    benchmark: str = ""
    """The benchmark's format, and the kind of solution where its own metric counts only some: prmbench/modified."""
    location: str = ""
    """FILE:LINE."""

    @property
    def first_error(self) -> int | None:
        return first_error_of(self.labels)

    @property
    def chain(self) -> Chain:
        return Chain(self.question, self.steps, self.images)


def problem_key(question: str, images: tuple[str, ...] = ()) -> str:
    r"""Key of a problem: the same for the same question and images, whoever solved it and whatever file it is in.

    White space does not count.

    Examples
    --------
    >>> problem_key("What is  x?\n") == problem_key("What is x?") != problem_key("What is x?", ("a.png",))
    True
    """
    parts = (" ".join(question.split()), *images)
    return xxhash.xxh3_128_hexdigest("\0".join(parts).encode("utf-8", "replace"))


def first_error_of(labels: tuple[int, ...]) -> int | None:
    """Index of the first incorrect step; None when there is none."""
    return labels.index(INCORRECT) if INCORRECT in labels else None


STEP_SEPARATOR = "\n\n"
_BLANK_LINES = re.compile(r"\n\s*\n")


def split_steps(text: str, max_steps: int | None = None) -> tuple[str, ...]:
    """The steps of a response: it is split at blank lines, and white space around steps is dropped.

    Where there are more than ``max_steps``, neighbours are joined again, each step of nearly as many pieces.
    """
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"max_steps must be at least 1, got {max_steps}")
    pieces = [stripped for piece in _BLANK_LINES.split(text) if (stripped := piece.strip())]
    n = len(pieces)
    k = min(n, max_steps or n)
    cuts = [number * n // k for number in range(k + 1)] if k else []
    return tuple(STEP_SEPARATOR.join(pieces[start:end]) for start, end in pairwise(cuts))


# Validation: every check of a record, with its name and its message

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
    "separator_in_text": "the text holds a mark of the output format, so the steps could not be separated",
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
IN_MEMORY = "(in memory)"
"""Folder of the temporary file that holds a frame; messages do not name it."""


def without_secrets(path: str) -> str:
    """A path or URL without user and password, and without what a URL of http or https asks for.

    >>> without_secrets("zip://a#1.jsonl::https://me:secret@host/x.zip?key=secret")
    'zip://a#1.jsonl::https://host/x.zip'
    """
    parts = [re.sub(r"(?is)^(https?://)(?:[^/?#]*@)?([^?#]*).*", r"\1\2", part) for part in path.split("::")]
    return "::".join(re.sub(r"^(\w+://)[^/:@]*:[^/]*@", r"\1", part) for part in parts)


def location(path: str, line: int | None = None) -> str:
    """Where a record stands, for a message: FILE:LINE, or the row of a frame, from 0; or the file alone.

    Examples
    --------
    >>> location("a.jsonl", 3), location("/tmp/x/(in memory)/frame.jsonl", 3), location("x/(in memory)/frame.jsonl")
    ('a.jsonl:3', 'row 2', '(in memory)')
    """
    path = without_secrets(path)
    if path.endswith(f"/{IN_MEMORY}/frame.jsonl"):
        return IN_MEMORY if line is None else f"row {line - 1}"
    return path if line is None else f"{path}:{line}"


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing wrong with one record."""

    file: str
    line: int
    kind: str
    text: str

    @property
    def is_error(self) -> bool:
        return self.kind in ERRORS

    def __str__(self) -> str:
        return f"{location(self.file, self.line)}: {self.text}"


class Issues(list[tuple[str, str]]):
    """What is wrong with one record, as (kind, text)."""

    def add(self, kind: str, text: str) -> None:
        self.append((kind, text))

    def add_bad(self, bad: BadRecord) -> None:
        self.add(bad.kind, str(bad))

    def first_error(self) -> tuple[str, str] | None:
        """The first issue that makes the record unusable to the stages after check, if there is one."""
        return next(((kind, text) for kind, text in self if kind in ERRORS and kind not in CHECK_ONLY), None)


class BadRecord(ValueError):  # noqa: N818 - never leaves mprm.data: the reader adds FILE:LINE and raises a DataError
    """A record that cannot be used, and the kind of error."""

    def __init__(self, text: str, kind: str = "wrong_type") -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """What a rollout must satisfy, beyond what every rollout must."""

    text_only: bool = False
    needs_image: bool = False
    """Records of formats without images need one too, unless ``text_only``: the output format names them."""
    image_root: Path | None = None
    """Folder that must hold every image."""
    forbids: str | None = None
    """Text that the output format cannot hold inside a step."""


BEFORE_FIRST_STEP = {"<prm>": "\nProcess:"}
"""By the text that ends a step in an output format: what parts question and first step, so not in that."""


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
            if step.n_correct > step.n_total or abs(ratio - step.score) > 1e-6:  # scores of six digits are enough
                counts = f"{step.n_correct} of {step.n_total} correct"
                text = f"step {index} has score {step.score} and {counts}; expected {ratio:.6g}"
                issues.add("score_not_count_ratio", text)
    unsampled = [index for index, step in enumerate(rollout.steps) if step.never_sampled]
    if unsampled:
        steps = f"{len(unsampled)} of {len(rollout.steps)} steps, from step {unsampled[0]} on,"
        issues.add("never_sampled", f"{steps} were never sampled (num_mc_total 0) and count as negative")
    _validate_text("the question", rollout.question, issues, options.forbids, has_marks=True)
    for index, step in enumerate(rollout.steps):
        _validate_text(f"step {index}", step.text, issues, options.forbids, has_marks=False)
    mark = BEFORE_FIRST_STEP.get(options.forbids or "")
    if mark is not None and rollout.steps and mark in rollout.steps[0].text.strip():
        text = f"step 0 holds {mark!r}, which parts the question from the steps in the output format"
        issues.add("separator_in_text", text)
    if (has_images or options.needs_image) and not options.text_only and not rollout.images:
        issues.add("no_image", "the record names no image; expected a path (text-only data: --text-only)")
    for path in rollout.images:
        if leaves_root(path, options.image_root):
            issues.add("image_outside_root", f"image path {path!r} leaves the image root; expected a path below it")
        elif options.image_root is not None and not image_exists(options.image_root / path):
            issues.add("image_missing", f"image {path!r} is not under {options.image_root}")


def _validate_text(where: str, text: str, issues: Issues, forbids: str | None, *, has_marks: bool) -> None:
    if forbids is not None and forbids in text:
        issues.add("separator_in_text", f"{where} holds {forbids!r}, which ends a step in the output format")
    if "<" in text and (token := MODEL_TOKEN.search(text) or (None if has_marks else IMAGE_MARK.search(text))):
        issues.add("special_token", f"{where} holds the literal token {token.group()!r}")

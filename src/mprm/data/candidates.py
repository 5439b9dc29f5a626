"""Candidates: files with several solutions of each question, as `mprm sample`, MM-PRM and RLHFlow write them.

To add a format: write its parse function and a `Format` in `CANDIDATE_FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mprm.answers.extract import stated_gold
from mprm.answers.options import letter_of
from mprm.data.format import Data, Format, by_name, check_no_bad, field, has, optional_text, read_items
from mprm.data.questions import read_gold
from mprm.data.rollout_formats import STEP_END
from mprm.data.types import STEP_SEPARATOR, BadRecord, Candidate, CandidateSet, Issues, Question, split_steps
from mprm.errors import shown


def read_candidates(paths: Any, *, format: str | None = None) -> list[CandidateSet]:
    """All questions of the files with their candidates, in the files' order; each record shows its format."""
    sets: dict[tuple[str, str], CandidateSet] = {}
    bad: list[str] = []
    for record, (item,), _ in read_items(paths, CANDIDATE_FORMATS, "candidate", format, bad, by_record=True):
        source = item.question.source or record.file.source
        question = replace(item.question, id=item.question.id or str(record.number), source=source)
        entry = replace(item, question=question, location=record.location)
        first = sets.setdefault(entry.key, entry)
        if first is not entry:
            other = f"question {question.id!r} of {source!r} is in {first.location} already"
            bad.append(f"{entry.location}: {other}; give them different ids or sources")
    check_no_bad(bad, "Fix or remove these records; docs/reranking.md shows the formats.")
    return list(sets.values())


def _parser(
    question_key: str, candidates_key: str, candidates_of: Callable[[Data], Iterator[Candidate]]
) -> Callable[[Data, Issues], tuple[CandidateSet, ...]]:
    """The parse function of a format, from where the question stands and how its candidates are read."""

    def parse(data: Data, _issues: Issues) -> tuple[CandidateSet, ...]:
        images = data.get("images") or data.get("image_path") or data.get("image") or []
        question = Question(
            id=optional_text(data, "id") or "",
            question=field(data, question_key, str),
            answer=optional_text(data, "answer") or optional_text(data, "correct_answer") or "",
            images=_texts([images] if isinstance(images, str) else images, "the images"),
            source=optional_text(data, "source") or "",
            options=_texts(data.get("options") or [], '"options"'),
        )
        candidates = tuple(candidates_of(data))
        if not candidates:
            raise BadRecord(f'question {question.id!r} has no candidates; expected some in "{candidates_key}"')
        entry = CandidateSet(question=question, candidates=candidates, location="")
        if entry.is_labelled:
            return (entry,)
        if not question.answer:
            raise BadRecord('neither "answer" nor "labels" is given; expected one, to tell who is right')
        gold = letter_of(question.answer, question.options) or read_gold(question.answer)
        is_extracted = stated_gold(question.answer) is not None
        return (replace(entry, question=replace(question, answer=gold, is_extracted=is_extracted)),)

    return parse


def _own_candidates(data: Data) -> Iterator[Candidate]:
    for index, entry in enumerate(field(data, "candidates", list)):
        if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
            raise BadRecord(f'candidate {index} is {shown(entry)}; expected an object with "text"')
        text, given = entry["text"], entry.get("steps")
        steps = split_steps(text) if given is None else _texts(given, f'"steps" of candidate {index}')
        scores = None if entry.get("scores") is None else _scores(entry["scores"], len(steps), index)
        reason = optional_text(entry, "finish_reason")
        yield Candidate(text=text, steps=steps, finish_reason=reason, step_scores=scores)


def _mm_prm_candidates(data: Data) -> Iterator[Candidate]:
    splits = field(data, "solutions_splits", list)
    labels = _labels(data, len(splits))
    scores = data.get("prm_scores") or [None] * len(splits)
    if not isinstance(scores, list) or len(scores) != len(splits):
        raise BadRecord(f'"prm_scores" is {shown(scores)}; expected a list for each solution')
    for index, (split, label, values) in enumerate(zip(splits, labels, scores, strict=True)):
        steps = _texts(split, f"solution {index}")
        text, scored = STEP_SEPARATOR.join(steps), None if values is None else _scores(values, len(steps), index)
        yield Candidate(text=text, steps=steps, is_correct=label, step_scores=scored)


def _rlhflow_candidates(data: Data) -> Iterator[Candidate]:
    texts = _texts(field(data, "answers", list), '"answers"')
    for text, label in zip(texts, _labels(data, len(texts)), strict=True):
        marked = tuple(step for part in text.split(STEP_END) if (step := part.strip()))
        steps = marked if STEP_END in text else split_steps(text)
        yield Candidate(text=text, steps=steps, is_correct=label)


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise BadRecord(f"{what}: found {shown(value)}; expected a list of texts")
    return tuple(value)


def _labels(data: Data, n: int) -> list[bool | None]:
    """The label of each candidate: true or false, 1 or 0; None where the record has no labels."""
    labels = data.get("labels", data.get("label"))
    if labels is None:
        return [None] * n
    if not isinstance(labels, list) or len(labels) != n:
        raise BadRecord(f'"labels" is {shown(labels)}; expected {n} of them, one a candidate')
    for index, label in enumerate(labels):
        if label not in (0, 1):
            raise BadRecord(f"label {index} is {shown(label)}; expected true or false, 1 or 0")
    return [bool(label) for label in labels]


def _scores(value: Any, n: int, index: int) -> tuple[float, ...]:
    """Step scores; null stands for a step that truncation cut off."""
    if not isinstance(value, list) or len(value) != n:
        raise BadRecord(f"scores of solution {index}: {shown(value)}; expected {n}, one a step")
    scores = [float("nan") if score is None else score for score in value]
    if not all(isinstance(score, int | float) and (score != score or 0 <= score <= 1) for score in scores):
        raise BadRecord(f"scores of solution {index}: {shown(value)}; expected numbers from 0 to 1")
    return tuple(map(float, scores))


CANDIDATE_FORMATS: dict[str, Format[CandidateSet]] = by_name(
    Format("mprm", has("candidates"), _parser("question", "candidates", _own_candidates)),
    Format("mm-prm", has("solutions_splits"), _parser("question", "solutions_splits", _mm_prm_candidates)),
    Format("rlhflow", has("answers"), _parser("prompt", "answers", _rlhflow_candidates)),
)

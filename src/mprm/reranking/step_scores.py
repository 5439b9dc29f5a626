"""Step scores of candidates: made by a reward model, saved, and read back without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from mprm.annotation.candidates import CandidateSet
from mprm.annotation.journal import Journal
from mprm.errors import DataError, InputNotFoundError
from mprm.inference.scorer import StepScorer
from mprm.rollouts.atomic_write import atomic_write
from mprm.rollouts.chain import Chain
from mprm.rollouts.read import is_blank

AT_A_TIME = 64
"""Questions scored between two savings: many chains to batch, little work to lose."""


@dataclass(frozen=True, slots=True)
class StepScores:
    """Scores by question, candidate and step; nan for steps that truncation cut off."""

    model: str
    scores: list[list[list[float]]]


class _Line(msgspec.Struct, kw_only=True):
    """A line of a scores file."""

    id: str
    source: str
    model: str
    candidates_xxh3: str
    """Of the question, its images' names and its candidates' steps, to tell scores of other candidates."""
    scores: list[list[float | None]]
    """null for a step that truncation cut off."""


def score_candidates(
    sets: Sequence[CandidateSet],
    scorer: StepScorer,
    *,
    model: str,
    fingerprint: str | None = None,
    out: str | None = None,
    force: bool = False,
    on_scored: Callable[[int], None] | None = None,
) -> StepScores:
    """Score every step of every candidate; saves to ``out``, and continues a run that was stopped.

    ``fingerprint`` tells the model from others of the same name, whose run is not continued.
    """
    if out is None:
        found = [_scored(part, scorer, on_scored) for part in _parts(sets)]
        return StepScores(model, [scores for part in found for scores in part])
    run = {
        "model": model,
        "model_fingerprint": fingerprint or model,
        "candidates": xxhash.xxh3_128_hexdigest("".join(map(_digest, sets)).encode()),
    }
    with Journal(out, run=run, force=force) as journal:
        todo = [entry for entry in sets if entry.key not in journal]
        if on_scored is not None:
            on_scored(sum(len(entry.candidates) for entry in sets) - sum(len(entry.candidates) for entry in todo))
        for part in _parts(todo):
            for entry, scores in zip(part, _scored(part, scorer, on_scored), strict=True):
                journal.add(msgspec.to_builtins(_line(entry, scores, model)))
        lines = [journal.line(entry.key) for entry in sets]
        with atomic_write(out) as temporary:
            temporary.write_bytes(b"".join(lines))
        journal.remove()
    return read_scores(out, sets)


def _parts(sets: Sequence[CandidateSet]) -> list[Sequence[CandidateSet]]:
    return [sets[start : start + AT_A_TIME] for start in range(0, len(sets), AT_A_TIME)]


def _scored(
    sets: Sequence[CandidateSet], scorer: StepScorer, on_scored: Callable[[int], None] | None
) -> list[list[list[float]]]:
    """Scores of some questions' candidates; a candidate without steps has none."""
    places = [(i, j) for i, entry in enumerate(sets) for j, c in enumerate(entry.candidates) if c.steps]
    found: list[list[list[float]]] = [[[] for _ in entry.candidates] for entry in sets]
    chains = [
        Chain(sets[i].question.question, sets[i].candidates[j].steps, sets[i].question.images) for i, j in places
    ]
    for (i, j), scores in zip(places, scorer.score_many(chains, on_scored=on_scored), strict=True):
        found[i][j] = list(scores)
    n_empty = sum(len(entry.candidates) for entry in sets) - len(places)
    if on_scored is not None and n_empty:
        on_scored(n_empty)
    return found


def _line(entry: CandidateSet, scores: list[list[float]], model: str) -> _Line:
    source, id_ = entry.key
    saved: list[list[float | None]] = [[None if math.isnan(score) else score for score in one] for one in scores]
    return _Line(id=id_, source=source, model=model, candidates_xxh3=_digest(entry), scores=saved)


def _digest(entry: CandidateSet) -> str:
    steps = [candidate.steps for candidate in entry.candidates]
    content = [entry.question.question, entry.question.images, steps]
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(content))


def given_scores(sets: Sequence[CandidateSet]) -> StepScores | None:
    """The scores that the candidate files hold themselves; None unless they hold all."""
    if any(candidate.step_scores is None for entry in sets for candidate in entry.candidates):
        return None
    scores = [[list(candidate.step_scores or ()) for candidate in entry.candidates] for entry in sets]
    return StepScores("scores of the candidate files", scores)


def read_scores(path: str, sets: Sequence[CandidateSet]) -> StepScores:
    """The saved scores of these candidates; the file may hold those of other questions as well."""
    here = Path(path).expanduser()
    if not here.is_file():
        raise InputNotFoundError(f"{path}: no such file; expected scores.jsonl as mprm rerank --out saved it")
    wanted = {entry.key: entry for entry in sets}
    found: dict[tuple[str, str], list[list[float | None]]] = {}
    model: str | None = None
    decoder = msgspec.json.Decoder(_Line)
    with here.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if is_blank(line):
                continue
            place = f"{path}:{number}"
            saved = _decoded(decoder, line, place)
            model = saved.model if model is None else model
            _refuse_mixed(saved, model, place)
            entry = wanted.get((saved.source, saved.id))
            if entry is not None:
                _refuse_other(saved, entry, place)
                if found.setdefault(entry.key, saved.scores) != saved.scores:
                    raise DataError(
                        f"{place}: question {saved.id!r} of {saved.source!r} has other scores on a line before;"
                        " expected each question once. Score the candidates again with --model"
                    )
    missing = [entry for entry in sets if entry.key not in found]
    if missing:
        raise DataError(
            f"{path}: holds no scores for {len(missing):,} of {len(sets):,} questions, the first at"
            f" {missing[0].place}; score the candidates again with --model"
        )
    scores = [[[math.nan if s is None else s for s in one] for one in found[entry.key]] for entry in sets]
    return StepScores(model or "", scores)


def _decoded(decoder: Any, line: bytes, place: str) -> _Line:
    try:
        saved: _Line = decoder.decode(line)
    except (ValueError, msgspec.MsgspecError) as error:
        raise DataError(f"{place}: is no line of a scores file: {error}. Make it with mprm rerank --model") from error
    return saved


def _refuse_mixed(saved: _Line, model: str, place: str) -> None:
    """Stop at scores that no one model gave."""
    if saved.model != model:
        raise DataError(
            f"{place}: the scores are of the model {saved.model!r}, those before of {model!r}; expected one model."
            " Keep the scores of each in a file of its own"
        )
    wrong = [score for one in saved.scores for score in one if score is not None and not 0 <= score <= 1]
    if wrong:
        raise DataError(f"{place}: a step has score {wrong[0]}; expected 0 to 1, or null for a step without a score")


def _refuse_other(saved: _Line, entry: CandidateSet, place: str) -> None:
    n_steps = [len(candidate.steps) for candidate in entry.candidates]
    if saved.candidates_xxh3 != _digest(entry) or [len(one) for one in saved.scores] != n_steps:
        raise DataError(
            f"{place}: these are scores of other candidates than those of {entry.place}, or the question,"
            " its images or the steps were changed since; score the candidates again with --model"
        )

"""Step scores of candidates: made by a reward model, saved, and read back without it.

Which candidates are right, and which agree.

The folder of a reranking: what it will hold, and whether it can.

``mprm rerank``: choose the best of N candidates by their steps, and measure what it is worth.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from mprm.annotation.journal import SUFFIX, Journal
from mprm.answers.compare import read_answer
from mprm.answers.extract import final_answer
from mprm.answers.grade import GradedAnswer
from mprm.data.candidate_formats import Candidate, CandidateSet, read_candidates
from mprm.data.corpus import MANIFEST_SUFFIX, is_blank
from mprm.data.images import image_files
from mprm.data.output import atomic_write, check_not_inputs, check_overwrite
from mprm.data.records import corpus_files, is_url
from mprm.data.types import Chain, StepScorer
from mprm.errors import ConfigError, DataError, InputNotFoundError, OutputExistsError, printable
from mprm.evaluation.best_of_n import (
    AGGREGATES,
    Chosen,
    Measured,
    Outcome,
    Subsets,
    aggregate,
    best_of_n,
    chosen_of,
    powers_of_two,
)
from mprm.progress import Progress as Watch
from mprm.progress import silent as unwatched_watch

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
            _check_mixed(saved, model, place)
            entry = wanted.get((saved.source, saved.id))
            if entry is not None:
                _check_other(saved, entry, place)
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


def _check_mixed(saved: _Line, model: str, place: str) -> None:
    """Stop at scores that no one model gave."""
    if saved.model != model:
        raise DataError(
            f"{place}: the scores are of the model {saved.model!r}, those before of {model!r}; expected one model."
            " Keep the scores of each in a file of its own"
        )
    wrong = [score for one in saved.scores for score in one if score is not None and not 0 <= score <= 1]
    if wrong:
        raise DataError(f"{place}: a step has score {wrong[0]}; expected 0 to 1, or null for a step without a score")


def _check_other(saved: _Line, entry: CandidateSet, place: str) -> None:
    n_steps = [len(candidate.steps) for candidate in entry.candidates]
    if saved.candidates_xxh3 != _digest(entry) or [len(one) for one in saved.scores] != n_steps:
        raise DataError(
            f"{place}: these are scores of other candidates than those of {entry.place}, or the question,"
            " its images or the steps were changed since; score the candidates again with --model"
        )


def judge_candidates(
    sets: Sequence[CandidateSet],
    *,
    timeout_s: float = 5.0,
    processes: int | None = None,
    on_checked: Callable[[int], None] | None = None,
) -> list[list[GradedAnswer]]:
    """The verdict on each candidate: the file's label where it has one, else the checker's."""
    found = [[_by_label(candidate) for candidate in entry.candidates] for entry in sets]
    places = [(i, j) for i, row in enumerate(found) for j, judged in enumerate(row) if judged is None]
    if places:
        from mprm.annotation.checker import AnswerChecker

        pairs = [(sets[i].candidates[j].text, sets[i].question) for i, j in places]
        with AnswerChecker(timeout_s=timeout_s, processes=processes) as checker:
            checked = checker.check_many(pairs, on_checked=lambda _place, _judged: on_checked and on_checked(1))
        for (i, j), judged in zip(places, checked, strict=True):
            found[i][j] = judged
    return [[judged for judged in row if judged is not None] for row in found]


def _by_label(candidate: Candidate) -> GradedAnswer | None:
    """The label as a verdict, with the answer that the text states, so that equal answers vote together."""
    if candidate.is_correct is None:
        return None
    answer = final_answer(candidate.text)
    key = None if answer is None else read_answer(answer).key
    return GradedAnswer("correct" if candidate.is_correct else "incorrect", key)


def answer_numbers(judged: Sequence[GradedAnswer]) -> NDArray[np.intp]:
    """Equal numbers, from 0, for equal answers; -1 for candidates in which no answer was found.

    Examples
    --------
    >>> four = GradedAnswer("correct", "4")
    >>> answer_numbers([four, GradedAnswer("incorrect", None), four]).tolist()
    [0, -1, 0]
    """
    numbers: dict[str, int] = {}
    return np.array(
        [-1 if one.answer is None else numbers.setdefault(one.answer, len(numbers)) for one in judged], dtype=np.intp
    )


SCORES = "scores.jsonl"
"""Written where a model scores."""
RESULTS = (
    *("chosen.jsonl", "metrics.md", "best_of_n.svg", "best_of_n.png"),
    *("metrics.json", "metrics.json" + MANIFEST_SUFFIX),
)
"""Written always, but for the figures, which need an extra."""


def output_folder(out: str | Path) -> Path:
    """The folder that was named."""
    if is_url(str(out)):
        raise ConfigError(f"{out}: scores are saved as they come, on this machine; name a local folder")
    return Path(out).expanduser()


def check_outputs(
    folder: Path, candidates: Any, scores: str | Path | None, *, saves_scores: bool, force: bool
) -> None:
    """Stop when an output would replace an input, whatever ``force`` says, or anything else without it."""
    inputs = [file.path for file in corpus_files(candidates)]
    saved = folder / SCORES
    names = [*RESULTS, SCORES, SCORES + SUFFIX] if saves_scores else RESULTS
    check_not_inputs(inputs if scores is None else [*inputs, scores], [folder / name for name in names])
    if saves_scores and saved.exists() and not force:
        raise OutputExistsError(
            f"{saved} holds scores already; use them with --scores {saved}, or score again with --force"
        )
    for name in names:
        check_overwrite(str(folder / name), force=force or name == SCORES + SUFFIX)


def make_folder(folder: Path) -> None:
    """Make the folder where it is not there; stop when nothing can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"{folder}: nothing can be written there ({reason}); choose another --out") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankConfig:
    """How candidates are compared."""

    aggregate: str = "mean"
    """How step scores make a candidate's score; the paper takes the mean."""
    n: tuple[int, ...] = ()
    """Values of N; powers of two up to the fewest candidates of a question when empty."""
    subsets: Subsets = "all"
    """The expectation over all subsets of N candidates, or the first N alone."""
    draws: int = 1000
    """Bootstrap draws over questions, and most subsets that a vote is averaged over."""
    seed: int = 0
    timeout_s: float = 5.0
    """Longest time to check one answer."""

    def __post_init__(self) -> None:
        if self.aggregate not in AGGREGATES:
            raise ConfigError(f"unknown aggregate {self.aggregate!r}; expected one of {', '.join(AGGREGATES)}")
        if any(n < 1 for n in self.n):
            raise ConfigError(f"N must be 1 or more, got {list(self.n)}")
        if self.subsets not in ("all", "first"):
            raise ConfigError(f"unknown subsets {self.subsets!r}; expected all or first")
        if self.draws < 1:
            raise ConfigError(f"draws must be 1 or more, got {self.draws}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")
        if not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"timeout_s must be a number of seconds above 0, got {self.timeout_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranking:
    """What was chosen, and how good the choice is."""

    model: str
    config: RerankConfig
    ns: tuple[int, ...]
    n_candidates: int
    n_failed: int
    """Candidates that the checker could not decide on; counted as not correct."""
    n_answerless: int
    """Candidates in which no answer was found; they have no vote."""
    n_cut_steps: int
    """Steps without a score: truncation cut them off, or the model gave nan."""
    n_unscored: int
    """Candidates without any scored step; they rank below all others."""
    measured: Measured
    chosen: list[Chosen]
    sources: dict[str, dict[str, int]]
    """Questions and candidates of each source."""

    @property
    def failed_share(self) -> float:
        """Share of candidates that the checker could not decide on."""
        return self.n_failed / self.n_candidates


def rerank(
    candidates: Any,
    model: str | Path | StepScorer | None = None,
    *,
    scores: str | Path | None = None,
    out: str | Path | None = None,
    config: RerankConfig | None = None,
    format: str | None = None,
    image_root: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    tokens_per_batch: int | None = None,
    force: bool = False,
    watch: Watch = unwatched_watch,
) -> Reranking:
    """Score candidates, choose the best of each question, and measure the choice.

    Parameters
    ----------
    candidates
        Whatever `mprm.data.candidate_formats.read_candidates` takes.
    model
        Folder of a trained reward model, or anything that scores steps.
    scores
        ``scores.jsonl`` of an earlier run, instead of the model. Without either, the scores that the
        candidate files themselves hold are used.
    out
        Folder for scores.jsonl, chosen.jsonl, metrics.json, metrics.md and best_of_n.svg and .png.
    image_root, device, dtype, tokens_per_batch
        How a model is loaded from its folder: see `mprm.models.prm.PRM.from_pretrained`.
    watch
        Shows how far the work is.
    """
    config = config or RerankConfig()
    if model is not None and scores is not None:
        raise ConfigError("give a model or saved scores, not both")
    folder = None if out is None else output_folder(out)
    saved = None if folder is None or model is None else folder / SCORES
    if folder is not None:
        check_outputs(folder, candidates, scores, saves_scores=saved is not None, force=force)
    sets = read_candidates(candidates, format=format)
    ns = _ns(sets, config.n)
    if folder is not None:
        make_folder(folder)  # before hours of scoring that would be in vain
    if isinstance(model, str | Path):
        from mprm.models.prm import PRM

        for entry in sets:
            image_files(entry.question, image_root)  # none may be missing when hours are scored
        model = PRM.from_pretrained(
            model, image_root=image_root, device=device, dtype=dtype, tokens_per_batch=tokens_per_batch
        )
    step_scores = _step_scores(sets, model, scores, saved=saved, force=force, watch=watch)
    _check_unscored(step_scores)
    with watch("checking answers", _n_unlabelled(sets)) as advance:
        judged = judge_candidates(sets, timeout_s=config.timeout_s, on_checked=advance)
    found = _measured(sets, judged, step_scores, config, ns, watch)
    if folder is not None:
        from mprm.evaluation.rerank_tables import write

        write(found, folder, candidates=candidates, scores=scores or saved)
    return found


def _ns(sets: Sequence[CandidateSet], asked: tuple[int, ...]) -> tuple[int, ...]:
    """The values of N that every question has candidates for."""
    fewest = min(sets, key=lambda entry: len(entry.candidates))
    n_fewest = len(fewest.candidates)
    if asked and max(asked) > n_fewest:
        raise ConfigError(
            f"N = {max(asked)} needs as many candidates of every question; {fewest.place} has {n_fewest}."
            f" Ask for N up to {n_fewest}, or sample more"
        )
    return tuple(sorted(set(asked))) or powers_of_two(n_fewest)


def _n_unlabelled(sets: Sequence[CandidateSet]) -> int:
    return sum(candidate.is_correct is None for entry in sets for candidate in entry.candidates)


def _step_scores(
    sets: Sequence[CandidateSet],
    scorer: StepScorer | None,
    scores: str | Path | None,
    *,
    saved: Path | None,
    force: bool,
    watch: Watch,
) -> StepScores:
    """From the model, from saved scores, or from the candidate files themselves."""
    if scores is not None:
        return read_scores(str(scores), sets)
    if scorer is None:
        found = given_scores(sets)
        if found is None:
            raise ConfigError("name the reward model with --model DIR, or saved scores with --scores FILE")
        return found
    name = getattr(scorer, "name", type(scorer).__name__)
    fingerprint = getattr(scorer, "fingerprint", name)
    out = None if saved is None else str(saved)
    with watch("scoring", sum(len(entry.candidates) for entry in sets)) as advance:
        return score_candidates(
            sets, scorer, model=name, fingerprint=fingerprint, out=out, force=force, on_scored=advance
        )


def _check_unscored(found: StepScores) -> None:
    """Stop when there is nothing to choose by: every table would be one of ties."""
    candidates = [one for row in found.scores for one in row]
    if all(math.isnan(score) for one in candidates for score in one):
        raise DataError(
            f"{printable(found.model)}: no step of the {len(candidates):,} candidates has a score. Truncation cut all"
            " of them off, or the model gives nan: look at its weights and at the most tokens that it reads"
        )


def _outcome(entry: CandidateSet, judged: Sequence[GradedAnswer], step_scores: Sequence[Sequence[float]]) -> Outcome:
    return Outcome(
        source=entry.question.source,
        is_correct_M=np.array([one.grade == "correct" for one in judged]),
        is_failed_M=np.array([one.grade == "failed" for one in judged]),
        answers_M=answer_numbers(judged),
        scores_M={how: np.array([aggregate(one, how) for one in step_scores]) for how in AGGREGATES},
    )


def _measured(
    sets: Sequence[CandidateSet],
    judged: Sequence[Sequence[GradedAnswer]],
    step_scores: StepScores,
    config: RerankConfig,
    ns: tuple[int, ...],
    watch: Watch,
) -> Reranking:
    """The choices, their accuracy, and the counts that one must know to read it."""
    outcomes = [_outcome(*one) for one in zip(sets, judged, step_scores.scores, strict=True)]
    with watch("measuring", len(sets)) as advance:
        measured = best_of_n(
            outcomes,
            ns=ns,
            over=config.subsets,
            draws=config.draws,
            on_question=advance,
            aggregate=config.aggregate,
            seed=config.seed,
        )
    chosen = [
        chosen_of(entry, row, outcome.scores_M, aggregate=config.aggregate, seed=config.seed)
        for entry, row, outcome in zip(sets, judged, outcomes, strict=True)
    ]
    verdicts = [one for row in judged for one in row]
    candidates = [one for row in step_scores.scores for one in row]
    return Reranking(
        model=step_scores.model,
        config=config,
        ns=ns,
        n_candidates=len(candidates),
        n_failed=sum(one.grade == "failed" for one in verdicts),
        n_answerless=sum(one.answer is None for one in verdicts),
        n_cut_steps=sum(math.isnan(score) for one in candidates for score in one),
        n_unscored=sum(all(map(math.isnan, one)) for one in candidates),
        measured=measured,
        chosen=chosen,
        sources=_sources(sets),
    )


def _sources(sets: Sequence[CandidateSet]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for entry in sets:
        counts = found.setdefault(entry.question.source, {"questions": 0, "candidates": 0})
        counts["questions"] += 1
        counts["candidates"] += len(entry.candidates)
    return found

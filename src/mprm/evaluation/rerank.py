"""``mprm rerank``: choose the best of N candidates by their step scores, and measure what the choice is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import xxhash

from mprm.annotation.checker import AnswerChecker
from mprm.annotation.samplers.sampler import derived_seed
from mprm.answers.compare import read_answer
from mprm.answers.extract import final_answer
from mprm.answers.grade import GradedAnswer
from mprm.config import evaluation, inputs, takes
from mprm.data.candidates import read_candidates
from mprm.data.charts import can_draw, line_figure, save_figure
from mprm.data.hub import dataset_files, pinned_name
from mprm.data.images import image_files
from mprm.data.output import Table, atomic_write, check_not_inputs, markdown_text, printable
from mprm.data.questions import extracted_golds, input_entries
from mprm.data.records import find_files, is_url
from mprm.data.types import Candidate, CandidateSet, StepScorer
from mprm.errors import ConfigError, DataError, OutputExistsError, counted
from mprm.evaluation.best_of_n import (
    AGGREGATES,
    BASELINES,
    METHODS,
    AccuracyEstimate,
    AggregateName,
    BestOfNResult,
    ScoredQuestion,
    Subsets,
    aggregate,
    best_of_n,
    best_of_n_chart,
)
from mprm.evaluation.scores import (
    SCORES,
    ScoredSolution,
    ScoredSolutions,
    ScoringConfig,
    hash_chain,
    read_lines,
    scored_solutions,
    with_scores,
)
from mprm.progress import Progress, silent

FIGURES = ("best_of_n.svg", "best_of_n.png")  # written where Altair is installed


@dataclass(frozen=True, kw_only=True)
class RerankConfig(ScoringConfig):
    """Choose the best of N candidates by the scores of their steps, and measure what the choice is worth."""

    scores: Annotated[str | None, inputs("Saved step scores, instead of a model.", "FILE")] = None
    aggregate: Annotated[AggregateName, evaluation("Aggregate of step scores; the paper: mean.")] = "mean"
    n: Annotated[tuple[int, ...], evaluation("Values of N; default: powers of two.", at_least=1)] = ()
    subsets: Annotated[Subsets, evaluation("All subsets of N candidates, or the first N.")] = "all"
    draws: Annotated[int, evaluation("Bootstrap draws, and maximum of subsets for a vote.", at_least=1)] = 1000
    check_timeout_s: Annotated[float, evaluation("Time limit of checking an answer.", "SECONDS", above=0)] = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None and is_url(self.out):
            raise ConfigError(f"{self.out}: scores are saved as they come, on this machine; name a local folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best candidate by one aggregate."""

    candidate: int
    score: float | None  # None where no candidate has a scored step
    n_tied: int  # candidates with that score; the seed picks one of them


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCandidate:
    """A line of ``chosen.jsonl``: the question's answer, and what each aggregate would choose."""

    id: str
    source: str
    candidate: int
    score: float | None
    n_tied: int
    verdict: Literal["correct", "wrong", "failed"]
    answer: str | None
    text: str
    by_aggregate: dict[str, Choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranking:
    """What was chosen, and how good the choice is; `notes` say what the counts mean."""

    model: str
    config: RerankConfig
    ns: tuple[int, ...]
    n_candidates: int
    n_extracted_golds: int
    n_failed: int
    failed_share: float
    n_answerless: int
    n_unscored_steps: int
    n_unscored_candidates: int
    best_of_n: BestOfNResult
    chosen: list[ChosenCandidate]

    def to_json(self) -> dict[str, Any]:
        """The content of ``metrics.json``; N as text."""
        counts = {name: getattr(self, name) for name in self.__slots__ if name.startswith(("n_", "failed"))}
        results = msgspec.to_builtins(self.best_of_n, str_keys=True)
        head = {"model": self.model, **self.config.recorded(), "n": self.ns, "n_questions": len(self.chosen)}
        return {**head, **counts, **results}

    def tables(self) -> list[Table]:
        """Accuracy by method and N, the lead over baselines, other aggregates, and the sources at the largest N."""
        total, heads = self.best_of_n.total, [f"N = {n}" for n in self.ns]
        leads = {METHODS[name]: total.lead[name] for name in BASELINES if name in total.lead}
        accuracies = {METHODS[name]: row for name, row in total.accuracy.items()}
        size = f"{counted(total.n_questions, 'question')} ({self.config.aggregate} of step scores)"
        tables = []
        for title, head, rows, sign in (
            (f"Accuracy, {size}", "method", accuracies, ""),
            ("Lead of the highest PRM score, in points", "over", leads, "+"),
            ("Accuracy of the highest PRM score by aggregate", "aggregate", total.by_aggregate, ""),
        ):
            cells = [[name, *(_points(row[n], sign) for n in self.ns)] for name, row in rows.items()]
            tables.append(Table(title=title, heads=[head, *heads], rows=cells))
        if len(self.best_of_n.sources) > 1:
            largest, groups = max(self.ns), {**self.best_of_n.sources, "all questions": total}
            cells = []
            for name, group in groups.items():
                values = (f"{100 * row[largest].value:.1f}" for row in group.accuracy.values())
                cells.append([name, f"{group.n_questions:,}", *values])
            title = f"Accuracy at N = {largest} by source"
            tables.append(Table(title=title, heads=["source", "questions", *accuracies], rows=cells))
        return tables

    def notes(self) -> list[str]:
        config, largest, accuracy = self.config, max(self.ns), self.best_of_n.total.accuracy
        over = {"all": "expectation over all subsets of N candidates", "first": "the first N candidates"}
        every = counted(self.n_candidates, "candidate")
        notes = [
            f"Model: {printable(self.model)}. {counted(len(self.chosen), 'question')}, {every}.",
            f"In brackets: 95% bootstrap interval over questions ({config.draws:,} draws, seed {config.seed}).",
            f"At each N: {over[config.subsets]}.",
        ]
        notes += extracted_golds(self.n_extracted_golds, len(self.chosen))
        if "majority_vote" not in accuracy:
            notes.append("No votes: no candidate states an answer.")
        if self.n_failed:
            bounds = (f"{METHODS[name]} {100 * row[largest].if_failed_correct:.1f}" for name, row in accuracy.items())
            notes.append(
                f"The checker could not decide on {counted(self.n_failed, 'candidate')} ({self.failed_share:.2%}):"
                f" they count as not correct. If all of them were correct, at N = {largest}: {', '.join(bounds)}."
            )
        if self.n_answerless:
            notes.append(f"Without an answer, and so without a vote: {counted(self.n_answerless, 'candidate')}.")
        if n := self.n_unscored_steps:
            notes.append(f"{n:,} steps have no score, cut off by truncation or nan of the model: they are left out.")
        if n := self.n_unscored_candidates:
            notes.append(f"{n:,} of {every} have no scored step: they rank below the others.")
        return notes


def _points(estimate: AccuracyEstimate, sign: str) -> str:
    """In percent, or with a sign, in points."""
    bounds = (estimate.value, estimate.low, estimate.high)
    value, low, high = (f"{round(100 * bound, 1) + 0.0:{sign}.1f}" for bound in bounds)  # no -0.0
    return f"{value} ({low}{' to ' if sign else '–'}{high})"


@takes(RerankConfig)
def rerank(
    candidates: Any,
    model: str | Path | StepScorer | None = None,
    *,
    config: RerankConfig | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Reranking:
    """Score candidates, choose the best of each question, and measure the choice.

    ``candidates``: whatever `mprm.data.candidates.read_candidates` takes. ``model``: a folder, a name on the hub, or
    anything with ``score_many``; without it, and without saved ``scores``, the scores that the candidate files
    themselves hold are used. ``out`` gets scores.jsonl, chosen.jsonl, metrics.json, metrics.md and the figure.
    """
    config = RerankConfig.of(config, options if model is None else {**options, "model": model})
    if config.has_model and config.scores is not None:
        raise ConfigError("give a model or saved scores, not both")
    candidates = dataset_files(candidates, config.files)
    if config.out is not None:
        _check_outputs(config, [file.path for file in find_files(candidates)])
    sets = read_candidates(candidates, format=config.format)
    ns = _values_of_n(sets, config.n)
    inputs = [] if config.out is None else input_entries(candidates)
    scored = _step_scores(sets, config, inputs, progress)
    verdicts = candidate_verdicts(sets, timeout_s=config.check_timeout_s, progress=progress)
    lines = iter(scored.solutions)
    questions = [_question(entry, row, [*islice(lines, len(row))]) for entry, row in zip(sets, verdicts, strict=True)]
    options = {"aggregate": config.aggregate, "over": config.subsets, "draws": config.draws, "seed": config.seed}
    every = [verdict for row in verdicts for verdict in row]
    n_failed = sum(verdict.grade == "failed" for verdict in every)
    reranking = Reranking(
        model=scored.model,
        config=config,
        ns=ns,
        n_candidates=len(every),
        n_extracted_golds=sum(entry.question.is_extracted for entry in sets),
        n_failed=n_failed,
        failed_share=n_failed / len(every),
        n_answerless=sum(verdict.answer is None for verdict in every),
        n_unscored_steps=sum(line.scores.count(None) for line in scored.solutions),
        n_unscored_candidates=sum(line.scores.count(None) == len(line.scores) for line in scored.solutions),
        best_of_n=best_of_n(questions, ns=ns, progress=progress, **options),
        chosen=[_chosen(*parts, config) for parts in zip(sets, verdicts, questions, strict=True)],
    )
    if config.out is not None:
        _write(reranking, sets, inputs)
    return reranking


def _check_outputs(config: RerankConfig, inputs: list[str]) -> None:
    inputs = inputs if config.scores is None else [*inputs, config.scores]
    saved = Path(config.path(SCORES)).expanduser()
    if config.has_model:
        check_not_inputs(inputs, [saved])
        if saved.exists() and not config.force:
            remedy = f"use them with --scores {saved}, or score again with --force"
            raise OutputExistsError(f"{saved} holds scores already; {remedy}")
    config.check_outputs(["chosen.jsonl", *FIGURES], inputs)


def _values_of_n(sets: Sequence[CandidateSet], given: tuple[int, ...]) -> tuple[int, ...]:
    """The values of N, for which every question must have candidates; powers of two where none are given."""
    fewest = min(sets, key=lambda entry: len(entry.candidates))
    n_fewest = len(fewest.candidates)
    if given and max(given) > n_fewest:
        few = f"{fewest.location} has {n_fewest}; take N up to that, or sample more"
        raise ConfigError(f"N = {max(given)} needs as many candidates of every question; {few}")
    return tuple(sorted(set(given))) or tuple(1 << power for power in range(n_fewest.bit_length()))


def _step_scores(
    sets: Sequence[CandidateSet], config: RerankConfig, inputs: list[dict[str, Any]], progress: Progress
) -> ScoredSolutions:
    if config.scores is not None:
        scored = read_candidate_scores(config.scores, sets)
    elif config.has_model:
        for entry in sets if config.opens_images else ():
            image_files(entry.question, config.image_root)  # none may be missing when hours are scored
        output = {"out": None if config.out is None else config.path(SCORES), "force": config.force, "inputs": inputs}
        scored = score_candidates(sets, config.load_model(), progress=progress, **output)
    else:
        pairs = [pair for entry in sets for pair in zip(entry.solutions, entry.candidates, strict=True)]
        if any(candidate.step_scores is None for _, candidate in pairs):
            raise ConfigError("name the reward model with --model DIR, or saved scores with --scores FILE")
        name = "scores of the candidate files"
        lines = (with_scores(solution, name, candidate.step_scores or ()) for solution, candidate in pairs)
        scored = ScoredSolutions(model=name, solutions=tuple(lines))
    if not any(score is not None for line in scored.solutions for score in line.scores):
        raise DataError(
            f"{printable(scored.model)}: no step of the {len(scored.solutions):,} candidates has a score. Truncation"
            " cut all of them off, or the model gives nan: look at its weights and at its maximum length"
        )
    return scored


def score_candidates(
    sets: Sequence[CandidateSet], scorer: StepScorer, *, progress: Progress = silent, **output: Any
) -> ScoredSolutions:
    """The candidates of all questions with the model's scores; ``output``: see `scored_solutions`."""
    solutions = [solution for entry in sets for solution in entry.solutions]
    with scored_solutions(solutions, scorer, command="rerank", progress=progress, **output) as scored:
        return scored


def read_candidate_scores(path: str | Path, sets: Sequence[CandidateSet]) -> ScoredSolutions:
    """The saved scores of these candidates; the file may hold those of other questions as well."""
    saved: dict[tuple[str, str, str], ScoredSolution] = {}
    for where, line in read_lines(path):
        if saved.setdefault((line.source, line.id, line.chain_xxh3), line).scores != line.scores:
            line_before = "has other scores on a line before; score the candidates again with --model"
            raise DataError(f"{where}: candidate {line.id!r} of {line.source!r} {line_before}")
    lines: list[ScoredSolution] = []
    missing: dict[str, None] = {}
    for location, solution in [(entry.location, solution) for entry in sets for solution in entry.solutions]:
        match = saved.get((solution.source, solution.id, hash_chain(solution.chain)))
        if match is not None and len(match.scores) == len(solution.steps):
            lines.append(match)
        else:
            missing[location] = None
    if missing:
        first = next(iter(missing))
        raise DataError(
            f"{path}: holds no scores for {len(missing):,} of {len(sets):,} questions, the first at {first}:"
            " these are scores of other candidates, or the question, its images or steps changed; score with --model"
        )
    return ScoredSolutions(model=lines[0].model, solutions=tuple(lines))


def candidate_verdicts(
    sets: Sequence[CandidateSet], *, timeout_s: float = 5.0, processes: int | None = None, progress: Progress = silent
) -> list[list[GradedAnswer]]:
    """The verdict on each candidate: the file's label where it has one, else the checker's."""
    unlabelled = [(c.text, entry.question) for entry in sets for c in entry.candidates if c.is_correct is None]
    checked: Iterator[GradedAnswer] = iter(())
    if unlabelled:
        with (
            progress("checking answers", len(unlabelled)) as advance,
            AnswerChecker(timeout_s=timeout_s, processes=processes) as checker,
        ):
            checked = iter(checker.check_many(unlabelled, on_checked=lambda _index, _verdict: advance(1)))

    def verdict(candidate: Candidate) -> GradedAnswer:
        if candidate.is_correct is None:
            return next(checked)
        # the answer that the text states beside the label, so that equal answers vote together
        answer = final_answer(candidate.text)
        key = None if answer is None else read_answer(answer).key
        return GradedAnswer("correct" if candidate.is_correct else "incorrect", key)

    return [[verdict(candidate) for candidate in entry.candidates] for entry in sets]


def _question(
    entry: CandidateSet, verdicts: Sequence[GradedAnswer], lines: Sequence[ScoredSolution]
) -> ScoredQuestion:
    numbers: dict[str | None, int] = {None: -1}
    for verdict in verdicts:
        numbers.setdefault(verdict.answer, len(numbers) - 1)
    return ScoredQuestion(
        source=entry.question.source,
        is_correct_M=np.array([verdict.grade == "correct" for verdict in verdicts]),
        is_failed_M=np.array([verdict.grade == "failed" for verdict in verdicts]),
        answers_M=np.array([numbers[verdict.answer] for verdict in verdicts], np.intp),
        scores_M={how: np.array([aggregate(line.scores, how) for line in lines]) for how in AGGREGATES},
    )


def _chosen(
    entry: CandidateSet, verdicts: Sequence[GradedAnswer], question: ScoredQuestion, config: RerankConfig
) -> ChosenCandidate:
    """The candidate with the highest score by each aggregate; of several, the question's own seed picks one."""
    seed = derived_seed(config.seed, *entry.key)
    choices = {}
    for how, scores in question.scores_M.items():
        ranks = np.where(np.isnan(scores), -np.inf, scores)
        tied = np.flatnonzero(ranks == ranks.max())
        index = int(tied[seed % len(tied)])
        score = None if np.isnan(scores[index]) else float(scores[index])
        choices[how] = Choice(candidate=index, score=score, n_tied=len(tied))
    best = choices[config.aggregate]
    grade = verdicts[best.candidate].grade
    return ChosenCandidate(
        id=entry.question.id,
        source=entry.question.source,
        **asdict(best),
        verdict="wrong" if grade == "incorrect" else grade,
        answer=verdicts[best.candidate].answer,
        text=entry.candidates[best.candidate].text,
        by_aggregate=choices,
    )


def _write(reranking: Reranking, sets: Sequence[CandidateSet], inputs: list[dict[str, Any]]) -> None:
    config, figures = reranking.config, FIGURES if can_draw() else ()
    chosen = b"".join(msgspec.json.encode(line) + b"\n" for line in reranking.chosen)
    with atomic_write(config.path("chosen.jsonl")) as temporary:
        temporary.write_bytes(chosen)
    chart = best_of_n_chart("best_of_n", f"Best of N: {reranking.model}", reranking.best_of_n.total.accuracy)
    for name in figures:
        with atomic_write(config.path(name)) as temporary:
            save_figure(line_figure(chart), temporary, name[-3:])
    scores = config.scores or (config.path(SCORES) if config.has_model else None)
    picture = f"![Accuracy against N]({FIGURES[0]})\n\n" if figures else ""
    n_candidates = Counter(entry.question.source for entry in sets for _ in entry.candidates)
    golds = {"n_extracted_golds": reranking.n_extracted_golds}
    path = {"model_path": pinned_name(config.model)} if isinstance(config.model, str) else {}
    notes = "".join(f"- {markdown_text(note)}\n" for note in reranking.notes())
    config.write_results(
        reranking.to_json(),
        f"# Best of N\n\n{notes}\n{picture}" + "\n".join(table.markdown() for table in reranking.tables()),
        command="rerank",
        config={"model": reranking.model, **path, **config.recorded(), "n": reranking.ns, **golds},
        inputs=inputs if scores is None else [*inputs, *input_entries(scores)],
        sources={
            name: {"questions": group.n_questions, "candidates": n_candidates[name]}
            for name, group in reranking.best_of_n.sources.items()
        },
        output={"chosen_xxh3_128": xxhash.xxh3_128_hexdigest(chosen), "figures": figures},
    )

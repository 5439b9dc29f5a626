"""What a reward model, and the corpus's labels, are worth: on the benchmark, in best-of-N, against the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

import mprm
from mprm import evaluation
from mprm.data import Benchmark, StepScorer
from mprm.errors import ConfigError, DataError
from mprm.evaluation import FloatArray, IntArray, StepTable
from mprm.theory import eta_eff, fit_corpus
from mprm_lab.world import judge_chain, problem_named

FOLDS, SEED = evaluation.EvaluateConfig().folds, evaluation.EvaluateConfig().seed
VOTE_SUBSETS = 200
"""Subsets that a vote is averaged over; the model's own choice has a closed form."""
BOOTSTRAP_SAMPLES = 1000
SCHEMES = {"held_out": "held-out", "test_threshold": "test"}
"""Where the threshold is chosen: on other problems, or on those that it is reported on, as the paper's code does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedMean:
    """A mean over seeds."""

    mean: float
    low: float | None
    """Ends of Student's 95% interval; None for a single seed."""
    high: float | None
    n: int


def seed_mean(values: Sequence[float]) -> SeedMean:
    """Mean and Student's 95% interval, ``mean ± t(n - 1) · s / √n``.

    Examples
    --------
    >>> interval = seed_mean([1.0, 2.0, 3.0])  # t(2) = 4.303, s = 1
    >>> round(interval.low, 3), interval.mean, round(interval.high, 3)
    (-0.484, 2.0, 4.484)
    """
    n, mean = len(values), fmean(values)
    if n < 2:
        return SeedMean(mean=mean, low=None, high=None, n=n)
    from scipy.stats import t

    half = float(t.ppf(0.975, n - 1)) * stdev(values) / n**0.5
    return SeedMean(mean=mean, low=mean - half, high=mean + half, n=n)


def scored_table(benchmark: Benchmark, scorer: StepScorer) -> StepTable:
    """The benchmark's steps with the model's scores."""
    return StepTable.of(evaluation.score_benchmark(benchmark, scorer, model="the run's model").solutions)


def unscored_table(benchmark: Benchmark) -> StepTable:
    """The benchmark's steps, all scored 0, for scores that were kept."""
    solutions = benchmark.solutions
    return StepTable.of([evaluation.with_scores(each, "", [0.0] * len(each.steps)) for each in solutions])


def step_metrics(table: StepTable) -> dict[str, dict[str, Any]]:
    """Overall value, pooled macro-F1, AUC and macro-F1 of each source, by where the threshold is chosen."""
    metrics = {}
    for name, scheme in SCHEMES.items():
        thresholds = evaluation.choose_thresholds(table, scheme, folds=FOLDS, seed=SEED)  # type: ignore[arg-type]
        result = evaluation.bootstrap_metrics(table, thresholds)
        metrics[name] = {
            **{metric: _rounded(result.value(metric)) for metric in ("overall", "macro_f1", "auc")},
            "sources": {source: _rounded(result.value("macro_f1", source)) for source in table.sources},
        }
    return metrics


def best_of_n_accuracies(graded: Path, scorer: StepScorer) -> dict[str, Any]:
    """Accuracy by method and N, and that of the model's choice at the largest N by source."""
    reranking = mprm.rerank(str(graded), scorer, draws=VOTE_SUBSETS)
    largest = max(reranking.ns)
    return {
        "accuracy": {
            method: {str(n): _rounded(estimate.value) for n, estimate in row.items()}
            for method, row in reranking.best_of_n.total.accuracy.items()
        },
        "sources": {
            source: _rounded(group.accuracy["prm"][largest].value)
            for source, group in reranking.best_of_n.sources.items()
        },
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def bootstrapped_overall(table: StepTable) -> FloatArray:
    """The overall value, then that of each bootstrap sample of problems, shape (1 + samples,)."""
    counts = evaluation.count_units(table, evaluation.choose_thresholds(table, "held-out", folds=FOLDS, seed=SEED))
    return evaluation.bootstrap_overall(counts, draws=BOOTSTRAP_SAMPLES, seed=SEED)


def own_thresholds(table: StepTable) -> dict[str, float] | None:
    """Overall value and AUC with a threshold for each source, weighted by their steps as the paper's value is.

    With one threshold for all, scores of different sources must also lie on one scale; here only steps of one source
    are compared with each other. A source's threshold is chosen on its other problems, fold by fold. None where a
    source has too few of them, or no step of either label.
    """
    metrics = {"overall": "macro_f1", "auc": "auc"}  # of all sources, and what of each
    values, weights = [], []
    for number in range(len(table.sources)):
        part = of_source(table, number)
        try:
            thresholds = evaluation.choose_thresholds(part, "held-out", folds=FOLDS, seed=SEED)
        except ConfigError:
            return None
        result = evaluation.bootstrap_metrics(part, thresholds)
        values.append([result.value(name) for name in metrics.values()])
        weights.append(int(part.is_counted.sum()))
    means = np.average(np.array(values, np.float64), axis=0, weights=weights)
    return None if np.isnan(means).any() else dict(zip(metrics, np.round(means, 6).tolist(), strict=True))


def of_source(table: StepTable, number: int) -> StepTable:
    """The solutions of one source."""
    is_kept = table.source == number
    of_steps = is_kept[table.solution]
    problems, problem = np.unique(table.problem[is_kept], return_inverse=True)
    return replace(
        table,
        scores=table.scores[of_steps],
        labels=table.labels[of_steps],
        solution=(np.cumsum(is_kept) - 1)[table.solution[of_steps]],
        first_error=table.first_error[is_kept],
        source=np.zeros(int(is_kept.sum()), np.int64),
        problem=problem,
        sources=(table.sources[number],),
        problems=tuple(table.problems[index] for index in problems),
    )


# Whether a reward model reads what a step says, or only its position: its source and its index in the solution.


def auc_at_same_position(table: StepTable) -> float | None:
    """AUC among steps at the same position, the mean over all positions.

    A position counts by its correct or incorrect steps, whichever are fewer. None where no position has both.
    """
    index = _step_index(table)
    position = table.source[table.solution] * (index.max() + 1) + index
    values, weights = [], []
    for number in np.unique(position[table.is_counted]):
        is_kept = (position == number) & table.is_counted
        is_correct = table.labels[is_kept] == 1
        n_fewer = min(int(is_correct.sum()), int((~is_correct).sum()))
        if n_fewer:
            steps = evaluation.rank_steps(table.scores[is_kept], is_correct)
            values.append(evaluation.ranking_metrics(steps, np.ones((1, len(is_correct))))["auc"][0])
            weights.append(n_fewer)
    return float(np.average(values, weights=weights)) if values else None


def _step_index(table: StepTable) -> IntArray:
    """Index of each step in its solution, from 0; shape (S,)."""
    starts = np.searchsorted(table.solution, np.arange(len(table.source)))
    index: IntArray = np.arange(len(table.solution)) - starts[table.solution]
    return index


# Monte-Carlo labels against the truth, which the lab knows. Some prefixes come up word for word in two rollouts of a
# problem. Each was continued anew, so that the second count tests how well the model predicts it from the first.


def corpus_truth(path: str | Path, *, reliable: float = 0.5) -> dict[str, Any]:
    """``N``, ``reliable`` and ``rows``: for each count k from 0 to N how many steps of a lab's corpus are wrong.

    A row has ``n_steps``; of those that claim something the ``n_wrong``; the ``n_neutral``, which claim nothing;
    ``eta_eff``, the probability that their success rate is below `reliable`, by the corpus's prior; ``n_again``, the
    steps whose prefix another rollout has too, of each pair the first; of those the ``n_below`` whose second count is
    below `reliable` of N; and ``below``, the probability of that. The probabilities are None where no prior fits.
    """
    steps: Counter[tuple[int, str]] = Counter()
    n_continuations: set[int] = set()
    counts_of_prefix: dict[tuple[str, ...], list[int]] = {}
    for rollout in mprm.open_corpus(path):
        if len(rollout.images) != 1:
            raise DataError(f"{path}: a rollout has {len(rollout.images)} images; the lab's have one, named after it")
        texts = [step.text for step in rollout.steps]
        verdicts = judge_chain(problem_named(rollout.images[0]), texts)
        for number, (step, verdict) in enumerate(zip(rollout.steps, verdicts, strict=True), 1):
            if step.n_total is None or step.n_correct is None:
                raise DataError(
                    f"{path}: a step of {rollout.images[0]} has no counts; annotate it with mprm annotate"
                )
            n_continuations.add(step.n_total)
            steps[step.n_correct, verdict] += 1
            counts_of_prefix.setdefault((rollout.images[0], *texts[:number]), []).append(step.n_correct)
    if len(n_continuations) != 1:
        raise DataError(
            f"{path}: expected one number of continuations, found {sorted(n_continuations) or 'no rollout'}"
        )
    (n,) = n_continuations
    n_low = sum(k / n < reliable for k in range(n + 1))  # counts 0 to n_low - 1 are below
    pairs = Counter((counts[0], counts[1] < n_low) for counts in counts_of_prefix.values() if len(counts) > 1)
    noise, below = _predicted(path, n, reliable, n_low)
    rows = [
        {
            "k": k,
            "n_steps": sum(steps[k, verdict] for verdict in ("correct", "incorrect", "neutral")),
            "n_wrong": steps[k, "incorrect"],
            "n_neutral": steps[k, "neutral"],
            "eta_eff": noise[k],
            "n_again": pairs[k, True] + pairs[k, False],
            "n_below": pairs[k, True],
            "below": below[k],
        }
        for k in range(n + 1)
    ]
    return {"N": n, "reliable": reliable, "rows": rows}


def _predicted(path: str | Path, n: int, reliable: float, n_low: int) -> tuple[list[Any], list[Any]]:
    """By the prior of the whole corpus, for each count: ``eta_eff``, and the probability that another is low."""
    try:
        prior = fit_corpus(str(path), reliable=reliable).total.prior
    except DataError:  # as in a tiny corpus
        prior = None
    if prior is None:
        return [None] * (n + 1), [None] * (n + 1)
    from scipy.stats import betabinom

    k = np.arange(n + 1)
    noise = eta_eff(k, n, tau=reliable, a=prior.a, b=prior.b)
    return noise.tolist(), betabinom.cdf(n_low - 1, n, prior.a + k, prior.b + n - k).tolist()

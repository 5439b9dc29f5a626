"""What an adaptive budget saves and what it costs, on simulated annotations with the statistics of a corpus.

    python benchmarks/adaptive.py [--corpus GLOB] [--seeds 10] [--out FILE] [--markdown]

Each step of a corpus gets a true success rate r, drawn from its posterior given its count k of 16, and
16 continuations are drawn with it. Every way of sampling sees the first of the same 16, so that it is compared
with all 16 step by step. The prior behind r is fitted to the corpus, all sources together: 0 with
probability ``zero``, else Beta(a, b), for one Beta alone predicts too few steps that never succeed. Steps
that the corpus says were never sampled count as 0 of 16, as the corpus labels them.

Each adaptive row is followed by the fixed budget of the same mean cost, the row to compare it with. "another 16"
is a second annotation of the same steps: what agreement to expect of one that costs everything.

Three corpora: a sample, of which benchmarks/data/sample_counts.json holds the counts, the files of --corpus if given,
and a hard one: the sample with r ** power, which keeps the order of the steps, at a mean r of 0.5. Intervals are 95%
over the seeds.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import t as student

from mprm import open_corpus
from mprm.annotation import AdaptiveRule
from mprm.cli.tables import show_table
from mprm.data.output import markdown_table
from mprm.selection.stats import bis_of
from mprm.selection.strategies import random_order
from mprm.theory.beta_binomial import all_fail, fit_beta

N, RHO, ALPHA, TAU = 16, 0.10, 0.05, 0.5
HARD_MEAN = 0.5
DELTAS, ROUNDS, FIXED = (0.01, 0.02, 0.05, 0.1, 0.2), (1, 2, 8), (4, 5, 6, 8)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Counts = tuple[IntArray, IntArray]
"""Successes and continuations of each step."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a corpus has counted."""

    k: IntArray
    """Successes of each step, of 16."""
    first: IntArray
    """The number of each rollout's first step."""
    source: NDArray[np.str_]
    """Of each rollout."""

    @property
    def lengths(self) -> IntArray:
        """Steps of each rollout."""
        return np.diff(self.first, append=len(self.k))


def sample_counts() -> Counted:
    """The counts of the sample; a step that was never sampled counts as 0 of 16."""
    path = Path(__file__).parent / "data" / "sample_counts.json"
    sources: dict[str, list[list[int]]] = json.loads(path.read_text(encoding="utf-8"))
    rollouts = [(source, k) for source, of_source in sources.items() for k in of_source]
    lengths = [len(k) for _, k in rollouts]
    k = np.array([successes for _, steps in rollouts for successes in steps])
    return Counted(k, np.cumsum([0, *lengths[:-1]]), np.array([source for source, _ in rollouts]))


def count(paths: Any) -> Counted:
    """Read the counts of 16; a step that was never sampled counts as 0 of 16."""
    k: list[int] = []
    first, source = [], []
    for placed in open_corpus(paths).placed():
        first.append(len(k))
        source.append(placed.source)
        for step in placed.rollout.steps:
            if step.n_total not in (0, N) or step.n_correct is None:
                raise SystemExit(f"{placed.file}:{placed.line}: {step.n_total} continuations; expected 0 or {N}")
            k.append(step.n_correct)
    return Counted(np.array(k), np.array(first), np.array(source))


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRates:
    """How success rates are distributed: 0 with probability ``zero``, else Beta(a, b).

    A wrong step never succeeds, and no Beta has both a lump at 0 and one near 1 with little between.
    """

    zero: float
    a: float
    b: float

    def p_never(self, n: int) -> float:
        """Probability that a step with n failures of n is one that never succeeds."""
        by_chance = (1 - self.zero) * float(all_fail(0, n, a=self.a, b=self.b))
        return self.zero / (self.zero + by_chance)

    def sample(self, k: IntArray, n: int, rng: np.random.Generator) -> FloatArray:
        """A success rate for each step from its posterior, given k successes of n; shape (S,)."""
        r = rng.beta(self.a + k, self.b + n - k)
        never: NDArray[np.bool_] = (k == 0) & (rng.random(len(k)) < self.p_never(n))
        return np.where(never, 0.0, r)


def fit_success_rates(k: IntArray, n: int, *, rounds: int = 100) -> SuccessRates:
    """The distribution under which these counts of n are most likely, by expectation-maximization.

    Each round estimates how many of the steps without a success never succeed, and fits the Beta to the others.
    """
    counts = np.bincount(k, minlength=n + 1).astype(np.float64)
    values, n_steps = np.arange(n + 1), counts.sum()
    rates = SuccessRates(zero=counts[0] / n_steps / 2, a=1.0, b=1.0)
    for _ in range(rounds):
        n_never = counts[0] * rates.p_never(n)
        a, b = fit_beta(values, np.full_like(values, n), counts - np.where(values == 0, n_never, 0.0))
        rates = SuccessRates(zero=n_never / n_steps, a=a, b=b)
    return rates


def replay(outcomes_S_N: NDArray[np.bool_], rule: AdaptiveRule) -> Counts:  # noqa: N803 - axes
    """Successes and continuations of each step, had the rule sampled these outcomes in order; shapes (S,).

    Parameters
    ----------
    outcomes_S_N : shape (steps, N)
        Whether each continuation of each step succeeds.
    """
    k, n = np.zeros(len(outcomes_S_N), np.int64), np.zeros(len(outcomes_S_N), np.int64)
    n_sampled = 0
    while n_sampled < rule.continuations:
        goes_on = np.array([rule.n_next(successes, n_sampled) > 0 for successes in range(n_sampled + 1)])
        open_steps = np.flatnonzero((n == n_sampled) & goes_on[k])
        end = min(n_sampled + rule.round, rule.continuations)
        k[open_steps] += outcomes_S_N[open_steps, n_sampled:end].sum(axis=1)
        n[open_steps] = n_sampled = end
    return k, n


def same(r: FloatArray) -> FloatArray:
    return r


def hardened(r: FloatArray) -> FloatArray:
    """The same steps in the same order, made so much harder that half of the continuations succeed."""
    power: float = brentq(lambda power: np.mean(r**power) - HARD_MEAN, 0.01, 1000)
    return r**power


def fixed(outcomes: NDArray[np.bool_], n: IntArray) -> Counts:
    """The first n of each step."""
    within = np.arange(N) < n[:, None]
    return (outcomes & within).sum(axis=1), n


def spread(rng: np.random.Generator, n_steps: int, mean: float) -> IntArray:
    """Nearly the same n for all steps, with this mean: the two whole numbers around it, at random."""
    low = int(mean)
    n = np.full(n_steps, low)
    n[rng.permutation(n_steps)[: round((mean - low) * n_steps)]] += 1
    return n


def n_pos_of(counted: Counted, scores: FloatArray) -> IntArray:
    return np.add.reduceat((scores > 0).astype(np.int64), counted.first)


def mixed(counted: Counted, scores: FloatArray) -> NDArray[np.bool_]:
    """Whether each rollout has positive and negative steps."""
    n_pos = n_pos_of(counted, scores)
    return (n_pos > 0) & (n_pos < counted.lengths)


def chosen(counted: Counted, scores: FloatArray, seed: int) -> NDArray[np.bool_]:
    """The BIS-10% subset, by source, ties by the seeded hash, as in ``mprm select``."""
    kinds = [("n_steps", np.int64), ("n_pos", np.int64), ("sum_pos", np.float64)]
    rows = np.zeros(len(counted.first), kinds)
    rows["n_steps"] = counted.lengths
    rows["n_pos"] = n_pos_of(counted, scores)
    rows["sum_pos"] = np.add.reduceat(scores, counted.first)
    bis = bis_of(rows, ALPHA)
    kept = np.zeros(len(bis), bool)
    for source in np.unique(counted.source):
        places = np.flatnonzero(counted.source == source)
        order = random_order(seed, str(source), np.arange(len(places), dtype=np.uint64))
        best = np.lexsort((order, -bis[places]))
        kept[places[best[: max(1, int(len(places) * RHO))]]] = True
    return kept


@dataclass(frozen=True, slots=True)
class World:
    """One simulated annotation of a corpus."""

    counted: Counted
    r: FloatArray
    outcomes: NDArray[np.bool_]
    again: NDArray[np.bool_]
    """Sixteen more of each step, independent of the first."""
    seed: int
    full: FloatArray
    """Scores of all 16."""
    full_kept: NDArray[np.bool_]
    """Their BIS-10% subset."""
    full_mixed: NDArray[np.bool_]
    """Those of it that have positive and negative steps."""


def make_world(counted: Counted, rates: SuccessRates, change: Callable[[FloatArray], FloatArray], seed: int) -> World:
    rng = np.random.default_rng(seed)
    r = change(rates.sample(counted.k, N, rng))
    outcomes, again = (rng.random((len(r), N)) < r[:, None] for _ in range(2))
    full = outcomes.mean(axis=1)
    kept = chosen(counted, full, seed)
    return World(counted, r, outcomes, again, seed, full, kept, kept & mixed(counted, full))


def measure(world: World, counts: Counts) -> dict[str, float]:
    """One row of the table."""
    k, n = counts
    scores, r, full = k / n, world.r, world.full
    is_pos, full_pos = k > 0, full > 0
    kept = chosen(world.counted, scores, world.seed)
    found = {
        "continuations": n.mean(),
        "saved": 1 - n.mean() / N,
        "labels_differ": (is_pos != full_pos).mean(),
        "positives_lost": (full_pos & ~is_pos).sum() / full_pos.sum(),
        "pseudo_positive": (r[is_pos] < TAU).mean(),
        "reliability_wrong": ((scores >= TAU) != (r >= TAU))[is_pos].mean(),
        "score_difference": np.abs(scores - full).mean(),
        "bis_overlap": (kept & world.full_kept).sum() / world.full_kept.sum(),
        "mixed_overlap": (kept & world.full_mixed).sum() / world.full_mixed.sum(),
        "correlation": np.corrcoef(scores, r)[0, 1],
        "brier": np.mean((scores - r) ** 2),
        "bias_to_r": np.mean(scores - r),
        "bias_to_16": np.mean(scores - full),
        "all_ones": (np.minimum.reduceat(scores, world.counted.first) == 1).mean(),
        "spent_on_negatives": n[~is_pos].sum() / n.sum(),
    }
    return {name: float(value) for name, value in found.items()}


def rules(world: World) -> dict[str, AdaptiveRule]:
    """The adaptive rows; the fitted prior comes of other draws than it is used on."""
    a, b = fit_beta(world.again.sum(axis=1), np.full(len(world.again), N))
    return {
        **{f"δ {delta:g}": AdaptiveRule(delta=delta) for delta in DELTAS},
        **{f"round {size}": AdaptiveRule(round=size) for size in ROUNDS},
        "prior Beta(0.5, 0.5)": AdaptiveRule(prior=(0.5, 0.5)),
        "prior Beta(0.1, 0.1)": AdaptiveRule(prior=(0.1, 0.1)),
        "prior Beta(0.1, 0.1), δ 0.2": AdaptiveRule(prior=(0.1, 0.1), delta=0.2),
        "prior fitted": AdaptiveRule(prior=(a, b)),
    }


def rows_of(world: World) -> dict[str, dict[str, float]]:
    """Every row of one world; each adaptive one is followed by a fixed budget of the same mean."""
    rng = np.random.default_rng([world.seed, 1])
    n_steps = len(world.r)
    whole = np.full(n_steps, N)
    rows = {
        "all 16": measure(world, fixed(world.outcomes, whole)),
        "another 16": measure(world, fixed(world.again, whole)),
    }
    for name, rule in rules(world).items():
        rows[name] = measure(world, replay(world.outcomes, rule))
        n = spread(rng, n_steps, rows[name]["continuations"])
        rows[f"{name}: fixed, same cost"] = measure(world, fixed(world.outcomes, n))
    for size in FIXED:
        rows[f"fixed {size}"] = measure(world, fixed(world.outcomes, np.full(n_steps, size)))
    return rows


def interval(values: list[float]) -> list[float]:
    """Mean, and half the width of its 95% interval."""
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    half_width = float(student.ppf(0.975, len(values) - 1)) * error
    return [round(float(np.mean(values)), 7), round(half_width, 7)]


def simulate(counted: Counted, change: Callable[[FloatArray], FloatArray], seeds: int) -> dict[str, Any]:
    """Rows over the seeds, and how near the simulated corpora come to the one they are made of."""
    rates = fit_success_rates(counted.k, N)
    a, b = fit_beta(counted.k, np.full(len(counted.k), N))
    worlds = [make_world(counted, rates, change, seed) for seed in range(seeds)]
    tables = [rows_of(world) for world in worlds]
    return {
        "n_rollouts": len(counted.first),
        "n_steps": len(counted.k),
        "success_rates": asdict(rates),
        "one_beta": {"a": a, "b": b, "negative_steps": float(all_fail(0, N, a=a, b=b))},
        "made_of": described(counted, counted.k / N),
        "simulated": {
            name: interval([described(counted, world.full)[name] for world in worlds])
            for name in described(counted, counted.k / N)
        },
        "mean_r": interval([float(world.r.mean()) for world in worlds]),
        "rows": {
            name: {key: interval([table[name][key] for table in tables]) for key in tables[0][name]}
            for name in tables[0]
        },
    }


def described(counted: Counted, scores: FloatArray) -> dict[str, float]:
    return {
        "mean_score": float(scores.mean()),
        "negative_steps": float((scores == 0).mean()),
        "full_scores": float((scores == 1).mean()),
        "mixed_rollouts": float(mixed(counted, scores).mean()),
    }


COLUMNS: dict[str, tuple[str, str]] = {
    "continuations": ("per step", "{:.2f}"),
    "saved": ("saved", "{:.1%}"),
    "labels_differ": ("labels differ", "{:.3%}"),
    "pseudo_positive": ("pseudo-positive", "{:.2%}"),
    "reliability_wrong": ("reliability wrong", "{:.2%}"),
    "score_difference": ("score off", "{:.4f}"),
    "bis_overlap": ("BIS-10% overlap", "{:.1%}"),
    "mixed_overlap": ("of its mixed", "{:.1%}"),
    "brier": ("Brier", "{:.5f}"),
    "bias_to_r": ("bias", "{:+.4f}"),
}
"""What is shown, here and in the documentation; the JSON has more."""


def show_results(name: str, found: dict[str, Any], markdown: bool) -> None:
    heads = ["", *(head for head, _ in COLUMNS.values())]
    lines = [[row, *(cell(key, values[key], markdown) for key in COLUMNS)] for row, values in found["rows"].items()]
    if markdown:
        print(f"### {name}\n\n{markdown_table(heads, lines)}\n")
        return
    show_table(f"{name}: {found['n_steps']:,} steps", heads, lines, total_last=False)
    for what in ("success_rates", "one_beta", "made_of"):
        print(f"{what}: " + ", ".join(f"{key} {value:.4f}" for key, value in found[what].items()))
    print("simulated: " + ", ".join(f"{key} {value[0]:.4f}" for key, value in found["simulated"].items()))


def cell(key: str, value: list[float], with_interval: bool) -> str:
    form = COLUMNS[key][1]
    mean, half_width = form.format(value[0]), form.replace("+", "").format(value[1])
    return f"{mean} ± {half_width}" if with_interval else mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", help="annotated files in the form of VisualPRM400K-v1.1-Raw, 16 continuations")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "adaptive.json")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, with intervals")
    options = parser.parse_args()
    started = time.perf_counter()
    sample = sample_counts()
    jobs: dict[str, tuple[Counted, Callable[[FloatArray], FloatArray]]] = {"sample": (sample, same)}
    if options.corpus is not None:
        jobs["corpus"] = (count(options.corpus), same)
    jobs["hard"] = (sample, hardened)
    results: dict[str, Any] = {
        "command": "python benchmarks/adaptive.py" + ("" if options.corpus is None else " --corpus CORPUS"),
        "seeds": options.seeds,
        "rho": RHO,
        "alpha": ALPHA,
        "tau": TAU,
        "n_max": N,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "corpora": {},
    }
    for name, (counted, change) in jobs.items():
        results["corpora"][name] = simulate(counted, change, options.seeds)
        show_results(name, results["corpora"][name], options.markdown)
    results["seconds"] = round(time.perf_counter() - started, 1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    # a mean and its interval on one line
    text = re.sub(
        r"\[\s+([^][,]+),\s+([^][,]+?)\s+\]", r"[\1, \2]", json.dumps(results, indent=1, ensure_ascii=False)
    )
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

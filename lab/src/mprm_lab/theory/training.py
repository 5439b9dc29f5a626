"""Statements on training: how excess risk falls with data and updates, and what random sub-sampling does to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mprm.theory.arguments import FloatArray
from mprm.theory.equations import risk_bound, subsampled
from mprm_lab.theory.cubes import (
    batches,
    empirical_minimizer,
    excess_risk,
    fresh,
    largest_deviation,
    parameters,
    samples,
    sgd,
)
from mprm_lab.theory.lines import Line, make_line, ratio_draws

N_STUDENTS = 4000
"""Twice as many in a single pass, whose exponent and ratio vary most."""
AT_ONCE = 1000
"""Students of a single pass that are trained together: bounds memory."""
N_GROUPS = 40
"""An exponent is fitted to each group of students by itself."""
UPDATES = (1024, 2048, 4096, 8192)
DATA = (256, 1024, 4096, 16_384)
GRID = (256, 1024, 4096)
GAMMA = 0.25
LIMIT_TOLERANCE = 0.03
"""How far an exponent may be from its limit at the sizes that are simulated; twice that for a ratio."""

Curve = dict[int, FloatArray]
"""Excess risk of every student, by number of updates or of data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the students came to."""

    single_pass: Curve
    """By number of updates, each training step seen once."""
    minimizer: Curve
    """Of the empirical minimizer, by number of training steps."""
    deviation: Curve
    """Largest difference of empirical and population loss, by number of training steps."""
    finite: dict[tuple[int, int], FloatArray]
    """By (training steps, updates)."""
    matched: tuple[FloatArray, FloatArray]
    """After as many updates on plenty of data, and on a quarter of it."""


def train_students(rng: np.random.Generator) -> Training:
    """Train thousands of students on fresh and on finite data."""
    counts = {n: samples(rng, n, N_STUDENTS) for n in DATA}
    where = parameters(rng, 500)
    finite = {}
    for n in GRID:
        few = counts[n][: N_STUDENTS // 4]
        for T, w in sgd(*batches(rng, few, GRID[-1]), keep=GRID).items():
            finite[n, T] = excess_risk(w)
    return Training(
        single_pass=_single_pass(rng),
        minimizer={n: excess_risk(empirical_minimizer(sample)) for n, sample in counts.items()},
        deviation={n: largest_deviation(sample, where) for n, sample in counts.items()},
        finite=finite,
        matched=_matched(rng),
    )


def _single_pass(rng: np.random.Generator) -> Curve:
    parts: list[Curve] = []
    for _ in range(2 * N_STUDENTS // AT_ONCE):
        kept = sgd(*fresh(rng, UPDATES[-1], AT_ONCE), keep=UPDATES)
        parts.append({T: excess_risk(w) for T, w in kept.items()})
    return {T: np.concatenate([part[T] for part in parts]) for T in UPDATES}


def _matched(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    counts = samples(rng, 65_536, N_STUDENTS)
    kept = rng.binomial(counts, GAMMA)
    T = UPDATES[0]
    whole, part = (excess_risk(sgd(*batches(rng, sample, T), keep=[T])[T]) for sample in (counts, kept))
    return whole, part


def training_lines(found: Training) -> list[Line]:
    """The risk bound's terms and exponents, and Random-γ with matched updates and in a single pass."""
    opt = risk_bound(N_eff=1, T=UPDATES, C_data=1, C_opt=1).opt
    data = risk_bound(N_eff=DATA, T=1, C_data=1, C_opt=1).data
    slope_opt, slope_data = _slope(UPDATES, opt), _slope(DATA, data)
    return [
        make_line(
            "optimization term: exponent of T",
            "eq:scaling-decomp",
            "E[L(w_T)] − L(w*) ∝ T^(−1/2)",
            "=",
            slope_opt,
            _slopes(found.single_pass),
            tolerance=LIMIT_TOLERANCE,
        ),
        make_line(
            "data term: exponent of N",
            "eq:app-data-pre",
            "E sup |L − L_N| ∝ N^(−1/2)",
            "=",
            slope_data,
            _slopes(found.deviation),
            tolerance=LIMIT_TOLERANCE,
        ),
        make_line(
            "… of the minimizer itself",
            "eq:app-data-final",
            "exponent of L(ŵ_N) − L(w*) < −1/2: faster than bounded",
            "<",
            slope_data,
            _slopes(found.minimizer),
        ),
        *_bounds(found),
        *_subsets(found),
    ]


def _slope(sizes: tuple[int, ...], values: FloatArray) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _groups(values: FloatArray) -> FloatArray:
    """Mean of each group of students, shape (groups,)."""
    means: FloatArray = values.reshape(N_GROUPS, -1).mean(axis=1)
    return means


def _slopes(curve: Mapping[int, FloatArray]) -> FloatArray:
    """Fitted exponent of each group of students."""
    means = np.stack([_groups(values) for values in curve.values()])
    slopes: FloatArray = np.polyfit(np.log(list(curve)), np.log(means), 1)[0]
    return slopes


def _bounds(found: Training) -> list[Line]:
    """The bound itself, its constants measured where data and updates are fewest, checked at all sizes."""
    n_0, T_0 = DATA[0], GRID[0]
    unit = risk_bound(N_eff=n_0, T=T_0, C_data=1, C_opt=1)
    # as in the appendix: twice the largest deviation bounds the minimizer's risk, and twice more what updates miss
    C_data = 2 * found.deviation[n_0].mean() / unit.data
    C_opt = found.finite[GRID[-1], T_0].mean() / unit.opt
    sizes = np.array(list(found.finite))
    bound = risk_bound(N_eff=sizes[:, 0], T=sizes[:, 1], C_data=2 * C_data, C_opt=C_opt)
    return [
        make_line(
            "finite data's risk",
            "eq:app-data-final",
            "L(ŵ_N) − L(w*) ≤ C_data N^(−1/2)",
            "≤",
            risk_bound(N_eff=DATA, T=1, C_data=C_data, C_opt=1).data,
            np.stack(list(found.minimizer.values()), axis=-1),
        ),
        make_line(
            "the bound",
            "eq:scaling-decomp",
            "risk ≤ C_data N^(−1/2) + C_opt T^(−1/2)",
            "≤",
            bound.total,
            np.stack(list(found.finite.values()), axis=-1),
        ),
    ]


def _subsets(found: Training) -> list[Line]:
    T, few = UPDATES[2], UPDATES[0]
    full = risk_bound(N_eff=T, T=T, C_data=1, C_opt=1)
    plenty = risk_bound(
        N_eff=1e12, T=few, C_data=1, C_opt=1
    )  # the data's part is gone, as with 65,536 training steps
    single = subsampled(full, gamma=GAMMA, updates="single-pass")
    matched = subsampled(plenty, gamma=GAMMA, updates="matched")
    whole, part = found.matched
    return [
        make_line(
            "Random-25%, single pass",
            "section 3.2",
            "risk grows by γ^(−1/2)",
            "=",
            single.total / full.total,
            ratio_draws(found.single_pass[few], found.single_pass[T]),
            tolerance=2 * LIMIT_TOLERANCE,
        ),
        make_line(
            "Random-25%, matched updates",
            "section 3.2",
            "risk stays where data is plenty",
            "=",
            matched.total / plenty.total,
            ratio_draws(part, whole),
            tolerance=2 * LIMIT_TOLERANCE,
        ),
    ]

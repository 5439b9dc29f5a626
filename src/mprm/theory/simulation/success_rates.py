"""Statements on success rates under the Beta-Binomial model: posterior, effective noise, pseudo-positives."""

from __future__ import annotations

import numpy as np

from mprm.theory.argument_checks import FloatArray
from mprm.theory.beta_binomial import all_fail, eta_eff, posterior_mean, pseudo_positive_share
from mprm.theory.simulation.line import Line, make_line

N_STEPS = 200_000
N_RANDOM = 500
LEAST_STEPS = 30
"""Fewest steps of each kind behind a share, so that its chance is a normal one."""
PRIORS = [(0.8, 0.3, 0.5, 16), (2.0, 0.5, 0.7, 16), (1.0, 1.0, 0.5, 8), (0.4, 0.6, 0.3, 4)]
"""(a, b, tau, N)."""
CONTINUATIONS = (1, 2, 4, 8, 16, 32, 64)
"""Pseudo-positives are counted for each of these, with the first prior."""


def success_rate_lines(rng: np.random.Generator) -> list[Line]:
    """Draw success rates and counts under several priors, and look at the rates behind each count."""
    means, shares = zip(*(_by_count(rng, *prior) for prior in PRIORS), strict=True)
    return [
        _line("posterior mean (k = 1)", "section 3.3", "E[r | k] = (a+k)/(a+b+N)", means),
        _line("effective noise (k = 1)", "η_eff, section 3.3", "Pr(r < τ | k) = I_τ(a+k, b+N−k)", shares),
        _falls(rng),
        *_of_all(rng),
    ]


Compared = tuple[FloatArray, FloatArray, FloatArray]
"""Predicted, simulated, standard error of each setting."""


def _line(name: str, equation: str, statement: str, parts: tuple[Compared, ...]) -> Line:
    predicted, simulated, error = (np.concatenate(values) for values in zip(*parts, strict=True))
    return make_line(name, equation, statement, "=", predicted, simulated=simulated, error=error)


def _by_count(rng: np.random.Generator, a: float, b: float, tau: float, N: int) -> tuple[Compared, Compared]:
    """Mean success rate and share below tau of the steps of each count, k = 1 first."""
    r = rng.beta(a, b, N_STEPS)
    K = rng.binomial(N, r)
    means, shares = [], []
    for k in [1, 0, *range(2, N + 1)]:
        found = r[k == K]
        error = found.std(ddof=1) / np.sqrt(len(found))
        means.append((float(posterior_mean(k, N, a=a, b=b)), found.mean(), error))
        below = found < tau
        if LEAST_STEPS <= below.sum() <= len(below) - LEAST_STEPS:
            error = below.std(ddof=1) / np.sqrt(len(below))
            shares.append((float(eta_eff(k, N, tau=tau, a=a, b=b)), below.mean(), error))
    return _columns(means), _columns(shares)


def _columns(rows: list[tuple[float, float, float]]) -> Compared:
    predicted, simulated, error = np.array(rows).T
    return predicted, simulated, error


def _falls(rng: np.random.Generator) -> Line:
    steepest = []
    for _ in range(N_RANDOM):
        a, b = np.exp(rng.uniform(np.log(0.3), np.log(5), 2))
        N, tau = int(rng.integers(1, 17)), rng.uniform(0.3, 0.7)
        noise = eta_eff(np.arange(N + 1), N, tau=tau, a=a, b=b)
        steepest.append(float(np.diff(noise).max()))
    return make_line(
        "effective noise falls with k",
        "lem:eta-eff-monotone",
        "η_eff(k+1) − η_eff(k) < 0",
        "<",
        0.0,
        simulated=steepest,
    )


def _of_all(rng: np.random.Generator) -> list[Line]:
    """Shares over all steps of a prior."""
    never: list[tuple[float, float, float]] = []
    pseudo: list[tuple[float, float, float]] = []
    a, b, tau, _ = PRIORS[0]
    for a, b, tau, N in [*PRIORS, *((a, b, tau, N) for N in CONTINUATIONS)]:
        r = rng.beta(a, b, N_STEPS)
        K = rng.binomial(N, r)
        for predicted, is_so, found in (
            (all_fail(0, N, a=a, b=b), K == 0, never),
            (pseudo_positive_share(N, tau=tau, a=a, b=b), r[K > 0] < tau, pseudo),
        ):
            found.append((float(predicted), is_so.mean(), is_so.std(ddof=1) / np.sqrt(len(is_so))))
    return [
        _line("negative steps", "section 3.3", "Pr(K = 0) = B(a, b+N)/B(a, b)", (_columns(never),)),
        _line(
            "pseudo-positive share",
            "mean of η_eff over k > 0",
            "Pr(r < τ | K > 0) = (I_τ(a,b) − f I_τ(a,b+N))/(1−f), f = Pr(K = 0)",
            (_columns(pseudo),),
        ),
    ]

"""``mprm theory fit``: the time it takes on a corpus, and how often its intervals hold the truth.

    python benchmarks/theory_fit.py [--corpus GLOB] [--corpora 1000] [--out FILE]

Time: command start to exit, best of three, on the files of --corpus (without it, the quick-start corpus).
Known: the same on a corpus that is made here of 3M steps with a known prior, and whether its interval holds it.
Coverage: simulated corpora of 600 rollouts with 5 steps each and a known prior, the success rates of a rollout's
steps correlated by 0 or by 0.6 (Gaussian copula). "independent" is the interval that takes steps for independent.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder: in it, "select" is a benchmark and not the standard library's

import argparse
import glob
import json
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special, stats

import mprm
from mprm.theory import fit_beta, observed_information, prior_covariance
from mprm.theory.beta_binomial import likelihood_slopes, log_interval

PRIORS = [(1.5, 0.2), (0.6, 0.8), (5.0, 0.4)]
N, N_ROLLOUTS, N_STEPS = 16, 600, 5


def timed(paths: list[str]) -> dict[str, Any]:
    """Seconds of three runs, and what the last one found."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "mprm", "theory", "fit", *paths, "--json"], check=True, capture_output=True
        )
        seconds.append(round(time.perf_counter() - started, 2))
    found = json.loads(done.stdout)
    return {
        "files": len(paths),
        "bytes": sum(os.path.getsize(path) for path in paths),
        "rollouts": found["all"]["n_rollouts"],
        "steps": found["all"]["n_steps"],
        "sources": len(found["sources"]),
        "seconds": seconds,
        "prior": found["all"]["prior"],
        "pseudo_positive": found["all"]["pseudo_positive"],
        "negative": found["all"]["negative"],
        "expected_negative": found["all"]["expected_negative"],
        "subsets": {subset["strategy"]: subset["pseudo_positive"] for subset in found["subsets"]},
    }


def known_corpus(rng: np.random.Generator, folder: Path, a: float, b: float, n_rollouts: int) -> list[str]:
    """Files of rollouts with 5 correlated steps each; every success rate is Beta(a, b)."""
    step = [
        json.dumps({"step": "A step.", "score": k / N, "num_mc_correct": k, "num_mc_total": N}) for k in range(N + 1)
    ]
    paths = []
    for number in range(4):
        k = correlated_counts(rng, n_rollouts // 4, a, b, 0.6)
        path = folder / f"source{number}.jsonl"
        with path.open("w") as file:
            for row in k.tolist():
                steps = ", ".join([step[value] for value in row])
                file.write(f'{{"image": "a.png", "question": "?", "steps_with_score": [{steps}]}}\n')
        paths.append(str(path))
    return paths


def known(rng: np.random.Generator, a: float, b: float, n_rollouts: int) -> dict[str, Any]:
    """Time and interval on a corpus with a known prior."""
    with tempfile.TemporaryDirectory() as folder:
        found = timed(known_corpus(rng, Path(folder), a, b, n_rollouts))
    prior = found["prior"]
    holds = [
        prior[f"{name}_interval"][0] < value < prior[f"{name}_interval"][1] for name, value in (("a", a), ("b", b))
    ]
    return {"a": a, "b": b, "holds": holds} | {
        key: found[key] for key in ("rollouts", "steps", "bytes", "seconds", "prior")
    }


def correlated_counts(rng: np.random.Generator, n_rollouts: int, a: float, b: float, correlation: float) -> Any:
    """Successes of N, shape (rollouts, steps)."""
    z = np.sqrt(correlation) * rng.normal(size=(n_rollouts, 1))
    z = z + np.sqrt(1 - correlation) * rng.normal(size=(n_rollouts, N_STEPS))
    return rng.binomial(N, special.betaincinv(a, b, stats.norm.cdf(z)))


def coverage(rng: np.random.Generator, n_corpora: int, a: float, b: float, correlation: float) -> dict[str, Any]:
    """Share of corpora whose 95% interval holds a, and b."""
    robust, independent = np.zeros(2), np.zeros(2)
    n = np.full((N_ROLLOUTS, N_STEPS), N)
    for _ in range(n_corpora):
        k = correlated_counts(rng, N_ROLLOUTS, a, b, correlation)
        found = fit_beta(k.ravel(), n.ravel())
        information = observed_information(k.ravel(), n.ravel(), np.ones(k.size), a=found[0], b=found[1])
        slopes = likelihood_slopes(k, n, a=found[0], b=found[1]).sum(axis=1)
        for covariance, counts in (
            (prior_covariance(information, slopes.T @ slopes), robust),
            (prior_covariance(information), independent),
        ):
            ends = [log_interval(found[i], covariance[i, i]) for i in (0, 1)]
            counts += [low < truth < high for truth, (low, high) in zip((a, b), ends, strict=True)]
    shares = {"a": a, "b": b, "correlation": correlation, "corpora": n_corpora}
    return shares | {"covered": (robust / n_corpora).tolist(), "independent": (independent / n_corpora).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", help="files to fit to")
    parser.add_argument("--corpora", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(path) for path in mprm.quickstart(folder)]
        if options.corpus:
            paths = sorted(glob.glob(options.corpus))  # noqa: PTH207 - absolute patterns too
        result = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "time": timed(paths),
        }
    rng = np.random.default_rng(0)
    result["known"] = known(rng, 1.5, 0.2, 600_000)
    result["coverage"] = [
        coverage(rng, options.corpora, a, b, correlation) for a, b in PRIORS for correlation in (0.0, 0.6)
    ]
    print(json.dumps(result, indent=2))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Which seeds are for what, so that no problem of one use comes up in another."""

from __future__ import annotations

_N = 100_000_000

SPLITS: dict[str, range] = {
    "train": range(_N),
    "corpus": range(_N, 2 * _N),
    "benchmark": range(2 * _N, 3 * _N),
    "best-of-n": range(3 * _N, 4 * _N),
    "validation": range(4 * _N, 5 * _N),
}
"""Seeds of the problems that policies are trained on, that the corpus is made of, that steps are judged on, that
candidates are chosen from, and that thresholds and training settings are chosen on."""

"""The paper's findings, and whether the lab's numbers bear them out: by rule, never by hand."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from mprm_lab.reproduce.aggregate import METRICS, Cells, Record, best_of_n_value
from mprm_lab.reproduce.paper_numbers import OVERALL
from mprm_lab.reproduce.seed_interval import SeedMean, seed_mean

Verdict = Literal["reproduced", "not reproduced", "open"]
Term = tuple[str, str]
"""An arm and one of `VALUES`."""
LARGEST_N = 16


def _curve_mean(record: Record) -> float | None:
    """Mean of the learning curve over its points, without the untrained one."""
    points = [point["overall"] for point in record.get("curve", ()) if point["update"] > 0]
    return fmean(points) if points else None


VALUES = {
    "overall": METRICS["overall"],
    "curve": _curve_mean,
    "best-of-16": best_of_n_value("prm", LARGEST_N),
    "best-of-1": best_of_n_value("prm", 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sum of numbers less another lies above a bound, or near zero; in points of a hundred."""

    plus: tuple[Term, ...]
    minus: tuple[Term, ...]
    bound: float = 0.0
    is_near: bool = False
    """Whether the claim is that the difference is no further from zero than the bound, on either side."""

    def difference(self, cells: Cells, backbone: str) -> SeedMean | None:
        """In points, seed by seed, over the seeds that have all of the numbers."""
        terms = [(arm, value, sign) for sign, part in ((1, self.plus), (-1, self.minus)) for arm, value in part]
        found = [cells.records(backbone, arm) for arm, _, _ in terms]
        differences = []
        for seed in sorted(set.intersection(*(set(records) for records in found))):
            values = [VALUES[value](records[seed]) for (_, value, _), records in zip(terms, found, strict=True)]
            if None not in values:
                signed = zip(values, terms, strict=True)
                differences.append(100 * sum(sign * value for value, (_, _, sign) in signed))
        return seed_mean(differences) if differences else None

    def verdict(self, found: SeedMean | None) -> Verdict:
        """By where the interval lies; open without one."""
        if found is None or found.low is None or found.high is None:
            return "open"
        if self.is_near:
            if -self.bound < found.low and found.high < self.bound:
                return "reproduced"
            return "not reproduced" if found.low > self.bound or found.high < -self.bound else "open"
        if found.low > self.bound:
            return "reproduced"
        return "not reproduced" if found.high < self.bound else "open"

    def paper(self, backbone: str) -> float | None:
        """The paper's own difference, where it states the numbers."""
        known = OVERALL.get(backbone, {})
        if any(value != "overall" or arm not in known for arm, value in (*self.plus, *self.minus)):
            return None
        return sum(known[arm] for arm, _ in self.plus) - sum(known[arm] for arm, _ in self.minus)

    @property
    def words(self) -> str:
        """What is claimed."""

        def side(terms: tuple[Term, ...]) -> str:
            return " + ".join(arm if value == "overall" else f"{arm} ({value})" for arm, value in terms)

        less = (
            f"{side(self.plus)} − {side(self.minus)}"
            if len(self.plus) == 1
            else (f"({side(self.plus)}) − ({side(self.minus)})")
        )
        return f"\\|{less}\\| < {self.bound:g}" if self.is_near else f"{less} > {self.bound:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something the paper found."""

    words: str
    claims: tuple[Claim, ...]

    def verdict(self, cells: Cells, backbone: str) -> Verdict:
        """Reproduced when every claim is, not reproduced when one is not, else open."""
        verdicts = [claim.verdict(claim.difference(cells, backbone)) for claim in self.claims]
        if "not reproduced" in verdicts:
            return "not reproduced"
        return "open" if "open" in verdicts else "reproduced"


def _above(arm: str, other: str, bound: float = 0.0, *, value: str = "overall") -> Claim:
    return Claim(plus=((arm, value),), minus=((other, value),), bound=bound)


def _near(arm: str, other: str, bound: float) -> Claim:
    return Claim(plus=((arm, "overall"),), minus=((other, "overall"),), bound=bound, is_near=True)


CLOSE, MODERATE = 1.0, 2.0
"""Points within which one model reaches another, and a gap is moderate: the paper's own largest differences of the
kind are 0.94 (BIS-10% and all data of Qwen2.5-VL) and 1.75 (random 25% and all data of InternVL2.5)."""

FINDINGS = (
    Finding(
        words="Random subsampling saturates: a quarter of the rollouts costs little",
        claims=(_above("random-25", "full", -MODERATE),),
    ),
    Finding(
        words="So it does when a random quarter gets as many updates as all data",
        claims=(_above("random-25-matched", "full", -MODERATE),),
    ),
    Finding(words="Mixed rollouts teach more than random ones", claims=(_above("mixed-25", "random-25"),)),
    Finding(words="Rollouts of low MC teach more than random ones", claims=(_above("low-mc-25", "random-25"),)),
    Finding(words="Mixed rollouts teach more than those of low MC", claims=(_above("mixed-25", "low-mc-25"),)),
    Finding(
        words="BIS is better than random choice at every fraction",
        claims=tuple(_above(f"bis-{rho}", f"random-{rho}") for rho in (5, 10, 15, 25, 35, 50)),
    ),
    Finding(
        words="Its gain is largest where the fraction is small",
        claims=(
            Claim(
                plus=(("bis-5", "overall"), ("random-50", "overall")),
                minus=(("random-5", "overall"), ("bis-50", "overall")),
            ),
        ),
    ),
    Finding(words="A tenth chosen by BIS reaches all data", claims=(_above("bis-10", "full", -CLOSE),)),
    Finding(words="A quarter chosen by BIS reaches all data", claims=(_above("bis-25", "full", -CLOSE),)),
    Finding(words="Soft labels are worse than hard ones", claims=(_above("full", "full-soft"),)),
    Finding(
        words="Thresholds above zero are worse",
        claims=(_above("full", "full-tau-1"), _above("full", "full-tau-2")),
    ),
    Finding(
        words="BIS needs both of its parts: it is better than mixture or reliability alone, and than low MC",
        claims=tuple(_above("bis-25", f"{other}-25") for other in ("mixed", "reliable", "low-mc")),
    ),
    Finding(
        words="BIS is robust to α",
        claims=tuple(_near(f"bis-25-alpha-{alpha}", "bis-25", CLOSE) for alpha in ("0.02", "0.08")),
    ),
    Finding(
        words="A reward model improves best-of-N over the policy alone",
        claims=tuple(
            Claim(plus=((arm, "best-of-16"),), minus=((arm, "best-of-1"),)) for arm in ("full", "random-25", "bis-25")
        ),
    ),
    Finding(
        words="BIS improves best-of-N over random choice and over all data",
        claims=tuple(_above("bis-25", other, value="best-of-16") for other in ("random-25", "full")),
    ),
    Finding(
        words="BIS learns faster: it is ahead on average over the learning curve",
        claims=tuple(_above(f"bis-{rho}", f"random-{rho}", value="curve") for rho in (10, 25)),
    ),
)


def counts(cells: Cells) -> dict[str, dict[Any, int]]:
    """How many findings have which verdict, by backbone."""
    found: dict[str, dict[Any, int]] = {}
    for backbone in cells.backbones:
        verdicts = [finding.verdict(cells, backbone) for finding in FINDINGS]
        found[backbone] = {name: verdicts.count(name) for name in ("reproduced", "not reproduced", "open")}
    return found

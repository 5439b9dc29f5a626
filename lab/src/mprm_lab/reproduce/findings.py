"""The paper's numbers and findings, and whether the lab's numbers reproduce them: by rule, never by hand."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean
from typing import Literal, get_args

import msgspec

from mprm_lab.reproduce.measure import SeedMean
from mprm_lab.reproduce.results import METRICS, Record, Runs, best_of_n_value

BACKBONES = {"internvl": "InternVL2.5-8B", "qwen": "Qwen2.5-VL-7B"}
"""What the paper trains where the lab trains its small models of the same architectures."""
PAPER = msgspec.json.decode((files("mprm_lab.reproduce") / "paper.json").read_bytes())
"""The paper's own numbers, in percent, by the lab's names of backbones and conditions. ``overall``: micro-F1 on
VisualProcessBench, of its main table, and of those of the ablation and alpha (InternVL alone). ``error_steps``: share
of error steps in the training sets, where it is stated. ``best_of_16``: accuracy with InternVL2.5-8B on four
benchmarks, where ``base`` is the policy without a reward model. ``findings``: see `Finding`."""
OVERALL: dict[str, dict[str, float]] = PAPER["overall"]

Outcome = Literal["reproduced", "not reproduced", "open"]
Term = tuple[str, str]
"""A condition and one of `VALUES`."""


def _curve_mean(record: Record) -> float | None:
    """Mean of the learning curve over its points, without the untrained one."""
    points = [point["overall"] for point in record.get("curve", ()) if point["optimizer_step"] > 0]
    return fmean(points) if points else None


VALUES = {
    "overall": METRICS["overall"],
    "curve": _curve_mean,
    "best-of-16": best_of_n_value("prm", 16),
    "best-of-1": best_of_n_value("prm", 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sum of numbers minus another lies above a bound, or near zero; in points of a hundred."""

    plus: tuple[Term, ...]
    minus: tuple[Term, ...]
    bound: float = 0.0
    is_near: bool = False
    """Whether the claim is that the difference is no further from zero than the bound, on either side."""

    def difference(self, runs: Runs, backbone: str) -> SeedMean | None:
        """In points, seed by seed, over the seeds that have all of the numbers."""
        terms = [
            (condition, VALUES[value], sign)
            for side, sign in ((self.plus, 100), (self.minus, -100))
            for condition, value in side
        ]
        return runs.combined(backbone, terms)

    def outcome(self, difference: SeedMean | None) -> Outcome:
        """By where the interval lies; open without one."""
        if difference is None or difference.low is None or difference.high is None:
            return "open"
        if self.is_near:
            if -self.bound < difference.low and difference.high < self.bound:
                return "reproduced"
            is_apart = difference.low > self.bound or difference.high < -self.bound
            return "not reproduced" if is_apart else "open"
        if difference.low > self.bound:
            return "reproduced"
        return "not reproduced" if difference.high < self.bound else "open"

    def paper(self, backbone: str) -> float | None:
        """The paper's own difference, where it states the numbers."""
        known = OVERALL.get(backbone, {})
        if any(value != "overall" or condition not in known for condition, value in (*self.plus, *self.minus)):
            return None
        return sum(known[condition] for condition, _ in self.plus) - sum(known[name] for name, _ in self.minus)

    @property
    def words(self) -> str:
        """The claim as the page writes it."""

        def side(terms: tuple[Term, ...]) -> str:
            return " + ".join(name if value == "overall" else f"{name} ({value})" for name, value in terms)

        plus, minus = side(self.plus), side(self.minus)
        difference = f"{plus} − {minus}" if len(self.plus) == 1 else f"({plus}) − ({minus})"
        return f"|{difference}| < {self.bound:g}" if self.is_near else f"{difference} > {self.bound:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something the paper found."""

    words: str
    claims: tuple[Claim, ...]

    def outcome(self, runs: Runs, backbone: str) -> Outcome:
        """Reproduced when every claim is, not reproduced when one is not, else open."""
        outcomes = [claim.outcome(claim.difference(runs, backbone)) for claim in self.claims]
        if "not reproduced" in outcomes:
            return "not reproduced"
        return "open" if "open" in outcomes else "reproduced"


CLOSE, MODERATE = 1.0, 2.0
"""Points within which one model reaches another, and a gap is moderate: the paper's own largest differences of the
kind are 0.94 (BIS-10% and all data of Qwen2.5-VL) and 1.75 (random 25% and all data of InternVL2.5)."""

FINDINGS = msgspec.convert(PAPER["findings"], tuple[Finding, ...])


def counts(runs: Runs) -> dict[str, dict[Outcome, int]]:
    """How many findings have which outcome, by backbone."""
    outcomes = {name: [finding.outcome(runs, name) for finding in FINDINGS] for name in runs.backbones}
    return {backbone: {name: each.count(name) for name in get_args(Outcome)} for backbone, each in outcomes.items()}

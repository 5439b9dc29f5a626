"""From the records of finished cells to the numbers of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from mprm_lab.reproduce.cell import Cell
from mprm_lab.reproduce.seed_interval import SeedMean, seed_mean

Record = dict[str, Any]
METRICS: dict[str, Callable[[Record], Any]] = {
    "overall": lambda record: record["metrics"]["held_out"]["overall"],
    "overall_test_threshold": lambda record: record["metrics"]["test_threshold"]["overall"],
    "macro_f1": lambda record: record["metrics"]["held_out"]["macro_f1"],
    "auc": lambda record: record["metrics"]["held_out"]["auc"],
}
"""How each number is found in a record; ``overall`` is the paper's."""


class Cells:
    """Records by backbone, arm and seed."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._by_arm: dict[tuple[str, str], dict[int, Record]] = {}
        for record in records:
            cell = Cell(**record["cell"])
            self._by_arm.setdefault((cell.backbone, cell.arm), {})[cell.seed] = record

    @property
    def backbones(self) -> list[str]:
        """Names, in order of first appearance."""
        return list(dict.fromkeys(backbone for backbone, _ in self._by_arm))

    def arms(self, backbone: str) -> list[str]:
        """Arms of a backbone, in order of first appearance."""
        return [arm for name, arm in self._by_arm if name == backbone]

    def records(self, backbone: str, arm: str) -> dict[int, Record]:
        """By seed; empty where none is there."""
        return self._by_arm.get((backbone, arm), {})

    def mean(self, backbone: str, arm: str, of: Callable[[Record], Any]) -> SeedMean | None:
        """Mean over the seeds that have the number; None where none has."""
        values = [value for record in self.records(backbone, arm).values() if (value := of(record)) is not None]
        return seed_mean(values) if values else None

    def difference(
        self, backbone: str, arm: str, other: str, of: Callable[[Record], Any] = METRICS["overall"]
    ) -> SeedMean | None:
        """Arm less other, seed by seed, over the seeds that both have; None where there is none.

        Cells of one seed have the order of their data, and what is drawn, in common.
        """
        one, two = self.records(backbone, arm), self.records(backbone, other)
        pairs = [(of(one[seed]), of(two[seed])) for seed in one if seed in two]
        values = [first - second for first, second in pairs if first is not None and second is not None]
        return seed_mean(values) if values else None


def best_of_n_value(method: str, n: int) -> Callable[[Record], Any]:
    """Finds the accuracy of a way to choose among n candidates."""
    return lambda record: record.get("best_of_n", {}).get("accuracy", {}).get(method, {}).get(str(n))


def _of_source(source: str) -> Callable[[Record], Any]:
    return lambda record: record["metrics"]["held_out"]["sources"].get(source)


def summary_of(records: Sequence[Record]) -> dict[str, Any]:
    """Every mean and interval by backbone and arm, and BIS less random choice by percentage kept."""
    cells = Cells(records)
    return {
        backbone: {
            "arms": {arm: _arm(cells, backbone, arm) for arm in cells.arms(backbone)},
            "bis_less_random": {
                rho: _plain(cells.difference(backbone, f"bis-{rho}", f"random-{rho}"))
                for rho in _rhos(cells.arms(backbone))
            },
        }
        for backbone in cells.backbones
    }


def _arm(cells: Cells, backbone: str, arm: str) -> dict[str, Any]:
    records = list(cells.records(backbone, arm).values())
    found: dict[str, Any] = {
        "n_seeds": len(records),
        **{name: _mean(records, name) for name in ("n_rollouts", "n_steps", "n_positive", "n_updates", "seconds")},
        **{name: _plain(cells.mean(backbone, arm, of)) for name, of in METRICS.items()},
        "sources": {
            source: _plain(cells.mean(backbone, arm, _of_source(source)))
            for source in records[0]["metrics"]["held_out"]["sources"]
        },
    }
    if "best_of_n" in records[0]:
        found["best_of_n"] = {
            method: {n: _plain(cells.mean(backbone, arm, best_of_n_value(method, int(n)))) for n in row}
            for method, row in records[0]["best_of_n"]["accuracy"].items()
        }
    if any("curve" in record for record in records):
        found["curve"] = _curve([record["curve"] for record in records if "curve" in record])
    return found


def _curve(curves: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The overall value at each update that all seeds were measured at."""
    by_update = [{point["update"]: point["overall"] for point in curve} for curve in curves]
    shared = sorted(set.intersection(*(set(one) for one in by_update)))
    return [{"update": update, "overall": _plain(seed_mean([one[update] for one in by_update]))} for update in shared]


def _rhos(arms: Sequence[str]) -> list[str]:
    """Percentages at which there are both, from small to large."""
    found = [arm.removeprefix("bis-") for arm in arms if arm.startswith("bis-") and "alpha" not in arm]
    return sorted((rho for rho in found if f"random-{rho}" in arms), key=float)


def _mean(records: Sequence[Record], name: str) -> float:
    return round(fmean(record[name] for record in records), 1)


def _plain(found: SeedMean | None) -> dict[str, Any] | None:
    """For JSON."""
    if found is None:
        return None
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(found).items()}

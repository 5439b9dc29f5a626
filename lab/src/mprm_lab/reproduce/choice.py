"""The learning rate of each backbone, chosen once: on all data, by the validation split."""

from __future__ import annotations

from typing import Any

from mprm.errors import MprmError
from mprm_lab.reproduce.cell_files import CellFiles
from mprm_lab.reproduce.reproduce_plan import ReproducePlan


def choices_of(files: CellFiles, plan: ReproducePlan, backbones: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """For each backbone the rate with the best overall value, and what every rate that was tried came to.

    Of equally good ones the lowest is taken.
    """
    found = {}
    for backbone in backbones:
        tried = []
        for cell in plan.choices():
            if cell.backbone == backbone:
                record = files.read(cell)
                if record is None:
                    raise MprmError(f"{cell.name} is not measured: no learning rate can be chosen for {backbone}")
                tried.append({"learning_rate": cell.learning_rate, **_worth(record)})
        best = max(tried, key=lambda one: (one["overall"], -one["learning_rate"]))
        found[backbone] = {"learning_rate": best["learning_rate"], "tried": tried}
    return found


def _worth(record: dict[str, Any]) -> dict[str, Any]:
    held_out = record["metrics"]["held_out"]
    return {"overall": held_out["overall"], "auc": held_out["auc"], "seed": record["cell"]["seed"]}

"""What a reproduction would do, and how long it would take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mprm_lab.reproduce.cell_files import CellFiles
from mprm_lab.reproduce.inputs import find_inputs
from mprm_lab.reproduce.progress import spoken
from mprm_lab.reproduce.reproduce import cost_of, wanted_cells
from mprm_lab.reproduce.reproduce_plan import ReproducePlan


def dry_run(lab: str | Path, plan: ReproducePlan, *, only: str = "*") -> Iterator[str]:
    """A line for each cell, and what they come to; a time where finished cells tell how long cells take."""
    wanted = wanted_cells(plan, only)
    inputs = find_inputs(Path(lab), tuple(dict.fromkeys(cell.backbone for cell in wanted)))
    files = CellFiles(inputs.folder)
    backbones = {cell.backbone for cell in wanted if cell.subset != "base"}  # which needs no rate
    choices = [cell for cell in plan.choices() if cell.backbone in backbones]
    cells = choices + wanted
    done_cost = done_s = left_cost = n_left = 0.0
    for cell in cells:
        record, cost = files.read(cell), cost_of(cell, plan, inputs.n_rollouts)
        if record is None:
            left_cost, n_left = left_cost + cost, n_left + 1
            times = f", {cell.epochs} times" if cell.epochs > 1 else ""
            yield f"{cell.name}: {cell.passes / cell.epochs:g} of all rollouts{times}"
        else:
            done_cost, done_s = done_cost + cost, done_s + record["seconds"]
            yield f"{cell.name}: done in {spoken(record['seconds'])}"
    passes = left_cost / inputs.n_rollouts
    estimate = (
        f"{spoken(left_cost * done_s / done_cost)} one after the other, as long as the finished ones took"
        if done_cost
        else "how long that takes is known once some are finished"
    )
    work = f"as much work as {passes:.1f} passes over all rollouts"
    for_rates = f" ({len(choices)} of all to choose learning rates)" if choices else ""
    yield f"{n_left:.0f} of {len(cells)} cells to do{for_rates}, {work}; {estimate}."

"""``mprm lab reproduce``: the paper's experiments on the lab's data, cell by cell."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import Any

from mprm.data.engine import n_cores
from mprm.errors import ConfigError, MprmError
from mprm.models import need_torch, resolve_device
from mprm_lab.pictures import check_folder
from mprm_lab.reproduce.cell import Cell
from mprm_lab.reproduce.cell_files import CellFiles
from mprm_lab.reproduce.choice import choices_of
from mprm_lab.reproduce.inputs import WORK, LabInputs, draw_pictures, find_inputs, judge_once
from mprm_lab.reproduce.progress import Progress
from mprm_lab.reproduce.reproduce_plan import ReproducePlan
from mprm_lab.reproduce.workers import Make, Task, Workers

MARK = ".mprm"
"""In the folder of trainings under way: that it is ours, and may be removed."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """How far the experiments are."""

    n_cells: int
    """Asked for now."""
    n_kept: int
    """Of them, finished by an earlier command."""
    failed: dict[str, str]
    """What went wrong, by the cell's name."""


def reproduce(
    lab: str | Path,
    plan: ReproducePlan | None = None,
    *,
    only: str = "*",
    jobs: int | None = None,
    rates: dict[str, float] | None = None,
    say: Say = print,
    make: Make | None = None,
) -> Reproduced:
    """Train and measure every cell of the plan that is not finished yet.

    Parameters
    ----------
    lab
        Folder that ``mprm lab make`` wrote. Cells are kept in ``cells/``, some models in ``runs/``.
    only
        Cells whose names match this pattern, such as ``qwen.*-10.*``; what they need is measured too.
    jobs
        Processes at a time; see `default_jobs`.
    rates
        Learning rate of each backbone, where it was chosen before; else it is chosen first.
    make
        What a worker does its cells with, for tests: see `mprm_lab.reproduce.workers.Workers`.
    """
    folder, plan = Path(lab), plan or ReproducePlan()
    wanted = wanted_cells(plan, only)
    need_torch()
    backbones = tuple(dict.fromkeys(cell.backbone for cell in wanted))
    inputs = find_inputs(folder, backbones)
    n_jobs = jobs if jobs is not None else default_jobs(plan.device)
    check_jobs(n_jobs)
    check_free(folder)
    if rates is not None and (unknown := set(backbones) - rates.keys()):
        raise ConfigError(f"rates name no learning rate for {', '.join(sorted(unknown))}")
    with (
        _alone(folder),
        _emptied(folder / WORK),
        Workers(make or workbench, (inputs, plan), jobs=n_jobs, logs=folder / "logs") as workers,
    ):
        run = _Run(inputs, plan, workers, say)
        if any(cell.arm in plan.best_of_n for cell in run.missing(wanted)):
            judge_once(inputs, say)
        if run.missing(wanted):
            draw_pictures(inputs, say)
            if resolve_device(plan.device) == "cpu" and inputs.n_rollouts > MANY:
                say(f"no GPU here: a cell can take hours; {folder / 'logs'} tells how long each will")
            if rates is None and any(cell.subset != "base" for cell in run.missing(wanted)):
                run.choose(backbones)
        if all(cell.subset == "base" for cell in wanted):
            rates = dict.fromkeys(backbones, 0.0)  # nothing is trained
        elif rates is None:
            rates = {name: one["learning_rate"] for name, one in choices_of(run.files, plan, backbones).items()}
        n_kept = len(wanted) - len(run.missing(wanted))
        run.measure("experiments", wanted, {cell.name: rates[cell.backbone] for cell in wanted})
    return Reproduced(n_cells=len(wanted), n_kept=n_kept, failed=run.failed)


def wanted_cells(plan: ReproducePlan, only: str = "*") -> list[Cell]:
    """The plan's cells whose names match."""
    wanted = [cell for cell in plan.cells() if fnmatchcase(cell.name, only)]
    if not wanted:
        names = ", ".join(cell.name for cell in plan.cells()[:3])
        raise ConfigError(f"no cell is called {only!r}; they are called like {names}")
    return wanted


def check_jobs(n_jobs: int) -> None:
    """Stop where nobody would work."""
    if n_jobs < 1:
        raise ConfigError(f"jobs must be 1 or more, got {n_jobs}")


def default_jobs(device: str) -> int:
    """Three quarters of the cores on a GPU, which such small models leave idle; one elsewhere."""
    return max(1, 3 * n_cores() // 4) if resolve_device(device).startswith("cuda") else 1


def workbench(inputs: LabInputs, plan: ReproducePlan) -> Callable[[Any], Any]:
    """What a worker does its cells with; torch is loaded only there."""
    from mprm_lab.reproduce.run_cell import Workbench

    bench = Workbench(inputs, plan)

    def do(work: tuple[Cell, dict[str, Any]]) -> float | None:
        found: float | None = bench.run(*work)["metrics"]["held_out"]["overall"]
        return found

    return do


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One command at a time in a lab's folder."""
    with (folder / ".reproduce.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another mprm lab reproduce is at work in {folder}; wait for it") from error
        yield


@contextmanager
def _emptied(work: Path) -> Iterator[None]:
    """Nothing is there before, be it of a command that was killed, and nothing after."""
    _remove(work)
    work.mkdir(exist_ok=True)
    (work / MARK).touch()
    try:
        yield
    finally:
        _remove(work)


def _remove(work: Path) -> None:
    """Of a folder that `_emptied` made; the mark goes last, so that what is left after a kill is known as ours."""
    for path in work.glob("*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != MARK:
            path.unlink()
    shutil.rmtree(work, ignore_errors=True)


def check_free(lab: Path) -> None:
    """Stop where something stands in the place of a folder that is written to."""
    check_folder(*(lab / name for name in ("cells", "images", "logs", "runs")))
    work = lab / WORK
    is_ours = work.is_dir() and not work.is_symlink() and ((work / MARK).is_file() or not any(work.iterdir()))
    if (work.exists() or work.is_symlink()) and not is_ours:
        raise ConfigError(
            f"{work} is in the way: a folder is made there and removed at the end; move it elsewhere, or remove it"
        )


class _Run:
    """The cells of one command."""

    def __init__(self, inputs: LabInputs, plan: ReproducePlan, workers: Workers, say: Say) -> None:
        self.inputs, self.plan, self.workers, self.say = inputs, plan, workers, say
        self.files = CellFiles(inputs.folder)
        self.failed: dict[str, str] = {}

    def missing(self, cells: list[Cell]) -> list[Cell]:
        """Those that are not finished."""
        return [cell for cell in cells if self.files.read(cell) is None]

    def settings(self, cell: Cell, learning_rate: float | None) -> dict[str, Any]:
        """What decides the cell's numbers."""
        split = "benchmark" if cell.learning_rate is None else "validation"
        names = ["corpus", split, cell.backbone, *["candidates"] * (cell.arm in self.plan.best_of_n)]
        training = self.plan.train_options(cell, learning_rate or 0.0) if cell.subset != "base" else {}
        return {"training": training, "inputs": {name: self.inputs.hashes[name] for name in names}}

    def choose(self, backbones: tuple[str, ...]) -> None:
        """Measure what learning rates are chosen by."""
        trials = [cell for cell in self.plan.choices() if cell.backbone in backbones]
        self.measure("learning rates", trials, {cell.name: cell.learning_rate for cell in trials})
        if self.failed:
            raise MprmError("no learning rate can be chosen: " + "; ".join(self.failed.values()))

    def measure(self, title: str, cells: list[Cell], rates: dict[str, float | None]) -> None:
        """Run those that are not finished; stops before anything is run where one was measured otherwise."""
        settings = {cell.name: self.settings(cell, rates[cell.name]) for cell in cells}
        for cell in cells:
            self.files.check_others(cell, settings[cell.name])
        missing = self.missing(cells)
        tasks = [
            Task(
                name=cell.name,
                group=cell.backbone,
                cost=cost_of(cell, self.plan, self.inputs.n_rollouts),
                work=(cell, settings[cell.name]),
            )
            for cell in missing
        ]
        self._do(title, tasks, n_kept=len(cells) - len(missing))

    def _do(self, title: str, tasks: list[Task], n_kept: int = 0) -> None:
        progress = Progress(title, tasks, n_kept=n_kept, began=monotonic())
        self.say(progress.first_line())
        for outcome in self.workers.run(tasks, on_start=progress.start):
            if outcome.error is not None:
                self.failed[outcome.task.name] = outcome.error
            self.say(progress.line(outcome, now=monotonic()))


MANY = 5000
"""Rollouts that a CPU needs hours to train on."""
MEASURING = 1500.0
"""Rollouts that could be trained on in the time that a benchmark is scored in."""


def cost_of(cell: Cell, plan: ReproducePlan, n_rollouts: int) -> float:
    """How long a cell takes, in rollouts that are trained on."""
    n_measured = 1 + (1 + plan.curve_points) * plan.has_curve(cell) + 3 * (cell.arm in plan.best_of_n)
    return cell.passes * n_rollouts + MEASURING * n_measured

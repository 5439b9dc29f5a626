"""``mprm-lab reproduce``: the paper's experiments on the lab's data, run by run."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import as_completed
from contextlib import contextmanager
from fnmatch import fnmatchcase
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from pebble import ProcessExpired, ProcessPool

from mprm.data import n_cores
from mprm.errors import ConfigError, MprmError
from mprm.models import cache_images, need_torch, resolve_device
from mprm.progress import Progress, silent
from mprm_lab.folder import WORK, LabFolder, Log, check_folders
from mprm_lab.reproduce.plan import ReproducePlan, Run
from mprm_lab.reproduce.run import Runner, RunStore

MANY_ROLLOUTS = 5000
"""A CPU needs hours to train on as many."""

DoRun = Callable[[Run, dict[str, Any]], float]
"""Does a run with its settings in a worker process, and returns its overall value."""


class Reproduction(NamedTuple):
    """How far the experiments are."""

    n_runs: int
    n_kept: int
    """Of them, finished by an earlier command."""
    failed: dict[str, str]
    """What went wrong, by the run's name."""


def reproduce(
    lab: str | Path,
    plan: ReproducePlan | None = None,
    *,
    only: str = "*",
    trials: bool = False,
    jobs: int | None = None,
    log: Log = print,
    progress: Progress = silent,
    do_run: DoRun | None = None,
) -> Reproduction:
    """Train and evaluate every run of the plan in a lab's folder that is not finished yet.

    Parameters
    ----------
    only
        Runs whose names match this pattern, such as ``qwen.*-10.*``.
    trials
        Try learning rates, which the plan's were chosen by, instead.
    do_run
        In place of `mprm_lab.reproduce.run.Runner`, for tests.
    """
    path, plan = Path(lab), plan or ReproducePlan()
    wanted = wanted_runs(plan, only, trials=trials)
    need_torch()
    store = RunStore(path, plan.results)
    finished = [run for run in (*plan.runs(), *plan.rate_trials()) if store.path(run).is_file()]  # the page has these
    folder = LabFolder.read(path, dict.fromkeys(run.backbone for run in (*wanted, *finished)))
    jobs = jobs if jobs is not None else default_jobs(plan.device)
    check_folders(*(path / name for name in (plan.results, "images", "logs", "runs")))
    with _exclusive(path / WORK), worker_pool(jobs, path / "logs") as pool:
        session = _Session(folder, plan, pool, do_run or Runner(folder, plan), progress)
        session.check_settings(finished)
        missing = session.missing(wanted)
        if any(map(plan.chooses, missing)):
            folder.grade_candidates(log)
        if missing:
            folder.draw_missing(log)
            if resolve_device(plan.device) == "cpu" and folder.n_rollouts > MANY_ROLLOUTS:
                log(f"no GPU here: a run can take hours; {path / 'logs'} tells how long each will")
        failed = session.do(wanted)
    return Reproduction(n_runs=len(wanted), n_kept=len(wanted) - len(missing), failed=failed)


def wanted_runs(plan: ReproducePlan, only: str = "*", *, trials: bool = False) -> list[Run]:
    """The plan's runs, or its trials of learning rates, whose names match."""
    runs = plan.rate_trials() if trials else plan.runs()
    wanted = [run for run in runs if fnmatchcase(run.name, only)]
    if not wanted:
        names = ", ".join(run.name for run in runs[:3])
        raise ConfigError(f"no run is called {only!r}; they are called like {names}")
    return wanted


def default_jobs(device: str) -> int:
    """Three quarters of the cores on a GPU, which such small models leave idle; one elsewhere."""
    return max(1, 3 * n_cores() // 4) if resolve_device(device).startswith("cuda") else 1


class _Session:
    """The runs of one command."""

    def __init__(self, folder: LabFolder, plan: ReproducePlan, pool: Any, do_run: DoRun, progress: Progress) -> None:
        self.folder, self.plan, self.pool, self.do_run, self.progress = folder, plan, pool, do_run, progress
        self.store = RunStore(folder.path, plan.results)

    def missing(self, runs: list[Run]) -> list[Run]:
        """Those that are not finished."""
        return [run for run in runs if self.store.read(run) is None]

    def settings(self, run: Run) -> dict[str, Any]:
        """What decides the run's numbers."""
        split = "benchmark" if run.learning_rate is None else "validation"
        names = ["corpus", split, run.backbone, *["candidates"] * self.plan.chooses(run)]
        training = self.plan.train_options(run) if run.is_trained else {}
        return {"training": training, "inputs": {name: self.folder.hashes[name] for name in names}}

    def check_settings(self, runs: Iterable[Run]) -> None:
        """Stop where a run was made on other data or with other settings than these."""
        for run in runs:
            self.store.check_settings(run, self.settings(run))

    def do(self, runs: list[Run]) -> dict[str, str]:
        """What went wrong, by name, in those that were not finished."""
        missing, failed = self.missing(runs), dict[str, str]()
        costs = {run.name: round(self.plan.cost(run, self.folder.n_rollouts)) for run in missing}
        missing.sort(key=lambda run: -costs[run.name])  # the longest go first
        n_done = len(runs) - len(missing)
        with self.progress(f"experiments: {len(missing)} of {len(runs)} runs", sum(costs.values())) as advance:
            futures = {self.pool.schedule(self.do_run, args=[run, self.settings(run)]): run for run in missing}
            for future in as_completed(futures):
                run = futures[future]
                n_done += 1
                try:
                    note = f"{run.name} {100 * future.result():.1f}"
                except Exception as error:
                    failed[run.name] = _reason(error, self.folder.path / "logs")
                    note = f"{run.name} FAILED: {failed[run.name].strip().splitlines()[-1]}"
                advance(costs[run.name], f"{n_done}/{len(runs)}: {note}")
        return failed


def _reason(error: Exception, logs: Path) -> str:
    if isinstance(error, ProcessExpired):
        return f"its process died with status {error.exitcode}; {logs} may say why"
    return str(error) if isinstance(error, MprmError) else str(getattr(error, "traceback", repr(error)))


@contextmanager
def worker_pool(jobs: int, logs: Path) -> Iterator[Any]:
    """Processes that share the device; all end with the block, and with their parent.

    A task that fails, or whose process dies, does not stop the others.
    """
    logs.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")  # a forked process cannot use the device of its parent
    pool = ProcessPool(jobs, initializer=_start_worker, initargs=(str(logs), jobs), context=spawn)
    try:
        yield pool
    finally:
        pool.stop()
        pool.join()


def _start_worker(logs: str, jobs: int) -> None:
    """Send what the process prints to a file, and end it with its parent."""
    if jobs > 1:
        import torch

        torch.set_num_threads(1)
    log = (Path(logs) / f"worker-{os.getpid()}.log").open("a", encoding="utf-8", buffering=1)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = log
    threading.Thread(target=_end_with_parent, daemon=True).start()
    cache_images()  # every run reads the same ones; 150 kB each


def _end_with_parent() -> None:
    """Leave nothing at work on the device when the parent was killed and could not end us."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _exclusive(work: Path) -> Iterator[None]:
    """One command at a time in a lab, with an empty folder for runs in progress, whatever a killed command left."""
    with work.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another mprm-lab reproduce is at work in {work.parent}; wait for it") from error
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(work, ignore_errors=True)


def dry_run(lab: str | Path, plan: ReproducePlan, *, only: str = "*", trials: bool = False) -> Iterator[str]:
    """A line for each run, and the total; with a time where finished runs tell how long runs take."""
    wanted = wanted_runs(plan, only, trials=trials)
    folder = LabFolder.read(Path(lab), dict.fromkeys(run.backbone for run in wanted))
    store = RunStore(folder.path, plan.results)
    done_cost = done_s = left_cost = n_left = 0.0
    for run in wanted:
        record, cost = store.read(run), plan.cost(run, folder.n_rollouts)
        if record is None:
            left_cost, n_left = left_cost + cost, n_left + 1
            epochs = f", {run.epochs} epochs" if run.epochs > 1 else ""
            yield f"{run.name}: {run.passes / run.epochs:g} of all rollouts{epochs}"
        else:
            done_cost, done_s = done_cost + cost, done_s + record["seconds"]
            yield f"{run.name}: done in {duration(record['seconds'])}"
    estimate = (
        f"{duration(left_cost * done_s / done_cost)} one after the other, as long as the finished ones took"
        if done_cost
        else "how long that takes is known once some are finished"
    )
    work = f"as much work as {left_cost / folder.n_rollouts:.1f} passes over all rollouts"
    yield f"{n_left:.0f} of {len(wanted)} runs to do, {work}; {estimate}."


def duration(seconds: float) -> str:
    """A time to read.

    >>> duration(42), duration(150), duration(7200)
    ('42 s', '2.5 min', '2.0 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

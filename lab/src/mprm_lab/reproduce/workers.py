"""Long-lived processes that share a device, each of which takes the next task when it is done with one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from mprm.errors import MprmError


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Something to do."""

    name: str
    group: str
    """A worker keeps to one group as long as there are tasks of it: what they share is already at hand."""
    cost: float
    """How long it takes, in whatever unit; the longest go first."""
    work: Any
    """What the worker's function is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a task."""

    task: Task
    value: Any = None
    error: str | None = None
    """The traceback, or that the process died."""


Make = Callable[..., Callable[[Any], Any]]
"""Called once in each worker; what it returns is called with the work of each task."""


class Workers:
    """Processes that are started when there are tasks for them, and end with the block."""

    def __init__(self, make: Make, arguments: tuple[Any, ...], *, jobs: int, logs: Path) -> None:
        """Nothing is started yet.

        Parameters
        ----------
        make, arguments
            ``make(*arguments)`` in each worker gives the function that works; both are sent to a new interpreter.
        jobs
            Workers at a time.
        logs
            Folder for what each worker prints.
        """
        self._make, self._arguments, self._jobs, self._logs = make, arguments, jobs, logs
        self._workers: list[_Worker] = []

    def __enter__(self) -> Workers:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in self._workers:
            worker.end()

    def run(
        self, tasks: Sequence[Task], *, on_start: Callable[[Task], None] = lambda _task: None
    ) -> Iterator[Outcome]:
        """Outcomes as they come, of all tasks; one that fails, or whose process dies, does not stop the others."""
        waiting = sorted(tasks, key=lambda task: -task.cost)
        while len(self._workers) < min(self._jobs, len(waiting)):
            log = self._logs / f"worker-{len(self._workers)}.log"
            self._workers.append(_Worker(self._make, self._arguments, log, self._jobs))
        while waiting or any(worker.task for worker in self._workers):
            for worker in self._workers:
                if worker.task is None and waiting:
                    task = _next(waiting, worker, self._workers)
                    waiting.remove(task)
                    worker.start(task)
                    on_start(task)
            busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
            for ready in wait(list(busy)):
                yield busy[ready].outcome()  # type: ignore[index]


def _next(waiting: list[Task], worker: _Worker, workers: Sequence[_Worker]) -> Task:
    """The longest task of the worker's group; else of the group with the most work for each of its workers."""
    own = next((task for task in waiting if task.group == worker.group), None)
    if own is not None:
        return own

    def load(group: str) -> float:
        n_workers = 1 + sum(other.group == group for other in workers if other.task is not None)
        return sum(task.cost for task in waiting if task.group == group) / n_workers

    best = max(dict.fromkeys(task.group for task in waiting), key=load)
    return next(task for task in waiting if task.group == best)


class _Worker:
    """A process, started anew when it died."""

    def __init__(self, make: Make, arguments: tuple[Any, ...], log: Path, jobs: int) -> None:
        self._arguments = (make, arguments, str(log), jobs)
        self.task: Task | None = None
        self.group = ""
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use the device of its parent
        self.connection, theirs = context.Pipe()
        # a daemon: it ends with its parent, and starts no processes of its own
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()

    def start(self, task: Task) -> None:
        """Give it something to do."""
        self.task, self.group = task, task.group
        with suppress(BrokenPipeError):  # it died; its outcome will say so
            self.connection.send(task.work)

    def outcome(self) -> Outcome:
        """What became of its task, once there is something to hear."""
        task, self.task = self.task, None
        assert task is not None
        try:
            is_done, found = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.end()
            status = self._process.exitcode
            self.group = ""
            self._begin()
            return Outcome(
                task=task, error=f"its process died with status {status}; {self._arguments[2]} may say why"
            )
        return Outcome(task=task, value=found) if is_done else Outcome(task=task, error=found)

    def end(self) -> None:
        """Stop the process, whatever it does."""
        self.connection.close()
        self._process.terminate()
        self._process.join()


def _serve(connection: Connection, make: Make, arguments: tuple[Any, ...], log: str, jobs: int) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if jobs > 1:
        os.environ["OMP_NUM_THREADS"] = "1"  # torch is not loaded yet
    with Path(log).open("a", encoding="utf-8", buffering=1) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        sys.stdout = sys.stderr = out
        function: Callable[[Any], Any] | None = None
        while True:
            try:
                work = connection.recv()
            except EOFError:
                return
            try:
                function = function or make(*arguments)
                answer = (True, function(work))
            except Exception as error:
                answer = (False, str(error) if isinstance(error, MprmError) else traceback.format_exc())
                print(traceback.format_exc(), file=out)
            with suppress(BrokenPipeError):  # nobody waits for it any more; the next recv ends us
                connection.send(answer)


def _end_with_parent() -> None:
    """Leave nothing at work on the device when the parent was killed and could not end us."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

"""What is running, how much is done, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Sequence

from mprm_lab.reproduce.workers import Outcome, Task

SHOWN = 4
"""Running cells that a line names."""


class Progress:
    """Counts tasks by what they cost."""

    def __init__(self, title: str, tasks: Sequence[Task], *, n_kept: int, began: float) -> None:
        self._title = title
        self._n_all, self._n_done, self._began = len(tasks) + n_kept, n_kept, began
        self._left = sum(task.cost for task in tasks)
        self._spent = 0.0
        self._running: dict[str, Task] = {}

    def start(self, task: Task) -> None:
        """A worker took it."""
        self._running[task.name] = task

    def first_line(self) -> str:
        """What there is to do."""
        return f"{self._title}: {self._n_all - self._n_done} to do, {self._n_done} done before"

    def line(self, outcome: Outcome, *, now: float) -> str:
        """A line on a task that ended."""
        task = outcome.task
        self._running.pop(task.name, None)
        self._n_done += 1
        self._left -= task.cost
        self._spent += task.cost
        left_s = self._left * (now - self._began) / self._spent if self._spent else 0.0
        if outcome.error is not None:
            what = f"{task.name} FAILED: {outcome.error.strip().splitlines()[-1]}"
        else:
            what = task.name if outcome.value is None else f"{task.name} {100 * outcome.value:.1f}"
        running = list(self._running)
        more = f" and {len(running) - SHOWN} more" if len(running) > SHOWN else ""
        now_running = f"; running {', '.join(running[:SHOWN])}{more}" if running else ""
        return f"{self._title} {self._n_done}/{self._n_all}: {what}{now_running}; about {spoken(left_s)} left"


def spoken(seconds: float) -> str:
    """A time to read.

    Examples
    --------
    >>> spoken(42), spoken(150), spoken(7200)
    ('42 s', '2.5 min', '2.0 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

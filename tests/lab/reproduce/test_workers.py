from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from mprm_lab.reproduce.workers import Outcome, Task, Workers


def make_worker(factor: int) -> Callable[[int], tuple[int, int]]:
    def work(number: int) -> tuple[int, int]:
        print(f"works on {number}")
        if number == 13:
            raise ValueError("thirteen")
        if number == 17:
            os._exit(9)
        time.sleep(0.05)
        return factor * number, os.getpid()

    return work


def tasks(*numbers: int, group: str = "a") -> list[Task]:
    return [Task(name=f"{group}{n}", group=group, cost=float(n), work=n) for n in numbers]


def outcomes(some: list[Task], factor: int, *, jobs: int, logs: Path) -> list[Outcome]:
    with Workers(make_worker, (factor,), jobs=jobs, logs=logs) as workers:
        return list(workers.run(some))


def test_longest_first_and_one_process_does_them_all(tmp_path: Path) -> None:
    found = outcomes(tasks(1, 5, 3), 10, jobs=1, logs=tmp_path)
    assert [outcome.value[0] for outcome in found] == [50, 30, 10]
    assert len({outcome.value[1] for outcome in found}) == 1
    assert "works on 5" in (tmp_path / "worker-0.log").read_text()


def test_a_task_that_fails_or_kills_its_process_stops_no_other(tmp_path: Path) -> None:
    found = {one.task.name: one for one in outcomes(tasks(13, 17, 2, 1), 1, jobs=1, logs=tmp_path)}
    assert "thirteen" in str(found["a13"].error)
    assert "died with status 9" in str(found["a17"].error)
    assert found["a2"].error is None
    assert found["a1"].value[0] == 1


def test_a_worker_keeps_to_its_group_and_groups_share_the_workers(tmp_path: Path) -> None:
    mixed = [*tasks(9, 8, 7), *tasks(6, 5, 4, group="b")]
    found = outcomes(mixed, 1, jobs=2, logs=tmp_path)
    by_process: dict[int, list[str]] = {}
    for outcome in found:
        by_process.setdefault(outcome.value[1], []).append(outcome.task.group)
    assert len(by_process) == 2
    # whichever is done first may help the other at the very end, but none goes back
    assert all(groups == sorted(groups) or groups == sorted(groups, reverse=True) for groups in by_process.values())


def test_without_tasks_nothing_is_started(tmp_path: Path) -> None:
    assert outcomes([], 1, jobs=2, logs=tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_workers_stay_for_later_tasks_and_more_are_started_when_there_are_more(tmp_path: Path) -> None:
    with Workers(make_worker, (1,), jobs=3, logs=tmp_path) as workers:
        first = {outcome.value[1] for outcome in workers.run(tasks(1))}
        later = {outcome.value[1] for outcome in workers.run(tasks(*range(20, 60)))}
    assert len(first) == 1
    assert first < later
    assert len(later) <= 3

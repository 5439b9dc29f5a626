from __future__ import annotations

from mprm_lab.reproduce.progress import Progress
from mprm_lab.reproduce.workers import Outcome, Task


def test_a_line_says_what_is_done_what_runs_and_how_long_the_rest_takes() -> None:
    tasks = [Task(name=name, group="g", cost=cost, work=None) for name, cost in (("a", 6.0), ("b", 3.0), ("c", 1.0))]
    progress = Progress("experiments", tasks, n_kept=2, began=100.0)
    assert progress.first_line() == "experiments: 3 to do, 2 done before"
    for task in tasks:
        progress.start(task)
    # 6 of 10 in 30 s: the other 4 take 20 s
    line = progress.line(Outcome(task=tasks[0], value=0.654), now=130.0)
    assert line == "experiments 3/5: a 65.4; running b, c; about 20 s left"
    failed = progress.line(Outcome(task=tasks[1], error="Traceback …\nValueError: no"), now=140.0)
    assert failed.startswith("experiments 4/5: b FAILED: ValueError: no; running c; about ")
    assert progress.line(Outcome(task=tasks[2], value=None), now=150.0) == "experiments 5/5: c; about 0 s left"


def test_of_many_running_cells_some_are_named() -> None:
    tasks = [Task(name=f"t{n}", group="g", cost=1.0, work=None) for n in range(8)]
    progress = Progress("x", tasks, n_kept=0, began=0.0)
    for task in tasks:
        progress.start(task)
    assert "; running t1, t2, t3, t4 and 3 more; " in progress.line(Outcome(task=tasks[0]), now=1.0)

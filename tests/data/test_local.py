import os
import signal
import time
from pathlib import Path

import pytest

import mprm
from mprm.config import EngineOptions
from mprm.data.engine import InlineEngine, ProcessEngine, make_engine
from mprm.errors import ConfigError, MprmError
from tests.conftest import calling


def square(number: int) -> int:
    return number * number


def sleep_then(number: int) -> int:
    time.sleep(0.05 * (number == 0))
    return number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("engine", [InlineEngine(), ProcessEngine(2)])
def test_results_come_in_order(engine) -> None:
    assert list(engine.map(square, range(50))) == [n * n for n in range(50)]
    assert list(engine.map(sleep_then, range(20))) == list(range(20))


def test_a_dead_worker_is_said_and_does_not_hang() -> None:
    with pytest.raises(MprmError, match="a worker process died"):
        list(ProcessEngine(2).map(die, range(40)))


def test_small_work_needs_no_processes() -> None:
    assert isinstance(make_engine(EngineOptions(), n_bytes=1000), InlineEngine)
    assert isinstance(make_engine(EngineOptions(processes=3), n_bytes=1 << 30), ProcessEngine)
    with pytest.raises(ConfigError):
        EngineOptions(engine="spark")


def test_a_killed_worker_leaves_no_output(corpus, tmp_path: Path, monkeypatch) -> None:
    from mprm.data import records

    monkeypatch.setattr(records, "CHUNK_BYTES", 2000)
    folder = corpus(ai2d=[[1.0, 0.0]] * 4000)  # far more pieces than are under way at once
    selection = mprm.select(folder, rho=0.9, processes=2)
    n_killed = 0

    def kill(_chunk) -> None:
        nonlocal n_killed
        for pid in list(selection._engine._pool._processes):
            if not n_killed:
                os.kill(pid, signal.SIGKILL)
                n_killed += 1

    with pytest.raises(MprmError, match="a worker process died"):
        selection.write(str(tmp_path / "o.jsonl"), progress=calling(kill))
    assert n_killed == 1
    assert list(tmp_path.glob("*.jsonl*")) == []
    assert list(tmp_path.glob(".*.tmp")) == []

"""Results come in order from every engine; a killed worker is said, and changes nothing on a real Ray, started here."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mprm
from mprm.config import EngineOptions
from mprm.data import records
from mprm.data.engine import InlineEngine, ProcessEngine, make_engine
from mprm.errors import ConfigError, MprmError
from tests.conftest import calling, random_scores, raw_record, write_jsonl


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


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def annotations(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ray") / "annotations"
    rng = random.Random(3)
    for source, n in (("ai2d", 900), ("geos", 3), ("vqav2", 500)):
        lines = [raw_record(random_scores(rng), number=i) for i in range(n)]
        lines.insert(n // 2, b"{broken")
        write_jsonl(folder / f"{source}.jsonl", lines)
    return folder


@pytest.fixture
def big(annotations: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that are cut into many byte ranges, so that each is worked on by several tasks."""
    monkeypatch.setattr(records, "CHUNK_BYTES", 20_000)
    return annotations


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.endswith(".json")}


def written(corpus: Path, out: Path, **options) -> dict[str, bytes]:
    selection = mprm.select(corpus, strategy=["bis", "random", "mixed"], rho=[0.1, 0.5], skip_bad=True, **options)
    assert len(selection.counts.parts) > 20
    selection.write_all(str(out))
    return outputs(out)


def test_ray_and_local_give_the_same_bytes(cluster, big: Path, tmp_path: Path) -> None:
    local = written(big, tmp_path / "local", processes=2)
    assert written(big, tmp_path / "ray", engine="ray") == local
    assert "dropped.jsonl" in local
    for to in ("mm-prm", "trl"):
        assert written(big, tmp_path / f"ray-{to}", engine="ray", to=to) == written(
            big, tmp_path / f"local-{to}", to=to
        )


def test_a_killed_worker_changes_nothing(cluster, big: Path, tmp_path: Path) -> None:
    local = written(big, tmp_path / "local", processes=2)
    n_killed = 0

    def kill_one(_chunk) -> None:
        nonlocal n_killed
        workers = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _is_ray_worker(p)]
        if workers and n_killed < 3:
            os.kill(int(workers[0].name), signal.SIGKILL)
            n_killed += 1

    assert written(big, tmp_path / "ray", engine="ray", progress=calling(kill_one)) == local
    assert n_killed == 3


def _is_ray_worker(process: Path) -> bool:
    try:
        return (process / "cmdline").read_bytes().startswith((b"ray::count_labels", b"ray::IDLE"))
    except OSError:
        return False


def test_bad_data_is_told_as_locally(cluster, big: Path) -> None:
    with pytest.raises(mprm.MprmError, match=r"ai2d\.jsonl:451: not JSON"):
        mprm.select(big, engine="ray")


def test_stats_check_and_convert_run_on_ray(cluster, big: Path, tmp_path: Path) -> None:
    assert mprm.stats(big, engine="ray", skip_bad=True) == mprm.stats(big, skip_bad=True)
    assert mprm.check(big, engine="ray") == mprm.check(big)
    for engine in ("ray", "local"):
        mprm.convert(big, str(tmp_path / f"{engine}.jsonl"), to="mm-prm", skip_bad=True, engine=engine)
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()


def test_annotating_on_ray_gives_the_same_rollouts_also_after_a_worker_was_killed(cluster, tmp_path: Path) -> None:
    from mprm.annotation.annotate import AnnotateConfig, annotate
    from mprm.annotation.samplers.ray import RaySampler
    from tests.annotation.scripted import Scripted, questions

    victim = tmp_path / "victim"

    class Mortal(Scripted):
        def answer(self, request):
            if request.prompt.startswith("[3]") and request.prefix and not victim.exists():
                victim.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().answer(request)

    config = AnnotateConfig(rollouts=2, early_stop=True)
    annotate(questions(12), Scripted(), str(tmp_path / "local.jsonl"), config=config)
    annotate(questions(12), RaySampler(Mortal, workers=2), str(tmp_path / "ray.jsonl"), config=config)
    assert victim.exists()
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()


def test_a_pool_that_is_ending_when_python_exits_prints_nothing(tmp_path: Path) -> None:
    # Python wakes the threads of all pools when it exits; one that is just closing its pipe must not be among them
    code = """
import concurrent.futures.process as process, sys, time
import mprm

shutdown_workers = process._ExecutorManagerThread.shutdown_workers

def shut_down_later(self):
    time.sleep(0.3)
    shutdown_workers(self)

def wake_slowly(self):
    if not self._closed:
        time.sleep(0.6 if process._global_shutdown else 0)
        self._writer.send_bytes(b"")

process._ExecutorManagerThread.shutdown_workers, process._ThreadWakeup.wakeup = shut_down_later, wake_slowly
mprm.stats(sys.argv[1], processes=2)
"""
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0, 0.0])])
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

"""Outputs, what is dropped and manifests: one unit, that a kill, a second writer or a full disk does not tear apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import mprm
from mprm.cli.main import run
from mprm.data.output import MANIFEST_SUFFIX, Outputs, files_of_manifest, reserved
from mprm.errors import ConfigError, DataError, OutputExistsError
from tests.annotation.full_disk import files_of_at_most
from tests.conftest import calling, raw_record, write_jsonl
from tests.kills import State, restore, run_until, state_of

BAD = b'{"image": "x.png"}'


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Two sources, one with a bad record."""
    for source in ("ai2d", "geos"):
        records = [raw_record([1.0, 0.0, 0.5][: i % 3 + 1], number=i) for i in range(12)]
        write_jsonl(tmp_path / "in" / f"{source}.jsonl", [*records, *([BAD] if source == "geos" else [])])
    return tmp_path / "in"


COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    "select": lambda inputs, out: ["select", str(inputs), "--skip-bad", "--out", f"{out}/x.jsonl"],
    "select --by-source": lambda inputs, out: [
        *["select", str(inputs), "--skip-bad", "--rho", "0.2", "0.6", "--by-source", "--out-dir", str(out)]
    ],
    "convert": lambda inputs, out: ["convert", str(inputs), "--skip-bad", "--to", "trl", "--out", f"{out}/x.jsonl"],
    "score": lambda inputs, out: ["score", str(inputs), "--skip-bad", "--out", f"{out}/x.csv"],
    "report": lambda inputs, out: ["report", str(inputs), "--skip-bad", "--out", f"{out}/x.html"],
}


def states_before_and_after(command: list[str], inputs: Path, out: Path, *, with_old: bool) -> tuple[State, State]:
    """What lies in the output's folder before and after the command; the old state is of other options and inputs."""
    old: State = {}
    restore(out, old)
    if with_old:
        (inputs / "geos.jsonl").rename(inputs / "other.jsonl")
        assert run_until(lambda: run([*command, "--tau", "0.4"]), None) == 0
        (inputs / "other.jsonl").rename(inputs / "geos.jsonl")
        old = state_of(out)
    assert run_until(lambda: run(command), None) == 0
    new = state_of(out)
    assert all(new[name] != data for name, data in old.items() if name in new and name.endswith(".json"))
    return old, new


def check_kill(command: list[str], point: int, out: Path, old: State, new: State) -> bool:
    """Kill the command at a point; False where it ended before it."""
    restore(out, old)
    if run_until(lambda: run(command), point) is not None:
        return False
    seen = state_of(out)
    for name in seen:
        if name.endswith(MANIFEST_SUFFIX):  # it never lies beside other files than its own
            state = new if seen[name] == new.get(name) else old
            assert [seen.get(file) for file in files_of_manifest(str(out / name))] == [
                state[file] for file in files_of_manifest(str(out / name))
            ]
    if point % 2:  # any writer to the folder finishes what was begun
        with reserved([str(out / "other.jsonl")], force=False):
            pass
        seen = state_of(out)
        assert seen in (old, new)
    code = run_until(lambda: run(command), None)
    assert code == 0 or (seen == new and "--force" not in command)
    assert state_of(out) == new
    assert [path for path in out.rglob(".*")] == []
    return True


@pytest.mark.parametrize("with_old", [False, True])
@pytest.mark.parametrize("name", ["select", "select --by-source"])
def test_after_a_kill_the_old_state_or_the_new_is_whole(name: str, with_old: bool, inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*COMMANDS[name](inputs, out), *(["--force"] if with_old else [])]
    old, new = states_before_and_after(command, inputs, out, with_old=with_old)
    assert [check_kill(command, point, out, old, new) for point in (7, 14, 17, 19, 20)] == [True] * 5


@pytest.mark.slow
@pytest.mark.parametrize("with_old", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_after_a_kill_at_any_rename_or_fsync_a_state_is_whole(
    name: str, with_old: bool, inputs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [*COMMANDS[name](inputs, out), *(["--force"] if with_old else [])]
    old, new = states_before_and_after(command, inputs, out, with_old=with_old)
    n_points = 0
    while check_kill(command, n_points, out, old, new):
        n_points += 1
    print(f"{name}: {n_points} kills")
    assert n_points >= 20

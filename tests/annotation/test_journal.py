"""The journal of a run: what survives a kill, a torn file, a full disk, other settings and other processes."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import deque
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mprm.annotation.journal import Journal
from mprm.errors import ConfigError, DataError
from tests.annotation.full_disk import files_of_at_most

RUN = {"policy": "p", "n": 2}


def record(number: int) -> dict[str, str]:
    return {"id": str(number), "source": "s", "text": "é" * number}


def numbers(journal: Journal, n: int = 400) -> list[int]:
    """The records that the journal holds, each as it was added."""
    held = [number for number in range(n) if ("s", str(number)) in journal]
    assert all(journal.get(("s", str(number))) == record(number) for number in held)
    return held


def filled(folder: Path, n: int = 3) -> str:
    out = str(folder / "out.jsonl")
    with Journal(out, run=RUN) as journal:
        for number in range(n):
            journal.add(record(number))
    return out


def test_a_journal_continues_where_it_was(tmp_path: Path) -> None:
    out = filled(tmp_path)
    with Journal(out, run=RUN) as journal:
        assert numbers(journal) == [0, 1, 2]
        journal.add(record(3))
        assert [journal.get(("s", str(number))) for number in (3, 0, 2)] == [record(3), record(0), record(2)]
        assert bytes(journal.get(("s", "1"), type=msgspec.Raw)) == '{"id":"1","source":"s","text":"é"}'.encode()
        assert journal.get(("s", "4")) is None


KILLED = """
import os, signal, sys
from mprm.annotation.journal import Journal
from tests.annotation.test_journal import RUN, record
journal = Journal(sys.argv[1], run=RUN)
for number in range(int(sys.argv[2])):
    journal.add(record(number))
print("added", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a journal of 40 records whose process was killed: its last pages are in the WAL alone."""
    folder = tmp_path_factory.mktemp("killed")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", KILLED, str(folder / "out.jsonl"), "40"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "added\n"), done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["out.jsonl.partial", "out.jsonl.partial-wal"]
    return folder


def test_a_kill_loses_nothing_that_was_added(killed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(killed, tmp_path / "copy"))
    with Journal(str(folder / "out.jsonl"), run=RUN) as journal:
        assert numbers(journal) == list(range(40))
    assert [path.name for path in folder.iterdir()] == ["out.jsonl.partial"]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10**9), noise=st.binary(max_size=50))
def test_whatever_the_end_of_a_run_tore_off_is_repaired(
    killed: Path, tmp_path_factory: pytest.TempPathFactory, cut: int, noise: bytes
) -> None:
    folder = Path(shutil.copytree(killed, tmp_path_factory.mktemp("torn") / "copy"))
    wal = folder / "out.jsonl.partial-wal"
    data = wal.read_bytes()
    cut %= len(data) + 1
    wal.write_bytes(data[:cut] + noise)
    with Journal(str(folder / "out.jsonl"), run=RUN) as journal:
        held = numbers(journal)
        assert held == list(range(len(held)))  # records are lost from the end alone
        assert len(held) == 40 or cut < len(data)
        for number in range(len(held), 40):
            journal.add(record(number))
    with Journal(str(folder / "out.jsonl"), run=RUN) as journal:
        assert numbers(journal) == list(range(40))


def test_a_damaged_file_is_reported_with_its_name(tmp_path: Path) -> None:
    path = Path(filled(tmp_path, 300) + ".partial")
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"nonsense" * ((len(data) - 4096) // 8))
    with (
        pytest.raises(DataError, match=r"out\.jsonl\.partial is damaged .*; remove the file to begin anew"),
        Journal(str(tmp_path / "out.jsonl"), run=RUN) as journal,
    ):
        numbers(journal)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("data", [b'{"run": 5}\n', b"my notes\nof two lines\n", b"\n", b"0" * 5000, b"\0" * 100])
def test_a_file_that_is_no_journal_is_never_touched(tmp_path: Path, data: bytes, force: bool) -> None:
    path = tmp_path / "out.jsonl.partial"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"out\.jsonl\.partial was not made by mprm.*move the file away"):
        Journal(str(tmp_path / "out.jsonl"), run=RUN, force=force)
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_database_of_others_is_never_touched(tmp_path: Path, mode: str, force: bool) -> None:
    path = tmp_path / "out.jsonl.partial"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
        database.execute("CREATE TABLE run (settings BLOB)")
    data = path.read_bytes()
    with pytest.raises(ConfigError, match=r"out\.jsonl\.partial was not made by mprm"):
        Journal(str(tmp_path / "out.jsonl"), run=RUN, force=force)
    assert path.read_bytes() == data


def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.partial").touch()
    assert filled(tmp_path)
    with Journal(str(tmp_path / "out.jsonl"), run=RUN) as journal:
        assert numbers(journal) == [0, 1, 2]


def test_control_characters_in_a_journals_settings_are_not_shown_raw(tmp_path: Path) -> None:
    out = str(tmp_path / "out.jsonl")
    with Journal(out, run={"\x1b[2J": "\x1b[3J"}) as journal:
        journal.add(record(0))
    with pytest.raises(ConfigError) as raised:
        Journal(out, run=RUN)
    assert r"\x1b[2J was '\x1b[3J'" in str(raised.value)
    assert "\x1b" not in str(raised.value)


def test_a_full_disk_is_reported_with_the_journals_name_and_loses_nothing(tmp_path: Path) -> None:
    out = filled(tmp_path)
    n_bytes = Path(out + ".partial").stat().st_size
    with (
        pytest.raises(OSError, match=r"out\.jsonl\.partial"),
        files_of_at_most(n_bytes),
        Journal(out, run=RUN) as journal,
    ):
        deque(map(journal.add, map(record, range(3, 100))))
    with Journal(out, run=RUN) as journal:
        held = numbers(journal)
        assert held == list(range(len(held)))
        assert 3 <= len(held) < 100
        journal.add(record(len(held)))
        assert len(numbers(journal)) == len(held) + 1


def test_a_second_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    out = filled(tmp_path)
    with Journal(out, run=RUN):
        for force in (False, True):
            with pytest.raises(
                ConfigError, match=r"another process is working on .*out\.jsonl\.partial; wait for it"
            ):
                Journal(out, run=RUN, force=force)
        program = f"from mprm.annotation.journal import Journal; Journal({out!r}, run={RUN!r})"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        other = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
        assert b"another process is working on" in other.stderr
    with Journal(out, run=RUN) as journal:
        assert numbers(journal) == [0, 1, 2]


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    out = filled(tmp_path)
    with pytest.raises(ConfigError, match=r"n was 2, now 4. Continue with the same ones, or begin anew with --force"):
        Journal(out, run={**RUN, "n": 4})
    with Journal(out, run=RUN) as journal:
        assert numbers(journal) == [0, 1, 2]


def test_force_begins_anew_only_where_the_settings_differ(tmp_path: Path) -> None:
    out = filled(tmp_path)
    with Journal(out, run=RUN, force=True) as journal:
        assert numbers(journal) == [0, 1, 2]
    with Journal(out, run={**RUN, "n": 4}, force=True) as journal:
        assert numbers(journal) == []
    with Journal(out, run={**RUN, "n": 3}) as journal:  # no work is lost
        journal.add(record(0))
    with pytest.raises(ConfigError, match="n was 3, now 2"):
        Journal(out, run=RUN)


def test_the_record_of_a_question_replaces_its_parts_and_what_is_taken_back_is_gone(tmp_path: Path) -> None:
    out = str(tmp_path / "out.jsonl")
    with Journal(out, run=RUN) as journal:
        journal.add({"source": "s", "id": "1", "part": "a", "k": 1})
        journal.add({"source": "s", "id": "2", "part": "a", "k": 2})
        journal.add({"source": "s", "id": "3", "part": "a", "k": 3})
        journal.forget(("s", "1"))
        journal.add({"source": "s", "id": "1", "part": "b", "k": 4})
        journal.add({"source": "s", "id": "3", "k": 5})
    with Journal(out, run=RUN) as journal:
        assert [journal.get(("s", "1"), part) for part in ("a", "")] == [None, None]
        assert (journal.get(("s", "1"), "b") or {})["k"] == 4
        assert (journal.get(("s", "2"), "a") or {})["k"] == 2
        assert ("s", "2") not in journal
        assert journal.get(("s", "3"), "a") is None
        assert (journal.get(("s", "3")) or {})["k"] == 5


def test_a_journal_that_is_removed_leaves_no_file(tmp_path: Path) -> None:
    with Journal(filled(tmp_path), run=RUN) as journal:
        journal.add(record(3))
        journal.remove()
    assert list(tmp_path.iterdir()) == []

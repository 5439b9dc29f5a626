from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mprm.annotation.journal import Journal
from mprm.errors import ConfigError, DataError

RUN = {"policy": "p", "n": 2}


def record(number: int) -> dict[str, str]:
    return {"id": str(number), "source": "s", "text": "é" * number}


def filled(folder: Path, n: int = 3) -> str:
    out = str(folder / "out.jsonl")
    with Journal(out, run=RUN) as journal:
        for number in range(n):
            journal.add(record(number))
    return out


def test_a_journal_continues_where_it_was(tmp_path: Path) -> None:
    out = filled(tmp_path)
    with Journal(out, run=RUN) as journal:
        assert len(journal) == 3
        assert ("s", "1") in journal
        assert ("s", "3") not in journal
        journal.add(record(3))
        lines = [msgspec.json.decode(journal.line(("s", str(number)))) for number in (3, 0, 2)]
    assert lines == [record(3), record(0), record(2)]


@given(st.integers(0, 10_000))
def test_whatever_the_end_of_a_run_cut_off_is_repaired(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    out = filled(tmp_path_factory.mktemp("cut"))
    path = Path(out + ".partial")
    data = path.read_bytes()
    cut %= len(data) + 1
    path.write_bytes(data[:cut])
    with Journal(out, run=RUN) as journal:
        # whole lines stay, the header not counted
        assert len(journal) == max(0, data[:cut].count(b"\n") - 1)
        for number in range(3):
            if ("s", str(number)) not in journal:
                journal.add(record(number))
    assert path.read_bytes() == data


def test_a_last_line_of_zeros_is_torn_too(tmp_path: Path) -> None:
    out = filled(tmp_path)
    path = Path(out + ".partial")
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 40 + b"\n")
    with Journal(out, run=RUN) as journal:
        assert len(journal) == 3
    assert path.read_bytes() == whole


def test_damage_in_the_middle_is_told_with_its_line(tmp_path: Path) -> None:
    out = filled(tmp_path)
    path = Path(out + ".partial")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"{nonsense\n", *lines[3:]]))
    with pytest.raises(DataError, match=r"out\.jsonl\.partial:3: the line is damaged.*Remove the file"):
        Journal(out, run=RUN)


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    out = filled(tmp_path)
    with pytest.raises(ConfigError, match=r"n was 2, now 4. Continue with the same ones, or begin anew with --force"):
        Journal(out, run={**RUN, "n": 4})
    with Journal(out, run=RUN) as journal:
        assert len(journal) == 3


def test_force_begins_anew_only_where_the_settings_differ(tmp_path: Path) -> None:
    out = filled(tmp_path)
    with Journal(out, run=RUN, force=True) as journal:
        assert len(journal) == 3
    with Journal(out, run={**RUN, "n": 4}, force=True) as journal:
        assert len(journal) == 0

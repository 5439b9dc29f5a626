from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mprm.annotation.journal import Journal
from mprm.errors import ConfigError, DataError
from tests.annotation.full_disk import files_of_at_most

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


@pytest.mark.parametrize("last", [b'{"id": "3"}\n', b'{"source": ["s"], "id": "3"}\n', b'{"id": 3, "source": "s"}\n'])
def test_a_whole_line_that_is_no_record_is_told_and_not_cut_off(tmp_path: Path, last: bytes) -> None:
    path = Path(filled(tmp_path) + ".partial")
    data = path.read_bytes() + last
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"out\.jsonl\.partial:5: the line is damaged"):
        Journal(str(tmp_path / "out.jsonl"), run=RUN)
    assert path.read_bytes() == data


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        b'{"run": 5}\n',
        b'{"run": 5}',
        b'{"id": "1"}\n',
        b"[1]\n",
        b"my notes, without an end of line",
        b"my notes\nof two lines\n",
        b"\n",
        b'{"run":{"policy":"p","n":3',  # torn, but no beginning of this run's header
    ],
)
def test_a_file_that_is_no_journal_is_never_touched(tmp_path: Path, data: bytes, force: bool) -> None:
    path = tmp_path / "out.jsonl.partial"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"out\.jsonl\.partial was not made by mprm.*move the file away"):
        Journal(str(tmp_path / "out.jsonl"), run=RUN, force=force)
    assert path.read_bytes() == data


def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.partial").touch()
    with Journal(str(tmp_path / "out.jsonl"), run=RUN) as journal:
        journal.add(record(0))
    assert (tmp_path / "out.jsonl.partial").read_bytes().count(b"\n") == 2


def test_control_characters_in_a_journals_settings_are_not_shown_raw(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.partial").write_bytes(b'{"run":{"\\u001b[2J":"\\u001b[3J"}}\n')
    with pytest.raises(ConfigError) as raised:
        Journal(str(tmp_path / "out.jsonl"), run=RUN)
    assert r"\x1b[2J was '\x1b[3J'" in str(raised.value)
    assert "\x1b" not in str(raised.value)


def test_a_full_disk_is_told_with_the_journals_name(tmp_path: Path) -> None:
    out = filled(tmp_path)
    path = Path(out + ".partial")
    data = path.read_bytes()
    with (
        pytest.raises(OSError, match=r"File too large: .*out\.jsonl\.partial"),
        files_of_at_most(len(data) + 5),
        Journal(out, run=RUN) as journal,
    ):
        journal.add(record(3))
    with Journal(out, run=RUN) as journal:  # what could be written of the line is torn
        assert len(journal) == 3
    assert path.read_bytes() == data


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


def test_what_is_taken_back_is_gone_after_a_restart_too(tmp_path: Path) -> None:
    out = str(tmp_path / "out.jsonl")
    with Journal(out, run=RUN) as journal:
        journal.add({"source": "s", "id": "1", "part": "a"})
        journal.add({"source": "s", "id": "2", "part": "a"})
        journal.forget(("s", "1"))
        journal.add({"source": "s", "id": "1", "part": "b"})
        assert journal.parts(("s", "1")) == {"b"}
    with Journal(out, run=RUN) as journal:
        assert journal.parts(("s", "1")) == {"b"}
        assert journal.parts(("s", "2")) == {"a"}


def test_a_part_that_is_no_text_is_damage(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Journal(str(out), run=RUN) as journal:
        journal.add({"source": "s", "id": "1", "part": "a"})
    with (tmp_path / "out.jsonl.partial").open("a") as lines:
        lines.write('{"source": "s", "id": "2", "part": ["a"]}\n{"source": "s", "id": "3"}\n')
    with pytest.raises(DataError, match=r"out\.jsonl\.partial:3: the line is damaged"):
        Journal(str(out), run=RUN)

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from mprm.cli.main import run
from mprm.cli.tables import latex_table, show_table
from mprm.data.output import Table, markdown_table
from tests.conftest import raw_record, write_jsonl

EVIL = "a\x1b[31m\x9b\x07\r\n\u202e[bold]b[/bold]|:smile:"
SAFE = r"a\x1b[31m\x9b\x07\r\n\u202e[bold]b[/bold]|:smile:"


def test_names_from_data_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(EVIL, [EVIL, EVIL], [[EVIL, "1"]], total_last=False)
    printed = capsys.readouterr().out
    assert all(char.isprintable() for char in printed.replace("\n", ""))
    # title, two heads, a cell; the second head is broken at its stroke
    assert printed.count(SAFE) == 3


def test_markdown_and_latex_are_safe_to_print_too() -> None:
    assert markdown_table([EVIL, "n"], [[EVIL, "1"]]).splitlines() == [
        f"| {SAFE.replace('|', chr(92) + '|')} | n |",
        "| --- | ---: |",
        f"| {SAFE.replace('|', chr(92) + '|')} | 1 |",
    ]
    assert all(char.isprintable() for char in latex_table([EVIL, "n"], [[EVIL, "1"]]).replace("\n", ""))


def test_letters_of_any_script_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show_table("α – 数学", ["ä/b", "n"], [["é, as wide as the title", "1"]], total_last=False)
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("α – 数学", "ä/b", "é, as"))


def test_a_table_too_wide_for_the_terminal_is_split_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from mprm.cli import tables

    monkeypatch.setattr(tables, "_console", lambda: Console(width=40, force_terminal=True, color_system=None))
    heads = ["metric", *(f"model {n}" for n in range(6))]
    rows = [[f"row {r}", *(f"0.{r}{n}00 to 0.9" for n in range(6))] for r in range(3)]
    tables.show_tables([Table(title="Metrics", heads=heads, rows=rows, notes=["A note.", EVIL])])
    *shown_lines, note, evil_note = capsys.readouterr().out.rstrip().split("\n")
    assert (note, evil_note) == ("A note.", SAFE)
    shown = "\n".join(shown_lines)
    assert all(cell in shown for row in rows for cell in row)
    assert shown.count("row 0") > 1  # the first column stands in every part
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 40


SOURCES = 40


@pytest.fixture
def many_sources(tmp_path: Path) -> Path:
    scores = [[1.0, 0.5, 0.0, 0.0], [1.0] * 3, [0.9375] * 5, [0.0] * 2]
    for source in range(SOURCES):
        records = [raw_record(scores[i % 4], number=i) for i in range(20 + source)]
        write_jsonl(tmp_path / "in" / f"source_number_{source}.jsonl", records)
    return tmp_path / "in"


def on_a_terminal(words: list[str], *, columns: int, lines: int) -> list[str]:
    """What a command shows on a terminal of that size, without styles."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "mprm", *words],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env={**environment, "TERM": "xterm"},
    )
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
        while piece := os.read(master, 1 << 16):
            shown += piece
    os.close(master)
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r", "").splitlines()


@pytest.mark.parametrize(
    "words", [["stats"], ["select", "--rho", "0.1", "--dry-run"], ["select", "--rho", "0.1", "0.2", "--dry-run"]]
)
def test_a_summary_fits_on_a_screen_and_shows_what_decides(words: list[str], many_sources: Path) -> None:
    shown = on_a_terminal([words[0], str(many_sources), *words[1:]], columns=80, lines=24)
    assert len(shown) < 24  # the prompt is the last line
    assert max(map(len, shown)) <= 80
    heads = " ".join(shown[:5])
    assert all(word in heads for word in ("rollout", "mixed", "error"))
    assert "continued" not in "".join(shown)
    assert "…" not in "".join(shown)
    if words.count("0.2") == 0:
        # 41 rows; of the sources the largest stay
        assert any(line.startswith(" source_number_39 ") for line in shown)
        assert re.search(r"Not shown: .*words/step, .*3\d smaller sources; all with --json\.", " ".join(shown))


@pytest.mark.parametrize("command", ["stats", "select"])
def test_what_is_piped_is_as_wide_as_columns_says_and_has_no_trailing_blanks(
    command: str, many_sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, str(many_sources), *(["--dry-run"] if command == "select" else [])]
    printed = {}
    for columns in ("80", "100", None):
        monkeypatch.delenv("COLUMNS") if columns is None else monkeypatch.setenv("COLUMNS", columns)
        assert run(words) == 0
        printed[columns] = capsys.readouterr().out.splitlines()
    for columns in ("80", "100"):
        assert max(map(len, printed[columns])) <= int(columns)
    for lines in printed.values():
        assert all(line == line.rstrip() for line in lines)
        assert sum("source_number_" in line for line in lines) == SOURCES
        assert "mixed" in "".join(lines)
    assert "Not shown" in "".join(printed["80"])
    assert "Not shown" not in "".join(printed[None])
    assert "words/" in "".join(printed[None])


def test_text_is_wrapped_before_a_table_is_split(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["kind", "3", "a meaning that needs more than the forty columns"]]
    show_table("Issues", ["kind", "count", "meaning"], rows, left=(0, 2), total_last=False)
    printed = capsys.readouterr().out
    assert "continued" not in printed
    assert "meaning that" in printed
    assert max(map(len, printed.splitlines())) <= 40

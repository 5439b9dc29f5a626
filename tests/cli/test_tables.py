import pytest

from mprm.cli.tables import latex_table, show_table
from mprm.data.output import Table, markdown_table

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

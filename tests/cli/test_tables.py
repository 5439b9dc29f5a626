import pytest

from mprm.cli.tables import latex_table, markdown_table, rich_table, show

EVIL = "a\x1b[31m\x9b\x07\r\n\u202e[bold]b[/bold]|:smile:"
SAFE = r"a\x1b[31m\x9b\x07\r\n\u202e[bold]b[/bold]|:smile:"


def test_names_from_data_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(rich_table(EVIL, [EVIL, EVIL], [[EVIL, "1"]], total_last=False))
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
    show(rich_table("α – 数学", ["ä/b"], [["é, as wide as the title"]], total_last=False))
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("α – 数学", "ä/b", "é, as"))

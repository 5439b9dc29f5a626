"""Tables for the terminal and for LaTeX; `mprm.data.output` writes them in Markdown."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from mprm.data.output import Table, printable

Cells = Sequence[str]
Rows = Sequence[Cells]
SCREEN_MARGIN = 14
"""Lines of a screen that are not the sources' of a table: its head, its total, what is printed after it."""
TEX = {"\\": r"\textbackslash{}", "α": r"$\alpha$", "–": "--", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_"}


def rich_table(title: str, heads: Cells, rows: Rows, *, left: Sequence[int] = (0,), total_last: bool = True) -> Any:
    """A table for the terminal: text columns left, numbers right, the total below a line; data cannot style it."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    layout: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
    table = RichTable(title=Text(printable(title), style="bold"), title_justify="left", **layout)
    cells = [[printable(cell) for cell in row] for row in rows]
    for number, head in enumerate(map(printable, heads)):
        is_text = number in left
        if not is_text:  # numbers are never cut; their heads are, at a stroke or their last space
            head = head.replace("/", "/\n") if "/" in head else "\n".join(head.rsplit(" ", 1))
        is_whole = number == 0 or not is_text
        width = max(map(cell_len, [*head.split("\n"), *(row[number] for row in cells)])) if is_whole else None
        table.add_column(Text(head), justify="left" if is_text else "right", no_wrap=is_whole, min_width=width)
    total = len(rows) - 1 if total_last else None
    for number, row in enumerate(cells):
        style = "bold" if number == total else None
        table.add_row(*map(Text, row), style=style, end_section=number + 1 == total)
    return table


def show_table(title: str, heads: Cells, rows: Rows, *, left: Sequence[int] = (0,), total_last: bool = True) -> None:
    """Print a table; where it is too wide, as several tables that repeat the first column."""
    console, start = _console(), 1
    while start < len(heads):
        for end in range(len(heads), start, -1):
            columns = [0, *range(start, end)]
            part = rich_table(
                title if start == 1 else f"{title} (continued)",
                [heads[column] for column in columns],
                [[row[column] for column in columns] for row in rows],
                left=[index for index, column in enumerate(columns) if column in left],
                total_last=total_last,
            )
            if _fits(console, part):
                break
        with console.capture() as captured:
            console.print(part)
        print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n")
        start = end


def show_summary(title: str, heads: Cells, rows: Rows, *, optional: Sequence[str], total_last: bool = True) -> None:
    """Print a table on one screen.

    Of the ``optional`` columns those are shown that fit, the first ones first; of the rows above a total, where a
    terminal is too low, those with the largest count in the second column.
    """
    console = _console()

    def part(columns: Sequence[str]) -> tuple[list[str], list[list[str]]]:
        indices = [index for index, head in enumerate(heads) if head in columns]
        return [heads[index] for index in indices], [[row[index] for index in indices] for row in rows]

    columns = list(heads)
    if not _fits(console, rich_table(title, *part(columns))):
        columns = [head for head in heads if head not in optional]
        for head in optional:
            columns += [head] if head in heads and _fits(console, rich_table(title, *part([*columns, head]))) else []
    hidden = [head for head in heads if head not in columns]
    n_hidden = len(rows) - max(4, console.height - SCREEN_MARGIN)
    if total_last and console.is_terminal and n_hidden > 0:
        smallest = sorted(rows[:-1], key=lambda row: int(row[1].replace(",", "")))[:n_hidden]
        rows = [row for row in rows if row not in smallest]
        hidden.append(f"{n_hidden:,} smaller sources")
    show_table(title, *part(columns), total_last=total_last)
    if hidden:
        print(textwrap.fill(f"Not shown: {', '.join(hidden)}; all with --json.", console.width))


def show_tables(tables: Iterable[Table]) -> None:
    """Print tables, each with its notes."""
    for table in tables:
        show_table(table.title, table.heads, table.rows, total_last=table.has_total)
        if table.notes:
            print(*map(printable, table.notes), sep="\n", end="\n\n")


def _fits(console: Any, table: Any) -> bool:
    wide = console.options.update(max_width=10_000)
    return bool(console.measure(table, options=wide).minimum <= console.width)  # columns of text can be wrapped


def latex_table(heads: Cells, rows: Rows) -> str:
    """The table in LaTeX, for booktabs."""
    signs = str.maketrans(TEX)
    head, *body = (" & ".join(printable(cell).translate(signs) for cell in row) + r" \\" for row in (heads, *rows))
    if len(body) > 1:
        body.insert(-1, r"\midrule")
    begin = rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])


def _console() -> Any:
    """The terminal; where the output is none, as wide as COLUMNS says, or else wide enough for most tables."""
    from rich.console import Console

    console = Console(highlight=False)
    is_told = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return console if is_told else Console(highlight=False, width=200)

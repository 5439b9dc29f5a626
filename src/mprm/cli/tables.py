"""Tables of statistics, for the terminal, for Markdown, for LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mprm.errors import printable
from mprm.selection.stats import Column, Statistics


def rich_table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    total_last: bool = True,
) -> Any:
    """A table for the terminal: names left, numbers right, the total below a line; texts are shown as they are."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title), style="bold"), box=box.SIMPLE_HEAD, title_justify="left")
    for number, head in enumerate(heads):
        # numbers are never cut; heads are, at a stroke or their last space
        whole = printable(head)
        broken = whole.replace("/", "/\n") if "/" in whole else "\n".join(whole.rsplit(" ", 1))
        is_text = number in left
        table.add_column(
            Text(whole if is_text else broken),
            justify="left" if is_text else "right",
            no_wrap=number == 0 or not is_text,
        )
    for number, row in enumerate(rows):
        is_last = number == len(rows) - 1
        table.add_row(
            *(Text(printable(cell)) for cell in row),
            style="bold" if is_last and total_last else None,
            end_section=total_last and number == len(rows) - 2,
        )
    return table


def show_fitted(
    title: str,
    heads: list[str],
    rows: list[list[str]],
    *,
    spare: Sequence[str],
    texts: Sequence[str] = (),
    total_last: bool = True,
) -> None:
    """Print a table; where the terminal is too narrow, without some of the spare columns, and say which.

    Columns of texts are set left, as the first is.
    """
    console, left_out = _console(), []

    def made() -> Any:
        left = [number for number, head in enumerate(heads) if number == 0 or head in texts]
        return rich_table(title, heads, rows, left=left, total_last=total_last)

    table = made()
    for head in spare if console.is_terminal else ():
        if console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width:
            break
        place = heads.index(head)
        heads = heads[:place] + heads[place + 1 :]
        rows = [row[:place] + row[place + 1 :] for row in rows]
        left_out.append(head)
        table = made()
    console.print(table)
    if left_out:
        console.print(f"Left out, for want of room: {', '.join(left_out)}.")


def show_split(title: str, heads: list[str], rows: list[list[str]], *, total_last: bool) -> None:
    """Print a table; where the terminal is too narrow, as several below each other that repeat the first column."""
    console = _console()
    wide = console.options.update(max_width=10_000)

    def part(start: int, end: int) -> Any:
        name = title if start == 1 else f"{title} (continued)"
        cut = [[row[0], *row[start:end]] for row in rows]
        return rich_table(name, [heads[0], *heads[start:end]], cut, total_last=total_last)

    start = 1
    while start < len(heads):
        end = len(heads)
        while console.is_terminal and end > start + 1:
            if console.measure(part(start, end), options=wide).maximum <= console.width:
                break
            end -= 1
        console.print(part(start, end))
        start = end


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table in Markdown."""
    lines = [list(heads), ["---"] + ["---:"] * (len(heads) - 1), *map(list, rows)]
    return "\n".join("| " + " | ".join(printable(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def latex_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table in LaTeX, for booktabs."""
    body = [" & ".join(map(_tex, row)) + r" \\" for row in rows]
    if len(body) > 1:
        body.insert(-1, r"\midrule")
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            " & ".join(map(_tex, heads)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _tex(text: str) -> str:
    text = printable(text)
    for sign, command in (("\\", r"\textbackslash{}"), ("α", r"$\alpha$"), ("–", "--")):
        text = text.replace(sign, command)
    for sign in "&%#_":
        text = text.replace(sign, "\\" + sign)
    return text


def statistics_rows(statistics: Mapping[str, Statistics], columns: Sequence[Column]) -> list[list[str]]:
    """One row a source."""
    return [[name, *(column.cell(entry) for column in columns)] for name, entry in statistics.items()]


def show(*things: Any) -> None:
    """Print tables and lines."""
    for thing in things:
        _console().print(thing)


def _console() -> Any:
    """The terminal; wide enough for every column when the output is none."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)

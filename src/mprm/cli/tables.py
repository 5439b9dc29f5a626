"""Tables for the terminal and for LaTeX; `mprm.data.output` writes them in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mprm.data.output import printable

if TYPE_CHECKING:
    from mprm.data.output import Table


def rich_table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    total_last: bool = True,
) -> Any:
    """A table for the terminal: text columns left, numbers right, the total below a line; data cannot style it."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(title=Text(printable(title), style="bold"), box=box.SIMPLE_HEAD, title_justify="left")
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


def show_table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    total_last: bool = True,
) -> None:
    """Print a table; on a narrow terminal as several tables that repeat the first column."""
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
        console.print(part)
        start = end


def show_tables(tables: Iterable[Table]) -> None:
    """Print tables, each with its notes."""
    for table in tables:
        show_table(table.title, table.heads, table.rows, total_last=table.has_total)
        if table.notes:
            print(*map(printable, table.notes), sep="\n", end="\n\n")


def _fits(console: Any, table: Any) -> bool:
    wide = console.options.update(max_width=10_000)
    return not console.is_terminal or console.measure(table, options=wide).maximum <= console.width


def latex_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table in LaTeX, for booktabs."""
    body = [" & ".join(map(_tex, row)) + r" \\" for row in rows]
    if len(body) > 1:
        body.insert(-1, r"\midrule")
    head = [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule", " & ".join(map(_tex, heads)) + r" \\"]
    return "\n".join([*head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])


def _tex(text: str) -> str:
    text = printable(text)
    for sign, command in (("\\", r"\textbackslash{}"), ("α", r"$\alpha$"), ("–", "--")):
        text = text.replace(sign, command)
    for sign in "&%#_":
        text = text.replace(sign, "\\" + sign)
    return text


def _console() -> Any:
    """The terminal; wide enough for every column when the output is none."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)

"""Text from data as HTML and JSON inside HTML, so that it can only ever be text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from typing import Any

import msgspec

from mprm.report.table import Table
from mprm.rollouts.printable import printable


def text(value: Any, *, most: int | None = None) -> str:
    r"""The value as text in an element or attribute; control characters are written as escapes, lines kept.

    Parameters
    ----------
    most
        Characters shown; how many more there are is said.

    Examples
    --------
    >>> text("<b>\x00 & more", most=4)
    '&lt;b&gt;\\x00 … (7 more characters)'
    """
    words = str(value)
    if most is not None and len(words) > most:
        words = f"{words[:most]} … ({len(words) - most:,} more characters)"
    return escape("\n".join(map(printable, words.split("\n"))))


def json_text(value: Any) -> str:
    """The value as JSON that cannot end or open anything in the HTML around it."""
    found = msgspec.json.encode(value).decode()
    # the five only ever stand in strings, where an escape means the same
    for sign in "<>&\u2028\u2029":
        found = found.replace(sign, f"\\u{ord(sign):04x}")
    return found


def content_hash(code: str) -> str:
    """The hash by which a page's policy names the one script or style that it lets in."""
    digest = hashlib.sha256(code.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def table_markup(table: Table) -> str:
    """The table with its caption, and the words below it."""
    heads = "".join(f'<th scope="col">{text(head)}</th>' for head in table.heads)
    bodies = []
    for group in table.groups:
        rows = []
        if group.head is not None:
            rows.append(
                f'<tr class="group"><th colspan="{len(table.heads)}" scope="rowgroup">{text(group.head)}</th></tr>'
            )
        for row in group.rows:
            cells = [
                f"<td>{f'<strong>{text(cell)}</strong>' if number in row.best else text(cell)}</td>"
                for number, cell in enumerate(row.cells[1:], 1)
            ]
            kind = ' class="total"' if row.is_total else ""
            rows.append(f'<tr{kind}><th scope="row">{text(row.cells[0])}</th>{"".join(cells)}</tr>')
        bodies.append(f"<tbody>{''.join(rows)}</tbody>")
    below = paragraphs(table.below)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{text(table.caption)}"><table>'
        f"<caption>{text(table.caption)}</caption><thead><tr>{heads}</tr></thead>{''.join(bodies)}</table></div>{below}"
    )


def paragraphs(lines: Iterable[str]) -> str:
    """Each line as a small paragraph."""
    return "".join(f'<p class="note">{text(line)}</p>' for line in lines)

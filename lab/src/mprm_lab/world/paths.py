"""Ways through the sixteen cells of a picture."""

from __future__ import annotations

from mprm_lab.draws import Draws
from mprm_lab.world.names import COLUMNS, ROWS, cell_name
from mprm_lab.world.scene import N_LINES
from mprm_lab.world.sentence import filled

Cells = tuple[str, ...]
Place = tuple[int, int]
"""Row and column of a cell, from 0."""

MOVES: dict[str, Place] = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}
WAYS = (("left", "right"), ("top", "bottom"))
"""Ends of a row, and of a column."""
LINE = "<line> from <start> to <end>"
DIAGONAL = "the diagonal from <item> to <item2>"


def straight(draws: Draws) -> tuple[str, Cells]:
    """A row, a column or a diagonal, from one end to the other: what it is called, and its cells."""
    kind, way = draws.between(0, 2), draws.between(0, 1)
    if kind < 2:
        line = draws.between(0, N_LINES - 1)
        return line_path(kind, line, way), line_cells(kind, line, way)
    last = N_LINES - 1
    falls = draws.chance(0.5)
    cells = [cell_name(row, row if falls else last - row) for row in range(N_LINES)]
    if way:
        cells.reverse()
    return filled(DIAGONAL, {"item": cells[0], "item2": cells[-1]}), tuple(cells)


def line_path(along: int, line: int, way: int) -> str:
    """What a row (``along`` 0) or column is called that is read from its start, or from its end."""
    start, end = WAYS[along][way], WAYS[along][1 - way]
    return filled(LINE, {"line": line_name(along, line), "start": start, "end": end})


def line_name(along: int, line: int) -> str:
    """What a row or column is called."""
    return (ROWS, COLUMNS)[along][line]


def line_cells(along: int, line: int, way: int = 0) -> Cells:
    """The cells of a row or column, from its start, or from its end."""
    cells = [cell_name(number, line) if along else cell_name(line, number) for number in range(N_LINES)]
    return tuple(cells[::-1] if way else cells)


def walk(draws: Draws, n_cells: int) -> tuple[list[str], Cells]:
    """A walk that enters no cell twice: its moves, and its cells."""
    while True:
        places, moves = [(draws.between(0, N_LINES - 1), draws.between(0, N_LINES - 1))], list[str]()
        while len(places) < n_cells:
            row, column = places[-1]
            ways = [
                (move, (row + down, column + right))
                for move, (down, right) in MOVES.items()
                if 0 <= row + down < N_LINES and 0 <= column + right < N_LINES
            ]
            ways = [(move, place) for move, place in ways if place not in places]
            if not ways:
                break
            move, place = draws.pick(ways)
            moves.append(move)
            places.append(place)
        else:
            return moves, tuple(cell_name(*place) for place in places)

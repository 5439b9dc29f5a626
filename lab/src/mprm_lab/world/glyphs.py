"""The digits and letters of the pictures, as small bitmaps."""

from __future__ import annotations

import re
from functools import cache

Span = tuple[int, int, int]
"""Row, first column and number of columns of some pixels beside each other."""

WIDTH, HEIGHT = 5, 7

_DIGITS = """
.###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# ..#.. #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. ..#.. .###. .##..
"""
_LETTERS = """
##### .###. #...# ..### #...# #.... ####. .#### ##### #...#
#.... #...# #...# ...#. #..#. #.... #...# #.... ..#.. #...#
#.... #.... #...# ...#. #.#.. #.... #...# #.... ..#.. .#.#.
####. #.### ##### ...#. ##... #.... ####. .###. ..#.. ..#..
#.... #...# #...# ...#. #.#.. #.... #.... ....# ..#.. .#.#.
#.... #...# #...# #..#. #..#. #.... #.... ....# ..#.. #...#
#.... .###. #...# .##.. #...# ##### #.... ####. ..#.. #...#
"""

LETTERS = "FGHJKLPSTX"
"""Names of bars: letters that look little alike, and none that names an option."""


def _bitmaps(names: str, drawing: str) -> dict[str, tuple[str, ...]]:
    rows = [line.split() for line in drawing.strip().splitlines()]
    return {name: tuple(row[place] for row in rows) for place, name in enumerate(names)}


GLYPHS: dict[str, tuple[str, ...]] = _bitmaps("0123456789", _DIGITS) | _bitmaps(LETTERS, _LETTERS)
"""Rows of each glyph from top to bottom, ``#`` where there is ink."""


@cache
def glyph_spans(name: str, wide: int, high: int) -> tuple[Span, ...]:
    """The pixels of a glyph whose dots are ``wide`` × ``high`` pixels."""
    spans = []
    for top, row in enumerate(GLYPHS[name]):
        for ink in re.finditer("#+", row):
            n_dots = ink.end() - ink.start()
            spans += [(top * high + line, ink.start() * wide, n_dots * wide) for line in range(high)]
    return tuple(spans)

"""A small picture of a few inks, each in four shades that differ by light noise."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import shake_128

from mprm_lab.draws import Draws
from mprm_lab.world.glyphs import Span, glyph_spans
from mprm_lab.world.png import palette_png

SIZE = 112
"""Pixels of a side: four cells of 28."""
CELL = 28
Colour = tuple[int, int, int]

_SHADES = 4
_NOISE = bytes(0 if byte < 176 else 1 if byte < 216 else 2 if byte < 240 else 3 for byte in range(256))
"""The shade for each random byte; about a third of the pixels are off their colour."""
_OFFSETS = (0, 1, -1, 2)


class Canvas:
    """Pixels of inks, numbered from 0, the background."""

    def __init__(self) -> None:
        self._pixels = bytearray(SIZE * SIZE)

    def box(self, left: int, top: int, width: int, height: int, ink: int) -> None:
        """Fill a rectangle."""
        self.spans(left, top, ((row, 0, width) for row in range(height)), ink)

    def spans(self, left: int, top: int, spans: Iterable[Span], ink: int) -> None:
        """Fill rows of pixels, which must lie within the picture."""
        value = bytes([ink * _SHADES])
        for row, first, n in spans:
            start = (top + row) * SIZE + left + first
            self._pixels[start : start + n] = value * n

    def glyph(self, name: str, left: int, top: int, wide: int, high: int, ink: int) -> None:
        """Write a digit or a letter with dots of ``wide`` × ``high`` pixels."""
        self.spans(left, top, glyph_spans(name, wide, high), ink)

    def png(self, colours: Iterable[Colour], *, grain: int, key: str) -> bytes:
        """The picture as a file.

        Parameters
        ----------
        colours
            Of each ink.
        grain
            How far the noise goes in each channel.
        key
            The noise hangs on it. It comes from SHAKE-128, a standard, so that no library can change it.
        """
        noise = shake_128(key.encode()).digest(SIZE * SIZE).translate(_NOISE)
        # an ink's first shade is a multiple of four, so that "or" adds the noise to all pixels at once
        both = int.from_bytes(self._pixels, "little") | int.from_bytes(noise, "little")
        palette = bytes(
            min(255, max(0, channel + offset * grain))
            for colour in colours
            for offset in _OFFSETS
            for channel in colour
        )
        return palette_png(both.to_bytes(SIZE * SIZE, "little"), SIZE, SIZE, palette)


def near(draws: Draws, colour: Colour, reach: int) -> Colour:
    """A colour that differs from this one by at most ``reach`` in each channel."""
    red, green, blue = (min(255, max(0, channel + draws.between(-reach, reach))) for channel in colour)
    return red, green, blue

from __future__ import annotations

import hashlib
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from mprm_lab.world import SOURCES, draw, places, problem, solution
from mprm_lab.world.drawing import shape_spans
from mprm_lab.world.glyphs import GLYPHS, glyph_spans
from mprm_lab.world.png import palette_png
from tests.lab.world.picture_reader import read_bars, read_grid, read_pixels, read_shapes

HASHES = {
    "grid-sum": ("01f3ca861b66f3c2", "3e23c1450204cf6d"),
    "grid-path": ("02d2f592219f0fc7", "536f60c2182b0470"),
    "grid-alternate": ("c07ec3c39c2c6fa3", "01e1d862f5dc55d5"),
    "grid-max": ("b486813e6664e51f", "8e6559bbdbb3f2c4"),
    "grid-above": ("cf28ebb98c7c50c2", "07e9f65d4e08fc0d"),
    "grid-compare": ("ea6cccdc370df24b", "634b7ea4d0cdd675"),
    "bars-total": ("809ccb7995ce59c6", "7bf57a9eda85c4a5"),
    "bars-range": ("b1f5538d3d4adf04", "823af8c4b6c785ab"),
    "bars-above": ("b76bea3c9e54245c", "3d53eb045d540ea5"),
    "bars-compare": ("8741effc633ad359", "38189b770d33975f"),
    "bars-second": ("fff988b1cd0f1227", "da21d0b7e7a10581"),
    "shapes-count": ("4adf237d858aaeb6", "324c61dd629b82fa"),
    "shapes-lines": ("8b448a2c998308bd", "f4f3e93e052cca4c"),
    "shapes-compare": ("3f51a3542c83b423", "6803307aacf6c0b4"),
    "shapes-points": ("b9bf48cbbef5496e", "e0c4e31082432c48"),
}
"""Of the pictures, and of the texts, of the first 20 problems of each source: they must never change."""


@pytest.mark.parametrize("name", SOURCES)
def test_pictures_and_texts_stay_the_same_to_the_byte(name: str) -> None:
    pictures, texts = hashlib.sha256(), hashlib.sha256()
    for seed in range(20):
        one = problem(name, seed)
        pictures.update(draw(one))
        texts.update("\n\n".join([one.question, one.answer, *solution(one)]).encode())
    assert (pictures.hexdigest()[:16], texts.hexdigest()[:16]) == HASHES[name]


def test_a_picture_is_a_palette_png_of_four_cells_of_28_pixels_a_side() -> None:
    for name in SOURCES:
        with Image.open(io.BytesIO(draw(problem(name, 1)))) as image:
            image.load()
            assert (image.format, image.mode, image.size) == ("PNG", "P", (112, 112))


def test_two_pictures_of_like_problems_differ_in_colours() -> None:
    backgrounds = {tuple(np.median(read_pixels(draw(problem("grid-sum", seed))), axis=(0, 1))) for seed in range(20)}
    assert len(backgrounds) > 15


def test_nothing_is_drawn_over_the_edge() -> None:
    # what leaves a row on the right comes back on its left, where a chart has a margin of four pixels
    for seed in range(150):
        margin = read_pixels(draw(problem("bars-above", seed)))[:, :4]
        assert np.abs(margin - np.median(margin, axis=(0, 1))).max() <= 14, "noise of at most two shades of seven"


def test_images_longer_than_one_block_are_written_in_several() -> None:
    # 300 rows of 301 bytes are 90,300: a block of 65,535 and one of 24,765
    pixels = bytes(number % 4 for number in range(300 * 300))
    palette = bytes([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    png = palette_png(pixels, 300, 300, palette)
    with Image.open(io.BytesIO(png)) as image:
        assert image.tobytes() == pixels
        assert image.getpalette()[: len(palette)] == list(palette)  # type: ignore[index]
    start = png.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", png[start - 8 : start - 4])
    assert len(zlib.decompress(png[start : start + length])) == 90_300
    assert png[start + 2 : start + 7] == struct.pack("<BHH", 0, 65_535, 0)
    assert png[start + 7 + 65_535 :][:5] == struct.pack("<BHH", 1, 24_765, 24_765 ^ 0xFFFF)


def test_glyphs_have_five_by_seven_dots_and_all_look_different() -> None:
    assert all(len(rows) == 7 and all(len(row) == 5 for row in rows) for rows in GLYPHS.values())
    assert len(set(GLYPHS.values())) == len(GLYPHS) == 20
    # the bar at the top of a 7: five dots of 3 pixels, 2 rows of them
    assert glyph_spans("7", 3, 2)[:2] == ((0, 0, 15), (1, 0, 15))


@pytest.mark.parametrize("side", range(15, 22))
@pytest.mark.parametrize("shape", ["circle", "square", "triangle", "cross"])
def test_shapes_stay_within_their_square_and_are_even(shape: str, side: int) -> None:
    for row, first, n in shape_spans(shape, side):
        assert 0 <= row < side
        assert 0 <= first
        assert first + n <= side
        assert abs(first - (side - first - n)) <= 1, "as far from the left as from the right"


@pytest.mark.parametrize("seed", range(10))
def test_places_are_named_as_the_pictures_show_them(seed: int) -> None:
    grid, shapes, bars = (problem(name, seed) for name in ("grid-sum", "shapes-count", "bars-total"))
    assert places(grid) == [(str(digit),) for row in read_grid(draw(grid)) for digit in row]
    shown = [cell for row in read_shapes(draw(shapes)) for cell in row]
    assert places(shapes) == [cell[::-1] if cell else ("0",) for cell in shown]
    heights, named = read_bars(draw(bars)), [words[0] for words in places(bars)]
    assert [str(heights[letter]) for letter in named[8:]] == named[:8]
    left_to_right = [letter for pair in zip(named[8:12], named[12:], strict=True) for letter in pair]
    order = [list(heights).index(letter) for letter in left_to_right]
    assert order == sorted(order)
    assert set(order) == set(range(len(heights)))

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mprm.errors import ConfigError, DataError
from mprm_lab.world import SOURCES, draw, problem, problem_named, solution, write_images
from mprm_lab.world.drawing import GLYPHS, glyph_mask, shape_mask
from tests.lab.world.picture_reader import read_bars, read_grid, read_pixels, read_shapes

HASHES = {
    "grid-sum": ("e178958207c6405f", "3e23c1450204cf6d"),
    "grid-path": ("af35c221d6bb9632", "536f60c2182b0470"),
    "grid-alternate": ("89efcf6c6b3343e5", "01e1d862f5dc55d5"),
    "grid-max": ("68a1e15b85d00742", "8e6559bbdbb3f2c4"),
    "grid-above": ("b91db9f546c06597", "07e9f65d4e08fc0d"),
    "grid-compare": ("7edd78cec4889c1e", "634b7ea4d0cdd675"),
    "bars-total": ("6fd17104b8f689e5", "7bf57a9eda85c4a5"),
    "bars-range": ("0fdceda5db069b1d", "823af8c4b6c785ab"),
    "bars-above": ("0d9ffe02fbd4b1d4", "3d53eb045d540ea5"),
    "bars-compare": ("ea10ef9e36394720", "38189b770d33975f"),
    "bars-second": ("680fd5bc89357878", "da21d0b7e7a10581"),
    "shapes-count": ("c0b107d688cf5552", "324c61dd629b82fa"),
    "shapes-lines": ("20313d5f82e791de", "f4f3e93e052cca4c"),
    "shapes-compare": ("e062ce236ca9556c", "6803307aacf6c0b4"),
    "shapes-points": ("263b8006b82ffbff", "e0c4e31082432c48"),
}
"""Of the pictures' RGB pixels, and of the texts, of the first 20 problems of each source: they must never change."""


@pytest.mark.parametrize("name", SOURCES)
def test_pixels_and_texts_stay_the_same_to_the_byte(name: str) -> None:
    pictures, texts = hashlib.sha256(), hashlib.sha256()
    for seed in range(20):
        example = problem(name, seed)
        pictures.update(draw(example).convert("RGB").tobytes())
        texts.update("\n\n".join([example.question, example.answer, *solution(example)]).encode())
    assert (pictures.hexdigest()[:16], texts.hexdigest()[:16]) == HASHES[name]


def test_a_picture_is_a_palette_png_of_four_cells_of_28_pixels_a_side(tmp_path: Path) -> None:
    for name in SOURCES:
        (path,) = write_images([problem(name, 1)], tmp_path)
        with Image.open(path) as image:
            image.load()
            assert (image.format, image.mode, image.size) == ("PNG", "P", (112, 112))
            assert image.convert("RGB").tobytes() == draw(problem(name, 1)).convert("RGB").tobytes()


def test_two_pictures_of_like_problems_differ_in_colours() -> None:
    backgrounds = {tuple(np.median(read_pixels(draw(problem("grid-sum", seed))), axis=(0, 1))) for seed in range(20)}
    assert len(backgrounds) > 15


def test_nothing_is_drawn_over_the_edge() -> None:
    # what leaves a row on the right comes back on its left, where a chart has a margin of four pixels
    for seed in range(150):
        margin = read_pixels(draw(problem("bars-above", seed)))[:, :4]
        assert np.abs(margin - np.median(margin, axis=(0, 1))).max() <= 14, "noise of at most two shades of seven"


def test_glyphs_have_five_by_seven_dots_and_all_look_different() -> None:
    assert all(len(rows) == 7 and all(len(row) == 5 for row in rows) for rows in GLYPHS.values())
    assert len(set(GLYPHS.values())) == len(GLYPHS) == 20
    # the bar at the top of a 7: five dots of 3 pixels, 2 rows of them; below it one dot on the right
    mask = glyph_mask("7", 3, 2)
    assert mask.shape == (14, 15)
    assert mask[:3].sum(axis=1).tolist() == [15, 15, 3]


@pytest.mark.parametrize("side", range(15, 22))
@pytest.mark.parametrize("shape", ["circle", "square", "triangle", "cross"])
def test_shapes_fill_their_square_and_are_even(shape: str, side: int) -> None:
    mask = shape_mask(shape, side)
    assert mask.shape == (side, side)
    for row in mask:
        inked = np.flatnonzero(row)
        if len(inked):
            assert len(inked) == inked[-1] - inked[0] + 1, "no holes"
            assert abs(inked[0] - (side - 1 - inked[-1])) <= 1, "as far from the left as from the right"
    assert 0.3 < mask.mean() < 0.9


@pytest.mark.parametrize("seed", range(10))
def test_patch_words_are_what_the_pictures_show(seed: int) -> None:
    grid, shapes, bars = (problem(name, seed) for name in ("grid-sum", "shapes-count", "bars-total"))
    assert grid.scene.patch_words() == [(str(digit),) for row in read_grid(draw(grid)) for digit in row]
    shown = [cell for row in read_shapes(draw(shapes)) for cell in row]
    assert shapes.scene.patch_words() == [cell[::-1] if cell else ("0",) for cell in shown]
    heights, named = read_bars(draw(bars)), [words[0] for words in bars.scene.patch_words()]
    assert [str(heights[letter]) for letter in named[8:]] == named[:8]
    left_to_right = [letter for pair in zip(named[8:12], named[12:], strict=True) for letter in pair]
    order = [list(heights).index(letter) for letter in left_to_right]
    assert order == sorted(order)
    assert set(order) == set(range(len(heights)))


def test_pictures_are_drawn_from_problems_ids_and_names_alike(tmp_path: Path) -> None:
    example = problem("grid-sum", 17)
    for folder, given in (("a", example), ("b", "grid-sum/17"), ("c", "grid-sum/17.png")):
        paths = write_images([given], tmp_path / folder)
        assert paths == [tmp_path / folder / "grid-sum" / "17.png"]
        with Image.open(paths[0]) as image:
            assert image.convert("RGB").tobytes() == draw(example).convert("RGB").tobytes()


def test_pictures_that_are_there_are_left_alone(tmp_path: Path) -> None:
    (path,) = write_images(["bars-range/3"], tmp_path)
    path.write_bytes(b"mine")
    assert write_images([problem("bars-range", 3)], tmp_path) == [path]
    assert path.read_bytes() == b"mine"
    assert sorted(path.parent.iterdir()) == [path], "no temporary file is left"


@pytest.mark.parametrize(
    "name",
    ["", "grid-sum", "grid-sum/", "grid-sum/x", "grid-sum/-1", "grid-sum/01", "../17", "nothing/17", "/grid-sum/1"],
)
def test_names_that_name_no_problem_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="names no problem of the lab; expected SOURCE/SEED"):
        problem_named(name)
    with pytest.raises(DataError):
        write_images([name], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_seed_beyond_the_last_is_refused() -> None:
    with pytest.raises(ConfigError, match="the seed is 4294967296"):
        problem_named("grid-sum/4294967296")


def test_the_name_of_a_picture_gives_the_problem_back() -> None:
    example = problem("shapes-points", 300_000_001)
    assert problem_named(example.image) == example

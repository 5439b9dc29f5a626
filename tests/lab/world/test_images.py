from __future__ import annotations

from pathlib import Path

import pytest

from mprm.errors import ConfigError, DataError
from mprm_lab.world import draw, problem, problem_named, write_images


def test_pictures_are_drawn_from_problems_ids_and_names_alike(tmp_path: Path) -> None:
    one = problem("grid-sum", 17)
    for folder, given in (("a", one), ("b", "grid-sum/17"), ("c", "grid-sum/17.png")):
        paths = write_images([given], tmp_path / folder)
        assert paths == [tmp_path / folder / "grid-sum" / "17.png"]
        assert paths[0].read_bytes() == draw(one)


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
    one = problem("shapes-points", 300_000_001)
    assert problem_named(one.image) == one

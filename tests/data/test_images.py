from pathlib import Path

import pytest

from mprm.data.images import find_image, find_images, image_files
from mprm.data.questions import read_questions
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError
from tests.conftest import write_jsonl


def test_an_image_is_found_by_its_path_its_name_or_with_another_ending(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("images/1.png", "2.png", "3.jpg"):
        (tmp_path / name).touch()
    assert find_image("images/1.png", tmp_path) == "images/1.png"
    assert find_image("images/2.png", tmp_path) == "2.png"
    assert find_image("image/3.png", tmp_path) == "3.jpg"
    assert find_image("images/4.png", tmp_path) is None


def test_an_image_outside_the_root_is_never_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.png").touch()
    (root / "secret.png").touch()
    for name in ("../secret.png", str(tmp_path / "secret.png"), "a/../../secret.png", "\0.png"):
        assert find_image(name, root) is None
    assert find_image("x" * 5000 + ".png", root) is None
    assert find_image(".", root) is None


def test_all_missing_images_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    names = ["a.png", "b.png", "c.png", "b.png"]
    with pytest.raises(DataError, match=r"2 of 3 images are not under .*: b.png, c.png\."):
        find_images(names, tmp_path)
    with pytest.raises(ConfigError, match="not a folder"):
        find_images(names, tmp_path / "nowhere")


def test_questions_name_the_images_that_were_found(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "q.jsonl", [{"id": "1", "image": "image/1.png", "question": "?", "answer": "1"}])
    with pytest.raises(DataError, match=r"1 of 1 images are not under .*: image/1.png"):
        read_questions(path, image_root=tmp_path)
    (tmp_path / "1.jpg").touch()
    assert read_questions(path, image_root=tmp_path)[0].images == ("1.jpg",)
    assert read_questions(path)[0].images == ("image/1.png",)


def test_two_images_never_become_one(tmp_path: Path) -> None:
    images = ["a/1.png", "b/1.png"]
    path = write_jsonl(
        tmp_path / "q.jsonl",
        [{"id": str(n), "image": image, "question": "?", "answer": "1"} for n, image in enumerate(images)],
    )
    (tmp_path / "1.png").touch()
    with pytest.raises(DataError, match=r"a/1.png and b/1.png would both be 1.png"):
        read_questions(path, image_root=tmp_path)


def test_images_under_another_name_are_reported(tmp_path: Path) -> None:
    (tmp_path / "4.png").touch()
    (tmp_path / "5.png").touch()
    images = ["images/4.jpg", "5.png"]
    records = [{"id": str(n), "image": image, "question": "?", "answer": "1"} for n, image in enumerate(images)]
    renamed: dict[str, str] = {}
    read_questions(write_jsonl(tmp_path / "q.jsonl", records), image_root=tmp_path, on_renamed=renamed.update)
    assert renamed == {"images/4.jpg": "4.png"}


def test_a_name_too_long_for_a_file_is_a_missing_image(tmp_path: Path) -> None:
    question = Question(id="1", question="?", answer="1", images=("9" * 5000 + ".png",))
    with pytest.raises(DataError, match="does not exist; say with --image-root"):
        image_files(question, tmp_path)

from pathlib import Path

import pytest

from mprm.data.questions import found_image, missing_images, read_questions, with_found_images
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError
from tests.conftest import write_jsonl


def question(number: int, *images: str) -> Question:
    return Question(id=str(number), question="?", answer="1", images=images)


def test_an_image_is_found_by_its_path_its_name_or_with_another_ending(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("images/1.png", "2.png", "3.jpg"):
        (tmp_path / name).touch()
    assert found_image("images/1.png", tmp_path) == "images/1.png"
    assert found_image("images/2.png", tmp_path) == "2.png"
    assert found_image("image/3.png", tmp_path) == "3.jpg"
    assert found_image("images/4.png", tmp_path) is None


def test_an_image_outside_the_root_is_never_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.png").touch()
    (root / "secret.png").touch()
    for name in ("../secret.png", str(tmp_path / "secret.png"), "a/../../secret.png", "\0.png"):
        assert found_image(name, root) is None
    assert found_image("x" * 5000 + ".png", root) is None
    assert found_image(".", root) is None


def test_all_missing_images_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    questions = [question(1, "a.png", "b.png"), question(2, "c.png", "b.png")]
    assert missing_images(questions, tmp_path) == ["b.png", "c.png"]
    with pytest.raises(ConfigError, match="not a folder"):
        missing_images(questions, tmp_path / "nowhere")


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


def test_images_under_another_name_are_told_of(tmp_path: Path) -> None:
    (tmp_path / "4.png").touch()
    (tmp_path / "5.png").touch()
    asked = [question(1, "images/4.jpg"), question(2, "5.png")]
    renamed: dict[str, str] = {}
    with_found_images(asked, tmp_path, on_renamed=renamed.update)
    assert renamed == {"images/4.jpg": "4.png"}

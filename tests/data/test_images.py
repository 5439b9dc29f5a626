import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mprm.data.images import as_rgb, broken_image, find_image, find_images, image_files, image_size, open_image
from mprm.data.questions import read_questions
from mprm.data.types import Issues, Question, Rollout, Step, ValidationOptions, validate
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
    with pytest.raises(DataError, match=r"2 of 3 images are not under .*:\n  b.png\n  c.png$"):
        find_images(names, tmp_path)
    with pytest.raises(ConfigError, match="not a folder"):
        find_images(names, tmp_path / "nowhere")


def test_questions_name_the_images_that_were_found(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "q.jsonl", [{"id": "1", "image": "image/1.png", "question": "?", "answer": "1"}])
    with pytest.raises(DataError, match=r"1 of 1 images are not under .*:\n  image/1.png"):
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


def test_only_files_of_known_formats_are_opened(tmp_path: Path) -> None:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n{ } loop\n"
    (tmp_path / "a.png").write_bytes(postscript)
    for read in (open_image, image_size):
        with pytest.raises(
            DataError, match=r"a\.png cannot be read: it is not recognised as one of PNG, JPEG, WEBP, GIF, BMP, TIFF"
        ):
            read("a.png", tmp_path)
    for ending in ("png", "jpg", "webp", "gif", "bmp", "tiff"):
        Image.new("RGB", (3, 2), "red").save(tmp_path / f"b.{ending}")
        assert open_image(f"b.{ending}", tmp_path).size == image_size(f"b.{ending}", tmp_path) == (3, 2)


def test_a_pipe_is_no_image_and_nobody_waits_for_it(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom mprm.data.images import broken_image, image_size\nprint(broken_image('a.png', sys.argv[1]))\n"
        "try:\n    image_size('a.png', sys.argv[1])\nexcept Exception as error:\n    print(error)"
    )
    os.mkfifo(tmp_path / "a.png")
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.count("a.png cannot be read: it is not a regular file") == 2


def test_an_image_that_was_replaced_is_decoded_again(tmp_path: Path) -> None:
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    assert broken_image("a.png", tmp_path) is None
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[:60])
    assert "a.png cannot be read" in str(broken_image("a.png", tmp_path))
    (tmp_path / "a.png").write_bytes(whole)
    assert broken_image("a.png", tmp_path) is None


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    # 16 bits grey, 8,000 × 7,000, all black: 56 million pixels in a few hundred kilobytes
    Image.frombytes("I;16", (8000, 7000), bytes(2 * 8000 * 7000)).save(tmp_path / "bomb.png")
    tracemalloc.start()
    for read in (open_image, image_size):
        with pytest.raises(DataError, match=r"it has 8,000 × 7,000 pixels; expected at most 50,000,000\. Scale"):
            read("bomb.png", tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_sixteen_bits_are_rounded_to_eight() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    expected = np.round(values / 257).astype(np.uint8)
    for mode, array in (("I;16", values), ("I", values.astype(np.int32))):
        image = Image.fromarray(array)
        assert image.mode == mode
        assert (np.asarray(as_rgb(image)) == expected[..., None]).all()


def test_a_link_that_leaves_the_root_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    Image.new("RGB", (3, 2)).save(root / "real" / "in.png")
    Image.new("RGB", (3, 2)).save(tmp_path / "out.png")
    (root / "link.png").symlink_to(tmp_path / "out.png")
    (root / "folder").symlink_to(tmp_path)
    (root / "inside").symlink_to(root / "real")
    (root / "loop.png").symlink_to(root / "loop.png")
    (tmp_path / "same").symlink_to(root)
    for name in ("link.png", "folder/out.png"):
        with pytest.raises(DataError, match="leaves the image root"):
            open_image(name, root)
        assert find_image(name, root) is None
        question = Question(id="1", question="q", answer="a", images=(name,))
        with pytest.raises(DataError, match="leaves the image root"):
            image_files(question, root)
        rollout = Rollout(question="q", steps=(Step(text="s", score=0.0),), images=(name,))
        issues = Issues()
        validate(rollout, issues, ValidationOptions(image_root=root), has_images=True)
        assert [kind for kind, _ in issues] == ["image_outside_root"]
    assert open_image("inside/in.png", tmp_path / "same").size == (3, 2)
    with pytest.raises(DataError, match=r"loop\.png cannot be read"):
        open_image("loop.png", root)


def test_a_name_too_long_for_a_file_is_a_missing_image(tmp_path: Path) -> None:
    question = Question(id="1", question="?", answer="1", images=("9" * 5000 + ".png",))
    with pytest.raises(DataError, match="does not exist; say with --image-root"):
        image_files(question, tmp_path)

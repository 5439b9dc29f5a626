"""Where a question's images lie."""

from __future__ import annotations

from pathlib import Path

from mprm.annotation.questions.question import Question
from mprm.errors import DataError
from mprm.rollouts.judge import leaves_root


def image_files(question: Question, root: str | Path | None) -> tuple[Path, ...]:
    """The question's images, all of them there; a path that leaves the root is refused."""
    return tuple(_image_file(image, question, root) for image in question.images)


def _image_file(image: str, question: Question, root: str | Path | None) -> Path:
    where = f"question {question.id!r} of {question.source!r}"
    if root is not None and leaves_root(image):
        raise DataError(f"{where}: image path {image!r} leaves the image root; expected a path below it")
    path = Path(root or ".").expanduser() / image
    if not path.is_file():
        raise DataError(f"{where}: image {path} is not there; say with --image-root where the images lie")
    return path

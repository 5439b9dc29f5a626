"""Images of a rollout: where they lie, whether they are whole, how large they are.

Where the images of a question stand in its text.

Where a question's images lie.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from mprm.data.types import Question
from mprm.data.validate import IMAGE_MARK, leaves_root
from mprm.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from PIL.Image import Image


_LOADING = Lock()
SHOWN = 20
"""How many broken images an error lists before it only counts them; the full list goes to a file."""


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError("images need Pillow: install mprm with its extra [train]") from error
    return Image


def image_path(image: str | Path, root: str | Path | None) -> Path:
    """Where the image lies; a path from data that climbs out of its root is refused."""
    if root is None:
        return Path(image)
    if leaves_root(str(image)):
        raise DataError(f"image path {str(image)!r} leaves the image root {root}; expected a path below it")
    return Path(root) / image


def open_image(image: Any, root: str | Path | None = None) -> Image:
    """The whole image in RGB; ``image`` is a path or a PIL image."""
    Image = _pillow()  # noqa: N806 - the class's own name
    if isinstance(image, Image.Image):
        try:
            with _LOADING:  # an image that is read from its file only now may be wanted by two threads
                image.load()
            return as_rgb(image)
        except Exception as error:
            raise DataError(f"image {image!r} cannot be read: {error or type(error).__name__}") from error
    _check_no_image(image)
    path = image_path(image, root)
    try:
        with Image.open(path) as opened:
            return as_rgb(opened)
    except FileNotFoundError:
        raise DataError(f"image {path} is not there; image paths are looked up under --image-root") from None
    # Pillow raises whatever a decoder stumbled over: SyntaxError, struct.error, DecompressionBombError and more
    except Exception as error:
        raise DataError(f"image {path} cannot be read: {error or type(error).__name__}") from error


def as_rgb(image: Image) -> Image:
    """The image in RGB as a person sees it: what is transparent is white, 16 bits are scaled to 8."""
    import numpy as np

    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.float64)
        if wide.min(initial=0) < 0 or wide.max(initial=0) > 65535:
            raise ValueError(f"pixels of mode {image.mode} beyond 16 bits; convert it to 8 bits")
        return _pillow().fromarray((wide / 257).round().astype(np.uint8)).convert("RGB")  # type: ignore[no-any-return]
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known scale; convert it to 8 bits")
    if image.has_transparency_data:
        # convert("RGB") would show what lies under the transparency: black, mostly, behind black lines
        seen = image.convert("RGBA")
        white = _pillow().new("RGBA", seen.size, "white")
        white.alpha_composite(seen)
        return white.convert("RGB")  # type: ignore[no-any-return]
    return image.convert("RGB")


def _check_no_image(image: Any) -> None:
    if not isinstance(image, str | Path | _pillow().Image):
        raise DataError(f"an image is {image!r:.200}; expected a path or a PIL image")


@lru_cache(maxsize=1 << 16)
def _size_of_file(path: Path, _mtime_ns: int, _n_bytes: int) -> tuple[int, int]:
    """Read once for each state of the file: another one may come to lie there."""
    Image = _pillow()  # noqa: N806
    with Image.open(path) as opened:
        return opened.size  # type: ignore[no-any-return]


def image_size(image: Any, root: str | Path | None = None) -> tuple[int, int]:
    """(width, height), read from the file's header alone."""
    _check_no_image(image)
    if not isinstance(image, str | Path):
        if not all(image.size):
            raise DataError(f"image {image!r} has no pixels")
        return image.size  # type: ignore[no-any-return]
    path = image_path(image, root)
    try:
        state = path.stat()
        return _size_of_file(path, state.st_mtime_ns, state.st_size)
    except Exception as error:
        raise DataError(f"image {path} cannot be read: {error or type(error).__name__}") from error


def broken_image(image: str, root: str | Path | None) -> str | None:
    """Why the image cannot be used, or None: decodes all of it, so that a cut-off file is found."""
    try:
        open_image(image, root)
    except DataError as error:
        return str(error)
    return None


def listed(reasons: Iterable[str]) -> str:
    """The reasons, a line each; after the first ones only their number."""
    lines = sorted(set(reasons))
    more = f"\n  … and {len(lines) - SHOWN:,} more" if len(lines) > SHOWN else ""
    return "\n".join(f"  {line}" for line in lines[:SHOWN]) + more


def place_images(question: str, n_images: int) -> list[str | int]:
    """The question with each image (by number) at its mark, or all before it where the marks do not fit.

    Marks are ``<image>``, one for each image in order, or ``<image1>``, ``<image2>``, … each once. Where
    they do not fit the images one to one, all images stand before the question and marks stay as text.

    Examples
    --------
    >>> place_images("Is <image> larger than <image>?", 2)
    ['Is ', 0, ' larger than ', 1, '?']
    >>> place_images("Find x.", 1)
    [0, 'Find x.']
    """
    marks = list(IMAGE_MARK.finditer(question)) if n_images else []
    digits = [re.search(r"\d+", mark.group()) for mark in marks]
    if marks and not any(digits):
        numbers = list(range(len(marks)))
    else:
        numbers = [int(digit.group()) - 1 for digit in digits if digit]
    if len(numbers) != len(marks) or sorted(numbers) != list(range(n_images)):
        return [*range(n_images), question]
    pieces: list[str | int] = []
    end = 0
    for mark, number in zip(marks, numbers, strict=True):
        pieces += [question[end : mark.start()], number]
        end = mark.end()
    return [piece for piece in [*pieces, question[end:]] if piece != ""]


def as_placed(question: str, images: Sequence[Any]) -> tuple[Any, ...]:
    """The images in the order in which they stand in the question, which ``<image2>`` before ``<image1>`` turns.

    A model deals the embeddings of the images out to their tokens in this order.

    Examples
    --------
    >>> as_placed("Is <image2> larger than <image1>?", ["a.png", "b.png"])
    ('b.png', 'a.png')
    """
    return tuple(images[piece] for piece in place_images(question, len(images)) if isinstance(piece, int))


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

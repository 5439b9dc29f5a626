"""Images of records: where they lie, whether they are whole, how large they are, where they stand in a question.

Image paths are checked here and nowhere else.
"""

from __future__ import annotations

import ntpath
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from threading import Lock
from typing import TYPE_CHECKING, Any

from mprm.errors import ConfigError, DataError, InputNotFoundError, imported

if TYPE_CHECKING:
    from PIL.Image import Image

    from mprm.data.benchmarks import Benchmark
    from mprm.data.types import Question

IMAGE_MARK = re.compile(r"<image(?:[ _]?\d+)?>")
"""The position of an image in a question."""
ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
"""Endings that one picture may have in copies of a data set."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are opened, by Pillow's names: others reach other programs, as PostScript does Ghostscript."""
MAX_PIXELS = 50_000_000
"""Pixels of the largest image that is decoded, some hundred megabytes."""
SHOWN = 20
"""How many missing or broken images an error lists."""
_LOADING = Lock()


def leaves_root(path: str, root: str | Path | None = None) -> bool:
    """Whether a path from data is absolute, climbs above its root, or goes through a symbolic link out of it."""
    windows = PureWindowsPath(path)
    is_absolute = PurePosixPath(path).is_absolute() or windows.drive or windows.root
    if is_absolute or "\0" in path or ntpath.normpath(path).split("\\")[0] == "..":
        return True
    if root is None:
        return False
    real_root = os.path.realpath(root)
    return os.path.commonpath([real_root, os.path.realpath(Path(root) / path)]) != real_root


def image_folder(root: str | Path | None) -> Path | None:
    """The image root: a folder, or that into which zip archives are unpacked; None where there is none."""
    folder = None if root is None else Path(root).expanduser()
    if folder is not None and not folder.is_dir():
        from mprm.data.archives import unpacked_root  # they check paths with this module
        from mprm.data.records import is_archive

        if is_archive(str(root)):
            return unpacked_root(str(root))
        raise ConfigError(f"the image root {root} is not a folder; expected one, or a zip archive")
    return folder


def image_path(image: str | Path, root: str | Path | None) -> Path:
    """Where the image lies; a path from data that leaves its root is an error."""
    if root is None:
        return Path(image)
    if leaves_root(str(image), root):
        raise DataError(f"image path {str(image)!r} leaves the image root {root}; expected a path below it")
    return Path(root) / image


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name longer than the file system takes is none."""
    try:
        return path.is_file()
    except OSError:
        return False


image_exists = lru_cache(maxsize=1 << 16)(is_file)


def find_image(name: str, root: Path) -> str | None:
    """The image's path under the root; None when it is not there.

    An image that is not where its name says is looked for by its bare name, then with another ending: data sets are
    unpacked flat, and their pictures made smaller. A name that leaves the root is never found.
    """
    if leaves_root(name):
        return None
    path = PurePosixPath(name.replace("\\", "/"))
    for candidate in (path, PurePosixPath(path.name)):
        for ending in (path.suffix, *ENDINGS):
            other = candidate.with_suffix(ending) if path.suffix else candidate
            if is_file(root / other) and not leaves_root(str(other), root):
                return str(other)
    return None


def find_images(names: Collection[str], root: str | Path) -> dict[str, str]:
    """The path under the root of each image; an error names those that are not there."""
    folder = image_folder(root)
    assert folder is not None
    wanted = set(names)
    paths = {name: path for name in names if (path := find_image(name, folder)) is not None}
    if len(paths) < len(wanted):
        raise DataError(
            f"{len(wanted) - len(paths):,} of {len(wanted):,} images are not under {folder}; name the folder"
            f" that their paths start from:\n{listed(wanted - paths.keys())}"
        )
    owners: dict[str, str] = {}
    for name, path in paths.items():
        other = owners.setdefault(path, name)
        if other != name:
            raise DataError(f"{folder}: {other} and {name} would both be {path}; unpack them with their folders")
    return paths


def check_images_exist(benchmark: Benchmark, root: str | Path | None) -> None:
    """Stop, before hours of scoring, when an image is not below the image root; names the missing ones."""
    locations = benchmark.image_locations
    if not locations:
        return
    if root is None:
        raise ConfigError(
            f"{len(locations):,} images are named, such as {next(iter(locations))};"
            " say which folder holds them with --image-root DIR"
        )
    folder = image_folder(root)
    assert folder is not None
    for image, where in locations.items():
        if leaves_root(image, folder):
            raise DataError(f"{where}: image path {image!r} leaves the image root; expected a path below it")
    missing = [f"{image} ({where})" for image, where in locations.items() if not is_file(folder / image)]
    if missing:
        raise InputNotFoundError(
            f"{len(missing):,} of {len(locations):,} images are not under {folder}; put them there or name another"
            f" --image-root:\n{listed(missing)}"
        )


def check_images_readable(benchmark: Benchmark, root: str | Path | None) -> None:
    """Stop, before hours of scoring, when an image cannot be decoded to its end; names all of them. Needs Pillow."""
    locations = benchmark.image_locations
    folder = image_folder(root)
    with ThreadPoolExecutor() as pool:
        reasons = pool.map(lambda image: broken_image(image, folder), locations)
        broken = [f"{where}: {why}" for where, why in zip(locations.values(), reasons, strict=True) if why]
    if broken:
        raise DataError(
            f"{len(broken):,} of {len(locations):,} images cannot be used; fix them, or remove their records:\n"
            + "\n".join(broken)
        )


def listed(reasons: Iterable[str]) -> str:
    """The reasons, a line each; after the first ones only their number."""
    lines = sorted(set(reasons))
    more = f"\n  … and {len(lines) - SHOWN:,} more" if len(lines) > SHOWN else ""
    return "\n".join(f"  {line}" for line in lines[:SHOWN]) + more


def _pillow() -> Any:
    imported("PIL", "images need Pillow: install mprm with its extra [train]")
    from PIL import Image

    return Image


@contextmanager
def _decoding(image: Any) -> Iterator[None]:
    """Name the image in an error: Pillow raises whatever a decoder stumbled over, as SyntaxError and struct.error."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"image {image} does not exist; image paths are looked up under --image-root") from None
    except Exception as error:
        raise DataError(f"image {image} cannot be read: {str(error) or type(error).__name__}") from error


def open_image(image: Any, root: str | Path | None = None) -> Image:
    """The whole image in RGB; ``image`` is a path or a PIL image."""
    _check_is_image(image)
    if not isinstance(image, str | Path):
        with _decoding(image):
            with _LOADING:  # an image that is read from its file only now may be wanted by two threads
                image.load()
            return as_rgb(image)
    path = image_path(image, root)
    with _decoding(path), _open_file(path) as opened:
        return as_rgb(opened)


def _open_file(path: Path) -> Any:
    """The image in a file, not decoded yet."""
    Image = _pillow()  # noqa: N806 - the module's own name
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe waits for its writer
        raise ValueError("it is not a regular file")
    try:
        opened = Image.open(path, formats=FORMATS)
    except Image.UnidentifiedImageError:
        raise ValueError(f"it is not recognised as one of {', '.join(FORMATS)}") from None
    width, height = opened.size
    if width * height > MAX_PIXELS:
        opened.close()
        raise ValueError(f"it has {width:,} × {height:,} pixels; expected at most {MAX_PIXELS:,}. Scale it down")
    return opened


def as_rgb(image: Image) -> Image:
    """The image in RGB as a person sees it: transparent pixels are white, 16 bits are scaled to 8."""
    import numpy as np

    if image.mode.startswith("I"):
        wide = np.asarray(image)
        if wide.min(initial=0) < 0 or wide.max(initial=0) > 65535:
            raise ValueError(f"pixels of mode {image.mode} beyond 16 bits; convert it to 8 bits")
        wide = wide.astype(np.uint16)  # in place of floating point: a quarter of the memory
        narrow = (wide // 257).astype(np.uint8) + (wide % 257 > 128)  # rounded
        return _pillow().fromarray(narrow).convert("RGB")  # type: ignore[no-any-return]
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known scale; convert it to 8 bits")
    if image.has_transparency_data:
        # convert("RGB") would show what lies under the transparency: black, mostly, behind black lines
        rgba = image.convert("RGBA")
        white = _pillow().new("RGBA", rgba.size, "white")
        white.alpha_composite(rgba)
        return white.convert("RGB")  # type: ignore[no-any-return]
    return image.convert("RGB")


def _check_is_image(image: Any) -> None:
    if not isinstance(image, str | Path | _pillow().Image):
        raise DataError(f"an image is {image!r:.200}; expected a path or a PIL image")


@lru_cache(maxsize=1 << 16)
def _size_of_file(path: Path, _mtime_ns: int, _n_bytes: int) -> tuple[int, int]:
    """Cached for each state of the file: it may be replaced by another."""
    with _open_file(path) as opened:
        return opened.size  # type: ignore[no-any-return]


def image_size(image: Any, root: str | Path | None = None) -> tuple[int, int]:
    """(width, height), read from the file's header alone."""
    _check_is_image(image)
    if not isinstance(image, str | Path):
        if not all(image.size):
            raise DataError(f"image {image!r} has no pixels")
        return image.size  # type: ignore[no-any-return]
    path = image_path(image, root)
    with _decoding(path):
        status = path.stat()
        return _size_of_file(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1 << 16)
def _decode(path: Path, _mtime_ns: int, _n_bytes: int) -> None:
    """Cached, where it raises nothing, as `_size_of_file`: several runs of a process check the same images."""
    open_image(path)


def broken_image(image: str, root: str | Path | None) -> str | None:
    """Why the image cannot be used, or None: decodes all of it, so that a truncated file is found."""
    _pillow()
    try:
        path = image_path(image, root)
        with _decoding(path):
            status = path.stat()
        _decode(path, status.st_mtime_ns, status.st_size)
    except DataError as error:
        return str(error)
    return None


def place_images(question: str, n_images: int) -> list[str | int]:
    """The question with each image (by index) at its mark, or all before it where the marks do not fit.

    Marks are ``<image>``, one for each image in order, or ``<image1>``, ``<image2>``, … each once. Where they do not
    fit the images one to one, all images stand before the question and marks stay as text.

    >>> place_images("Is <image> larger than <image>?", 2)
    ['Is ', 0, ' larger than ', 1, '?']
    >>> place_images("Find x.", 1)
    [0, 'Find x.']
    """
    marks = IMAGE_MARK.findall(question) if n_images else []
    indices = [int(number) - 1 for number in re.findall(r"\d+", "".join(marks))] or list(range(len(marks)))
    if len(indices) != len(marks) or sorted(indices) != list(range(n_images)):
        return [*range(n_images), question]
    *texts, last = IMAGE_MARK.split(question) if n_images else [question]
    pieces = [*chain.from_iterable(zip(texts, indices, strict=True)), last]
    return [piece for piece in pieces if piece != ""]


def as_placed(question: str, images: Sequence[Any]) -> tuple[Any, ...]:
    """The images in the order in which they stand in the question: ``<image2>`` may come before ``<image1>``.

    Models assign image embeddings to image tokens in this order.

    >>> as_placed("Is <image2> larger than <image1>?", ["a.png", "b.png"])
    ('b.png', 'a.png')
    """
    return tuple(images[piece] for piece in place_images(question, len(images)) if isinstance(piece, int))


def image_files(question: Question, root: str | Path | None) -> tuple[Path, ...]:
    """The paths of the question's images, all of which exist."""
    owner, folder = f"question {question.id!r} of {question.source!r}", image_folder(root) or Path()
    paths = {image: folder / image for image in question.images}
    for image, path in paths.items():
        if root is not None and leaves_root(image, folder):
            raise DataError(f"{owner}: image path {image!r} leaves the image root; expected a path below it")
        if not is_file(path):
            raise DataError(f"{owner}: image {path} does not exist; say with --image-root where the images are")
    return tuple(paths[image] for image in question.images)

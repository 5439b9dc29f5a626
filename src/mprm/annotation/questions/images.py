"""Finding the images of questions under an image root."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from mprm.annotation.questions.question import Question
from mprm.errors import ConfigError, DataError
from mprm.rollouts.judge import leaves_root

ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
"""Endings that one picture may have in copies of a data set."""
SHOWN = 20
"""How many missing images an error names."""


def found_image(name: str, root: Path) -> str | None:
    """The image's path under the root; None when it is not there.

    An image that is not where its name says is looked for by its bare name, then with another ending: data sets are
    unpacked flat, and their pictures made smaller. A name that leaves the root is never found.
    """
    if leaves_root(name):
        return None
    path = PurePosixPath(name.replace("\\", "/"))
    for place in (path, PurePosixPath(path.name)):
        for ending in (path.suffix, *ENDINGS):
            other = place.with_suffix(ending) if path.suffix else place
            if _is_file(root / other):
                return str(other)
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than the file system takes
        return False


def missing_images(questions: Iterable[Question], image_root: str | Path) -> list[str]:
    """All images that are not under the root, each once, in the order of the questions."""
    root = _folder(image_root)
    names = dict.fromkeys(image for question in questions for image in question.images)
    return [name for name in names if found_image(name, root) is None]


def with_found_images(
    questions: Sequence[Question],
    image_root: str | Path,
    *,
    on_renamed: Callable[[dict[str, str]], None] | None = None,
) -> list[Question]:
    """The questions with their images' paths under the root; an error names those that are not there.

    ``on_renamed`` is told of images that lie there under another name: that name, by the question's own.
    """
    root = _folder(image_root)
    names = list(dict.fromkeys(image for question in questions for image in question.images))
    found = {name: found_image(name, root) for name in names}
    missing = [name for name in names if found[name] is None]
    if missing:
        more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        raise DataError(
            f"{len(missing):,} of {len(names):,} images are not under {root}: {', '.join(missing[:SHOWN])}{more}."
            " Name the folder that the images' paths start from."
        )
    owners: dict[str, str] = {}
    for name, path in found.items():
        other = owners.setdefault(path or "", name)
        if other != name:
            raise DataError(f"{root}: {other} and {name} would both be {path}; unpack the images with their folders")
    renamed = {name: path for name, path in found.items() if path is not None and path != name}
    if renamed and on_renamed is not None:
        on_renamed(renamed)
    return [replace(question, images=tuple(found[name] or "" for name in question.images)) for question in questions]


def _folder(path: str | Path) -> Path:
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ConfigError(f"the image root {root} is not a folder")
    return root

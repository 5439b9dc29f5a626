"""The pictures that a lab's records name, drawn where they are not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from mprm.errors import ConfigError, DataError
from mprm_lab.world import write_images


class _Record(msgspec.Struct):
    """A rollout, a solved problem or a question with candidates."""

    image: str | list[str] | None = None
    images: list[str] | None = None


def pictures_of(lines: Iterable[bytes], place: str) -> Iterator[str]:
    """The names in a file of records; ``place`` is the file, for messages."""
    decoder = msgspec.json.Decoder(_Record)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{place}:{number}: not a record of a lab: {error}") from error
        yield from [record.image] if isinstance(record.image, str) else record.image or record.images or []


def check_folder(*folders: Path) -> None:
    """Stop where something else stands in a folder's place."""
    for folder in folders:
        if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
            raise ConfigError(f"{folder} is in the way: a folder belongs there; move it elsewhere")


def draw_missing(records: Iterable[Path], images: Path) -> int:
    """Draw the pictures that the files name and ``images`` has not; returns how many."""
    check_folder(images)
    n_drawn = 0
    for path in records:
        with path.open("rb") as lines:
            named = dict.fromkeys(pictures_of(lines, str(path)))
        missing = [name for name in named if not (images / name).is_file()]
        if foreign := [name for name in missing if not name.endswith(".png")]:
            raise DataError(f"{path}: {foreign[0]!r} is not in {images}, and no picture of the lab: they end in .png")
        try:
            n_drawn += len(write_images(missing, images))
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
    return n_drawn

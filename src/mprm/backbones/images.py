"""Images of a rollout: where they lie, whether they are whole, how large they are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mprm.errors import DataError, MissingDependencyError
from mprm.rollouts.judge import leaves_root

if TYPE_CHECKING:
    from PIL.Image import Image

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
        return image.convert("RGB")  # type: ignore[no-any-return]
    path = image_path(image, root)
    try:
        with Image.open(path) as opened:
            return opened.convert("RGB")  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise DataError(f"image {path} is not there; image paths are looked up under --image-root") from None
    # Pillow raises whatever a decoder stumbled over: SyntaxError, struct.error, DecompressionBombError and more
    except Exception as error:
        raise DataError(f"image {path} cannot be read: {error or type(error).__name__}") from error


@lru_cache(maxsize=1 << 16)
def _size_of_file(path: Path) -> tuple[int, int]:
    Image = _pillow()  # noqa: N806
    with Image.open(path) as opened:
        return opened.size  # type: ignore[no-any-return]


def image_size(image: Any, root: str | Path | None = None) -> tuple[int, int]:
    """(width, height), read from the file's header alone."""
    if not isinstance(image, str | Path):
        return image.size  # type: ignore[no-any-return]
    path = image_path(image, root)
    try:
        return _size_of_file(path)
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

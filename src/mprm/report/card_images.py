"""Pictures for the page: drawn anew and small, inside the page itself."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from pathlib import Path

from mprm.errors import DataError, MissingDependencyError
from mprm.rollouts.images import image_path, open_image

SIDE = 360
"""Pixels of the longer side, at most."""
MOST_BYTES = 1_800_000
"""Of all pictures together, before base64: the page stays below 5 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture as a data: address, or the words that stand in its place."""

    source: str = ""
    width: int = 0
    height: int = 0
    words: str = ""


@dataclass(slots=True)
class Pictures:
    """Makes pictures of a corpus's images as long as there is room; the same image is made once."""

    root: str | Path | None
    """Folder that image paths are relative to; without it no file is opened on the word of the data."""
    n_bytes: int = 0
    _made: dict[str, Picture] = field(default_factory=dict)

    def __call__(self, image: str) -> Picture:
        """The picture of an image that a rollout names."""
        if image not in self._made:
            self._made[image] = self._make(image)
        return self._made[image]

    def _make(self, image: str) -> Picture:
        if self.root is None:
            return Picture(words="images are shown with --image-root DIR")
        if self.n_bytes >= MOST_BYTES:
            return Picture(words="left out, to keep the page small")
        try:
            image_path(image, self.root)
            opened = open_image(image, self.root)
        except MissingDependencyError as error:
            return Picture(words=str(error))
        except DataError as error:
            return Picture(words=str(error))
        opened.thumbnail((SIDE, SIDE))
        # drawings shrink best as PNG with a palette, photographs as JPEG: take what is smaller
        packed = []
        for form, picture, options in (
            ("png", opened.quantize(64), {"optimize": True}),
            ("jpeg", opened, {"quality": 78}),
        ):
            out = io.BytesIO()
            picture.save(out, form, **options)
            packed.append((len(out.getvalue()), form, out.getvalue()))
        n_bytes, form, data = min(packed)
        self.n_bytes += n_bytes
        text = base64.b64encode(data).decode("ascii")
        return Picture(source=f"data:image/{form};base64,{text}", width=opened.width, height=opened.height)

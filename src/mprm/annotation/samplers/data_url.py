"""Images as text, for servers."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from mprm.errors import DataError

MIME = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"BM": "image/bmp"}
"""Kinds of image by their first bytes: names often lie about it."""


def data_url(image: Any) -> str:
    """A ``data:`` URL with the bytes of an image file, or with a PIL image as PNG."""
    if isinstance(image, str | Path):
        try:
            data = Path(image).read_bytes()
        except OSError as error:
            raise DataError(f"image {str(image)!r} cannot be read: {error.strerror}; see --image-root") from error
        kind = _kind(data)
        if kind is None:
            raise DataError(f"image {str(image)!r} is no PNG, JPEG, WebP, GIF or BMP file")
    else:
        buffer = io.BytesIO()
        image.save(buffer, format="PNG")
        data, kind = buffer.getvalue(), "image/png"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _kind(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in MIME.items() if data.startswith(start)), None)

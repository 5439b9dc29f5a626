"""Writing palette images as PNG, the same bytes everywhere."""

from __future__ import annotations

import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PALETTE = 3
"""Colour type of images whose pixels are places in a palette."""


def palette_png(pixels: bytes, width: int, height: int, palette: bytes) -> bytes:
    """A PNG file.

    The image data are stored, not compressed: compressors differ between versions of zlib, checksums do not.

    Parameters
    ----------
    pixels : width * height bytes
        Places in the palette, row by row.
    palette : 3 bytes a colour
        Red, green and blue.
    """
    rows = b"".join(b"\0" + pixels[start : start + width] for start in range(0, width * height, width))
    header = struct.pack(">IIBBBBB", width, height, 8, PALETTE, 0, 0, 0)
    return (
        SIGNATURE
        + _chunk(b"IHDR", header)
        + _chunk(b"PLTE", palette)
        + _chunk(b"IDAT", _stored(rows))
        + _chunk(b"IEND")
    )


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _stored(data: bytes) -> bytes:
    """A zlib stream of blocks that are not compressed, each of at most 65,535 bytes."""
    starts = range(0, len(data), 0xFFFF)
    blocks = [data[start : start + 0xFFFF] for start in starts]
    return b"".join(
        [
            b"\x78\x01",
            *(
                struct.pack("<BHH", number == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
                for number, block in enumerate(blocks)
            ),
            struct.pack(">I", zlib.adler32(data)),
        ]
    )

"""The random choices of a problem, of its picture and of its solutions."""

from __future__ import annotations

import zlib
from typing import Literal

from mprm.errors import ConfigError
from mprm_lab.draws import Draws

N_SEEDS = 1 << 32
"""Seeds are whole numbers below this."""
Stream = Literal["problem", "picture", "solution"]
STREAMS: dict[Stream, int] = {"problem": 0, "picture": 1, "solution": 2}


def draws_for(source: str, seed: int, stream: Stream, number: int = 0) -> Draws:
    """Choices that hang on nothing but these four.

    They are made from ``random.Random(whole number).random()`` alone, which Python promises not to change.
    """
    for name, value in (("seed", seed), ("number", number)):
        if not 0 <= value < N_SEEDS:
            raise ConfigError(f"{source}: the {name} is {value}; expected a whole number from 0 to {N_SEEDS - 1}")
    return Draws((((zlib.crc32(source.encode()) << 32 | seed) << 32 | number) << 2) | STREAMS[stream])

"""A random order that is the same on every machine, in every shard order, on any number of cores.

A rollout's place depends on the seed, its source and its number within the source, and on nothing
else: not on when it is read, by whom, or what was read with it.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def random_order(seed: int, source: str, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A random number for each rollout, shape (N,); no two of one source are equal.

    The SplitMix64 stream that begins at a hash of (seed, source), at the places ``index``.

    Examples
    --------
    >>> random_order(0, "ai2d", np.arange(2, dtype=np.uint64)).tolist()
    [651717391976472452, 214633533871704631]
    """
    digest = blake2b(f"{seed}\n{source}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    start = np.uint64(int.from_bytes(digest, "little"))
    z = start + (index + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed

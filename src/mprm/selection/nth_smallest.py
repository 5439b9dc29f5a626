"""The n-th smallest of more numbers than fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
_SIGN = np.uint64(1 << 63)


def sort_key(values: NDArray[np.float64]) -> Keys:
    """Integers that sort as the floats do, shape (N,).

    Examples
    --------
    >>> keys = sort_key(np.array([-1.0, 0.0, 0.5]))
    >>> bool(keys[0] < keys[1] < keys[2])
    True
    """
    bits = (values + 0.0).view(np.uint64)  # + 0.0 makes one zero of the two
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def nth_smallest(blocks: Callable[[], Sequence[Keys] | Iterator[Keys]], n: int) -> tuple[int, int, int]:
    """(the n-th smallest key, how many equal keys there are, how many of them are among the n smallest).

    Four passes, each counting the keys by 16 of their bits: memory does not grow with their number.
    Keys that are at hand in one block are partitioned instead.

    Parameters
    ----------
    blocks
        Gives all keys, some at a time, the same at every call: a list, or an iterator where they are many.
    n
        From 1 to the number of keys.

    Examples
    --------
    >>> nth_smallest(lambda: [np.array([5, 7], np.uint64), np.array([7, 7, 9], np.uint64)], 3)
    (7, 3, 2)
    """
    keys = blocks()
    if isinstance(keys, Sequence) and len(keys) == 1:
        return _nth_of_one(keys[0], n)
    value, n_equal = 0, 0
    for shift in (48, 32, 16, 0):
        histogram = np.zeros(1 << 16, np.int64)
        for block in blocks():
            wanted = block if shift == 48 else block[block >> np.uint64(shift + 16) == np.uint64(value)]
            digits = (wanted >> np.uint64(shift)) & np.uint64(0xFFFF)
            histogram += np.bincount(digits.astype(np.int64), minlength=1 << 16)
        up_to = np.cumsum(histogram)
        digit = int(np.searchsorted(up_to, n))
        n -= int(up_to[digit - 1]) if digit else 0
        value, n_equal = value << 16 | digit, int(histogram[digit])
    return value, n_equal, n


def _nth_of_one(keys: Keys, n: int) -> tuple[int, int, int]:
    value = np.partition(keys, n - 1)[n - 1]
    return int(value), int((keys == value).sum()), n - int((keys < value).sum())

"""From a response to its steps."""

from __future__ import annotations

import re
from itertools import pairwise

from mprm.errors import ConfigError

BLANK_LINES = re.compile(r"\n\s*\n")
JOINT = "\n\n"
"""What stands between steps."""


def split_steps(text: str, max_steps: int | None = None) -> tuple[str, ...]:
    r"""The steps of a response: it is cut at blank lines, and white space at the seams goes.

    Where there are more than ``max_steps``, neighbours are joined again, so that each step is made of
    nearly as many pieces as any other.

    Examples
    --------
    >>> split_steps("First.\n\nThen.\n \nSo 4.")
    ('First.', 'Then.', 'So 4.')
    >>> split_steps("a\n\nb\n\nc\n\nd\n\ne", max_steps=2)
    ('a\n\nb', 'c\n\nd\n\ne')
    """
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"max_steps must be 1 or more, got {max_steps}")
    pieces = [stripped for piece in BLANK_LINES.split(text) if (stripped := piece.strip())]
    n = len(pieces)
    k = n if max_steps is None else min(n, max_steps)
    cuts = [number * n // k for number in range(k + 1)] if k else [0]
    return tuple(JOINT.join(pieces[start:end]) for start, end in pairwise(cuts))

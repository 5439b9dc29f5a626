from __future__ import annotations

import pytest

from mprm.errors import DataError
from mprm.theory.equations import _above_zero, _squared_norms, within


def test_ends_of_the_range_are_in_it() -> None:
    assert within("q", [0, 1], 0, 1).tolist() == [0.0, 1.0]
    assert _squared_norms([0.0, 2.5]).tolist() == [0.0, 2.5]


def test_the_first_bad_value_is_named() -> None:
    with pytest.raises(DataError, match=r"^q must lie in \[0, 1\], got 1.5$"):
        within("q", [0.5, 1.5, -2], 0, 1)
    with pytest.raises(DataError, match=r"^T must be above 0 and finite, got 0$"):
        _above_zero("T", [3, 0])

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mprm.selection.strategies import nth_smallest, sort_key

keys = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), min_size=1, max_size=60)


@given(keys, st.data())
def test_it_agrees_with_a_sort_in_one_block_and_in_many(values: list[int], data) -> None:
    n = data.draw(st.integers(1, len(values)))
    value = sorted(values)[n - 1]
    expected = (value, values.count(value), n - sum(v < value for v in values))
    array = np.array(values, np.uint64)
    assert nth_smallest(lambda: [array], n) == expected
    blocks = [array[i : i + 7] for i in range(0, len(array), 7)]
    assert nth_smallest(lambda: iter(blocks), n) == expected


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=40))
def test_keys_sort_as_the_floats_do(values: list[float]) -> None:
    array = np.array(values)
    key = sort_key(array)
    for i in range(len(values) - 1):
        assert (key[i] < key[i + 1]) == (array[i] < array[i + 1])
        assert (key[i] == key[i + 1]) == (array[i] == array[i + 1])

import re

import pytest
from hypothesis import given, strategies as st

from mprm.data.types import split_steps
from mprm.errors import ConfigError

TEXTS = st.text(alphabet="ab \n\t\r.", max_size=60)


def test_a_response_is_cut_at_blank_lines() -> None:
    assert split_steps("First.\nStill first.\n\nThen.\n  \nSo 4.") == ("First.\nStill first.", "Then.", "So 4.")


def test_several_blank_lines_make_no_empty_step() -> None:
    assert split_steps("\n\n\na\n\n\n\n\nb\r\n\r\nc\n\n") == ("a", "b", "c")


@pytest.mark.parametrize("text", ["", " \n\n \t"])
def test_white_space_has_no_steps(text: str) -> None:
    assert split_steps(text) == ()
    assert split_steps(text, max_steps=3) == ()


def test_too_many_steps_are_joined_evenly() -> None:
    # 7 pieces in 3 steps: cuts at 0, 7//3 = 2, 14//3 = 4, 7
    assert split_steps("\n\n".join("abcdefg"), max_steps=3) == ("a\n\nb", "c\n\nd", "e\n\nf\n\ng")


@given(TEXTS, st.none() | st.integers(1, 5))
def test_joining_the_steps_loses_only_white_space_at_the_seams(text: str, max_steps: int | None) -> None:
    steps = split_steps(text, max_steps)
    assert "\n\n".join(steps) == re.sub(r"\s*\n\s*\n\s*", "\n\n", text).strip()


@given(TEXTS, st.integers(1, 5))
def test_steps_are_at_most_as_many_as_allowed_and_of_even_size(text: str, max_steps: int) -> None:
    n_pieces = len(split_steps(text))
    sizes = [len(step.split("\n\n")) for step in split_steps(text, max_steps)]
    assert len(sizes) == min(n_pieces, max_steps)
    assert sum(sizes) == n_pieces
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_no_steps_at_all_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="max_steps must be at least 1"):
        split_steps("a", max_steps=0)

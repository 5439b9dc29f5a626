import time

import pytest
from hypothesis import given, strategies as st

from mprm.answers.extract import final_answer, last_box, stated_answer, trailing_letter

balanced = st.recursive(
    st.text("ab1 \\{}", max_size=0) | st.text("ab1+ ", max_size=4) | st.sampled_from([r"\{", r"\}", r"\frac"]),
    lambda inner: st.builds("{{{}}}".format, inner) | st.builds("{}{}".format, inner, inner),
    max_leaves=12,
)


@given(balanced, st.text("ab{} ", max_size=6), st.text("ab1 .", max_size=6))
def test_a_box_is_taken_whole_whatever_braces_it_holds(inside: str, before: str, after: str) -> None:
    assert last_box(f"{before}\\boxed{{{inside}}}{after}") == inside


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1} then cut off \boxed{\frac{1", "1"),
        (r"\boxed {3} and }}", "3"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\fbox{7}", "7"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{", None),
        ("{1}", None),
    ],
)
def test_the_last_closed_box_wins(response: str, answer: str | None) -> None:
    assert last_box(response) == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("The final answer is 12.", "12"),
        ("The answer is 3.5. Therefore we are done.", "3.5"),
        ("**Answer:** 42", "42"),
        ("Answer: 1\nOn reflection, the answer is 2", "2"),
        ("**Final Answer**\n\n17", "17"),
        ("6 + 6 = 12\n#### 12", "12"),
        ("<answer> B </answer> which is the answer: C", "B"),
        ("x = 3, and that is all there is to it, as everyone can see from the figure", None),
    ],
)
def test_a_stated_answer_is_found(response: str, answer: str | None) -> None:
    assert stated_answer(response) == answer


def test_unclosed_tags_and_runs_of_stars_take_linear_time() -> None:
    started = time.process_time()
    assert stated_answer("<answer>" * 20_000) is None
    assert stated_answer("<answer>5</answer>" + "<answer>" * 20_000) == "5"
    assert stated_answer("answer is x" + "*" * 20_000 + "x")
    assert (
        time.process_time() - started < 1
    )  # many times that, when each tag looks for its end to the end of the text


def test_a_short_response_is_itself_the_answer_and_a_long_one_is_not() -> None:
    assert final_answer(" 42 ") == "42"
    assert final_answer("First we look at the figure.\n\nThen we think.") is None
    assert final_answer(r"\boxed{}") is None
    assert final_answer(r"so \boxed{12") is None
    assert final_answer("") is None


@pytest.mark.parametrize(
    ("response", "letter"),
    [("So it is this one.\n\n(B)", "B"), ("Hence option (C).", "C"), ("so\n**D**", "D"), ("A cat sat", None)],
)
def test_a_letter_at_the_end_is_found(response: str, letter: str | None) -> None:
    assert trailing_letter(response) == letter

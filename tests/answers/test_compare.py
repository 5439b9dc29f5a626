from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from mprm.answers.compare import number_in, read_answer, same_answer, unit_named


@pytest.mark.parametrize(
    ("key", "ways"),
    [
        ("0.5", [".5", "0.50", "1/2", r"\frac12", r"\dfrac{1}{2}", r"$\boxed{\frac{1}{2}}$", "½", r"\( 1/2 \)"]),
        ("1.5", ["1 1/2", r"1\frac{1}{2}", "3/2", "1.5 cm"]),
        ("-1234.5", ["-1,234.5", "−1234.50", r"-1{,}234.5"]),
        ("10080", [r"10,\!080", "10,080", r"1.008\times 10^{4}", "$10080", "10080 apples"]),
        ("36/13", ["\x0crac{36}{13}", r"\frac{36}{13}"]),  # as it stands in MathVision
        ("69", ["69{degrees}", r"69^\circ", "69°", r"69^{\circ}", "69 degrees"]),
        ("may", ["May", r"\text{May}", "**May**", "MAY."]),
        ("5:0", ["5:00", "5:0", "05:00"]),
        (r"\frac{\sqrt{3}}{2}", [r"\frac{\sqrt3}{2}", r"\tfrac{\sqrt{3}}2", r"\frac{\sqrt{3}}{2} \text{ cm}"]),
        ("(3,-4)", [r"\left(3, -4\right)", "(3,-4)", "( 3, −4 )"]),
        ("50%", [r"50\%", "50%", "50 percent"]),
    ],
)
def test_ways_to_write_one_answer_share_a_key(key: str, ways: list[str]) -> None:
    assert {read_answer(way).key for way in ways} == {key}


@pytest.mark.parametrize(
    ("answer", "other"),
    [("1 2", "12"), ("5m", "5"), ("5 million", "5"), ("3 h 5 min", "3 h 35 min"), ("y=-3", "x=-3"), ("1,2", "12")],
)
def test_different_answers_keep_different_keys(answer: str, other: str) -> None:
    assert read_answer(answer).key != read_answer(other).key
    assert same_answer(read_answer(answer), read_answer(other)) is not True


@pytest.mark.parametrize(
    ("answer", "gold", "is_same"),
    [
        ("5 cm", "5", True),
        ("5 cm", "5 m", False),
        ("5 cm", "5 centimeters", True),
        ("50%", "0.5", True),
        ("0.5", r"50\%", True),
        ("50", "50%", True),
        ("7", "8", False),
        ("2.09439510", "2.0944", True),  # rounds to the gold number
        ("2.09450", "2.0944", False),  # does not
        ("2.09", "2.0944", False),  # too few digits to tell
        ("2/3", "0.667", True),
        ("0.37", "3/8", False),  # the gold number is exact
        ("4.83", "4.8", False),  # one digit after the point: exact
        ("-15.7", "-15.700000000000001", True),
        ("Yes, it is.", "yes", True),
        ("No", "yes", False),
        ("in May", "May", False),
        ("cannot be told", "5", False),
        ("5:10", "10:20", False),
        ("5", "5:00", False),
        ("1:2", "1/2", None),
        ("€ 2000", "2000", True),
        (r"2\sqrt{3}", r"\sqrt{12}", None),
        ("x=5", "5", None),
    ],
)
def test_answers_are_compared_without_algebra_where_that_can_be_done(answer: str, gold: str, is_same: bool) -> None:
    assert same_answer(read_answer(answer), read_answer(gold)) is is_same


@given(st.fractions(-(10**9), 10**9, max_denominator=10**6))
def test_a_number_is_read_exactly_from_every_way_to_write_it(value: Fraction) -> None:
    ways = [f"{value.numerator}/{value.denominator}", rf"\frac{{{value.numerator}}}{{{value.denominator}}}"]
    numbers = [number_in(way) for way in ways]
    assert [number and number.value for number in numbers] == [value, value]
    assert len({str(number) for number in numbers}) == 1
    again = number_in(str(numbers[0]))
    assert again is not None
    assert again.value == value


@given(st.text() | st.text("0123456789.,/\\frac{}-+ e^%$", max_size=50))
def test_any_text_can_be_read(text: str) -> None:
    reading = read_answer(text)
    assert same_answer(reading, reading) is True


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        ("squareinches", "in^2"),
        ("cm", "cm"),
        ("cubic meters", "m^3"),
        ("meters cubed", "m^3"),
        ("cm squared", "cm^2"),
        ("squared", None),
        ("km/h", "km/h"),
        ("apples", None),
        ("", None),
    ],
)
def test_units_have_one_name(words: str, unit: str | None) -> None:
    assert unit_named(words) == unit

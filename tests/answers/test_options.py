import pytest

from mprm.answers.options import are_letters, letter_of, options_in, with_options
from mprm.data.questions import prompt_of
from mprm.data.types import Question


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("Is it? Choices: (A) yes (B) no", ("yes", "no")),
        ("Which group?\nA. Group 1\nB. Group 2", ("Group 1", "Group 2")),
        ("Which?\nChoices:\nA:40°\nB:60°", ("40°", "60°")),
        ("Which figure? choice: (A) (B) (C)", ("A", "B", "C")),
        ("In (A) we see a dog. Which? (A) one (B) two", ("one", "two")),
        ("What is f(A)?", ()),
        ("Is (A) larger than (C)?", ()),
        ("How many?", ()),
    ],
)
def test_options_are_found_in_a_text(text: str, options: tuple[str, ...]) -> None:
    assert options_in(text) == options


def test_options_are_listed_once() -> None:
    text = with_options("Which?", ("x", "y"))
    assert text == "Which?\nA. x\nB. y"
    assert with_options(text, ("x", "y")) == text
    assert with_options("Which picture?", ("A", "(B)", "C)")) == "Which picture?"


def test_letters_of_a_picture_say_nothing() -> None:
    assert are_letters(("A", "(B)", "C)"))
    assert not are_letters(("B", "A"))


def test_a_letter_wins_over_an_equal_text_unless_texts_come_first() -> None:
    assert letter_of("A", ("B", "A")) == "A"
    assert letter_of("A", ("B", "A"), text_first=True) == "B"
    assert letter_of("z", ("x", "y")) is None
    assert letter_of(2, ("x", "y")) is None


def test_a_policy_is_asked_for_steps_and_a_boxed_answer() -> None:
    number = prompt_of(Question(id="1", question="How many?", answer="3"))
    assert number.startswith("How many?\n\n")
    assert "blank line" in number
    assert r"final answer in \boxed{}" in number
    choice = prompt_of(Question(id="1", question="Which?", answer="A", options=("x", "y")))
    assert choice.startswith("Which?\nA. x\nB. y\n\n")
    assert r"letter of the right option in \boxed{}" in choice
    assert len(choice.split("\n\n")[-1].splitlines()) == 1

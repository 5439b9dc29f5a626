import pytest

from mprm.data.output import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ai2d, größer als 漢字 ½", "ai2d, größer als 漢字 ½"),
        ("\x1b[31mred\x07\x9b2J", r"\x1b[31mred\x07\x9b2J"),
        ("two\r\nlines", r"two\r\nlines"),
        ("\u202eright to left", r"\u202eright to left"),
        ("\ud800", r"\ud800"),
    ],
)
def test_only_what_cannot_be_printed_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown

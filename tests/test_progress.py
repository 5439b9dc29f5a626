"""The progress bar on a terminal and in a log."""

import io
import re

import pytest

from mprm import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", self.getvalue())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that tests set; what is drawn does not depend on how busy the machine is."""
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def test_a_step_of_over_half_a_minute_has_a_time_left(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress.progress_bar("training", 110) as advance:
        advance(10)  # what an earlier run has done
        clock[0] = 40.0
        advance(1, "loss 0.5")
        # 99 steps of 40 s: 3,960 s
        assert "11/110 1:06:00 loss 0.5" in terminal.text
        clock[0] = 100.0
        advance(1)
        # 98 steps of 50 s: 4,900 s
        assert "12/110 1:21:40" in terminal.text
    assert "-:--:--" not in terminal.text


def test_a_log_says_how_much_is_left(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar("scoring", 4) as advance:
        advance(1)
        clock[0] = 31.0
        advance(1, "fast")
    assert capsys.readouterr().err == "scoring: 2 of 4, 0:01:02 left, fast\n"

"""``mprm-lab`` from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mprm import theory
from mprm.cli import run as run_program
from mprm_lab.cli import COMMANDS, MPRM_LAB


def run(*words: str) -> int:
    return run_program(list(words), MPRM_LAB)


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = printed(capsys)
    assert text.startswith("mprm-lab ")
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(command, "--help")
    assert f"usage: mprm-lab {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["corpus", "DIR"],
        ["make", "DIR", "--dry-run"],
        ["open", "DIR", "--jobs", "0"],
        ["make", "DIR", "--only", "report"],
        ["theory", "--only", "lemmas"],
    ],
)
def test_wrong_usage_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: Any = run(*words)
    except SystemExit as end:  # the parser leaves this way
        code = end.code
    assert code == 2
    assert "mprm-lab" in capsys.readouterr().err


def test_the_commands_help_loads_nothing_heavy() -> None:
    code = "from mprm_lab.cli import *; run(['--help'], MPRM_LAB); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"torch", "transformers", "scipy", "altair"} & set(done.stdout.split())


def test_theory_shows_every_statement_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("theory", "--only", "steps") == 0
    text = printed(capsys)
    assert "eq:noise-factor" in text
    assert "7 of 7 lines hold." in text
    assert "FAILS" not in text
    assert "at most 1%" in text


def test_theory_ends_with_1_when_a_statement_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theory, "score_variance", lambda r, n: r * (1 - r) / (n + 1))
    assert run("theory", "--only", "steps") == 1
    text = printed(capsys)
    assert "FAILS" in text
    assert "6 of 7 lines hold." in text


def test_theory_writes_its_numbers_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["theory", "--only", "steps", "--out", str(tmp_path / "out")]
    assert run(*command, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "out" / "theory.json").read_text())
    assert shown == written
    assert written["holds"] is True
    assert written["lines"][0]["name"] == "teacher"
    assert len(written["lines"][0]["settings"]["predicted"]) == written["lines"][0]["n_settings"]
    assert run(*command) == 1
    assert "exists already" in capsys.readouterr().err
    assert run(*command, "--force") == 0


def test_theory_does_not_simulate_what_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("mprm_lab.theory.verify.verify", lambda **_: pytest.fail("simulated"))
    assert run("theory", "--only", "steps", "--out", str(tmp_path / "file")) == 2
    assert "is a file" in capsys.readouterr().err

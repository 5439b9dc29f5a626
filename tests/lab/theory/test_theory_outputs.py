"""Outputs that cannot be written are refused before anything is simulated."""

from pathlib import Path

import pytest

from mprm.cli.main import run as run_mprm


def test_theory_does_not_simulate_what_it_cannot_write(tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("mprm_lab.theory.verify.verify", lambda **_: pytest.fail("simulated"))
    assert run_mprm(["theory", "verify", "--only", "steps", "--out", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err

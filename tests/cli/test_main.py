import os
import subprocess
import sys
import time

import pytest

from mprm.cli.main import COMMANDS, run


def best_time(arguments: list[str]) -> float:
    """Best of five, so that a busy machine does not decide."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "mprm.cli.main", *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return min(times)


def test_help_is_quick() -> None:
    assert best_time(["--help"]) < 0.3


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        run([command, "--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert f"Example:\n  mprm {command} " in printed


def test_help_names_every_command(capsys) -> None:
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {command}" in printed for command in COMMANDS)
    assert "Example" in printed


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["select", "x.jsonl"],
        ["select", "x.jsonl", "--out", "o.jsonl", "--rho", "2"],
        ["select", "x.jsonl", "--out", "o.jsonl", "--keep", "3", "--rho", "0.5"],
    ],
)
def test_wrong_usage_ends_with_two(arguments: list[str], capsys) -> None:
    assert run(arguments) == 2


def test_unknown_options_end_with_two(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        run(["select", "x.jsonl", "--outt", "o"])
    assert end.value.code == 2


def test_a_missing_file_ends_with_one_sentence(capsys) -> None:
    assert run(["stats", "nowhere.jsonl"]) == 1
    assert capsys.readouterr().err.startswith("mprm stats: nowhere.jsonl: no such file")


def test_the_version_is_told(capsys) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mprm 0.")


def test_a_reader_that_goes_away_is_no_error(random_corpus) -> None:
    command = f"{sys.executable} -m mprm.cli.main stats {random_corpus} --json | head -c 10"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert "Traceback" not in done.stderr

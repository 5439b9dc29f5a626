import os
import subprocess
import sys
from pathlib import Path

import pytest

from mprm.cli.main import COMMANDS, run
from tests.conftest import raw_record, script, write_jsonl


def cpu_time(arguments: list[str]) -> float:
    """Seconds of the CPU, the best of five runs: a busy machine does not decide."""
    times = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "mprm.cli.main", *arguments], check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        times.append(sum(after[2:4]) - sum(before[2:4]))  # of children: user and system
    return min(times)


@pytest.mark.parametrize("arguments", [["--help"], ["select", "--help"]])
def test_help_is_quick(arguments: list[str]) -> None:
    assert cpu_time(arguments) < 0.25


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


def test_the_reference_of_the_command_line_is_current() -> None:
    path = Path(__file__).parents[2] / "docs" / "cli.md"
    assert path.read_text() == script("docs/cli_reference.py").reference(), (
        "make it anew: python docs/cli_reference.py > docs/cli.md"
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train x --select bis --model m --out o", "did you mean --strategy?"),
        ("annotate q --model x --out o", "did you mean --served-model?"),
        ("select x --straategy bis", "did you mean --strategy?"),
    ],
)
def test_a_renamed_or_mistyped_flag_is_named(words: str, hint: str, capsys) -> None:
    with pytest.raises(SystemExit):
        run(words.split())
    assert hint in capsys.readouterr().err


def test_the_labs_old_command_names_the_new_one(capsys) -> None:
    assert run(["lab", "demo"]) == 2
    assert "mprm-lab" in capsys.readouterr().err


def test_one_rollout_is_not_in_the_plural(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [raw_record([1.0, 0.0])])
    for command in ("check", f"select --out {tmp_path}/o.jsonl", f"score --out {tmp_path}/s.csv"):
        name, *options = command.split()
        assert run([name, str(path), *options]) == 0
    text = capsys.readouterr().out
    assert "1 record in 1 file: 0 errors in 0 records, 0 warnings." in text
    assert "1 record read, 0 dropped." in text
    assert "1 rollout in " in text
    assert "1 rollout scored in " in text

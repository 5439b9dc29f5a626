import contextlib
import inspect
import operator
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mprm
from mprm.cli.main import COMMANDS, Program, run
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


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_no_line_of_help_is_over_80_columns(command: str, columns: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with contextlib.suppress(SystemExit):
        run([*command.split(), "--help"])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    example = printed.split("Example:\n")[1].split("\n\n")[0]
    assert shlex.split(example)[0] == "mprm"  # as it can be pasted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("slect", "unknown command 'slect'; did you mean select?"),
        ("select x --dry-run --rho 10", "--rho must be above 0 and at most 1, got 10.0; did you mean 0.1?"),
        ("select x --dry-run --rho 10%", "argument --rho: '10%' is no number; did you mean 0.1? Inputs"),
        ("select x --dry-run --rho 0,1", "argument --rho: '0,1' is no number; did you mean 0.1?"),
        ("select x --dry-run --rho some", "argument --rho: 'some' is no number. Inputs"),
        (
            "select x --dry-run --strategy bsi",
            "unknown --strategy 'bsi'; did you mean bis? Expected one of bis, random",
        ),
        ("stats x --style latx", "unknown --style 'latx'; did you mean latex?"),
        ("sample q --out o --max-new-tokens 1,024", "'1,024' is no whole number; did you mean 1024?"),
        ("sample q --out o --max-new-tokens 0", "--max-new-tokens must be at least 1, got 0"),
        ("score x --oot y.csv", "arguments are required: --out (--oot: did you mean --out?)"),
        ("train x --out o --model m --lr 1e-4", "(--lr: did you mean --learning-rate?)"),
        ("select x -o y.jsonl", "(-o: did you mean --out?)"),
    ],
)
def test_what_was_probably_meant_is_named(words: str, message: str, capsys) -> None:
    try:
        code = run(words.split())
    except SystemExit as end:
        code = end.code
    assert code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


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


@pytest.mark.parametrize(
    ("arguments", "hint", "words"),
    [
        (["stops", "--out", "a"], "", "the same command continues there"),
        (["stops"], "", None),  # nothing was kept
        (
            ["train"],
            "The same command with --resume continues from a/checkpoint-3.",
            "continues from a/checkpoint-3.",
        ),
    ],
)
def test_ctrl_c_says_how_to_go_on(
    arguments: list[str], hint: str, words: str | None, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_arguments: list[str]) -> int:
        raise KeyboardInterrupt(*filter(None, [hint]))

    monkeypatch.setattr("mprm.cli.evaluate.run_evaluate", stop)
    command = ("mprm.cli.evaluate:run_evaluate", "")
    program = Program("mprm", "", "", {"stops": command, "train": command}, resumable=("stops",))
    assert run(arguments, program) == 130
    first, *more = capsys.readouterr().err.splitlines()
    assert "interrupted; nothing half-written was left under a final name" in first
    assert [words in line for line in more] == [True] if words else not more


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"theory"} | {"theory fit"}))
def test_every_command_is_a_function_of_the_same_name(command: str, capsys) -> None:
    function = operator.attrgetter(command.replace("-", "_").replace(" ", "."))(mprm)
    assert callable(function)
    with pytest.raises(SystemExit):
        run([*command.split(), "--help"])
    printed = capsys.readouterr().out
    if command in (
        "annotate",
        "sample",
        "search",
        "score",
        "readout",
    ):  # they take a policy or a model that is loaded
        printed = re.sub(r"^(policy|server|compute):\n(  .*\n)+", "", printed, flags=re.MULTILINE)
    flags = set(re.findall(r"^  (?:--no-|--)([a-z0-9-]+)", printed, re.MULTILINE))
    options = {flag.replace("-", "_") for flag in flags} - {"help", "json"}
    assert options <= {*inspect.signature(function).parameters} | OF_THE_COMMAND_LINE.get(command, set())


OF_THE_COMMAND_LINE = {
    "annotate": {"dry_run"},
    "check": {"all"},
    "evaluate": {"verbose"},
    "export": {"for"},  # in Python for_
    "readout": {"prompt_layout", "prm_layout", "lower_bound", "readout", "image_root", "files"},
    "score": {"prompt_layout", "prm_layout", "lower_bound", "readout", "image_root"},  # of `PRM.from_pretrained`
    "search": {"prompt_layout", "prm_layout", "lower_bound", "readout"},
    "stats": {"by", "style"},
    "theory fit": {"out", "force"},
}
OF_THE_COMMAND_LINE |= {"select": {"out", "out_dir", "by_source", "dry_run", "force"}}  # `Selection.write` takes them
"""Options that have no keyword: how to print, and where `mprm.select` and `mprm.theory.fit` write nothing."""


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

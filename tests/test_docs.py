"""README.md and docs/: commands, Python blocks, records, names and links work as they stand; nothing is left out."""

from __future__ import annotations

import glob
import json
import pkgutil
import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import mprm
from mprm.cli import arguments as cli_arguments
from mprm.cli.main import COMMANDS, MPRM, run
from mprm.data.rollout_formats import ROLLOUT_FORMATS
from mprm.data.types import ERRORS, WARNINGS
from mprm.selection.strategies import STRATEGIES
from mprm_lab.cli import COMMANDS as LAB_COMMANDS, MPRM_LAB

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = {"mprm": MPRM, "mprm-lab": MPRM_LAB}
FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^### `([\w-]+)`\n\n```json\n(.*?)^```", re.MULTILINE | re.DOTALL)

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def blocks(document: Path, language: str) -> list[tuple[int, str]]:
    """(line before the code, code) of each block of the language."""
    text = text_of(document)
    return [(text.count("\n", 0, match.start(2)), match[2]) for match in FENCE.finditer(text) if match[1] == language]


def commands(document: Path) -> list[str]:
    """Every mprm command of the document's bash blocks; Ray has a test of its own."""
    joined = re.sub(r"\\\n\s*", "", "".join(code for _, code in blocks(document, "bash")))
    return [line for line in joined.splitlines() if line.startswith("mprm ") and "--engine ray" not in line]


def arguments(command: str) -> list[str]:
    """What a shell makes of the command, up to a pipe or redirection."""
    words = takewhile(lambda word: word not in {"|", ">", "&&", ";"}, shlex.split(command, comments=True)[1:])
    return [name for word in words for name in sorted(glob.glob(word)) or [word]]


class CapturedError(Exception):
    """Raised in place of parsing: the command exists, and these are its config, its parser and what made it."""


def shown_commands(document: Path) -> list[tuple[str, bool]]:
    """Every mprm and mprm-lab command line of the document, and whether it is complete.

    Those of code blocks are, unless ``…`` or a shell variable stands in them; inline code names only what matters.
    """
    text = text_of(document)
    code = re.sub(r"\\\n\s*", "", "\n".join(match[2] for match in FENCE.finditer(text)))
    lines = [match[1] for match in re.finditer(r"^(?:\$ |.* -m )?(mprm(?:-lab)? [a-z].*)$", code, re.MULTILINE)]
    inline = re.findall(r"`(mprm(?:-lab)? [a-z][^`]*)`", FENCE.sub("", text).replace("\n", " "))
    return [(line, not re.search(r"…|\$|\.\.\.", line)) for line in lines] + [(line, False) for line in inline]


SHOWN = [(document.name, *shown) for document in DOCUMENTS for shown in dict.fromkeys(shown_commands(document))]


@pytest.mark.parametrize(("name", "command", "is_complete"), SHOWN)
def test_every_command_line_is_parsed(
    name: str, command: str, is_complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cli_arguments.parser_of

    def capture(config: Any, **settings: str) -> None:
        raise CapturedError(config, real(config, **settings), settings)

    words = [word for part in re.split(r"[;|>&]", command)[:1] for word in shlex.split(part, comments=True)]
    with monkeypatch.context() as patched:
        patched.setattr(cli_arguments, "parser_of", capture)
        try:
            run(words[1:], PROGRAMS[words[0]])
        except CapturedError as captured:
            config, parser, settings = captured.args
        else:
            pytest.fail(f"{name}: {command!r} names no command")
    flags = {flag for word in words if word.startswith("--") for flag in word.split("=")[0].split("/")}
    assert flags <= set(parser._option_string_actions), f"{name}: {command}"
    if is_complete:  # raises or exits where a value or an input is wrong
        n_names = 3 if words[1] == "theory" and words[0] == "mprm" else 2
        cli_arguments.parsed(config, words[n_names:], **settings)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the quick-start corpus: annotations/ and images/."""
    mprm.quickstart(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@each_document
def test_every_command_runs(document: Path, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(document):
        if command.split()[:2] == ["mprm", "quickstart"]:
            continue  # the workplace has it already
        try:
            code = run(arguments(command))
        except SystemExit as end:  # the parser leaves this way, after --help and after an error
            code = end.code
        good = (0, 3) if command.startswith("mprm check ") else (0,)
        assert code in good, f"{command}\nexit code {code}\n{capsys.readouterr().err}"


@each_document
def test_every_python_block_runs(document: Path, workplace: Path) -> None:
    namespace: dict[str, object] = {"__name__": document.stem}
    for line, code in blocks(document, "python"):
        # the empty lines make a traceback point to the document's own line
        exec(compile("\n" * line + code, str(document), "exec"), namespace)


def test_the_readme_runs_from_top_to_bottom(workplace: Path) -> None:
    shell = "".join(code for _, code in blocks(ROOT / "README.md", "console"))
    selections = re.findall(r"^\$ (mprm select .*)$", shell, re.MULTILINE)
    assert [run(arguments(command)) for command in selections] == [0]
    test_every_python_block_runs(ROOT / "README.md", workplace)


@pytest.mark.parametrize("name", ["README.md", "docs/howto_paper_corpus.md"])
def test_no_output_is_named_twice(name: str) -> None:
    outputs = re.findall(r"(?:--out |out=\"|write\(\")([^\s\"]+)", text_of(ROOT / name))
    assert len(set(outputs)) == len(outputs) > 3


EXAMPLES = EXAMPLE.findall(text_of(ROOT / "docs" / "formats.md"))


@pytest.mark.parametrize(("name", "code"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_every_example_record_is_recognised_and_good(name: str, code: str) -> None:
    records = [json.loads(record) for record in re.split(r"\n(?=\{)", code)]
    # hard and soft MM-PRM records look alike: the soft ones must be named
    given = name if name == "mm-prm-soft" else None
    corpus = mprm.open_corpus(records, format=given)
    assert [fmt.name for fmt in corpus.formats.values()] == [name]
    assert list(corpus)
    assert mprm.check(records, format=given).counts == {}


def test_every_format_has_an_example_record() -> None:
    assert sorted(name for name, _ in EXAMPLES) == sorted(ROLLOUT_FORMATS)


PAPER_MAP = text_of(ROOT / "docs" / "paper_map.md")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(mprm\.[\w.]+)`", PAPER_MAP))))
def test_every_function_of_the_paper_map_is_there(name: str) -> None:
    if name.startswith(("mprm.models.", "mprm.training.")):
        pytest.importorskip("torch")
    pytest.importorskip("mprm.selection._scan") if name.endswith("._scan") else pkgutil.resolve_name(name)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", PAPER_MAP))))
def test_every_test_of_the_paper_map_is_there(name: str) -> None:
    assert (ROOT / name).exists()


@each_document
def test_every_python_name_is_there(document: Path) -> None:
    for name in re.findall(r"`(mprm(?:_lab)?(?:\.[A-Za-z_]\w*)+)", text_of(document)):
        if not name.endswith(("._scan", ".json")):
            pkgutil.resolve_name(name)


@each_document
def test_every_link_and_path_of_the_checkout_leads_somewhere(document: Path) -> None:
    text = text_of(document)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert target.endswith("cli.md") or (document.parent / target).exists(), target
    for path in re.findall(r"(?<![\w./-])((?:src|lab|tests|benchmarks)/[\w./-]*\w)", FENCE.sub("", text)):
        assert (ROOT / path).exists(), path


HEADINGS = {
    document: {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text_of(document)), re.MULTILINE)
    }
    for document in [*DOCUMENTS, *sorted((ROOT / "docs" / "results").glob("*.md"))]
}


@each_document
def test_every_anchor_is_a_heading(document: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", text_of(document)):
        page = (document.parent / target).resolve() if target else document
        assert anchor in HEADINGS[page], f"{target}#{anchor}"


DOCUMENTED = "\n".join(map(text_of, DOCUMENTS))


@pytest.mark.parametrize(
    "command", [*(f"mprm {name}" for name in COMMANDS), *(f"mprm-lab {name}" for name in LAB_COMMANDS)]
)
def test_every_command_is_documented(command: str) -> None:
    assert re.search(rf"(?<![\w-]){command}\b", DOCUMENTED)


@pytest.mark.parametrize("name", [*ROLLOUT_FORMATS, *ERRORS, *WARNINGS, *STRATEGIES])
def test_every_format_issue_and_strategy_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCUMENTED


def reward_models(name: str) -> Any:
    """The models of a results file of the experiments log, by name."""
    return json.loads((ROOT / "docs/results/lab_checking" / f"{name}.json").read_text())["models"]


def rounded(value: float, digits: int) -> str:
    """The number as the page has it: halves are rounded up."""
    return f"{value + 1e-9:.{digits}f}"


def test_the_experiments_log_says_what_its_results_say() -> None:
    sections = re.split(r"^## ", text_of(ROOT / "docs/log.md"), flags=re.MULTILINE)
    first, second, repeated = map(reward_models, ("1_depth_and_verdicts", "2_solve_then_check", "3_repeated"))
    for model in first.values():  # the learning rate that is best on the validation split
        best = max(model["reward_models"], key=lambda entry: entry["validation"]["auc"])["benchmark"]
        assert rounded(best["auc"], 3) in "".join(sections[1:4])
        assert rounded(best["same_index"], 3) in "".join(sections[1:4])
    for model in second.values():
        for entry in model["reward_models"]:
            auc, same_index = (rounded(entry["benchmark"][name], 3) for name in ("auc", "same_index"))
            assert f"{auc} / {same_index}" in sections[4]
    for name in ("run 0", "run 1", "natural errors only"):
        for entry in repeated[name]["reward_models"]:
            best_of_16 = entry["best_of_16"]["test_candidates"]
            assert rounded(100 * entry["benchmark"]["f1_overall"], 1) in sections[5] + sections[6]
            assert rounded(best_of_16["mean"], 1) in sections[5] + sections[6]
            if entry["condition"] == "full":
                lead, low, high = (rounded(value, 1) for value in best_of_16["mean_minus_random_candidate"])
                assert f"+{lead} [{low}, {high}]" in sections[5]

"""README.md and docs/: commands, Python blocks and records work as they stand; nothing is left out."""

from __future__ import annotations

import glob
import json
import pkgutil
import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest

import mprm
from mprm.cli.main import COMMANDS, run
from mprm.data.rollout_formats import ROLLOUT_FORMATS
from mprm.data.validate import ERRORS, WARNINGS
from mprm.selection.strategies import STRATEGIES

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^### `([\w-]+)`\n\n```json\n(.*?)^```", re.MULTILINE | re.DOTALL)

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def blocks(document: Path, language: str) -> list[tuple[int, str]]:
    """(line before the code, code) of each block of the language."""
    text = text_of(document)
    found = FENCE.finditer(text)
    return [(text.count("\n", 0, match.start(2)), match[2]) for match in found if match[1] == language]


def commands(document: Path) -> list[str]:
    """Every mprm command of the document's bash blocks; Ray has a test of its own."""
    joined = re.sub(r"\\\n\s*", "", "".join(code for _, code in blocks(document, "bash")))
    return [line for line in joined.splitlines() if line.startswith("mprm ") and "--engine ray" not in line]


def arguments(command: str) -> list[str]:
    """What a shell makes of the command, up to a pipe or redirection."""
    words = takewhile(lambda word: word not in {"|", ">", "&&", ";"}, shlex.split(command, comments=True)[1:])
    return [name for word in words for name in sorted(glob.glob(word)) or [word]]


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


DOCUMENTED = "\n".join(map(text_of, DOCUMENTS))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented(command: str) -> None:
    assert re.search(rf"\bmprm {command}\b", DOCUMENTED)


@pytest.mark.parametrize("name", [*ROLLOUT_FORMATS, *ERRORS, *WARNINGS, *STRATEGIES])
def test_every_format_problem_and_strategy_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCUMENTED

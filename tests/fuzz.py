"""Mutated records of every format through the readers and the commands: ``make fuzz``, or ``python -m tests.fuzz --help``.

The records are the examples of the documentation, which a test holds complete. Whatever becomes of them, the readers
and commands give a result or an `MprmError`, every record is accounted for, what ``convert`` writes passes ``check``,
and compiled code agrees with its Python twin. The same seed makes the same records.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import mprm
from mprm.annotation import estimate_cost
from mprm.answers.grade import grade
from mprm.cli.main import run as run_command
from mprm.config import OUTPUT_FORMATS
from mprm.data.benchmarks import BENCHMARK_FORMATS, read_benchmark
from mprm.data.candidates import CANDIDATE_FORMATS, read_candidates
from mprm.data.questions import QUESTION_FORMATS, read_questions
from mprm.data.rollout_formats import ROLLOUT_FORMATS
from mprm.errors import MprmError
from mprm.evaluation.rerank import rerank
from mprm.evaluation.scores import read_scores
from mprm.selection import scan

DOCS = Path(__file__).parents[1] / "docs"
IN_A_FILE = 25
"""Records of a file of rollouts."""
COMMAND_EVERY = 40
"""Files between two that go through commands, which take longer than the functions they call."""
EXTRA_CANDIDATES = [
    {"question": "3+3?", "solutions_splits": [["Three.", "Six."], ["Five."]], "labels": [1, 0], "prm_scores": [[0.9, None], [0.25]]},
    {"prompt": "1+1?", "answers": ["Step 1: one ки\nStep 2: two ки", "a\n\nb"], "labels": [True, False]},
]  # fmt: skip


def examples(name: str) -> list[Any]:
    """The records of the JSON examples of a document."""
    records: list[Any] = []
    for block in re.findall(r"^```json\n(.*?)^```", (DOCS / name).read_text(encoding="utf-8"), re.M | re.S):
        values, decode, position = [], json.JSONDecoder().raw_decode, 0
        while position < len(block.rstrip()):
            value, position = decode(block, position)
            position += len(block[position:]) - len(block[position:].lstrip())
            values.append(value)
        for value in values:
            is_keyed = isinstance(value, dict) and all(isinstance(item, dict) for item in value.values())
            records += value if isinstance(value, list) else value.values() if is_keyed else [value]
    return records


def records_by_kind() -> dict[str, list[Any]]:
    """Good records of every format, by kind."""
    evaluation = examples("evaluation.md")
    return {
        "rollouts": examples("formats.md"),
        "questions": examples("questions.md"),
        "benchmarks": [record for record in evaluation if "scores" not in record],
        "scores": [record for record in evaluation if "scores" in record],
        "candidates": [*(r for r in examples("reranking.md") if "candidates" in r), *EXTRA_CANDIDATES],
    }


ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**32, 2**63, 10**30, 10**4000,
    "", " ", "\n", "\u3000", "a", "+", "-", "A", "0.5", "#### 18", "\\boxed{", "\\boxed{1}", "<prm>", "<image>", "ки",
    "Step 1: a ки", "\nProcess: b", "### Solution Process:", "\ud800", "\x00", "\x1b[2J", "é" * 40, "<answer>" * 50,
    [], [[]], [None], ["a"], [0.5], [1, 0], {}, {"": None}, {"step": "a", "score": 1}, {"path": None}, {"text": "q"},
)  # fmt: skip
LITERALS = (b"9" * 5000, b"NaN", b"-Infinity", b"1e999", b"\\u0000", b"\\ud83d", b"\\u00e9", b"\xff", b"\xed\xa0\x80", b"\x00", b"}", b'"', b"\n", b",", b"[" * 50)  # fmt: skip


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value inside the value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from nodes(item)


def mutated(record: Any, rng: random.Random, others: list[Any]) -> bytes:
    """A line of JSON with up to three changes, in values or in bytes; one in ten stays as it is."""
    record = json.loads(json.dumps(record))
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 2, 3, 3))):
        places = list(nodes(record))
        if not places:
            break
        container, key = rng.choice(places)
        change = rng.randrange(8)
        if change == 0:
            del container[key]
        elif change == 1 and isinstance(container, list):
            container.append(deepcopy(container[key]))
        elif change == 2 and isinstance(container, dict):
            container[rng.choice(("id", "source", "image", "answer", "options", "extra", "labels"))] = deepcopy(
                rng.choice(ODD)
            )
        elif change == 3 and isinstance(container[key], str):
            cut = rng.randrange(len(container[key]) + 1)
            container[key] = container[key][:cut] + str(rng.choice(ODD[17:40])) + container[key][cut:]
        elif change == 4:
            other, other_key = rng.choice(list(nodes(rng.choice(others))))
            container[key] = deepcopy(other[other_key])
        else:
            container[key] = deepcopy(rng.choice(ODD))
    line = json.dumps(record, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.2:
        start = rng.randrange(len(line) + 1)
        line = line[:start] + rng.choice(LITERALS) + line[start + rng.randrange(4) :]
    return line if rng.random() > 0.02 else line[: rng.randrange(len(line) + 1)]


def some_format(formats: Iterable[str], rng: random.Random) -> str | None:
    """None, and now and then the name of a format, most often the wrong one."""
    return None if rng.random() < 0.8 else rng.choice(list(formats))


def check_rollouts(path: Path, rng: random.Random) -> None:
    """Check, count, select and convert; nothing is lost, and what is written is good."""
    content, name = path.read_bytes(), some_format(ROLLOUT_FORMATS, rng)
    lines = content.split(b"\n")
    check_twin(content, rng)
    text_only = rng.random() < 0.5
    if path.suffix == ".jsonl":
        report = mprm.check(path, format=name, text_only=text_only)
        assert report.n_records == sum(bool(line.strip(b" \t\r\n")) for line in lines)
    mprm.stats(path, format=name, text_only=text_only, skip_bad=True)
    out = path.with_name("out.jsonl")
    to = rng.choice((None, *OUTPUT_FORMATS[:-1]))
    options = {"rho": 0.5, "skip_bad": True, "format": name, "text_only": text_only, "to": to}
    with contextlib.suppress(MprmError):
        selection = mprm.select(path, **options)
        accounts = selection.by_source(selection.subsets[0]).values()
        assert all(a["read"] == a["kept"] + a["left"] + a["dropped"] for a in accounts)
        selection.write(str(out), force=True)
        n_kept = sum(account["kept"] for account in accounts)
        assert out.read_bytes().count(b"\n") == n_kept
        if to is not None and n_kept:
            assert_good(out, to)
    mprm.convert(path, str(out), to=to or "trl", skip_bad=True, format=name, text_only=text_only, force=True)
    if out.stat().st_size:
        assert_good(out, to or "trl")


def assert_good(path: Path, name: str) -> None:
    issues = [issue for issue in mprm.check(path, format=name).issues if issue.is_error]
    assert all(issue.kind == "image_outside_root" for issue in issues), issues[:3]


def check_twin(content: bytes, rng: random.Random) -> None:
    """Where neither hands a line back, both give the same row; and what they count, Python reads."""
    with_sources, needs_image = rng.random() < 0.5, rng.random() < 0.5
    tau, mark = rng.choice((0.0, 0.5)), rng.choice((b"", b"<prm>"))
    counted = []
    for count in (scan.count_rows, scan.count_rows_python):
        sources: dict[str, int] | None = {} if with_sources else None
        rows, _, _ = count(content, 0, len(content), needs_image, tau, sources, mark, True)
        names = list(sources or {})
        entries = [list(row) for row in scan.ROW.iter_unpack(rows)]
        for entry in entries:
            entry[4] = names[entry[4]] if names and entry[5] == scan.ROLLOUT else ""
        counted.append(entries)
    assert len(counted[0]) == len(counted[1])
    for ours, theirs in zip(*counted, strict=True):
        assert scan.BAD in (ours[5], theirs[5]) or ours == theirs, (ours, theirs)


def check_questions(path: Path, rng: random.Random) -> None:
    for question in read_questions(path, format=some_format(QUESTION_FORMATS, rng)):
        grade(rng.choice(("\\boxed{18}", "The answer is B.", "", question.answer)), question.answer, question.options)


def no_policy() -> Any:
    raise MprmError("the tasks were read, and there is no policy")


def check_candidates(path: Path, rng: random.Random) -> None:
    read_candidates(path, format=some_format(CANDIDATE_FORMATS, rng))
    with contextlib.suppress(MprmError):
        estimate_cost(None, no_policy, rollouts_from=(str(path),))
    if rng.random() < 0.1:
        rerank(path, draws=10)


CHECKS: dict[str, Callable[[Path, random.Random], Any]] = {
    "rollouts": check_rollouts,
    "questions": check_questions,
    "benchmarks": lambda path, rng: read_benchmark(path, format=some_format(BENCHMARK_FORMATS, rng), text_only=True),
    "scores": lambda path, _rng: read_scores(path),
    "candidates": check_candidates,
}
COMMANDS = {
    "rollouts": ("check IN --all", "stats IN --skip-bad", "score IN --out OUT.csv --force", "select IN --skip-bad --rho 0.5 --out OUT.jsonl --force", "convert IN --to mm-prm --skip-bad --out OUT.jsonl --force"),
    "questions": ("sample IN --policy NOWHERE --out OUT.jsonl", "annotate IN --policy NOWHERE --out OUT.jsonl"),
    "benchmarks": ("evaluate IN --scores IN --draws 0 --text-only",),
    "scores": ("evaluate --scores IN --draws 0",),
    "candidates": ("rerank IN --draws 10 --check-timeout-s 1",),
}  # fmt: skip


def check_command(kind: str, path: Path, rng: random.Random) -> None:
    """A command ends with a known code and without a traceback."""
    words = rng.choice(COMMANDS[kind]).replace("IN", str(path)).replace("OUT", str(path.with_name("out")))
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = run_command(words.split())
        except SystemExit as end:  # the parser leaves this way
            code = end.code
    assert code in (0, 1, 2, 3), (words, code)
    assert "Traceback" not in output.getvalue(), words


def fuzz(*, n_records: int, seconds: float, seed: int, keep: Path | None = None) -> Counter[str]:
    """How many records of each kind went through; raises what escaped, with the file left in ``keep``."""
    rng, counts, started = random.Random(seed), Counter(dict.fromkeys(CHECKS, 0)), time.monotonic()
    by_kind = records_by_kind()
    everything = [record for records in by_kind.values() for record in records]
    with tempfile.TemporaryDirectory() as name:
        n_files = 0
        while counts.total() < n_records and time.monotonic() - started < seconds:
            kind = min(by_kind, key=counts.__getitem__)
            # one bad record stops the readers of all but rollouts; the first record decides for a file
            first = [rng.choice(by_kind[kind])] * (IN_A_FILE if kind == "rollouts" else rng.choice((1, 1, 1, 2, 3)))
            lines = [mutated(record, rng, everything) for record in first]
            is_list = rng.random() < 0.1
            path = Path(name) / ("in.json" if is_list else "in.jsonl")
            path.write_bytes(
                b"[" + b",\n".join(lines) + b"]" if is_list else b"\n".join(lines) + b"\n" * (n_files % 2)
            )
            n_files += 1
            try:
                with contextlib.suppress(MprmError):
                    CHECKS[kind](path, rng)
                if n_files % COMMAND_EVERY == 0:
                    check_command(kind, path, rng)
            except BaseException:
                if keep is not None:
                    shutil.copy(path, keep)
                    print(f"{path.name} of file {n_files}, seed {seed}, is in {keep}", file=sys.stderr)
                raise
            counts[kind] += len(lines)
    return counts


def main() -> None:
    """Fuzz until the time or the records are used up; exit with 1 at the first failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000, help="records to read (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=600, help="time limit (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the records (default: %(default)s)")
    parser.add_argument("--keep", type=Path, default=Path(), metavar="DIR", help="where a failing file is left")
    options = parser.parse_args()
    try:
        counts = fuzz(n_records=options.records, seconds=options.seconds, seed=options.seed, keep=options.keep)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    print(f"{counts.total():,} records, no traceback: {', '.join(f'{n:,} {kind}' for kind, n in counts.items())}.")


if __name__ == "__main__":
    main()

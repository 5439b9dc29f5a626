"""Two versions of mprm on the same inputs: whether their outputs are equal, and how time and memory compare.

    mprm-lab open LAB
    python ../shared/bench/gen_corpus.py …                 # a corpus of the paper's size, or any other
    python benchmarks/two_versions.py OLD/bin/mprm NEW/bin/mprm --lab LAB --corpus CORPUS --out result.json

The commands take turns, so that a busy machine slows both; times are medians, memory is the peak of the largest
process. Both must see the same packages: transformers imports whatever is installed. Options that the new version
renamed are translated for the old one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from mprm.data import hash_file, markdown_table

OLD_FLAGS = {
    "--max-optimizer-steps": "--max-updates",
    "--dataloader-workers": "--workers",
    "--save-total-limit": "--keep",
    "--strategy": "--select",  # of train
}
RENAMED_KEYS = {"benchmark_format": "format", "timeout_s": "check_timeout_s", "n_cut_steps": "n_unscored_steps"}
RENAMED_KEYS |= {"problems": "issues", "updates": "optimizer_steps"}
STRATEGIES = ("bis", "random", "low-mc", "mixed", "reliable")


class Sides:
    """The two commands, and what was compared."""

    def __init__(self, old: str, new: str, work: Path, rounds: int) -> None:
        self.commands = {"old": old, "new": new}
        self.work, self.rounds = work, rounds
        self.results: list[dict[str, Any]] = []

    def run(self, side: str, arguments: list[str], *, translate: bool = False) -> tuple[float, float, str]:
        """Seconds, peak memory in MiB and standard output of a command; OUT in its arguments is the side's folder."""
        if side == "old" and translate:
            arguments = [OLD_FLAGS.get(word, word) for word in arguments]
        folder = self.work / side
        folder.mkdir(parents=True, exist_ok=True)
        words = [self.commands[side], *(word.replace("OUT", str(folder)) for word in arguments)]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            began = time.perf_counter()
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(words, stdout=out, stderr=errors, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            errors.seek(0)
            if process.returncode:
                raise SystemExit(f"{' '.join(words)}\n{errors.read().decode()}")
            return seconds, usage.ru_maxrss / 1024, out.read().decode()

    def both(self, arguments: list[str], **options: Any) -> dict[str, str]:
        """Standard output of each side, run once."""
        return {side: self.run(side, arguments, **options)[2] for side in self.commands}

    def equal(self, what: str, pairs: Iterator[tuple[Any, Any]]) -> None:
        """Record whether all pairs of values or files are equal."""
        listed = list(pairs)
        n_equal = sum(old == new for old, new in listed)
        largest = max((abs(old - new) for old, new in listed if _are_floats(old, new)), default=None)
        self.results.append({"what": what, "compared": len(listed), "equal": n_equal, "largest_difference": largest})
        print(f"{what}: {n_equal} of {len(listed)} equal, largest difference {largest}", file=sys.stderr)

    def speed(self, what: str, arguments: list[str], *, rounds: int | None = None, translate: bool = False) -> None:
        """Record the times and the memory of both sides, in turns."""
        times: dict[str, list[float]] = {"old": [], "new": []}
        memory: dict[str, list[float]] = {"old": [], "new": []}
        for number in range(rounds or self.rounds):
            for side in ("old", "new") if number % 2 else ("new", "old"):
                self.clean(side)
                seconds, mebibytes, _ = self.run(side, arguments, translate=translate)
                times[side].append(seconds)
                memory[side].append(mebibytes)
        ratios = [new / old for old, new in zip(times["old"], times["new"], strict=True)]
        result = {"what": what, "seconds": times, "peak_mib": memory, "ratio": median(ratios)}
        result |= {"best_ratio": min(times["new"]) / min(times["old"])}
        self.results.append(result)
        print(f"{what}: new / old {result['ratio']:.3f}, best {result['best_ratio']:.3f}", file=sys.stderr)

    def clean(self, side: str) -> None:
        """Empty a side's folder."""
        shutil.rmtree(self.work / side, ignore_errors=True)


def _are_floats(old: Any, new: Any) -> bool:
    return isinstance(old, float) and isinstance(new, float) and old == old and new == new


def files(sides: Sides, pattern: str) -> Iterator[tuple[str, str]]:
    """Hashes of the files that both sides wrote under the same names."""
    old = sorted(path.relative_to(sides.work / "old") for path in (sides.work / "old").glob(pattern))
    new = sorted(path.relative_to(sides.work / "new") for path in (sides.work / "new").glob(pattern))
    if old != new or not old:
        raise SystemExit(f"{pattern}: the sides wrote other files: {old} and {new}")
    for name in old:
        yield hash_file(str(sides.work / "old" / name)), hash_file(str(sides.work / "new" / name))


def numbers(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """Values that two JSON documents have under the same keys; keys that one side alone has are left out."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            if (other := RENAMED_KEYS.get(key, key)) in new:
                yield from numbers(old[key], new[other])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for a, b in zip(old, new, strict=True):
            yield from numbers(a, b)
    elif not isinstance(old, str):
        yield old, new


def documents(sides: Sides, name: str) -> Iterator[tuple[Any, Any]]:
    """Values of a JSON or JSON-lines file that both sides wrote."""
    texts = [(sides.work / side / name).read_text().splitlines() for side in ("old", "new")]
    if name.endswith(".json"):
        yield from numbers(*(json.loads("\n".join(lines)) for lines in texts))
    else:
        for old, new in zip(*texts, strict=True):
            yield from numbers(json.loads(old), json.loads(new))


def losses(sides: Sides, run: str) -> Iterator[tuple[float, float]]:
    """The loss of every optimizer step of a training run."""
    found = []
    for side in ("old", "new"):
        [state] = sorted((sides.work / side / run).rglob("trainer_state.json"))[-1:]
        found.append([entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry])
    yield from zip(*found, strict=True)


def selection(sides: Sides, corpus: str) -> None:
    """Every strategy, both tie rules, mm-prm, one pool; then the speed."""
    for ties in ("hash", "file-order"):
        arguments = ["select", corpus, "--strategy", *STRATEGIES, "--rho", "0.05", "0.1", "0.25", "--ties", ties]
        sides.both([*arguments, "--out-dir", "OUT/subsets"])
        sides.equal(f"select: files of 5 strategies × 3 fractions, ties by {ties}", files(sides, "subsets/*.jsonl"))
        for side in ("old", "new"):
            sides.clean(side)
    for name, options in {
        "--to mm-prm": ["--rho", "0.25", "--to", "mm-prm"],
        "--to mm-prm, file order": ["--to", "mm-prm", "--ties", "file-order", "--alpha", "0.2", "--tau", "0.0625"],
        "--pool": ["--pool", "--seed", "5"],
    }.items():
        sides.both(["select", corpus, *options, "--out", "OUT/subset.jsonl"])
        sides.equal(f"select {name}: files", files(sides, "subset.jsonl"))
        for side in ("old", "new"):
            sides.clean(side)
    sides.speed("select, full size", ["select", corpus, "--rho", "0.25", "--out", "OUT/subset.jsonl"])
    sides.speed("stats, full size", ["stats", corpus])


def training(sides: Sides, lab: Path) -> None:
    """Losses of a fixed seed, step scores of the trained models, training speed."""
    some = sides.work / "rollouts.jsonl"
    lines = (lab / "corpus.jsonl").read_text().splitlines(keepends=True)
    some.write_text("".join(lines[:: max(1, len(lines) // 256)][:256]))
    for policy in ("internvl", "qwen", "small"):
        arguments = [
            "train",
            str(some),
            "--model",
            str(lab / "policies" / policy),
            "--image-root",
            str(lab / "images"),
        ]
        arguments += ["--batch-size", "16", "--learning-rate", "1e-4", "--max-length", "1024", "--device", "cpu"]
        arguments += ["--dataloader-workers", "0", "--max-optimizer-steps", "8", "--save-every", "8"]
        sides.both([*arguments, "--out", f"OUT/{policy}"], translate=True)
        sides.equal(f"train {policy}: losses of 8 optimizer steps", losses(sides, policy))
        for side in ("old", "new"):
            sides.clean(side)
    arguments[-1] = "16"
    arguments[arguments.index("--max-optimizer-steps") + 1] = "16"
    sides.speed("train, 16 optimizer steps, CPU", [*arguments, "--out", "OUT/run"], translate=True)


def evaluation(sides: Sides, lab: Path) -> None:
    """A model's step scores, metrics and best-of-N of both sides; speed on saved scores."""
    some = sides.work / "rollouts.jsonl"
    base = ["train", str(some), "--model", str(lab / "policies" / "small"), "--image-root", str(lab / "images")]
    base += ["--batch-size", "64", "--learning-rate", "1e-3", "--max-length", "1024", "--device", "cpu"]
    model = str(sides.work / "model")
    sides.run("old", [*base, "--workers", "0", "--out", model])
    sides.clean("old")
    benchmark, candidates, images = lab / "benchmark.jsonl", lab / "candidates.jsonl", str(lab / "images")
    part = sides.work / "candidates.jsonl"
    part.write_text("".join(candidates.read_text().splitlines(keepends=True)[:60]))
    arguments = ["--model", model, "--image-root", images, "--device", "cpu"]
    sides.both(["evaluate", str(benchmark), *arguments, "--out", "OUT/evaluation"])
    sides.equal("evaluate: step scores of a trained model", documents(sides, "evaluation/scores.jsonl"))
    sides.equal("evaluate: every number of metrics.json", documents(sides, "evaluation/metrics.json"))
    sides.both(["rerank", str(part), *arguments, "--out", "OUT/rerank"])
    sides.equal("rerank: chosen candidates", documents(sides, "rerank/chosen.jsonl"))
    scores = str(sides.work / "scores.jsonl")
    shutil.copy(sides.work / "old" / "evaluation" / "scores.jsonl", scores)
    sides.speed("evaluate --scores", ["evaluate", "--scores", scores, "--out", "OUT/again"])
    sides.speed("evaluate --model", ["evaluate", str(benchmark), *arguments, "--out", "OUT/again"])


def annotation(sides: Sides, lab: Path) -> None:
    """Rollouts that the small policy makes and annotates, byte for byte; speed."""
    questions = sides.work / "questions.jsonl"
    records = [json.loads(line) for line in (lab / "candidates.jsonl").read_text().splitlines()[:12]]
    keys = ("id", "question", "answer", "images", "image", "source")
    rows = [{key: record[key] for key in keys if key in record} for record in records]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy = ["--policy", str(lab / "policies" / "small"), "--image-root", str(lab / "images"), "--device", "cpu"]
    sampling = ["--rollouts", "2", "--continuations", "8", "--max-new-tokens", "200"]
    arguments = ["annotate", str(questions), *policy, *sampling]
    sides.both([*arguments, "--out", "OUT/rollouts.jsonl"])
    sides.equal("annotate: files", files(sides, "rollouts.jsonl"))
    sides.speed("annotate, CPU", [*arguments, "--out", "OUT/rollouts.jsonl"])


def report(sides: Sides, lab: Path) -> None:
    """Speed of a report on the lab's corpus."""
    sides.speed("report", ["report", str(lab / "corpus.jsonl"), "--out", "OUT/report.html"], rounds=5)


def start_up(sides: Sides) -> None:
    """Time to the help text."""
    for words in (["--help"], ["select", "--help"], ["train", "--help"], ["annotate", "--help"]):
        sides.speed(f"mprm {' '.join(words)}", words, rounds=15)


def table(results: list[dict[str, Any]]) -> str:
    """What was compared, as Markdown."""
    rows = []
    for entry in results:
        if "ratio" in entry:
            cells = [f"{median(entry['seconds'][side]):.2f} s" for side in ("old", "new")]
            cells += [f"{max(entry['peak_mib'][side]):.0f} MiB" for side in ("old", "new")]
            rows.append([entry["what"], *cells, f"{entry['ratio']:.2f}"])
        else:
            equal = f"{entry['equal']:,} of {entry['compared']:,} equal"
            largest = entry["largest_difference"]
            rows.append(
                [entry["what"], equal, "" if largest is None else f"largest difference {largest:.1e}", "", "", ""]
            )
    heads = ["", "old", "new", "peak, old", "peak, new", "time, new / old"]
    return markdown_table(heads, [row[: len(heads)] for row in rows])


def main() -> None:
    """Compare, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the old version's mprm command")
    parser.add_argument("new", help="the new version's")
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", nargs="+", default=["start_up", "selection", "training", "evaluation", "annotation", "report"]
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    parts: dict[str, Callable[[Sides], None]] = {
        "start_up": start_up,
        "selection": lambda sides: selection(sides, options.corpus),
        "training": lambda sides: training(sides, options.lab),
        "evaluation": lambda sides: evaluation(sides, options.lab),
        "annotation": lambda sides: annotation(sides, options.lab),
        "report": lambda sides: report(sides, options.lab),
    }
    with tempfile.TemporaryDirectory() as work:
        sides = Sides(options.old, options.new, Path(work), options.rounds)
        for name in options.only:
            parts[name](sides)
            options.out.write_text(json.dumps(sides.results, indent=1) + "\n")
    print(re.sub(r"\n+", "\n", table(sides.results)))


if __name__ == "__main__":
    main()

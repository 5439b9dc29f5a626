"""Times ``mprm select`` with every strategy that needs only the corpus, against BIS, in interleaved rounds.

    python benchmarks/strategies.py [--corpus DIR] [--rho 0.1] [--rounds 5] [--out benchmarks/results/strategies.json]

Without --corpus, one of the paper's size is made of the quick-start corpus. Start-up and writing count. The ratio is
the median over rounds of a strategy's time to that of BIS in the same round.
"""

import sys

sys.path.pop(0)  # this folder: in it, "select" is no module of the standard library's

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

STRATEGIES = (
    "bis",
    "random",
    "low-mc",
    "mixed",
    "reliable",
    "bis-adaptive",
    "bis-sampled",
    "drop",
    "difficulty",
    "scan",
    "agreement",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--rho", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.corpus
        if folder is None:
            import runpy

            folder = Path(temporary) / "corpus"
            folder.mkdir()
            runpy.run_path(str(Path(__file__).with_name("selection.py")))["make_corpus"](folder, 565_149)
        program, out = Path(sys.executable).with_name("mprm"), f"{temporary}/out.jsonl"
        seconds: dict[str, list[float]] = {name: [] for name in STRATEGIES}
        for number in range(options.rounds + 1):
            for name in STRATEGIES:
                words = [program, "select", folder, "--strategy", name, "--rho", str(options.rho), "--out", out]
                started = time.perf_counter()
                subprocess.run([*words, "--force"], check=True, capture_output=True)
                if number:  # the first round fills the page cache
                    seconds[name].append(round(time.perf_counter() - started, 3))
        n_rollouts = sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl"))
    result = {
        "command": "python benchmarks/strategies.py --corpus CORPUS --out benchmarks/results/strategies.json",
        "rollouts": n_rollouts,
        "cores": os.cpu_count(),
        "rho": options.rho,
        "seconds": seconds,
        "ratio_to_bis": {
            name: round(statistics.median(a / b for a, b in zip(times, seconds["bis"], strict=True)), 3)
            for name, times in seconds.items()
        },
    }
    print(json.dumps(result["ratio_to_bis"], indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How often ``mprm-lab theory`` rejects a statement: the share over many seeds.

python benchmarks/theory_seeds.py [--seeds 20] [--first 0] [--processes 2] [--out FILE]
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder: in it, "select" is a benchmark and not the standard library's

import argparse
import json
import multiprocessing
import platform
import time
from collections import Counter
from pathlib import Path

import numpy as np

from mprm_lab.theory.verify import verify


def failed_lines(seed: int) -> tuple[int, float, int, list[str]]:
    """(seed, seconds, number of lines, lines that fail)."""
    started = time.perf_counter()
    found = verify(seed=seed)
    failed = [result.comparison.name for result in found.results if not result.holds]
    return seed, round(time.perf_counter() - started, 1), len(found.results), failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    failed: Counter[str] = Counter()
    n_lines, n_runs_failed, seconds = 0, 0, []
    with multiprocessing.Pool(options.processes) as pool:
        for seed, took, n, names in pool.imap(failed_lines, range(options.first, options.first + options.seeds)):
            print(f"seed {seed}: {took} s, {', '.join(names) or 'holds'}", flush=True)
            seconds.append(took)
            n_lines += n
            n_runs_failed += bool(names)
            failed.update(names)
    result = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "seeds": options.seeds,
        "first_seed": options.first,
        "lines": n_lines,
        "lines_failed": sum(failed.values()),
        "runs_failed": n_runs_failed,
        "failed": dict(failed),
        "seconds": seconds,
    }
    print(json.dumps(result, indent=2))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

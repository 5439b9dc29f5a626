"""Times ``mprm report`` against ``mprm select`` on the same corpus, and weighs the page.

    python benchmarks/report.py [--corpus DIR] [--runs DIR] [--rho 0.25] [--rounds 3] [--out FILE]

Without --corpus, one of the paper's size is made of the quick-start corpus. The quick-start corpus
itself is reported on too, with the runs where --runs names some (``python -m tests.report.made_runs
DIR`` makes small ones). Start-up counts; inputs are in the page cache; best of the rounds.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from selection import HERE, make_corpus, run

MPRM = [sys.executable, "-m", "mprm.cli.main"]


def measure(files: list[str], work: Path, rho: float, rounds: int, runs: Path | None) -> dict:
    """Seconds of both commands, taking turns, and the size of the page."""
    page, subset = work / "report.html", work / "subset.jsonl"
    report = [*MPRM, "report", *files, "--rho", str(rho), "--force", "--out", str(page)]
    ways = {
        "select": [*MPRM, "select", *files, "--rho", str(rho), "--force", "--out", str(subset)],
        "report": report + ([] if runs is None else ["--runs", str(runs)]),
    }
    seconds = {name: [] for name in ways}
    for _ in range(rounds):
        for name, command in ways.items():
            seconds[name].append(round(run(command, files, watch=False)[0], 3))
    best = {name: min(taken) for name, taken in seconds.items()}
    return {
        "n_files": len(files),
        "n_bytes": sum(os.path.getsize(file) for file in files),
        "seconds": seconds,
        "best_s": best,
        "times_select": round(best["report"] / best["select"], 2),
        "memory_mib": round(run(ways["report"], files, watch=True)[1] / 2**20, 1),
        "page_bytes": page.stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--rollouts", type=int, default=565_096)
    parser.add_argument("--rho", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "report.json")
    options = parser.parse_args()
    import mprm

    with tempfile.TemporaryDirectory(prefix="mprm-benchmark-") as folder:
        work = Path(folder)
        corpus = options.corpus
        if corpus is None:
            corpus = work / "corpus"
            corpus.mkdir()
            make_corpus(corpus, options.rollouts)
        mprm.quickstart(work / "sample")
        large, small = (sorted(map(str, path.glob("*.jsonl"))) for path in (corpus, work / "sample" / "annotations"))
        results = {
            "command": "python benchmarks/report.py"
            + ("" if options.corpus is None else " --corpus CORPUS")
            + ("" if options.runs is None else " --runs RUNS"),
            "rho": options.rho,
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "full_size": measure(large, work, options.rho, options.rounds, None),
            "sample_with_runs" if options.runs else "sample": measure(
                small, work, options.rho, options.rounds, options.runs
            ),
        }
    print(json.dumps(results, indent=1))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

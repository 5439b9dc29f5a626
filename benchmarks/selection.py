"""Times ``mprm select`` against plain json, on one corpus, in one run; every output is compared.

    python benchmarks/selection.py [--corpus DIR] [--rho 0.25] [--rounds 3] [--times 1 4] [--out FILE]

Without --corpus, one of the paper's size is made of the quick-start corpus. Start-up counts;
inputs are read once before each run, so that all find them in the page cache; the best of the
rounds is reported. Memory is the anonymous memory of all processes of a run together (what is
shared after a fork counted once), at its peak. ``--times 4`` runs on four copies of the corpus too.
"""

import sys

sys.path.pop(0)  # this folder: in it, "select" is this file and not the standard library's

import argparse
import json
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent


def make_corpus(folder: Path, n_rollouts: int) -> None:
    """The quick-start corpus, over and over, until it has the size."""
    import mprm

    sample = folder / "sample"
    texts = {path.name: path.read_bytes() for path in mprm.quickstart(sample)}
    times = -(-n_rollouts // sum(text.count(b"\n") for text in texts.values()))
    for name, text in texts.items():
        with (folder / name).open("wb") as out:
            for _ in range(times):
                out.write(text)
    shutil.rmtree(sample)


def anonymous_bytes(root: int) -> int:
    """Anonymous memory of a process and all below it."""
    parents, total = {}, 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    family, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        grown = bool(more)
        family |= more
    for pid in family:
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss_Anon:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def run(command: list[str], files: list[str], watch: bool) -> tuple[float, int]:
    """(seconds, peak of anonymous memory) of a command, its inputs warm."""
    for file in files:
        with open(file, "rb", buffering=0) as handle:
            buffer = bytearray(1 << 20)
            while handle.readinto(buffer):
                pass
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0

    def sample() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(0.02)

    if watch:
        watcher = threading.Thread(target=sample)
        watcher.start()
    code = process.wait()
    seconds = time.perf_counter() - started
    if watch:
        watcher.join()
    if code:
        sys.exit(f"{' '.join(command[:6])} … failed with {code}")
    return seconds, peak


def same_json(left: Path, right: Path) -> bool:
    with left.open("rb") as a, right.open("rb") as b:
        return all(json.loads(x) == json.loads(y) for x, y in zip(a, b, strict=True))


def measure(files: list[str], work: Path, rho: float, rounds: int, plain: bool) -> dict:
    """Seconds and memory of each way, best of the rounds, ways taking turns."""
    mprm = [
        sys.executable,
        "-m",
        "mprm.cli.main",
        "select",
        *files,
        "--rho",
        str(rho),
        "--ties",
        "file-order",
    ]
    script = [sys.executable, str(HERE / "plain_select.py")]
    ways = {
        "mprm_verbatim": [*mprm, "--out", str(work / "mprm_verbatim.jsonl")],
        "mprm_mm_prm": [*mprm, "--to", "mm-prm", "--out", str(work / "mprm_mm_prm.jsonl")],
    }
    if plain:
        ways["plain_verbatim"] = [*script, str(work / "plain_verbatim.jsonl"), str(rho), "verbatim", *files]
        ways["plain_mm_prm"] = [*script, str(work / "plain_mm_prm.jsonl"), str(rho), "mm-prm", *files]
    seconds = {name: [] for name in ways}
    memory = {}
    for number in range(rounds + 1):
        for name, command in ways.items():
            for old in work.glob(f"{name}*"):
                old.unlink()
            # watching slows a run down, so the last round measures memory and not time
            took, peak = run(command, files, watch=number == rounds)
            if number < rounds:
                seconds[name].append(round(took, 3))
            else:
                memory[name] = round(peak / 2**20, 1)
    found = {
        "n_bytes": sum(os.path.getsize(file) for file in files),
        "seconds": seconds,
        "memory_mib": memory,
    }
    found["best_s"] = {name: min(taken) for name, taken in seconds.items()}
    if plain:
        verbatim = (work / "plain_verbatim.jsonl").read_bytes() == (work / "mprm_verbatim.jsonl").read_bytes()
        converted = same_json(work / "plain_mm_prm.jsonl", work / "mprm_mm_prm.jsonl")
        if not (verbatim and converted):
            sys.exit("the outputs differ")
        best = found["best_s"]
        found["times_faster"] = {
            "verbatim": round(best["plain_verbatim"] / best["mprm_verbatim"], 2),
            "mm_prm": round(best["plain_mm_prm"] / best["mprm_mm_prm"], 2),
            "verbatim_against_plain_mm_prm": round(best["plain_mm_prm"] / best["mprm_verbatim"], 2),
        }
        found["outputs_equal"] = True
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--rollouts", type=int, default=565_096)
    parser.add_argument("--rho", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "select.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mprm-benchmark-") as folder:
        work = Path(folder)
        corpus = options.corpus
        if corpus is None:
            corpus = work / "corpus"
            corpus.mkdir()
            make_corpus(corpus, options.rollouts)
        files = sorted(map(str, corpus.glob("*.jsonl")))
        results = {
            "command": "python benchmarks/selection.py" + ("" if options.corpus is None else " --corpus CORPUS"),
            "corpus": "quick-start corpus repeated" if options.corpus is None else "CORPUS",
            "rho": options.rho,
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "runs": {},
        }
        for times in options.times:
            here = work / f"times_{times}"
            here.mkdir()
            copies = []
            for number in range(times):
                for file in files:
                    copies.append(str(here / f"{number}_{Path(file).name}"))
                    try:
                        os.link(file, copies[-1])
                    except OSError:
                        shutil.copyfile(file, copies[-1])
            found = measure(copies, work, options.rho, options.rounds, plain=times == 1)
            results["runs"][f"times_{times}"] = found
            print(json.dumps({f"times_{times}": found}, indent=1), flush=True)
            shutil.rmtree(here)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

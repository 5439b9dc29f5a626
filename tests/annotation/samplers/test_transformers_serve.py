"""A real server: ``transformers serve`` with a small random model."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from mprm.annotation.samplers.http_sampler import HTTPSampler
from mprm.annotation.samplers.sampler import Decoding, Request
from mprm.errors import ConfigError

MISSING = [name for name in ("torch", "transformers", "fastapi", "uvicorn", "openai") if find_spec(name) is None]
PROGRAM = Path(sys.executable).with_name("transformers")
pytestmark = pytest.mark.skipif(
    bool(MISSING) or not PROGRAM.exists(), reason=f"transformers serve needs {', '.join(MISSING) or PROGRAM}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    import httpx

    from tests.tiny_models import save_tiny

    folder = str(save_tiny("text", tmp_path_factory.mktemp("served") / "policy"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = Path(folder).parent / "log"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [PROGRAM, "serve", folder, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            if process.poll() is not None:
                pytest.fail(f"the server ended: {log.read_text()[-2000:]}")
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.25)
        yield url, folder
    finally:
        process.terminate()
        process.wait(timeout=20)
        shutil.rmtree(folder)


def test_the_policy_behind_a_real_server_answers(server: tuple[str, str]) -> None:
    url, model = server
    extra = {"generation_config": json.dumps({"do_sample": True, "top_k": 30})}
    sampler = HTTPSampler(url, model, extra_body=extra, concurrency=2, timeout_s=60)
    decoding = Decoding(top_k=0, max_new_tokens=5)
    requests = [Request(prompt=f"{i}+{i}?", n=3, seed=i, decoding=decoding) for i in range(2)]
    found = list(sampler.sample(requests))
    assert sorted(number for number, _ in found) == [0, 0, 0, 1, 1, 1]
    assert {completion.error for _, completion in found} == {None}
    assert {completion.finish_reason for _, completion in found} <= {"stop", "length"}
    assert len({completion.text for _, completion in found}) > 3  # each has a seed of its own


def test_the_real_servers_refusal_of_top_k_names_the_remedy(server: tuple[str, str]) -> None:
    url, model = server
    with pytest.raises(ConfigError, match="--top-k 0"):
        list(HTTPSampler(url, model).sample([Request(prompt="q")]))

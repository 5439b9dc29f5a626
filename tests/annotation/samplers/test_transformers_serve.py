"""A real server: ``transformers serve`` with small random models."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mprm.annotation.samplers.local import TransformersSampler
from mprm.annotation.samplers.sampler import Completion, Request, SamplingParams, answers
from mprm.annotation.samplers.server import HTTPSampler
from mprm.errors import ConfigError

MISSING = [name for name in ("torch", "transformers", "fastapi", "uvicorn", "openai") if find_spec(name) is None]
PROGRAM = Path(sys.executable).with_name("transformers")
pytestmark = pytest.mark.skipif(
    bool(MISSING) or not PROGRAM.exists(), reason=f"transformers serve needs {', '.join(MISSING) or PROGRAM}"
)

PREFIXES = ["the bar", "the bar is 3 long.\n\n", "Step 1: 12 + 30\n\nStep 2: 42\n\n", "  so ", "\n", "é…"]
GREEDY = SamplingParams(temperature=0, max_new_tokens=12)


class Server:
    """The server's process, on a port that it keeps."""

    def __init__(self, folder: Path) -> None:
        self.models = {"llama": folder / "llama", "qwen2": folder / "qwen2"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._log = folder / "log"

    def start(self) -> None:
        """Begin without a model: each is loaded when it is first asked."""
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(self._port), "--device", "cpu"],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def until_up(self) -> None:
        import httpx2

        for _ in range(240):
            if self.process.poll() is not None:
                pytest.fail(f"the server ended: {self._log.read_text()[-2000:]}")
            try:
                if httpx2.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(0.25)
        pytest.fail(f"the server does not come up: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=20)

    def sampler(self, kind: str, **settings: Any) -> HTTPSampler:
        return HTTPSampler(self.url, str(self.models[kind]), **{"concurrency": 2, "timeout_s": 60, **settings})


def save_models(folder: Path) -> None:
    """A model whose answers the server hands on, and one whose answers it parses and whose prefixes it repeats."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    from tests.tiny_models import save_tiny, tiny_tokenizer

    save_tiny("text", folder / "llama")
    config = json.loads((folder / "llama" / "config.json").read_text())
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(Qwen2Config(num_key_value_heads=2, **{name: config[name] for name in names}))
    model.save_pretrained(folder / "qwen2")
    tokenizer = tiny_tokenizer("text")
    tokenizer.save_pretrained(folder / "qwen2")
    for kind in ("llama", "qwen2"):  # in this process and on the server, answers end alike
        GenerationConfig(eos_token_id=tokenizer.eos_token_id).save_pretrained(folder / kind)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    running = Server(folder)
    running.start()
    try:
        save_models(folder)
        running.until_up()
        yield running
    finally:
        running.process.terminate()
        running.process.wait(timeout=20)
        shutil.rmtree(folder)


def in_process(server: Server, kind: str) -> TransformersSampler:
    from mprm.models.checkpoint import load_backbone

    return TransformersSampler(load_backbone(server.models[kind], device="cpu"), name=kind, rows_per_batch=400)


def texts(answered: Iterator[tuple[int, list[Completion]]]) -> list[list[str]]:
    by_number = dict(answered)
    assert {c.error for completions in by_number.values() for c in completions} == {None}
    return [[c.text for c in by_number[number]] for number in range(len(by_number))]


def test_the_policy_behind_a_real_server_answers(server: Server) -> None:
    sampling = SamplingParams(max_new_tokens=5)  # top_k is not known to this server as such
    requests = [Request(prompt=f"{i}+{i}?", n=3, seed=i, sampling=sampling) for i in range(2)]
    completions = texts(answers(server.sampler("llama"), requests))
    assert [len(row) for row in completions] == [3, 3]
    assert len({text for row in completions for text in row}) > 3  # sampled, each with a seed of its own
    assert texts(answers(server.sampler("llama", concurrency=1), requests[:1])) == texts(
        answers(server.sampler("llama", concurrency=1), requests[:1])
    )


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_prefixes_are_continued_as_in_this_process(server: Server, kind: str) -> None:
    requests = [Request(prompt="how long is bar 1?", prefix=prefix, sampling=GREEDY) for prefix in ["", *PREFIXES]]
    completions = texts(answers(server.sampler(kind), requests))
    expected = texts(answers(in_process(server, kind), requests))
    if kind == "qwen2":  # the server strips the answers of this kind of model
        expected = [[text.rstrip()] for [text] in expected]
        expected[0] = [expected[0][0].lstrip()]
    assert completions == expected
    assert len({text for [text] in completions}) >= 4  # the prefixes make a difference


def test_tokens_are_sampled_as_often_as_in_this_process(server: Server) -> None:
    stats = pytest.importorskip("scipy.stats")
    sampling = SamplingParams(temperature=0.8, top_p=0.9, top_k=6, max_new_tokens=2)

    def counts(sampler: Any, prefix: str) -> Counter[str]:
        [sampled] = texts(answers(sampler, [Request(prompt="q?", prefix=prefix, n=300, seed=5, sampling=sampling)]))
        return Counter(sampled)

    def p_value(first: Counter[str], second: Counter[str]) -> float:
        # texts seen fewer than 10 times in all make one class
        names = [name for name in first | second if first[name] + second[name] >= 10]
        table = [[count[name] for name in names] for count in (first, second)]
        rest = [300 - sum(row) for row in table]
        columns = [*zip(*table, strict=True), *([tuple(rest)] if sum(rest) else [])]
        return float(stats.chi2_contingency(columns).pvalue)

    served = counts(server.sampler("llama", concurrency=1), "the bar\n\n")
    own = in_process(server, "llama")
    assert len(served) > 5
    assert p_value(served, counts(own, "the bar\n\n")) > 0.001
    assert p_value(served, counts(own, "the bar")) < 1e-6  # so a lost blank line would be found out


def test_without_the_chat_template_nothing_is_continued(server: Server) -> None:
    sampler = server.sampler("llama")
    sampler.template = None
    with pytest.raises(ConfigError, match=r"refuses continue_final_message .*HTTP 422.* --chat-template"):
        list(answers(sampler, [Request(prompt="q", prefix="First,", sampling=GREEDY)]))


def test_another_chat_template_than_the_servers_is_refused(server: Server, tmp_path: Path) -> None:
    other = tmp_path / "other.jinja"
    other.write_text("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} [end]{% endfor %}")
    with pytest.raises(ConfigError, match="the chat template is not the one that http"):
        list(
            answers(
                server.sampler("llama", chat_template=other),
                [Request(prompt="q", prefix="First,", sampling=GREEDY)],
            )
        )


@pytest.mark.slow
def test_a_server_killed_in_the_middle_and_started_again_answers_every_request_once(server: Server) -> None:
    sampling = SamplingParams(temperature=0, max_new_tokens=24)
    requests = [Request(prompt=f"{i}+{i}?", prefix=PREFIXES[i % 3], sampling=sampling) for i in range(30)]
    done: list[tuple[int, list[Completion]]] = []
    for batch in server.sampler("llama", concurrency=4).sample(requests):
        n_before = len(done)
        done += batch
        if n_before < 8 <= len(done):
            server.kill()
            server.start()
    assert sorted(number for number, _ in done) == list(range(30))
    assert texts(iter(done)) == texts(answers(in_process(server, "llama"), requests))


@pytest.mark.slow
def test_annotation_through_the_server_gives_the_scores_of_this_process(server: Server, tmp_path: Path) -> None:
    """The same rollouts, annotated both ways by a policy that errs; the server is killed on the way."""
    stats = pytest.importorskip("scipy.stats")
    from mprm.annotation.annotate import AnnotateConfig, annotate
    from mprm.annotation.samplers.local import PrefixSampler
    from mprm.models.checkpoint import load_backbone
    from tests.tiny_policy import save_adder, solution, sums

    server.models["adder"] = save_adder(server.models["llama"].with_name("adder"))
    right, wrong = sums()[5:7], sums()[9:11]  # 1 + 1, 1 + 2; of 2 + 1, 2 + 2 those solutions, which are wrong
    chains = [(q, solution(q)) for q in right] + [(q, solution(w)) for q, w in zip(wrong, right, strict=True)]
    lines = [
        {"id": q.id, "question": q.question, "answer": q.answer, "source": "s", "candidates": [{"text": text}]}
        for q, text in chains
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = AnnotateConfig(continuations=20, temperature=1.0, top_p=1.0, top_k=100, max_new_tokens=40)
    own = PrefixSampler(load_backbone(server.models["adder"], device="cpu"), name="adder")
    annotate(None, own, str(tmp_path / "own.jsonl"), rollouts_from=str(tmp_path / "c.jsonl"), config=config)
    n_calls = 0

    @contextmanager
    def killing(_title: str, _total: int | None, _unit: str = "items") -> Iterator[Any]:
        def advance(_n: int, _note: str = "") -> None:
            nonlocal n_calls
            n_calls += 1
            if n_calls == 4:
                server.kill()
                server.start()

        yield advance

    served = server.sampler("adder", concurrency=4)
    out = str(tmp_path / "served.jsonl")
    annotate(None, served, out, rollouts_from=str(tmp_path / "c.jsonl"), config=config, progress=killing)
    assert n_calls > 4

    def counts(name: str) -> list[tuple[int, int]]:
        records = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        steps = [step for record in records for step in record["steps_with_score"]]
        return [(step["num_mc_correct"], step["num_mc_total"]) for step in steps]

    first, second = counts("own.jsonl"), counts("served.jsonl")
    assert len(first) == len(second) == 12
    assert {n for _, n in first + second} == {20}
    assert len({k for k, _ in first}) > 4  # there is something to compare
    # a chi-square of each prefix that is not all right or all wrong both times, added up
    tables = [[[k, 20 - k], [m, 20 - m]] for (k, _), (m, _) in zip(first, second, strict=True) if 0 < k + m < 40]
    statistic = sum(float(stats.chi2_contingency(table, correction=False).statistic) for table in tables)
    assert stats.chi2.sf(statistic, len(tables)) > 0.001, (first, second)

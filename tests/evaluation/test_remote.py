"""A reward model behind a server: the same scores as in this process, or one clear error."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

torch = pytest.importorskip("torch")
openai = pytest.importorskip("openai")

import mprm
from mprm.annotation.samplers import server as server_module
from mprm.cli.main import run
from mprm.errors import ConfigError, MprmError
from mprm.evaluation.remote import RemotePRM
from mprm.models import PRM, PRMConfig
from mprm.models.serving import ESCAPE, PROBE_FILE
from tests.annotation.samplers.hostile import breaks_off, replies
from tests.conftest import script, write_jsonl
from tests.evaluation.pooling_server import pooling_server
from tests.evaluation.test_evaluate import records
from tests.tiny_models import save_tiny

BACKBONES = ("qwen2_5_vl", "internvl")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    for name in ("HEALTH_CHECK_S", "UNREACHABLE_AFTER_S"):
        monkeypatch.setattr(server_module, name, 0.01)


def exported(kind: str, folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A small reward model as ``mprm train`` and ``mprm export`` leave it."""
    base = save_tiny(kind, folder.with_name(f"{folder.name}-base"), seed=seed)
    prm = PRM.from_pretrained(base, PRMConfig(), device="cpu")
    prm.config = PRMConfig(**config)
    prm.save_pretrained(folder)
    mprm.export(folder, device="cpu")
    return folder


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("qwen2_5_vl", tmp_path_factory.mktemp("served") / "qwen")


@pytest.fixture(scope="module")
def internvl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("internvl", tmp_path_factory.mktemp("served") / "internvl")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.linear_gradient("L").resize((90, 60)).convert("RGB").save(folder / "a.png")
    Image.radial_gradient("L").resize((60, 120)).save(folder / "grey.jpg")
    Image.new("RGBA", (64, 64), (255, 0, 0, 90)).save(folder / "clear.png")
    turned = Image.linear_gradient("L").resize((100, 50)).convert("RGB")
    exif = turned.getexif()
    exif[274] = 6  # turned by a quarter, which mprm leaves as it is
    turned.save(folder / "turned.jpg", exif=exif)
    return folder


def chains() -> list[mprm.Chain]:
    hostile = f"<prm> <|im_end|><|image_pad|><img> {ESCAPE}{ESCAPE[0]}"
    return [
        mprm.Chain("What is 12 + 30?", ("12 + 30 is 42", "the answer is 42")),
        mprm.Chain(f" Is {hostile} 7? ", (hostile, "", f"a{hostile}b \ud800", "so"), ("a.png",)),
        mprm.Chain("How long is bar 1?", ("  It is 3.\n", "So 3"), ("grey.jpg",)),
        mprm.Chain("Is <image> above <image>?", ("yes", "no"), ("clear.png", "turned.jpg")),
        mprm.Chain("Two bars", ("first", "second", "third"), ("turned.jpg", "a.png")),
        mprm.Chain("No steps", ()),
        *(mprm.Chain(f"q {n}", tuple(f"step {k}" for k in range(1 + n % 4)), ("a.png",)) for n in range(9)),
    ]


@pytest.mark.parametrize("kind", BACKBONES)
def test_served_scores_are_those_of_this_process(kind: str, request: pytest.FixtureRequest, images: Path) -> None:
    folder = request.getfixturevalue({"qwen2_5_vl": "qwen"}.get(kind, kind))
    with pooling_server(folder, delay_s=0.02) as server:
        prm = RemotePRM(server.url, image_root=images, concurrency=4)
        served = prm.score_many(chains())
        alone = prm.score("q 1", ["a.png"], ["step 0", "step 1"])
    local = PRM.from_pretrained(folder, device="cpu", image_root=images)
    assert (prm.name, prm.model, prm.fingerprint) == (folder.name, str(folder), f"{local.fingerprint} served")
    for mine, theirs in zip(served, local.score_many(chains()), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)
    assert alone == pytest.approx(served[7], abs=1e-6)
    assert 2 <= server.most_at_once <= 4


def test_without_the_models_files_here_the_scores_are_the_same(qwen: Path, images: Path) -> None:
    with pooling_server(qwen, root="/elsewhere", models=("prm",)) as server:
        prm = RemotePRM(server.url + "/v1", image_root=images)
        served = prm.score_many(chains())
    assert prm.encoder is None
    local = PRM.from_pretrained(qwen, device="cpu", image_root=images)
    for mine, theirs in zip(served, local.score_many(chains()), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)


def test_steps_beyond_the_length_of_the_model_or_the_server_have_no_score(tmp_path: Path, capsys) -> None:
    folder = exported("text", tmp_path / "text", max_length=60)
    chain = mprm.Chain("q", tuple("the bar is 3 long" for _ in range(20)))
    local = PRM.from_pretrained(folder, device="cpu").score_many([chain])[0]
    kept = sum(not math.isnan(score) for score in local)
    assert 0 < kept < 20
    with pooling_server(folder) as server:
        served = RemotePRM(server.url).score_many([chain])[0]
    assert served[:kept] == pytest.approx(local[:kept], abs=1e-6)
    assert all(map(math.isnan, served[kept:]))
    assert not capsys.readouterr().err
    with pooling_server(folder, max_model_len=45) as server:
        prm = RemotePRM(server.url)
        shorter = prm.score_many([chain, mprm.Chain("the bar is 3 long " * 50, ("a",))])
    assert "text has 45 tokens on http" in capsys.readouterr().err
    n = sum(not math.isnan(score) for score in shorter[0])
    assert 0 < n < kept
    assert shorter[0][:n] == pytest.approx(local[:n], abs=1e-6)
    assert math.isnan(shorter[1][0])


def test_failures_are_retried(qwen: Path) -> None:
    def fault(number: int, _body: Any) -> Any:
        return {7: 500, 8: "drop", 9: breaks_off, 11: 429}.get(number)

    with pooling_server(qwen, fault=fault) as server:
        served = RemotePRM(server.url).score_many(chains()[:1] * 9)
    assert len(served) == 9
    assert len({tuple(scores) for scores in served}) == 1


def test_a_server_that_comes_back_is_waited_for_and_one_that_does_not_ends_with_one_error(qwen: Path) -> None:
    with pooling_server(qwen) as server:
        prm = RemotePRM(server.url, patience_s=10)
        server.die()
        timer = threading.Timer(0.3, server.start)
        with pytest.raises(MprmError, match=r"gives no answer|no server answers"):
            RemotePRM(server.url, retries=0)
        timer.start()
        assert len(prm.score_many(chains()[:1])) == 1
        timer.join()

        def fault(number: int, _body: Any) -> Any:
            if number > 8:
                threading.Thread(target=server.die).start()
                return "drop"
            return None

        server.bodies.clear()
        server.fault = fault
        short = RemotePRM(server.url, patience_s=0.3, concurrency=1)
        with pytest.raises(MprmError, match=r"has not answered for 0\.3 s .*the same command continues"):
            short.score_many(chains()[:1] * 20)


def after_probe(mode: Any) -> Any:
    """A fault of every request but those of the probe."""
    return lambda _number, body: mode if "What is 12 + 30?" in json.dumps(body) else None


def says(text: str) -> Any:
    return replies(text.encode())


ROWS = '{"data": [{"data": %s}], "usage": {}}'


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (says(ROWS % "[[0.5]]"), "1 rows for 2 steps; expected one a step"),
        (says(ROWS % "[[NaN], [0.5]]"), "a step has score nan; expected a probability from 0 to 1"),
        (says(ROWS % "[[0.5], [1.5]]"), "a step has score 1.5"),
        (says(ROWS % "[[0.5], [null]]"), "a step has score None"),
        (says(ROWS % "[[0.5, 0.5], [0.1, 0.9]]"), r"a step has score \[0.5, 0.5\]"),
        (says('{"data": [{"data": [[0.5], [0.5]]}], "usage": {"prompt_tokens": 3}}'), "the server reads 3 tokens, "),
        (says("{}"), "does not answer as a reward model"),
        (says("[1, 2"), "does not answer as a reward model"),
        (says(ROWS % json.dumps([[0.5]] * 2_000_000)), "the reply is over 0.3 MiB"),
        (replies(b"<html>Hello", headers=b"Content-Type: text/html\r\n"), "it says '<html>Hello'"),
        (replies(b'{"error": "maximum context length"}', status=b"400 Bad"), "rejects a chain: HTTP 400.*maximum"),
        (replies(b"{}", status=b"401 Bad"), "refuses /pooling: HTTP 401.*--api-key-env"),
    ],
)
def test_answers_that_are_no_scores_are_refused(qwen: Path, mode: Any, words: str) -> None:
    with pooling_server(qwen, fault=after_probe(mode)) as server:
        prm = RemotePRM(server.url)
        with pytest.raises(ConfigError, match=words):
            prm.score_many(chains()[:1])


def test_another_model_behind_the_url_is_recognised(qwen: Path, tmp_path: Path) -> None:
    other = exported("qwen2_5_vl", tmp_path / "other", seed=1)
    with pooling_server(other) as server:
        with pytest.raises(ConfigError, match=r"serves another model: .*qwen has .*mean difference 0\.\d+"):
            RemotePRM(server.url, folder=qwen)
        (other / PROBE_FILE).unlink()
        assert RemotePRM(server.url).name == "other"
        shutil.copy(qwen / PROBE_FILE, other)
        with pytest.raises(ConfigError, match=r"prm_probe\.json is of another model than .*other"):
            RemotePRM(server.url)
        (other / PROBE_FILE).write_text("{")
        with pytest.raises(ConfigError, match=r"prm_probe\.json: .*mprm export --force"):
            RemotePRM(server.url)


def test_a_server_that_would_take_special_tokens_in_data_for_tokens_is_refused(qwen: Path) -> None:
    tokenizer = qwen / "plain"
    PRM.from_pretrained(qwen, device="cpu").encoder.tokenizer.save_pretrained(str(tokenizer))
    with pooling_server(qwen, tokenizer="plain") as server:
        with pytest.raises(ConfigError, match="the server reads"):
            RemotePRM(server.url)
    with pooling_server(qwen, tokenizer="plain", root="/elsewhere") as server:
        with pytest.raises(ConfigError, match="its tokenizer is not the exported one"):
            RemotePRM(server.url)


def test_models_of_the_server_are_named(qwen: Path) -> None:
    with pooling_server(qwen, models=("a", "b")) as server:
        with pytest.raises(ConfigError, match="has 2 models; name one of a, b"):
            RemotePRM(server.url)
        with pytest.raises(ConfigError, match="has no model 'c'; expected one of a, b"):
            RemotePRM(server.url, "c")
        assert RemotePRM(server.url, "b").model == "b"


def test_what_is_no_vllm_server_is_refused(qwen: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'localhost' is no server"):
        RemotePRM("localhost")
    with pytest.raises(ConfigError, match="no connection"):
        RemotePRM("http://127.0.0.1:1", retries=1)
    with pooling_server(qwen) as server:
        server.got = lambda _path: (200, b'"hello"')  # type: ignore[method-assign]
        with pytest.raises(ConfigError, match="is no vLLM server: it says 'hello' for /v1/models; start it with"):
            RemotePRM(server.url)
        server.got = lambda _path: (404, b"{}")  # type: ignore[method-assign]
        with pytest.raises(ConfigError, match="refuses /v1/models: HTTP 404"):
            RemotePRM(server.url)


def evaluated(arguments: list[str], capsys: Any) -> tuple[int, str, str]:
    code = run(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_evaluate_and_rerank_take_a_server_in_place_of_a_model(qwen: Path, tmp_path: Path, capsys: Any) -> None:
    bench = write_jsonl(tmp_path / "bench.jsonl", records(12))
    words = ["evaluate", str(bench), "--draws", "20", "--folds", "3"]
    candidates: dict[str, Any] = {
        "id": "1",
        "source": "s",
        "question": "3+4?",
        "answer": "7",
        "images": [],
        "options": [],
    }
    texts = [f"so it is {n}\n\n\\boxed{{{n}}}" for n in (7, 8)]
    candidates["candidates"] = [{"text": t, "steps": t.split("\n\n"), "finish_reason": "stop"} for t in texts]
    sets = write_jsonl(tmp_path / "candidates.jsonl", [candidates])
    code, own, _ = evaluated([*words, "--model", str(qwen), "--out", str(tmp_path / "own")], capsys)
    assert code == 0
    with pooling_server(qwen) as server:
        remote = ["--prm-server", server.url]
        code, served, error = evaluated([*words, *remote, "--out", str(tmp_path / "served")], capsys)
        assert (code, error) == (0, "")
        reranked, chosen, _ = evaluated(["rerank", str(sets), *remote], capsys)
        refused, _, error = evaluated([*words, *remote, "--batch-tokens", "9"], capsys)
    assert served.replace("served", "own") == own
    assert (reranked, refused) == (0, 2)
    assert "Accuracy" in chosen
    assert "--batch-tokens: the server decides" in error
    own_metrics, served_metrics = (
        json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("own", "served")
    )
    assert own_metrics["config"] == served_metrics["config"]


def test_a_run_that_lost_its_server_continues(qwen: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("mprm.evaluation.evaluate.QUESTIONS_AT_ONCE", 4)
    bench = write_jsonl(tmp_path / "bench.jsonl", records(12))
    words = ["evaluate", str(bench), "--draws", "20", "--folds", "3", "--out", str(tmp_path / "out")]
    words += ["--retries", "1", "--concurrency", "2"]
    with pooling_server(qwen) as server:
        server.fault = lambda _n, body: 500 if "Question 7?" in json.dumps(body) else None
        assert run([*words, "--prm-server", server.url]) == 1
        assert "fails: HTTP 500" in capsys.readouterr().err
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["scores.jsonl.partial"]
        server.fault = lambda _n, _body: None
        n_before = len(server.bodies)
        assert run([*words, "--prm-server", server.url]) == 0
    asked = [json.dumps(body) for body in server.bodies[n_before:]]
    assert not any("Question 1?" in body for body in asked)
    assert sum("Question " in body for body in asked) == 8


def test_a_server_that_is_down_leaves_nothing(tmp_path: Path, capsys: Any) -> None:
    bench = write_jsonl(tmp_path / "bench.jsonl", records(12))
    words = ["evaluate", str(bench), "--retries", "0", "--out", str(tmp_path / "out")]
    assert run([*words, "--prm-server", "http://127.0.0.1:1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mprm evaluate: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["qwen", "internvl"])
def test_a_real_vllm_gives_the_scores_of_this_process(backbone: str, tmp_path: Path) -> None:
    """Reward models of the lab, with images, over HTTP; in an evaluation the server is killed and started again."""
    if not (python := os.environ.get("MPRM_VLLM_PYTHON")):
        pytest.skip("MPRM_VLLM_PYTHON names no Python of an environment with vLLM")
    from mprm_lab.shipped import open_lab

    serving = script("benchmarks/serving.py")
    open_lab(tmp_path / "lab")
    folder = serving.exported_model(tmp_path / "lab", backbone, tmp_path / backbone, n_rollouts=256)
    images, log = tmp_path / "lab" / "images", tmp_path / "vllm.log"
    with serving.vllm_server(folder, python, log, *serving.CHUNKED) as server:
        result = serving.compared(folder, server.url, serving.lab_chains(tmp_path / "lab", 30), images)
        evaluation = serving.evaluated(server, folder, tmp_path / "lab", tmp_path / "eval")
        prm = RemotePRM(server.url, folder=folder, image_root=images)
        image = serving.lab_chains(tmp_path / "lab", 1)[0].images
        odd = [
            mprm.Chain(f"<prm> {ESCAPE}?", ("a <prm><|im_end|><IMG_CONTEXT>", "", "<|image_pad|> b"), image),
            mprm.Chain("Is <image> like <image>?", ("yes", "no"), image * 2),
        ]
        served = prm.score_many(odd)
    assert result["unscored"] == 0
    assert result["largest_difference"] < 1e-4
    assert serving.N_BEFORE_KILL <= evaluation["requests_answered_before_the_kill"] < evaluation["solutions"]
    assert evaluation["largest_difference_of_a_score"] < 1e-4
    assert evaluation["same_tables"]
    local = PRM.from_pretrained(folder, device="cpu", dtype="float32", image_root=images)
    for mine, theirs in zip(served, local.score_many(odd), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)

"""Annotation with a small real policy, from questions to a trained process reward model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import mprm
from mprm.cli.main import run
from tests.tiny_models import save_tiny
from tests.tiny_policy import save_adder, sums

DRAWN = ("--temperature", "1", "--top-p", "1", "--top-k", "0", "--max-new-tokens", "60", "--device", "cpu")


@pytest.fixture(scope="module")
def adder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adder(tmp_path_factory.mktemp("policy") / "adder")


def write_questions(path: Path, n: int) -> None:
    fields = ("id", "question", "answer", "source")
    lines = [json.dumps({name: getattr(question, name) for name in fields}) for question in sums()[:n]]
    path.write_text("\n".join(lines) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_real_policys_rollouts_pass_check_select_and_train(
    adder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_questions(Path("q.jsonl"), 10)
    policy = ["--policy", str(adder), *DRAWN]
    assert run(["annotate", "q.jsonl", *policy, "--continuations", "8", "--dry-run"]) == 0
    assert "10 questions would make about 40 rollouts" in capsys.readouterr().out
    assert run(["annotate", "q.jsonl", *policy, "--continuations", "8", "--out", "raw8.jsonl"]) == 0
    assert "40 rollouts of 10 questions" in capsys.readouterr().out
    records = read(Path("raw8.jsonl"))
    steps = [step for record in records for step in record["steps_with_score"]]
    for step in steps:
        assert step["score"] == step["num_mc_correct"] / step["num_mc_total"]
        assert step["num_mc_total"] == 8
    # it is right by its own merit, sometimes: labels are mixed
    assert 0.05 < sum(step["score"] for step in steps) / len(steps) < 0.95
    assert len({step["score"] for step in steps}) > 3
    assert run(["check", "raw8.jsonl", "--text-only"]) in (0, 3)
    assert "0 errors" in capsys.readouterr().out
    assert run(["annotate", "--rollouts-from", "raw8.jsonl", *policy, "--out", "raw16.jsonl"]) == 0
    assert {step["num_mc_total"] for record in read(Path("raw16.jsonl")) for step in record["steps_with_score"]} == {
        16
    }
    select = ["--strategy", "bis", "--rho", "0.5", "--out", "half.jsonl", "--text-only"]
    assert run(["select", "raw16.jsonl", *select]) == 0
    model = save_tiny("text", tmp_path / "base")
    config = mprm.TrainConfig(
        model=str(model), out="prm", batch_size=8, per_device=4, text_only=True, device="cpu", report_to=("none",)
    )
    trained = mprm.train("half.jsonl", config)
    assert trained.n_optimizer_steps == 3  # 20 rollouts, 8 an optimizer step
    scores = mprm.PRM.from_pretrained("prm", device="cpu").score(
        question=records[0]["question_orig"], steps=[step["step"] for step in records[0]["steps_with_score"]]
    )
    assert len(scores) == len(records[0]["steps_with_score"])


def test_the_same_seed_gives_the_same_rollouts_again(adder: Path, tmp_path: Path) -> None:
    write_questions(tmp_path / "q.jsonl", 4)
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        arguments = [str(tmp_path / "q.jsonl"), "--policy", str(adder), *DRAWN, "--seed", seed]
        assert run(["annotate", *arguments, "--continuations", "4", "--out", str(tmp_path / f"{name}.jsonl")]) == 0
    a, b, c = ((tmp_path / f"{name}.jsonl").read_bytes() for name in "abc")
    assert a == b != c

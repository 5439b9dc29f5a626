"""Read-outs: a reward model's scores together with a policy's log-probabilities."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")

import mprm
from mprm.cli.main import run
from mprm.data import Chain, prompt_of
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError, InputNotFoundError
from mprm.evaluation.readout import INPUTS, MAX_LOGIT, ReadOut, fit_logistic
from mprm.models import PRMConfig, load_backbone
from mprm.models.logprobs import StepLogProbs, step_features
from tests.conftest import raw_record, write_jsonl
from tests.tiny_models import save_tiny

CHAINS = [
    Chain("1+1?", ("It is 2.", "So \\boxed{2}.")),
    Chain("1+1?", ("It is 2.", "So \\boxed{3}.", "Done <prm> here.")),
    Chain("Which? Choices: (A) yes (B) no", ("A.",)),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("text", tmp_path_factory.mktemp("policy"), seed=1)


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    backbone = save_tiny("text", folder / "backbone", seed=2)
    mprm.PRM.from_pretrained(backbone, PRMConfig(), device="cpu").save_pretrained(folder / "prm")
    return folder / "prm"


def rollouts(path: Path, n: int = 40, *, lowest: int = 0) -> Path:
    """Wrong steps say "no", right ones "yes"."""
    rng = np.random.default_rng(0)
    records = []
    for number in range(n):
        scores = [float(score) for score in rng.integers(lowest, 2, 3)]
        record = raw_record(scores, number=number)
        del record["image"]
        for index, (step, score) in enumerate(zip(record["steps_with_score"], scores, strict=True)):
            step["step"] = f"{'yes' if score else 'no'} {number} {index}"
        records.append(record)
    return write_jsonl(path, records)


class Judge:
    """Scores what says "yes" at most a little higher."""

    name, fingerprint = "judge", "1"

    def score_many(self, chains, *, progress=None):
        return [[0.6 if "yes" in step else 0.5 for step in chain.steps] for chain in chains]


@pytest.mark.parametrize("kind", ["text", "qwen2_5_vl", "internvl"])
def test_log_probabilities_are_those_of_what_the_policy_would_have_written(kind: str, tmp_path: Path) -> None:
    from PIL import Image

    path = save_tiny(kind, tmp_path / kind)
    Image.new("RGB", (60, 60), "red").save(tmp_path / "a.png")
    images = () if kind == "text" else ("a.png",)
    chains = [Chain(chain.question, chain.steps, images) for chain in CHAINS]
    reader = StepLogProbs.from_pretrained(path, device="cpu", image_root=tmp_path, tokens_per_batch=700)
    found = reader.of_tokens(chains)
    backbone = load_backbone(path, device="cpu")
    pictures = [Image.open(tmp_path / image).convert("RGB") for image in images]
    for chain, steps in zip(chains, found, strict=True):
        options = ("yes", "no") if "Choices" in chain.question else ()
        prompt = prompt_of(Question(id="", question=chain.question, answer="", options=options))
        start = len(backbone.chat_ids(prompt, pictures))
        for index, step in enumerate(steps):
            prefix = "\n\n".join(chain.steps[: index + 1])
            inputs = backbone.encode_chat(prompt, pictures, prefix=prefix)
            with torch.no_grad():
                logps = backbone.model(**inputs).logits[0].double().log_softmax(-1)
            ids = inputs["input_ids"][0]
            expected = [float(logps[at - 1, ids[at]]) for at in range(start, len(ids))]
            np.testing.assert_allclose(step, expected, atol=1e-4)
            start = len(ids)


@given(st.lists(st.lists(st.floats(-30, 0), min_size=1, max_size=4), min_size=1, max_size=5))
def test_features_are_mean_minimum_and_the_minimum_so_far(steps: list[list[float]]) -> None:
    table = step_features([np.array(step) for step in steps])
    for index, step in enumerate(steps):
        assert table[index, 0] == pytest.approx(sum(step) / len(step))
        assert table[index, 1] == min(step)
        assert table[index, 2] == min(min(own) for own in steps[: index + 1])


def test_features_of_no_steps_and_of_an_empty_one() -> None:
    assert step_features([]).shape == (0, 3)
    assert step_features([np.empty(0), np.array([-1.0])]).tolist() == [[0, 0, 0], [-1, -1, -1]]


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_the_fit_is_the_minimum_of_the_penalized_likelihood(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 3)) * [1.0, 10.0, 0.1] + [0, 5, -1]
    y = (rng.random(60) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)
    y[:2] = 0, 1

    def loss(weights: np.ndarray, intercept: float) -> float:
        z = X @ weights + intercept
        return float(np.logaddexp(0, z).sum() - y @ z + 0.5 * ((weights * X.std(axis=0)) ** 2).sum())

    weights, intercept = fit_logistic(X, y)
    best = loss(weights, intercept)
    for change in rng.normal(size=(20, 4)) * 0.01:
        assert loss(weights + change[:3] / X.std(axis=0), intercept + change[3]) >= best - 1e-9


def test_separable_and_constant_features_have_finite_weights() -> None:
    rng = np.random.default_rng(0)
    for constant in (1.0, 0.1, 0.7, -3.3):
        X = np.column_stack([np.arange(100) >= 50, np.full(100, constant), constant + 1e-9 * rng.random(100)])
        weights, intercept = fit_logistic(X.astype(float), (X[:, 0] > 0).astype(float))
        assert 0 < weights[0] < 20
        assert weights[1:].tolist() == [0, 0]
        assert abs(intercept) < 20


def test_a_read_out_is_fitted_saved_and_gives_the_same_scores_again(policy: Path, tmp_path: Path) -> None:
    path = rollouts(tmp_path / "r.jsonl")
    reader, out = StepLogProbs.from_pretrained(policy, device="cpu"), tmp_path / "readout.json"
    fitted = mprm.readout(path, Judge(), reader, str(out), n=30)
    assert fitted.fitted.fitted_on["n_solutions"] == 30
    assert fitted.fitted.weights["score"] > 0
    assert fitted.fitted.fitted_on["auc"]["model"] == fitted.fitted.fitted_on["auc"]["read-out"] == 1.0
    chains = [rollout.chain for rollout in mprm.open_corpus(path)][:5]
    scores = fitted.score_many(chains)
    assert ReadOut.from_file(out, Judge(), device="cpu").score_many(chains) == scores
    for chain, row in zip(chains, scores, strict=True):
        logit = math.log(0.6 / 0.4)
        own = step_features(reader.of_tokens([chain])[0])
        for step, score, rest in zip(chain.steps, row, own, strict=True):
            values = dict(zip(INPUTS, [logit if "yes" in step else 0.0, *rest], strict=True))
            z = sum(fitted.fitted.weights[name] * value for name, value in values.items()) + fitted.fitted.intercept
            assert score == pytest.approx(1 / (1 + math.exp(-z)))
    with pytest.raises(mprm.MprmError, match=r"readout\.json"):
        mprm.readout(path, Judge(), reader, str(out))
    with pytest.raises(ConfigError, match=r"r\.jsonl"):
        mprm.readout(path, Judge(), reader, str(path), force=True)


def test_steps_without_a_score_have_none_and_certain_ones_a_finite_logit(policy: Path) -> None:
    class Certain(Judge):
        def score_many(self, chains, *, progress=None):
            return [[1.0, 0.0, math.nan][: len(chain.steps)] for chain in chains]

    from mprm.evaluation.readout import Fitted

    reader = StepLogProbs.from_pretrained(policy, device="cpu")
    weights = dict.fromkeys(INPUTS, 0.0) | {"score": 1.0}
    known = {"model": "judge", "model_fingerprint": "1", "policy": str(policy), "policy_fingerprint": "2"}
    own = ReadOut(Certain(), reader, Fitted(**known, intercept=0.0, weights=weights, fitted_on={}))
    first, second, third = own.score_many([Chain("?", ("a", "b", "c"))])[0]
    assert (first, second) == pytest.approx((1 / (1 + math.exp(-MAX_LOGIT)), 1 / (1 + math.exp(MAX_LOGIT))))
    assert math.isnan(third)


def test_rollouts_that_the_model_was_trained_on_are_left_out(policy: Path, tmp_path: Path, capsys) -> None:
    every = rollouts(tmp_path / "r.jsonl")
    few = tmp_path / "few.jsonl"
    few.write_text("".join(every.read_text().splitlines(keepends=True)[:16]))
    run_folder = tmp_path / "run"
    training = {"epochs": 1, "batch_size": 8, "device": "cpu", "text_only": True, "report_to": ("none",)}
    mprm.train(str(few), model=str(policy), out=str(run_folder), **training)
    capsys.readouterr()
    words = ["readout", str(every), "--model", str(run_folder), "--policy", str(policy), "--device", "cpu"]
    out = tmp_path / "readout.json"
    assert run([*words, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "of 24 solutions" in said
    assert "16 more were left out: the model was trained on them" in said
    assert run(["readout", str(few), *words[2:], "--out", str(tmp_path / "none.json")]) == 1
    assert "trained on all of these rollouts" in capsys.readouterr().err
    assert not (tmp_path / "none.json").exists()
    assert run([*words, "--out", str(out)]) == 1  # it exists
    capsys.readouterr()
    evaluate = ["evaluate", str(every), "--model", str(run_folder), "--device", "cpu", "--draws", "20"]
    assert run([*evaluate, "--readout", str(out), "--out", str(tmp_path / "e")]) == 0
    assert run([*evaluate, "--out", str(tmp_path / "plain")]) == 0
    scores = [(tmp_path / name / "scores.jsonl").read_text() for name in ("e", "plain")]
    assert scores[0] != scores[1]
    assert "with" in json.loads((tmp_path / "e" / "metrics.json").read_text())["models"][0]["name"]


def test_another_model_another_policy_and_what_is_no_read_out_are_refused(
    policy: Path, reward_model: Path, tmp_path: Path, capsys
) -> None:
    path, out = rollouts(tmp_path / "r.jsonl"), tmp_path / "readout.json"
    reader = StepLogProbs.from_pretrained(policy, device="cpu")
    mprm.readout(path, mprm.PRM.from_pretrained(reward_model, device="cpu"), reader, str(out), n=20)
    with pytest.raises(ConfigError, match="was fitted to prm, and judge has other weights"):
        ReadOut.from_file(out, Judge(), device="cpu")
    model = mprm.PRM.from_pretrained(reward_model, device="cpu")
    other = save_tiny("text", tmp_path / "other", seed=7)
    with pytest.raises(ConfigError, match=r"the policy in .* has changed since"):
        ReadOut.from_file(out, model, policy=other, device="cpu")
    with pytest.raises(InputNotFoundError, match="there is no such file; mprm readout writes one"):
        ReadOut.from_file(tmp_path / "none.json", model)
    for text in ("{}", "no", '{"weights": 1}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(DataError, match=r"bad\.json is not what mprm readout writes"):
            ReadOut.from_file(tmp_path / "bad.json", model)
    fitted = json.loads(out.read_text())
    del fitted["weights"]["mean"]
    (tmp_path / "bad.json").write_text(json.dumps(fitted))
    with pytest.raises(DataError, match="has weights of score, minimum, running_minimum; expected"):
        ReadOut.from_file(tmp_path / "bad.json", model)
    words = ["evaluate", str(path), "--readout", str(out)]
    assert run([*words, "--scores", str(out)]) == 2
    assert "readout is for a model's scores, and no model is named" in capsys.readouterr().err
    only_right = rollouts(tmp_path / "right.jsonl", 12, lowest=1)
    with pytest.raises(DataError, match=r"right\.jsonl: 36 of 36 steps are positive, 0 are beyond"):
        mprm.readout(only_right, model, reader)


def test_force_replaces_read_outs_alone(policy: Path, tmp_path: Path, capsys) -> None:
    path, out = rollouts(tmp_path / "r.jsonl"), tmp_path / "readout.json"
    reader = StepLogProbs.from_pretrained(policy, device="cpu")
    for _ in range(2):
        mprm.readout(path, Judge(), reader, out, n=20, force=True)
    before = (policy / "config.json").read_bytes()
    with pytest.raises(ConfigError, match=r"config\.json exists and is no read-out"):
        mprm.readout(path, Judge(), reader, policy / "config.json", n=20, force=True)
    assert (policy / "config.json").read_bytes() == before
    mprm.PRM.from_pretrained(policy, PRMConfig(), device="cpu").save_pretrained(tmp_path / "prm")
    model = mprm.PRM.from_pretrained(tmp_path / "prm", device="cpu")
    used = tmp_path / "used.jsonl"
    mprm.readout(path, model, reader, used, n=20)
    before = used.read_bytes()
    words = [str(path), "--model", str(tmp_path / "prm"), "--readout", str(used), "--device", "cpu", "--force"]
    assert run(["score", *words, "--out", str(used)]) == 2
    assert "used.jsonl would be replaced, and is one of the inputs" in capsys.readouterr().err
    folder = tmp_path / "e"
    folder.mkdir()
    inside = folder / "metrics.json"
    inside.write_bytes(before)
    assert run(["evaluate", *words[:3], "--readout", str(inside), *words[5:], "--out", str(folder)]) == 2
    assert used.read_bytes() == inside.read_bytes() == before


def test_what_else_cannot_be_a_read_out(policy: Path, reward_model: Path, tmp_path: Path) -> None:
    path, out = rollouts(tmp_path / "r.jsonl"), tmp_path / "readout.json"
    with pytest.raises(ConfigError, match="is a reward model, and no policy"):
        StepLogProbs.from_pretrained(reward_model, device="cpu")
    reader = StepLogProbs.from_pretrained(policy, device="cpu")
    with pytest.raises(ConfigError, match=r"expected a model, such as mprm\.PRM, and then a policy"):
        mprm.readout(path, Judge(), str(policy))
    mprm.readout(path, Judge(), reader, out, n=20)
    for name, value in (("mean", 1e300), ("extra", 1.0)):
        fitted = json.loads(out.read_text())
        fitted["weights"][name] = value
        (tmp_path / "bad.json").write_text(json.dumps(fitted))
        with pytest.raises(DataError, match="fit it again"):
            ReadOut.from_file(tmp_path / "bad.json", Judge(), device="cpu")
    fitted = json.loads(out.read_text()) | {"policy": str(tmp_path / "moved")}
    (tmp_path / "moved.json").write_text(json.dumps(fitted))
    with pytest.raises(ConfigError, match=r'moved is no checkpoint.*"policy" in .*moved\.json says where it is'):
        ReadOut.from_file(tmp_path / "moved.json", Judge(), device="cpu")
    assert ReadOut.from_file(tmp_path / "moved.json", Judge(), policy=policy, device="cpu").score_many(CHAINS)

    class Odd(Judge):
        def __init__(self, score: float, n: int = 0) -> None:
            self.score, self.n = score, n

        def score_many(self, chains, *, progress=None):
            return [[self.score] * (len(chain.steps) + self.n) for chain in chains]

    for model, message in ((Odd(1.5), "gives a step the score 1.5"), (Odd(0.5, 1), "one score for each step")):
        with pytest.raises(DataError, match=message):
            mprm.readout(path, model, reader, n=20)
    with pytest.raises(DataError, match="0 of 0 steps are positive, 60 are beyond the model's length"):
        mprm.readout(path, Odd(math.nan), reader, n=20)
    run_folder = tmp_path / "run"
    (run_folder / "data").mkdir(parents=True)
    (run_folder / "data" / "train.arrow").write_text("no")
    with pytest.raises(DataError, match=r"train\.arrow is damaged"):
        mprm.readout(path, mprm.PRM.from_pretrained(reward_model, device="cpu"), reader, run=run_folder)


def test_the_policy_reads_no_further_than_the_model_and_than_its_own_length(policy: Path) -> None:
    from mprm.evaluation.readout import Fitted

    reader = StepLogProbs.from_pretrained(policy, device="cpu")
    chain = Chain("1+1?", ("It is 2.", "So \\boxed{2}.", "Done."))
    [whole] = reader.of_tokens([chain])
    n_prompt = len(reader._tokenized(chain)[0].input_ids) - sum(map(len, whole))
    reader.model.config.get_text_config().max_position_embeddings = n_prompt + len(whole[0]) + 2
    [short] = reader.of_tokens([chain])
    np.testing.assert_allclose(short[0], whole[0], atol=1e-5)
    np.testing.assert_allclose(short[1][:2], whole[1][:2], atol=1e-5)
    assert np.isnan(short[1][2:]).all()
    assert np.isnan(short[2]).all()

    class Short(Judge):
        def score_many(self, chains, *, progress=None):
            return [[0.5, math.nan, math.nan] for _ in chains]

    read: list[Chain] = []

    class Policy:
        name, fingerprint = "policy", "2"

        def of_tokens(self, chains):
            read.extend(chains)
            return reader.of_tokens(chains)

    weights = dict.fromkeys(INPUTS, 0.1)
    known = {"model": "judge", "model_fingerprint": "1", "policy": str(policy), "policy_fingerprint": "2"}
    fitted = Fitted(**known, intercept=0.0, weights=weights, fitted_on={})
    for scorer, n_scored in ((Short(), 1), (Judge(), 1)):  # the policy's own length leaves one step too
        [row] = ReadOut(scorer, Policy(), fitted).score_many([chain])
        assert [not math.isnan(score) for score in row] == [True] * n_scored + [False] * (3 - n_scored)
    assert [len(each.steps) for each in read] == [1, 3]


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_rollouts_with_other_images_are_not_those_that_were_trained_on(lora_rank: int, tmp_path: Path) -> None:
    from PIL import Image

    from tests.tiny_rollouts import bar_records, write_records

    backbone = save_tiny("internvl", tmp_path / "internvl")
    records = bar_records(12, tmp_path / "images")
    for index, record in enumerate(records):  # both labels, and other images than those that were trained on
        record["steps_with_score"][-1]["score"] = float(index % 2)
    trained = write_records(tmp_path / "trained.jsonl", records)
    pixels = {"image_root": str(tmp_path / "images"), "device": "cpu"}
    training = {"batch_size": 4, "report_to": ("none",), "lora_rank": lora_rank, **pixels}
    mprm.train(str(trained), model=str(backbone), out=str(tmp_path / "run"), **training)
    prm = mprm.PRM.from_pretrained(tmp_path / "run", **pixels)
    reader = StepLogProbs.from_pretrained(backbone, **pixels)
    with pytest.raises(DataError, match="the model was trained on all of these rollouts"):
        mprm.readout(trained, prm, reader)
    for record in records:
        with Image.open(tmp_path / "images" / record["image"]) as image:
            image.save(tmp_path / "images" / f"other-{record['image']}")
        record["image"] = f"other-{record['image']}"
    others = write_records(tmp_path / "others.jsonl", records)
    assert mprm.readout(others, prm, reader).fitted.fitted_on["n_solutions"] == 12
    for record in records[:2]:
        record["image"] = f"missing-{record['image']}"
    missing = write_records(tmp_path / "missing.jsonl", records)
    with pytest.raises(DataError, match=r"missing\.jsonl:[12]: image .*missing-other.* does not exist"):
        mprm.readout(missing, prm, reader)
    (tmp_path / "run" / "data" / "train.arrow").unlink()
    with pytest.raises(mprm.MprmError, match=r"2 of 12 images are not under(.|\n)*missing\.jsonl:1"):
        mprm.readout(missing, prm, reader)

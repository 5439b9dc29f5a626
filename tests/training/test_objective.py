"""Label schemes and losses: each formula in plain Python, and training with it on a small real model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")
stats = pytest.importorskip("scipy.stats")

import mprm
from mprm.cli.main import run
from mprm.config import Config
from mprm.errors import ConfigError, DataError
from mprm.models import PRM
from mprm.training import (
    LABELS,
    StepBatch,
    StepCounts,
    TrainConfig,
    beta_binomial_loss_sum,
    ranking_loss_sum,
    step_loss_sum,
    train,
)
from mprm.training.objective import IGNORED, Objective, fitted_prior
from tests.tiny_models import save_tiny
from tests.tiny_rollouts import bar_records, write_records
from tests.training.launched import optimizer_steps
from tests.training.test_train import config_for
from tests.training.test_trainer import assert_same

ks = st.lists(st.integers(0, 16), min_size=1, max_size=9)


def counts(ks: list[int], **fields: Any) -> StepCounts:
    return StepCounts(scores=[k / 16 for k in ks], n_mc=[16] * len(ks), **fields)


# Labels


@given(ks=ks, tau=st.sampled_from([0.0, 1 / 16, 0.5]))
def test_a_monotone_label_is_that_of_the_best_step_from_here_on(ks: list[int], tau: float) -> None:
    labels = LABELS["monotone"](counts(ks, tau=tau))
    assert labels == [float(max(ks[j:]) / 16 > tau) for j in range(len(ks))]
    assert all(a >= b for a, b in zip(labels, LABELS["hard"](counts(ks, tau=tau)), strict=True))


@given(pairs=st.lists(st.tuples(st.integers(0, 16), st.integers(1, 40)), min_size=1, max_size=9))
def test_the_monotone_fit_is_that_of_another_library(pairs: list[tuple[int, int]]) -> None:
    isotonic = pytest.importorskip("sklearn.isotonic")
    scores, n_mc = [k / 16 for k, _ in pairs], [n for _, n in pairs]
    fit = isotonic.IsotonicRegression(increasing=False).fit_transform(range(len(pairs)), scores, sample_weight=n_mc)
    assert LABELS["monotone-soft"](StepCounts(scores=scores, n_mc=n_mc)) == pytest.approx(fit.tolist(), abs=1e-9)


@given(ks=ks, a=st.floats(0.2, 5), b=st.floats(0.2, 5), reliable=st.sampled_from([0.1, 0.5, 0.9]))
def test_a_posterior_label_is_the_probability_that_the_rate_is_high(
    ks: list[int], a: float, b: float, reliable: float
) -> None:
    labels = LABELS["posterior"](counts(ks, prior=(a, b), reliable=reliable))
    assert labels == pytest.approx([stats.beta.sf(reliable, a + k, b + 16 - k) for k in ks], abs=1e-9)


@given(ks=ks, accuracy=st.sampled_from([0.0, 0.25, 0.75, 1.0]))
def test_scan_softens_two_steps_before_the_first_zero_and_cuts_what_follows(ks: list[int], accuracy: float) -> None:
    labels = LABELS["scan"](counts(ks, accuracy=accuracy))
    first = ks.index(0) if 0 in ks else len(ks)
    for j, (k, label) in enumerate(zip(ks, labels, strict=True)):
        if j > first:
            assert label == IGNORED
        elif j == first:
            assert label == 0
        elif first < len(ks) and j >= first - 2 and accuracy:
            assert label == min(1, k / 16 / accuracy)
        else:
            assert label == 1


def test_the_prior_that_posterior_labels_need_is_fitted_to_the_counts(tmp_path: Path) -> None:
    from mprm.data.corpus import open_corpus
    from mprm.theory import fit_beta
    from tests.conftest import raw_record, write_jsonl

    rng = np.random.default_rng(0)
    n = np.where(rng.random((300, 5)) < 0.5, 4, 16)  # as with mprm annotate --adaptive
    k = rng.binomial(n, rng.beta(2, 0.5, n.shape))
    records = [raw_record((a / b).tolist(), number=i) for i, (a, b) in enumerate(zip(k, n, strict=True))]
    for record, ks, ns in zip(records, k.tolist(), n.tolist(), strict=True):
        for step, k_j, n_j in zip(record["steps_with_score"], ks, ns, strict=True):
            step |= {"num_mc_correct": k_j, "num_mc_total": n_j}
    found = fitted_prior(open_corpus(write_jsonl(tmp_path / "a.jsonl", records)))
    assert found == pytest.approx(fit_beta(k.ravel(), n.ravel()), rel=1e-6)
    assert found == pytest.approx((2, 0.5), rel=0.3)
    alike = open_corpus(write_jsonl(tmp_path / "b.jsonl", [raw_record([1.0, 1.0])]))
    with pytest.raises(
        DataError, match=r"--labels posterior: every continuation succeeds.*; give a and b with --prior"
    ):
        fitted_prior(alike)


# Losses


def batch_of(labels: list[float], chains: list[int], n_mc: list[int] | None = None) -> StepBatch:
    return StepBatch(
        labels=torch.tensor(labels, dtype=torch.float64),
        n_mc=torch.tensor(n_mc or [16] * len(labels)),
        chains=torch.tensor(chains),
    )


def concentration_of(z: float) -> float:
    return 16 * math.exp(6 * math.tanh(z / 6))


steps = st.lists(
    st.tuples(st.integers(0, 16), st.floats(-12, 12), st.floats(-12, 12), st.floats(-20, 20)), min_size=1, max_size=8
)


@settings(deadline=None)
@given(steps=steps)
def test_the_likelihood_and_its_gradient_are_those_of_scipy(steps: list[tuple[int, float, float, float]]) -> None:
    batch = batch_of([k / 16 for k, *_ in steps], [0] * len(steps))
    logits = torch.tensor([row[1:] for row in steps], dtype=torch.float64, requires_grad=True)

    def likelihood(values: np.ndarray) -> float:
        total = 0.0
        for (k, *_), (yes, no, z) in zip(steps, values, strict=True):
            mean, c = 1 / (1 + math.exp(no - yes)), concentration_of(z)
            total += stats.betabinom.logpmf(k, 16, c * mean, c * (1 / (1 + math.exp(yes - no))))
        return -total

    loss = beta_binomial_loss_sum(logits, batch)
    assert loss.item() == pytest.approx(likelihood(logits.detach().numpy()), rel=1e-6, abs=1e-6)
    loss.backward()
    assert torch.isfinite(logits.grad).all()
    step, values = 2e-3, logits.detach().numpy()
    for index in np.ndindex(*logits.shape):

        def moved(by: float, index: tuple[int, ...] = index) -> float:
            other = values.copy()
            other[index] += by * step
            return beta_binomial_loss_sum(torch.tensor(other), batch).item()

        slope = (8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12 * step)  # to the fourth order
        assert logits.grad[index].item() == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_a_step_without_continuations_that_are_known_to_matter_adds_nothing() -> None:
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    whole = beta_binomial_loss_sum(logits, batch_of([0.5, 0.25, IGNORED], [0, 0, 1]))
    assert whole.item() == pytest.approx(beta_binomial_loss_sum(logits[:2], batch_of([0.5, 0.25], [0, 0])).item())
    assert beta_binomial_loss_sum(logits[:1], batch_of([0.0], [0], [0])).item() == pytest.approx(0, abs=1e-12)


def plain_ranking(margins: list[float], labels: list[float], zeta: float) -> float:
    """Of one chain, term by term."""
    right = [0.0, *(q for q, y in zip(margins, labels, strict=True) if y == 1)]
    wrong = sum(math.exp(q + zeta) for q, y in zip(margins, labels, strict=True) if y == 0)
    terms = [
        math.log(math.exp(right[t]) / (sum(math.exp(q) for q in right[: t + 1]) + wrong)) for t in range(len(right))
    ]
    return -sum(terms) / len(terms)


chains = st.lists(
    st.lists(st.tuples(st.floats(-8, 8), st.sampled_from([1.0, 0.0, IGNORED])), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


@given(chains=chains, zeta=st.sampled_from([0.0, 2.0, 4.0]))
def test_the_ranking_loss_is_the_sum_of_its_terms(chains: list[list[tuple[float, float]]], zeta: float) -> None:
    flat = [(number, *step) for number, chain in enumerate(chains) for step in chain]
    margins = torch.tensor([margin for _, margin, _ in flat], requires_grad=True)
    logits = torch.stack([margins / 2, -margins / 2], dim=1)
    loss = ranking_loss_sum(logits, batch_of([y for *_, y in flat], [number for number, *_ in flat]), zeta=zeta)
    expected = 0.0
    for chain in chains:
        used = [(margin, y) for margin, y in chain if y != IGNORED]
        expected += plain_ranking([m for m, _ in used], [y for _, y in used], zeta) if used else 0.0
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    loss.backward()
    assert torch.isfinite(margins.grad).all()


def test_the_ranking_loss_is_lower_where_values_rise_and_wrong_steps_are_below() -> None:
    def loss(*margins: float) -> float:
        logits = torch.tensor([[margin, 0.0] for margin in margins])
        return ranking_loss_sum(logits, batch_of([1.0, 1.0, 0.0], [0] * 3), zeta=4.0).item()

    assert loss(2, 4, -6) < loss(4, 2, -6) < loss(4, 2, 0)


@given(weight=st.integers(1, 5), labels=st.lists(st.sampled_from([0.0, 1.0, 0.25, IGNORED]), min_size=1, max_size=9))
def test_a_negative_weight_is_as_if_negative_steps_came_so_often(weight: int, labels: list[float]) -> None:
    logits = torch.randn(len(labels), 2, generator=torch.Generator().manual_seed(len(labels)))
    loss = step_loss_sum(logits, torch.tensor(labels), negative_weight=float(weight)).item()
    expected, n_items = 0.0, 0.0
    for z, y in zip((logits[:, 0] - logits[:, 1]).tolist(), labels, strict=True):
        if y >= 0:
            p = 1 / (1 + math.exp(-z))
            expected -= y * math.log(p) + weight * (1 - y) * math.log(1 - p)
            n_items += y + weight * (1 - y)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-5)
    config = TrainConfig(model="m", out="o", negative_weight=float(weight))
    found = Objective(config).n_items(np.array([*labels, 1.0, 0.0, IGNORED]), np.array([len(labels), 2, 1]))
    assert found.tolist() == pytest.approx([n_items, 1.0 + weight, 0.0])
    chains = Objective(TrainConfig(model="m", out="o", loss="ranking"))
    assert chains.n_items(np.array([1.0, 0.0, IGNORED]), np.array([2, 1])).tolist() == [1.0, 0.0]


# Training


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each backbone and rollouts whose steps say how many continuations they have."""
    root = tmp_path_factory.mktemp("objective")
    for kind in ("qwen2_5_vl", "internvl"):
        save_tiny(kind, root / kind)
    records = bar_records(12, root / "images")
    for record in records:
        for step in record["steps_with_score"]:
            step |= {"num_mc_total": 16, "num_mc_correct": round(16 * step["score"])}
    write_records(root / "images.jsonl", records)
    return root


OBJECTIVES: dict[str, dict[str, Any]] = {
    "monotone": {"labels": "monotone"},
    "monotone-soft": {"labels": "monotone-soft"},
    "posterior": {"labels": "posterior", "prior": (1.0, 1.0)},
    "fitted": {"labels": "posterior"},
    "scan": {"labels": "scan"},
    "negative": {"negative_weight": 3.0},
    "beta-binomial": {"loss": "beta-binomial"},
    "ranking": {"loss": "ranking"},
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_label_scheme_and_loss_trains(name: str, folder: Path, tmp_path: Path) -> None:
    options = {"epochs": 12, "batch_size": 6, "learning_rate": 3e-3, **OBJECTIVES[name]}
    trained = train(str(folder / "images.jsonl"), config_for("internvl", folder, tmp_path / "run", **options))
    assert trained.is_finished
    losses = [
        entry["loss"]
        for entry in json.loads((tmp_path / "run/trainer_state.json").read_text())["log_history"]
        if "loss" in entry
    ]
    assert np.mean(losses[-4:]) < np.mean(losses[:2])
    config = json.loads((tmp_path / "run/prm_config.json").read_text())
    assert config["loss"] == options.get("loss", "cross-entropy")
    assert config["labels"]["scheme"] == options.get("labels", "hard")
    prm = PRM.from_pretrained(tmp_path / "run", image_root=folder / "images", device="cpu")
    records = [json.loads(line) for line in (folder / "images.jsonl").read_text().splitlines()]
    chains = [
        mprm.Chain(r["question"], tuple(s["step"] for s in r["steps_with_score"]), (r["image"],)) for r in records
    ]
    scores = [score for row in prm.score_many(chains) for score in row]
    is_right = [step["score"] > 0 for record in records for step in record["steps_with_score"]]
    assert np.mean(np.array(scores)[is_right]) > np.mean(np.array(scores)[~np.array(is_right)])


@pytest.mark.parametrize("name", ["beta-binomial", "ranking", "scan", "negative"])
def test_no_loss_depends_on_micro_batches_or_packing(name: str, folder: Path, tmp_path: Path) -> None:
    found = []
    for per_device, pack in ((1, "tree"), (4, "tree"), (2, "none")):
        out = tmp_path / f"{per_device}-{pack}"
        optimizer_steps("qwen2_5_vl", folder, out, per_device, pack=pack, **OBJECTIVES[name])
        found.append(torch.load(out / "gradients.pt"))
    for other in found[1:]:
        assert_same(found[0], other)


def test_a_beta_binomial_model_has_concentrations_and_lower_bounds(folder: Path, tmp_path: Path, capsys: Any) -> None:
    options = {"epochs": 4, "loss": "beta-binomial"}
    out = tmp_path / "run"
    train(str(folder / "images.jsonl"), config_for("internvl", folder, out, **options))
    chains = [mprm.Chain("how long is bar 0?", ("the bar is 4 long", "the bar is 5 long"), ("0.png",))]
    prm = PRM.from_pretrained(out, image_root=folder / "images", device="cpu")
    lower = PRM.from_pretrained(out, image_root=folder / "images", device="cpu", lower_bound=1.0)
    [means], [concentrations], [bounds] = prm.score_many(chains), prm.concentrations(chains), lower.score_many(chains)
    assert all(c > 0 and abs(c - 16) > 1e-6 for c in concentrations)
    for mean, c, bound in zip(means, concentrations, bounds, strict=True):
        deviation = stats.beta(mean * c, (1 - mean) * c).std()
        assert bound == pytest.approx(max(0, mean - deviation), abs=1e-6)
    assert prm.fingerprint != lower.fingerprint
    # saved and loaded, it is the same; other models have no bound
    prm.save_pretrained(tmp_path / "copy")
    again = PRM.from_pretrained(tmp_path / "copy", image_root=folder / "images", device="cpu")
    assert again.concentrations(chains)[0] == pytest.approx(concentrations, abs=1e-5)
    train(str(folder / "images.jsonl"), config_for("internvl", folder, tmp_path / "plain", epochs=1))
    with pytest.raises(ConfigError, match="only a model of mprm train --loss beta-binomial has a lower bound"):
        PRM.from_pretrained(tmp_path / "plain", device="cpu", lower_bound=1.0)
    with pytest.raises(ConfigError, match="only a model of mprm train --loss beta-binomial has concentrations"):
        PRM.from_pretrained(tmp_path / "plain", device="cpu").concentrations(chains)
    candidate = {"id": "1", "source": "s", "question": "how long is bar 0?", "answer": "4", "images": ["0.png"]}
    candidate |= {"options": [], "candidates": [{"text": f"the bar is {n} long\n\n\\boxed{{{n}}}"} for n in (4, 5)]}
    write_records(tmp_path / "candidates.jsonl", [candidate])
    words = [
        "rerank",
        str(tmp_path / "candidates.jsonl"),
        "--model",
        str(out),
        "--image-root",
        str(folder / "images"),
    ]
    assert run([*words, "--lower-bound", "1", "--device", "cpu", "--out", str(tmp_path / "best")]) == 0
    assert json.loads((tmp_path / "best/metrics.json").read_text())["lower_bound"] == 1.0
    assert run([*words, "--lower-bound", "1", "--prm-server", "http://127.0.0.1:1"]) == 2
    assert "--lower-bound: the server decides" in capsys.readouterr().err


def test_counts_that_are_not_there_are_told(folder: Path, tmp_path: Path) -> None:
    records = [json.loads(line) for line in (folder / "images.jsonl").read_text().splitlines()]
    for record in records[3:]:
        for step in record["steps_with_score"]:
            del step["num_mc_total"]
    records[0]["steps_with_score"][0] |= {"num_mc_total": 2**32 - 1, "num_mc_correct": 2**32 - 1, "score": 1.0}
    path = write_records(tmp_path / "some.jsonl", records)
    for options in ({"loss": "beta-binomial"}, {"labels": "posterior", "prior": (1.0, 1.0)}):
        with pytest.raises(DataError, match=r"some\.jsonl:4: the steps do not say how many continuations they have"):
            train(str(path), config_for("internvl", folder, tmp_path / "run", **options), force=True)
    out = tmp_path / "skipped"
    train(str(path), config_for("internvl", folder, out, skip_bad=True, loss="beta-binomial"))
    dropped = [json.loads(line) for line in (out / "data" / "dropped.jsonl").read_text().splitlines()]
    assert [entry["line"] for entry in dropped] == list(range(4, 13))
    assert {entry["kind"] for entry in dropped} == {"no_counts"}
    none = write_records(tmp_path / "none.jsonl", records[3:])
    with pytest.raises(DataError, match="the steps do not say how many continuations they have"):
        train(str(none), config_for("internvl", folder, tmp_path / "other", labels="posterior"))


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        ({}, "with the other label, or choose another --tau."),
        ({"labels": "soft"}, "with the other label."),
        ({"loss": "beta-binomial"}, "with the other label."),
        ({"labels": "posterior", "prior": (1.0, 1.0)}, "with the other label."),
    ],
)
def test_one_label_alone_is_told_with_what_helps(
    options: dict[str, Any], ending: str, folder: Path, tmp_path: Path
) -> None:
    records = [json.loads(line) for line in (folder / "images.jsonl").read_text().splitlines()]
    for record in records:
        for step in record["steps_with_score"]:
            step |= {"score": 0.0, "num_mc_correct": 0}
    path = write_records(tmp_path / "negative.jsonl", records)
    with pytest.raises(DataError, match=r"all \d+ steps are negative") as error:
        train(str(path), config_for("internvl", folder, tmp_path / "run", **options))
    assert str(error.value).endswith(ending)


def test_steps_that_were_never_sampled_count_as_failures(folder: Path, tmp_path: Path) -> None:
    from mprm.data.corpus import open_corpus
    from mprm.data.types import Rollout, Step
    from mprm.progress import silent
    from mprm.training.objective import Labeler

    rollout = Rollout(
        question="?",
        steps=(
            Step(text="a", score=0.5, n_correct=8, n_total=16),
            Step(text="b", score=0.0, n_correct=0, n_total=16),
            Step(text="c", score=0.0, n_correct=0, n_total=0),
        ),
    )
    for options in ({"loss": "beta-binomial"}, {"labels": "posterior", "prior": (1.0, 1.0)}):
        config = config_for("internvl", folder, tmp_path, **options)
        labels, n_mc = Labeler(open_corpus(folder / "images.jsonl"), config, silent)(rollout)
        assert n_mc == [16, 16, 16]
        assert labels[1] == labels[2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "beta-binomial", "labels": "soft"}, "takes the counts themselves; leave out labels"),
        ({"loss": "beta-binomial", "tau": 0.5}, "loss beta-binomial has no threshold"),
        ({"loss": "beta-binomial", "lora_rank": 4}, "LoRA does not train"),
        ({"loss": "ranking", "labels": "posterior"}, "loss ranking needs two classes"),
        ({"labels": "posterior", "tau": 0.5}, "labels posterior have no threshold"),
        ({"loss": "ranking", "negative_weight": 2.0}, "negative_weight is for loss cross-entropy"),
        ({"reliable": 0.25}, "reliable is for labels posterior"),
        ({"zeta": 2.0}, "zeta is for loss ranking"),
        ({"prior": (1.0, 2.0)}, "prior takes two numbers, a and b, for labels posterior"),
        ({"labels": "posterior", "prior": (1.0,)}, "prior takes two numbers"),
        ({"labels": "posterior", "prior": (1e16, 1e16)}, "prior must be above 0 and at most 10000"),
        ({"labels": "smooth"}, "unknown labels 'smooth'; did you mean"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainConfig(model="m", out="o", **options)
    assert issubclass(TrainConfig, Config)

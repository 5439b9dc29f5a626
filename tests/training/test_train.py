"""Training on small real models: what changes, what does not, and that it learns."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

import mprm
from mprm.errors import ConfigError, DataError, OutputExistsError
from mprm.models import PRM, PRMConfig, PromptEncoder, read_prm_config, score_chains
from mprm.training import TrainConfig, train
from tests.tiny_models import BACKBONES, save_tiny
from tests.tiny_rollouts import bar_records, text_records, write_records
from tests.training.launched import optimizer_steps

ROOT = Path(__file__).parents[2]
each_backbone = pytest.mark.parametrize("kind", BACKBONES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each backbone, and ten rollouts with and without images."""
    root = tmp_path_factory.mktemp("training")
    for kind in BACKBONES:
        save_tiny(kind, root / kind)
    records = bar_records(10, root / "images")
    write_records(root / "images.jsonl", records)
    write_records(root / "text.jsonl", text_records(records))
    return root


def config_for(kind: str, folder: Path, out: Path, **options: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "model": str(folder / kind),
        "out": str(out),
        "batch_size": 4,
        "learning_rate": 1e-3,
        "image_root": str(folder / "images"),
        "text_only": kind == "text",
        "device": "cpu",
        "dataloader_workers": 0,
        "save_every": 0,
        "report_to": ("none",),
    }
    return TrainConfig(**{**settings, **options})


def data_for(kind: str, folder: Path) -> str:
    return str(folder / f"{'text' if kind == 'text' else 'images'}.jsonl")


def weights(path: Path) -> dict[str, torch.Tensor]:
    """By the names in the file, which are those of the published checkpoints."""
    return load_file(path / "model.safetensors")


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@each_backbone
def test_training_changes_language_model_and_projector_and_no_bit_of_the_vision_tower(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    train(data_for(kind, folder), config_for(kind, folder, tmp_path / "run", batch_size=16))  # one optimizer step
    before, after = weights(folder / kind), weights(tmp_path / "run")
    is_projector = {name for name in after if "merger" in name or "multi_modal_projector" in name}
    is_tower = {name for name in after if "visual" in name or "vision_tower" in name} - is_projector
    changed = {
        name
        for name in after
        if name not in before or not torch.equal(before[name], after[name][: len(before[name])])
    }
    assert not changed & is_tower
    assert is_projector <= changed
    language = set(after) - is_tower - is_projector
    assert {name for name in language if name.endswith("proj.weight")} <= changed
    assert any(name.endswith("lm_head.weight") for name in changed)
    assert bool(is_tower) == (kind != "text")


@each_backbone
def test_loss_and_gradients_do_not_depend_on_the_micro_batch(kind: str, folder: Path, tmp_path: Path) -> None:
    for per_device in (1, 2, 4):
        optimizer_steps(kind, folder, tmp_path / str(per_device), per_device)
    first, *others = (torch.load(tmp_path / str(size) / "gradients.pt") for size in (1, 2, 4))
    assert len(first["gradients"]) == 3  # T = ⌈10 / 4⌉
    for other in others:
        assert first["losses"] == pytest.approx(other["losses"], abs=1e-5)
        for mine, theirs in zip(first["gradients"], other["gradients"], strict=True):
            assert mine.keys() == theirs.keys()
            for name, gradient in mine.items():
                torch.testing.assert_close(theirs[name], gradient, atol=1e-5, rtol=1e-5, msg=name)


def launch(*words: str, processes: int = 2) -> None:
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    done = subprocess.run(
        [*command, "--nproc-per-node", str(processes), *words],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


@pytest.mark.slow
def test_two_processes_give_the_loss_and_gradients_of_one(folder: Path, tmp_path: Path) -> None:
    launch("-m", "tests.training.launched", str(folder), str(tmp_path / "two"), "1", *BACKBONES)
    for kind in BACKBONES:
        optimizer_steps(kind, folder, tmp_path / "one" / kind, 4)
        single, two = (torch.load(tmp_path / name / kind / "gradients.pt") for name in ("one", "two"))
        assert single["losses"] == pytest.approx(two["losses"], abs=1e-5)
        for mine, theirs in zip(single["gradients"], two["gradients"], strict=True):
            for name, gradient in mine.items():
                torch.testing.assert_close(theirs[name], gradient, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["fsdp", "zero3"])
def test_sharded_over_two_processes_stopped_and_resumed_gives_the_weights_of_one(
    sharding: str, folder: Path, tmp_path: Path
) -> None:
    if sharding == "zero3":
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install deepspeed")
    config = config_for("qwen2_5_vl", folder, tmp_path / "one")
    data = data_for("qwen2_5_vl", folder)
    train(data, config)
    words = f"""-m mprm train {data} --model {config.model} --out {tmp_path / "two"} --image-root {config.image_root}
        --batch-size 4 --per-device 1 --learning-rate 1e-3 --device cpu --dataloader-workers 0 --report-to none
        --save-every 0 --sharding {sharding}""".split()
    launch(*words, "--max-optimizer-steps", "2")
    assert not (tmp_path / "two" / "model.safetensors").exists()
    launch(*words, "--resume")
    single, sharded = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert single.keys() == sharded.keys()
    for name, weight in single.items():
        torch.testing.assert_close(sharded[name], weight, atol=1e-5, rtol=1e-4, msg=name)
    assert read_prm_config(tmp_path / "two").data["rollouts"] == 10


@pytest.mark.slow
@each_backbone
def test_a_model_overfits_64_rollouts(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.metrics import roc_auc_score

    # images are preprocessed once, not once an epoch: half of the time would go into it
    seen: dict[Any, Any] = {}
    original = PromptEncoder.add_pixel_values

    def once(self: Any, tokenized: Any, cache: Any = None) -> Any:
        if tokenized.images not in seen:
            seen[tokenized.images] = original(self, tokenized).vision
        return replace(tokenized, vision=seen[tokenized.images])

    monkeypatch.setattr(PromptEncoder, "add_pixel_values", once)
    records = bar_records(64, tmp_path / "images", seed=1)
    path = write_records(tmp_path / "rollouts.jsonl", text_records(records) if kind == "text" else records)
    save_tiny(kind, tmp_path / "base", hidden=64, layers=2, seed=3)
    config = config_for(
        kind,
        folder,
        tmp_path / "run",
        model=str(tmp_path / "base"),
        image_root=str(tmp_path / "images"),
        batch_size=16,
        per_device=16,
        learning_rate=3e-3,
        weight_decay=0.0,
        gradient_checkpointing=False,
        epochs=75,
    )
    trained = train(str(path), config)
    assert trained.n_optimizer_steps == config.epochs * 4
    prm = PRM.from_pretrained(tmp_path / "run", device="cpu", image_root=tmp_path / "images")
    rollouts = list(mprm.open_corpus(str(path), text_only=kind == "text"))
    scores = prm.score_many([rollout.chain for rollout in rollouts])
    labels = [score > 0 for rollout in rollouts for score in rollout.scores]
    assert roc_auc_score(labels, [value for chain in scores for value in chain]) > 0.99


@pytest.mark.slow
def test_killed_and_resumed_gives_the_weights_of_an_uninterrupted_run(folder: Path, tmp_path: Path) -> None:
    records = bar_records(24, tmp_path / "images")
    path = write_records(tmp_path / "rollouts.jsonl", records)
    words = f"""train {path} --model {folder / "qwen2_5_vl"} --image-root {tmp_path / "images"} --batch-size 4
        --per-device 2 --epochs 3 --learning-rate 1e-3 --device cpu --dataloader-workers 1 --report-to none --save-every 2""".split()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(out: Path, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mprm", *words, "--out", str(out), *more]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    killed = run(tmp_path / "killed")
    checkpoints = tmp_path / "killed" / "checkpoints"
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("checkpoint-*/prm_config.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    _, errors = killed.communicate()
    assert list(checkpoints.glob("checkpoint-*")), errors.decode()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    # what a kill in the middle of writing a checkpoint leaves
    (checkpoints / "checkpoint-99999").mkdir()
    for out, more in ((tmp_path / "killed", ("--resume",)), (tmp_path / "whole", ())):
        process = run(out, *more)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    resumed, whole = weights(tmp_path / "killed"), weights(tmp_path / "whole")
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())
    assert not (checkpoints / "checkpoint-99999").exists()


def test_the_ids_that_training_sees_are_those_that_evaluate_sees(
    tmp_path: Path, folder: Path, monkeypatch: Any
) -> None:
    from mprm.models import PRMModel

    seen: list[tuple[int, ...]] = []
    original = PRMModel.forward

    def spy(self: Any, input_ids: Any, tree: Any, **inputs: Any) -> Any:
        continued = {node.parent for node in tree.nodes}
        for leaf in set(range(len(tree.nodes))) - continued:
            spans = [tree.nodes[number] for number in tree.path(leaf)]
            seen.append(tuple(id_ for node in spans for id_ in input_ids[0, node.start : node.end].tolist()))
        return original(self, input_ids=input_ids, tree=tree, **inputs)

    monkeypatch.setattr(PRMModel, "forward", spy)
    for kind in BACKBONES:
        seen.clear()
        train(data_for(kind, folder), config_for(kind, folder, tmp_path / kind))
        trained_on = sorted(seen)
        seen.clear()
        prm = PRM.from_pretrained(tmp_path / kind, device="cpu", image_root=folder / "images")
        options = mprm.EvaluateConfig(
            text_only=kind == "text", image_root=str(folder / "images"), draws=2, threshold=0.5
        )
        mprm.evaluate(data_for(kind, folder), model=prm, config=options)
        assert len(trained_on) == 10
        assert sorted(seen) == trained_on


def test_each_rollout_is_tokenized_once_however_many_epochs(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    tokenized: list[Any] = []
    original = PromptEncoder.tokenize
    monkeypatch.setattr(
        PromptEncoder, "tokenize", lambda self, chain, *more: tokenized.append(chain) or original(self, chain, *more)
    )
    train(data_for("qwen2_5_vl", folder), config_for("qwen2_5_vl", folder, tmp_path / "run", epochs=3))
    assert sorted(map(str, tokenized)) == sorted(
        str(rollout.chain) for rollout in mprm.open_corpus(data_for("qwen2_5_vl", folder))
    )


def test_the_training_set_holds_what_the_encoder_makes_of_each_rollout(folder: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    data = data_for("internvl", folder)
    train(data, config_for("internvl", folder, tmp_path / "run", max_optimizer_steps=1, tau=0.4))
    encoder = PRM.from_pretrained(
        folder / "internvl", PRMConfig(), image_root=folder / "images", device="cpu"
    ).encoder
    rows = pa.ipc.open_file(tmp_path / "run" / "data" / "train.arrow").read_all().to_pylist()
    for number, (row, rollout) in enumerate(zip(rows, mprm.open_corpus(data), strict=True)):
        chain = encoder.tokenize(rollout.chain)
        assert (row["input_ids"], row["prm_positions"]) == (chain.input_ids, chain.prm_positions)
        assert row["labels"] == [float(step.score > 0.4) for step in rollout.steps]
        # bars are 40 or 60 pixels wide, in turns
        assert (row["images"], row["image_sizes"]) == ([f"{number}.png"], [[40 + 20 * (number % 2), 40]])
        assert row["location"] == f"{data}:{number + 1}"


def test_an_image_that_changed_its_size_since_the_run_was_prepared_is_named(folder: Path, tmp_path: Path) -> None:
    from PIL import Image

    path = write_records(tmp_path / "rollouts.jsonl", bar_records(4, tmp_path / "images"))
    options = {"image_root": str(tmp_path / "images"), "batch_size": 2}
    train(str(path), config_for("internvl", folder, tmp_path / "run", max_optimizer_steps=1, **options))
    for number in range(4):
        Image.new("RGB", (300, 200)).save(tmp_path / "images" / f"{number}.png")
    with pytest.raises(DataError, match=r"rollouts\.jsonl:\d: image \d\.png has 300 × 200 pixels, and had"):
        train(str(path), config_for("internvl", folder, tmp_path / "run", **options), resume=True)


def test_options_are_keywords_of_train_too(folder: Path, tmp_path: Path) -> None:
    data = data_for("text", folder)
    config = config_for("text", folder, tmp_path / "config")
    train(data, config)
    keywords = {name: value for name, value in config.as_dict().items() if name != "out"}
    mprm.train(data, out=tmp_path / "keywords", **keywords)
    mprm.train(data, config, out=tmp_path / "both", seed=1)
    with_config, with_keywords, with_both = (weights(tmp_path / name) for name in ("config", "keywords", "both"))
    assert all(torch.equal(with_keywords[name], weight) for name, weight in with_config.items())
    assert not torch.equal(with_both["lm_head.weight"], with_config["lm_head.weight"])
    with pytest.raises(ConfigError, match="unknown option 'modle'; did you mean model"):
        mprm.train(data, modle="m", out="o")
    with pytest.raises(ConfigError, match="model, out must be given"):
        mprm.train(data)


def test_a_run_writes_a_plain_checkpoint_and_its_config(folder: Path, tmp_path: Path) -> None:
    trained = train(data_for("internvl", folder), config_for("internvl", folder, tmp_path / "run", tau=0.5))
    saved = read_prm_config(tmp_path / "run")
    assert (saved.step_token, saved.positive, saved.negative) == ("<prm>", "Yes", "No")
    assert saved.labels == {"scheme": "hard", "tau": 0.5}
    assert saved.data == trained.data
    assert saved.base_fingerprint
    assert saved.image_settings == {"max_patches": 6}
    assert saved.data["rollouts"] == 10
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["architectures"] == ["InternVLForConditionalGeneration"]
    from transformers import InternVLForConditionalGeneration

    plain = InternVLForConditionalGeneration.from_pretrained(tmp_path / "run").state_dict()
    mine = PRM.from_pretrained(tmp_path / "run", device="cpu").model.state_dict()
    assert plain.keys() == mine.keys()
    assert all(torch.equal(plain[name], weight) for name, weight in mine.items())
    assert not list((tmp_path / "run").rglob("*.bin"))


def test_adapters_train_and_load(folder: Path, tmp_path: Path) -> None:
    config = config_for("qwen2_5_vl", folder, tmp_path / "run", lora_rank=4, batch_size=16)
    train(data_for("qwen2_5_vl", folder), config)
    assert (tmp_path / "run" / "adapter_config.json").is_file()
    assert not (tmp_path / "run" / "model.safetensors").exists()
    saved = load_file(tmp_path / "run" / "adapter_model.safetensors")
    assert not any("visual" in name and "merger" not in name for name in saved)
    assert any("merger" in name for name in saved)
    prm, base = (
        PRM.from_pretrained(tmp_path / "run", device="cpu", image_root=folder / "images"),
        folder / "qwen2_5_vl",
    )
    image = str(next((folder / "images").glob("*.png")).name)
    after = prm.score("how long is the bar?", [image], ["the bar is 3 long"])
    untrained = PRM.from_pretrained(base, PRMConfig(), device="cpu", image_root=folder / "images")
    chain = mprm.Chain("how long is the bar?", ("the bar is 3 long",), (image,))
    assert score_chains(untrained.model, untrained.encoder, [chain])[0] != after


def test_adapters_stopped_and_resumed_are_those_of_a_whole_run(folder: Path, tmp_path: Path) -> None:
    data = data_for("qwen2_5_vl", folder)
    train(data, config_for("qwen2_5_vl", folder, tmp_path / "whole", lora_rank=4))
    train(data, config_for("qwen2_5_vl", folder, tmp_path / "run", lora_rank=4, max_optimizer_steps=2))
    train(data, config_for("qwen2_5_vl", folder, tmp_path / "run", lora_rank=4), resume=True)
    whole, resumed = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())


def test_all_broken_images_are_listed_before_the_first_step_or_dropped(folder: Path, tmp_path: Path) -> None:
    records = bar_records(6, tmp_path / "images")
    (tmp_path / "images" / "1.png").unlink()
    whole = (tmp_path / "images" / "3.png").read_bytes()
    (tmp_path / "images" / "3.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "images" / "4.png").write_bytes(b"no image")
    path = write_records(tmp_path / "rollouts.jsonl", records)
    options = {"image_root": str(tmp_path / "images")}
    with pytest.raises(DataError, match=r"(?s)3 images cannot be used.*1\.png.*3\.png.*4\.png.*--skip-bad"):
        train(str(path), config_for("internvl", folder, tmp_path / "stops", **options))
    listed = (tmp_path / "stops" / "data" / "broken_images.txt").read_text()
    assert all(f"{number}.png" in listed for number in (1, 3, 4))
    trained = train(str(path), config_for("internvl", folder, tmp_path / "goes on", skip_bad=True, **options))
    assert trained.data["rollouts"] == 3
    dropped = lines(tmp_path / "goes on" / "data" / "dropped.jsonl")
    assert [row["line"] for row in dropped] == [2, 4, 5]
    assert {row["kind"] for row in dropped} == {"image_broken"}


def test_steps_lost_to_truncation_are_counted_and_a_rollout_without_any_is_dropped(
    folder: Path, tmp_path: Path
) -> None:
    records = [
        {"prompt": "q", "completions": ["a", "b"], "labels": [True, False]},
        {"prompt": "q", "completions": ["a", "zqx " * 60, "c"], "labels": [True, False, True]},
        {"prompt": "zqx " * 200, "completions": ["a"], "labels": [True]},
    ]
    path = write_records(tmp_path / "rollouts.jsonl", records)
    trained = train(str(path), config_for("text", folder, tmp_path / "run", max_length=128))
    assert (trained.data["rollouts"], trained.data["steps"]) == (2, 3)
    assert (trained.data["steps_lost_to_truncation"], trained.data["rollouts_truncated"]) == (2, 1)
    assert trained.data["dropped"] == {"rollouts": {"no_step_left": 1}}
    assert "no step is left of 1 within 128 tokens" in (tmp_path / "run" / "data" / "dropped.jsonl").read_text()


def test_a_loss_that_is_not_finite_stops_with_the_rollouts_that_made_it(folder: Path, tmp_path: Path) -> None:
    base = save_tiny("text", tmp_path / "base")
    state = load_file(base / "model.safetensors")
    state["model.norm.weight"][0] = float("nan")
    save_file(state, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        DataError, match=r"the loss of optimizer step 1 is nan; its micro-batch holds .*text\.jsonl:\d+"
    ):
        train(data_for("text", folder), config_for("text", folder, tmp_path / "run", model=str(base)))


def test_a_strategy_without_rho_selects_a_tenth_and_its_drops_are_counted(folder: Path, tmp_path: Path) -> None:
    records = lines(Path(data_for("text", folder)))
    path = write_records(tmp_path / "text.jsonl", [*records, {**records[0], "completions": [], "labels": []}])
    config = config_for("text", folder, tmp_path / "run", strategy="bis", skip_bad=True)
    trained = train(str(path), config)
    assert trained.data["rollouts"] == 1  # a tenth of ten
    assert trained.data["select"]["rho"] == 0.1
    assert trained.data["dropped"] == {"text": {"no_steps": 1}}
    [dropped] = lines(tmp_path / "run" / "data" / "dropped.jsonl")
    assert (dropped["line"], dropped["kind"]) == (len(records) + 1, "no_steps")


def test_a_subset_is_selected_inline_as_select_selects_it(folder: Path, tmp_path: Path) -> None:
    config = config_for("internvl", folder, tmp_path / "run", strategy="bis", rho=0.5)
    trained = train(data_for("internvl", folder), config)
    chosen = mprm.select(data_for("internvl", folder), strategy="bis", rho=0.5)
    chosen.write(str(tmp_path / "chosen.jsonl"))
    assert (tmp_path / "run" / "data" / "selected.jsonl").read_bytes() == (tmp_path / "chosen.jsonl").read_bytes()
    assert trained.data["rollouts"] == 5
    assert trained.data["select"]["strategy"] == "bis"


@pytest.mark.parametrize("label", [True, False])
def test_data_of_one_label_are_refused_before_training(label: bool, folder: Path, tmp_path: Path) -> None:
    records = [{**r, "labels": [label] * len(r["labels"])} for r in lines(Path(data_for("text", folder)))]
    n_steps = sum(len(record["labels"]) for record in records)
    path = write_records(tmp_path / "text.jsonl", records)
    kind = "positive" if label else "negative"
    with pytest.raises(DataError, match=rf"text\.jsonl: all {n_steps} steps are {kind} .*expected both labels"):
        train(str(path), config_for("text", folder, tmp_path / "run"))
    assert not (tmp_path / "run" / "prm_config.json").exists()


def test_training_warns_at_its_start_where_the_position_gives_the_label_away(
    folder: Path, tmp_path: Path, capfd: Any
) -> None:
    record = {"prompt": "how long?", "completions": ["it is 1 long", "it is 2 long"], "labels": [True, False]}
    path = write_records(tmp_path / "text.jsonl", [record] * 60)
    options = {"batch_size": 60, "per_device": 60}
    trained = train(str(path), config_for("text", folder, tmp_path / "run", **options))
    text = " ".join(trained.data["warnings"])
    assert "Every score is 0 or 1 (120 steps)" in text
    assert "In 60 of 60 rollouts of several steps with a negative one (100.0%) it is the last step" in text
    assert "alone predicts its label in the rollouts with AUC 1.00" in text
    assert "Only 1 optimizer step, of 60 rollouts" in text
    assert capfd.readouterr().err.count("mprm train: warning: ") == 4
    selected = config_for(
        "text", folder, tmp_path / "selected", strategy="bis", rho=0.5, stratify="length", **options
    )
    assert "Ties decide 100% of what is kept: 30 of 30" in " ".join(train(str(path), selected).data["warnings"])


def test_the_learning_curve_is_what_evaluate_gives(folder: Path, tmp_path: Path) -> None:
    path = data_for("text", folder)
    config = config_for("text", folder, tmp_path / "run", benchmark=(path,), eval_every=2)
    train(path, config)
    points = lines(tmp_path / "run" / "curve.jsonl")
    assert [point["update"] for point in points] == [0, 2, 3]
    prm = PRM.from_pretrained(tmp_path / "run", device="cpu")
    evaluation = mprm.evaluate(path, model=prm, config=mprm.EvaluateConfig(text_only=True, draws=2))
    assert points[-1]["overall"] == pytest.approx(evaluation.models[0].value("overall"), abs=1e-6)
    assert points[-1]["macro_f1"] == pytest.approx({"text": evaluation.models[0].value("macro_f1", "text")}, abs=1e-6)
    assert points[-1]["auc"] == pytest.approx(evaluation.models[0].value("auc"), abs=1e-4)


def test_every_optimizer_step_logs_its_loss_where_the_curve_is_measured_too(folder: Path, tmp_path: Path) -> None:
    path = data_for("text", folder)
    train(path, config_for("text", folder, tmp_path / "run", benchmark=(path,), eval_every=1, save_every=3))
    state = json.loads((tmp_path / "run" / "checkpoints" / "checkpoint-3" / "trainer_state.json").read_text())
    assert [entry["step"] for entry in state["log_history"] if "loss" in entry] == [1, 2, 3]
    assert [entry["step"] for entry in state["log_history"] if "overall" in entry] == [0, 1, 2, 3]


@pytest.mark.slow
def test_two_processes_measure_the_learning_curve_of_one(folder: Path, tmp_path: Path) -> None:
    path = data_for("text", folder)
    config = config_for("text", folder, tmp_path / "one", benchmark=(path,), eval_every=1)
    train(path, config)
    words = f"""-m mprm train {path} --model {config.model} --out {tmp_path / "two"} --text-only --batch-size 4
        --learning-rate 1e-3 --device cpu --dataloader-workers 0 --report-to none --save-every 0
        --benchmark {path} --eval-every 1""".split()
    launch(*words)
    single, two = (lines(tmp_path / name / "curve.jsonl") for name in ("one", "two"))
    assert [point["update"] for point in two] == [0, 1, 2, 3]
    assert [point["auc"] for point in two] == pytest.approx([point["auc"] for point in single], abs=1e-4)


def test_nobodys_run_is_overwritten_and_a_resumed_one_must_be_the_same(folder: Path, tmp_path: Path) -> None:
    path, out = data_for("text", folder), tmp_path / "run"
    train(path, config_for("text", folder, out, max_optimizer_steps=1))
    with pytest.raises(OutputExistsError, match="continue with --resume"):
        train(path, config_for("text", folder, out))
    with pytest.raises(ConfigError, match=r"learning_rate was 0\.001, now 0.5"):
        train(path, config_for("text", folder, out, learning_rate=0.5), resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not the folder of a training run"):
        train(path, config_for("text", folder, tmp_path / "mine"), force=True)
    trained = train(path, config_for("text", folder, out), resume=True)
    assert trained.is_finished
    train(path, config_for("text", folder, tmp_path / "whole"))
    stopped, whole = weights(out), weights(tmp_path / "whole")
    assert all(torch.equal(stopped[name], weight) for name, weight in whole.items())


def test_force_keeps_the_earlier_run_until_the_new_one_is_finished(folder: Path, tmp_path: Path, capfd: Any) -> None:
    path, out = data_for("text", folder), tmp_path / "run"
    train(path, config_for("text", folder, out))
    before = weights(out)
    # the run's own model, its data, a model that is not there: refused, and nothing is lost
    for bad in ({"model": str(out)}, {"model": str(tmp_path / "typo")}):
        with pytest.raises(mprm.MprmError):
            train(path, config_for("text", folder, out, **bad), force=True)
        assert torch.equal(weights(out)["lm_head.weight"], before["lm_head.weight"])
    broken = save_tiny("text", tmp_path / "base")
    state = load_file(broken / "model.safetensors")
    state["model.norm.weight"][0] = float("nan")
    save_file(state, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="the loss of optimizer step"):
        train(path, config_for("text", folder, out, model=str(broken)), force=True)
    assert "is kept in" in capfd.readouterr().err
    kept = tmp_path / "run.replaced"
    assert torch.equal(weights(kept)["lm_head.weight"], before["lm_head.weight"])
    with pytest.raises(ConfigError, match="is in the way"):
        train(path, config_for("text", folder, out), force=True)
    shutil.rmtree(kept)
    train(path, config_for("text", folder, out, seed=1), force=True)
    assert not kept.exists()
    assert not torch.equal(weights(out)["lm_head.weight"], before["lm_head.weight"])


def test_a_start_that_failed_is_no_run_and_may_be_repeated(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(mprm.MprmError):
        train(str(empty), config_for("text", folder, tmp_path / "run", format="trl"))
    assert train(data_for("text", folder), config_for("text", folder, tmp_path / "run")).is_finished


def test_a_resumed_run_must_have_the_same_rollouts_and_the_same_base(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes((folder / "text.jsonl").read_bytes())
    shutil.copytree(folder / "text", tmp_path / "base")
    config = config_for("text", folder, tmp_path / "run", model=str(tmp_path / "base"), max_optimizer_steps=1)
    train(str(path), config)
    path.write_text(path.read_text().replace("bar", "rod"))
    with pytest.raises(ConfigError, match="rollouts_xxh3_128 was"):
        train(str(path), config, resume=True)
    path.write_bytes((folder / "text.jsonl").read_bytes())
    save_tiny("text", tmp_path / "base", seed=5)
    with pytest.raises(ConfigError, match="base_fingerprint was"):
        train(str(path), config, resume=True)


def test_a_damaged_checkpoint_is_passed_over_for_an_older_whole_one(folder: Path, tmp_path: Path) -> None:
    path = data_for("text", folder)
    train(path, config_for("text", folder, tmp_path / "whole"))
    train(path, config_for("text", folder, tmp_path / "run", save_every=1, max_optimizer_steps=2))
    newest = tmp_path / "run" / "checkpoints" / "checkpoint-2"
    (newest / "optimizer.pt").write_bytes((newest / "optimizer.pt").read_bytes()[:100])
    assert train(path, config_for("text", folder, tmp_path / "run"), resume=True).n_optimizer_steps == 3
    resumed, whole = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())
    again = train(path, config_for("text", folder, tmp_path / "run"), resume=True)
    assert (again.is_finished, again.loss) == (True, None)


def test_two_processes_cannot_train_in_one_folder(folder: Path, tmp_path: Path) -> None:
    import fcntl

    train(data_for("text", folder), config_for("text", folder, tmp_path / "run", max_optimizer_steps=1))
    with (tmp_path / "run" / "lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process is training"):
            train(data_for("text", folder), config_for("text", folder, tmp_path / "run"), resume=True)


def test_a_text_model_is_not_given_images(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"images\.jsonl:1: the rollout has images, and a text model cannot see"):
        train(data_for("internvl", folder), config_for("text", folder, tmp_path / "run"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed must be at least 0 and below 4294967296"),
        ({"beta1": 1.5}, "beta1 must be at least 0 and below 1"),
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"max_optimizer_steps": 0}, "max_optimizer_steps must be at least 1"),
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
        ({"lora_alpha": 8}, "lora-rank says that there are none"),
        ({"device": "cuda"}, "unknown device"),
        ({"tau": 1.0}, "tau must be at least 0 and below 1"),
        ({"labels": "soft", "tau": 0.5}, "labels soft have no threshold"),
        ({"rho": 0.1}, "name its strategy too"),
        ({"alpha": 0.5}, "name its strategy too"),
        ({"stratify": "length"}, "name its strategy too"),
        ({"eval_every": 5}, "go together"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"precision": "int4"}, "unknown precision"),
        ({"pack": "zip"}, "unknown pack 'zip'; expected one of tree, none"),
        ({"learning_rate": float("nan")}, "learning_rate must be at least 0, got nan"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(model="m", out="o", **options)

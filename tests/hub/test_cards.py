"""Cards of a real run and of real subsets: their figures are those of manifests and metrics, and the hub takes them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import datasets
from huggingface_hub import DatasetCard, ModelCard

import mprm
from mprm.data.output import hash_file, markdown_text
from mprm.hub.cards import dataset_card, licence_of, model_card, selections_of, subset_manifest
from mprm.models import read_prm_config
from tests.fake_hub import card_errors
from tests.hub.made import BASE_CARD, HOSTILE
from tests.tiny_rollouts import write_records


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def tables(card: str) -> dict[str, list[list[str]]]:
    """The rows of each table, by the heading above it; heads left out."""
    found = {}
    for section in re.split(r"^## ", card, flags=re.MULTILINE)[1:]:
        rows = [line[2:-2] for line in section.splitlines() if line.startswith("| ")]
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in rows]
        assert len({len(row) for row in cells}) <= 1, section
        found[section.splitlines()[0]] = cells[2:]
    return found


def card_of(folder: Path, **options: Any) -> str:
    config = options.pop("config", None) or read_prm_config(folder)
    return model_card(
        folder, config, read(folder / "train.json"), **{"name": "org/bis80", "repo": "org/bis80", **options}
    )


def test_the_card_of_a_run_has_the_figures_of_its_manifests(made: Path) -> None:
    card = (made / "run" / "README.md").read_text()
    found, manifest = tables(card), read(made / "bis80.jsonl.manifest.json")
    [line] = found["Training data"]
    assert [line[0], line[4]] == ["bis80.jsonl", hash_file(str(made / "bis80.jsonl"))]
    assert found["Selection"] == [["text", "10", "8", "2", "0"], ["all", "10", "8", "2", "0"]]
    account = manifest["sources"]["text"]
    assert [account[name] for name in ("read", "kept", "left", "dropped")] == [10, 8, 2, 0]
    assert "strategy bis, rho 0.8, alpha 0.05, tau 0.0, seed 0" in card
    labels = [
        label for line in (made / "bis80.jsonl").read_text().splitlines() for label in json.loads(line)["labels"]
    ]
    assert (
        f"{len(labels)} steps, {sum(labels)} of them positive ({sum(labels) / len(labels):.2%}). 0 rollouts" in card
    )
    assert found["Rollouts trained on"] == [["text", "8"], ["all", "8"]]
    options = dict(found["Training and prompt"])
    assert options.items() >= {"learning_rate": "0.001", "batch_size": "4", "prompt_layout": "user"}.items()
    assert options["step_token"] == "\\<prm>"
    assert int(options["optimizer steps"]) == read(made / "run" / "trainer_state.json")["global_step"] == 2


def test_the_metadata_of_a_run_is_what_the_hub_takes(made: Path) -> None:
    data = ModelCard((made / "run" / "README.md").read_text()).data
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "mprm", "text-classification")
    assert data.eval_results is None  # none yet
    assert data.base_model is None  # a folder, whose name on the hub nobody knows
    for name in ("run", "lora"):
        assert card_errors((made / name / "README.md").read_text(), "model") == []
    lora = (made / "lora" / "README.md").read_text()
    assert "peft" not in lora
    assert "lora" in ModelCard(lora).data.tags
    assert ModelCard(lora).data.pipeline_tag == "image-text-to-text"
    assert "Licence: not stated" in lora


@pytest.mark.parametrize(("name", "relation"), [("run", "finetune"), ("lora", "adapter")])
def test_a_base_checkpoint_from_the_hub_is_named_with_its_relation(made: Path, name: str, relation: str) -> None:
    config = replace(
        read_prm_config(made / name), base="Qwen/Qwen2.5-VL-7B-Instruct@" + "0123456789abcdef" * 2 + "01234567"
    )
    for card in (card_of(made / name, config=config), card_of(made / name, base="Qwen/Qwen2.5-VL-7B-Instruct")):
        data = ModelCard(card).data
        assert (data.base_model, data.base_model_relation) == ("Qwen/Qwen2.5-VL-7B-Instruct", relation)
        assert card_errors(card, "model") == []


def test_data_sets_of_the_hub_are_named_in_the_metadata(made: Path) -> None:
    config = read_prm_config(made / "run")
    entry = config.data["inputs"][0]
    paths = ["hf://datasets/org/a@main/x.jsonl", "hf://datasets/org/a/y.jsonl", "/home/me/z.jsonl"]
    config = replace(config, data={**config.data, "inputs": [{**entry, "path": path} for path in paths]})
    card = card_of(made / "run", config=config)
    assert ModelCard(card).data.datasets == ["org/a"]
    assert "/home/me" not in card


def test_evaluations_are_in_text_and_metadata_as_in_metrics_json(made: Path) -> None:
    metrics = read(made / "eval" / "metrics.json")
    card = card_of(made / "run", evaluations=[metrics])
    [model] = metrics["models"]
    defined = {name: value for name, value in model["metrics"]["all"].items() if value["value"] is not None}
    results = ModelCard(card).data.eval_results
    assert {result.metric_type: result.metric_value for result in results} == {
        n: v["value"] for n, v in defined.items()
    }
    [title] = [title for title in tables(card) if title.startswith("Evaluation")]
    assert title == "Evaluation on text.jsonl: 10 solutions of 10 problems"
    rows = tables(card)[title]
    assert len(rows) == len(defined) + 1  # and one source
    for row, value in zip(rows, [*defined.values(), model["metrics"]["sources"]["text"]["macro_f1"]], strict=True):
        assert row[1:] == [f"{value['value']:.4f}", f"{value['low']:.4f} to {value['high']:.4f}"]
    assert "Threshold held out: chosen on the other 1 of 2 folds of problems." in card
    assert card_errors(card, "model") == []


def test_only_a_manifest_of_these_very_files_says_how_they_were_selected(made: Path, tmp_path: Path) -> None:
    path, manifest = made / "bis80.jsonl", tmp_path / "bis80.jsonl.manifest.json"
    entry = {"path": str(tmp_path / "bis80.jsonl"), "xxh3_128": hash_file(str(path))}
    manifest.write_bytes(Path(f"{path}.manifest.json").read_bytes())
    [selection] = selections_of([entry])
    assert selection["config"]["rho"] == 0.8
    assert selections_of([{**entry, "xxh3_128": "of another file"}]) == []
    for content in ('{"mprm": "0.1.0", "command": "select"}', "[", '{"command": "score"}'):
        manifest.write_text(content)
        assert selections_of([entry]) == []
    by_source = made / "by_source" / "bis-0.5" / "plain.jsonl"
    [selection] = selections_of([{"path": str(by_source), "xxh3_128": hash_file(str(by_source))}])
    assert selection["sources"]["plain"]["kept"] == 2


def test_a_run_of_an_earlier_version_has_a_card(made: Path) -> None:
    config = read_prm_config(made / "run")
    data = {name: value for name, value in config.data.items() if name != "subsets"}
    card = card_of(made / "run", config=replace(config, data={**data, "select": {"strategy": "bis", "rho": 0.1}}))
    assert "Selection: {'strategy': 'bis', 'rho': 0.1}." in card


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        (BASE_CARD, {"license": "apache-2.0"}),
        (
            "---\nlicense: other\nlicense_name: qwen\nlicense_link: https://hf.co/a/b/LICENSE\n---\n",
            {"license": "other", "license_name": "qwen", "license_link": "https://hf.co/a/b/LICENSE"},
        ),
        ("---\nlicense: other\nlicense_name: qwen\nlicense_link: LICENSE\n---\n", {}),
        ("---\nlicense: [mit, gpl]\n---\n", {}),
        ("---\nlicense: 'My own: <b>'\n---\n", {}),
        ("---\nlicense: [\n---\n", {}),
        ("---\n- a\n---\n", {}),
        ("license: mit\n", {}),
        (None, {}),
    ],
)
def test_the_licence_is_that_of_the_base_checkpoints_card(card: str | None, licence: Any, tmp_path: Path) -> None:
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert licence_of(tmp_path) == licence


@pytest.mark.parametrize("name", ["one.jsonl", "subsets/bis-0.5.jsonl", "by_source/bis-0.5"])
def test_the_card_of_a_subset_has_the_figures_of_its_manifest_and_escapes_its_sources(made: Path, name: str) -> None:
    manifest = subset_manifest(made / f"{name}.manifest.json")
    assert manifest is not None
    file = Path(name).name
    card = dataset_card({file: manifest}, repo="org/two")
    found, entries = tables(card), manifest["output"].get("files", [manifest["output"]])
    assert [row[1:] for row in found[file]] == [
        [str(e["n_rollouts"]), f"{e['n_bytes']:,}", hash_file(e["path"])] for e in entries
    ]
    [line] = found["Source files"]
    assert [line[0], line[4]] == ["two.jsonl", hash_file(str(made / "two.jsonl"))]
    accounts = manifest["sources"].values()
    assert [row[1:] for row in found["Selection"][:-1]] == [
        [str(account[key]) for key in ("read", "kept", "left", "dropped")] for account in accounts
    ]
    assert found["Selection"][-1][1:] == ["11", "4", "6", "1"]
    steps = [json.loads(line) for e in entries for line in Path(e["path"]).read_text().splitlines()]
    steps = [step for record in steps for step in record["steps_with_score"]]
    total = found["Labels"][-1]
    assert total[:3] == ["all", "4", str(len(steps))]
    assert total[5] == f"{sum(step['score'] == 0 for step in steps) / len(steps):.2%}"
    text = re.split(r"^---\n", card, flags=re.MULTILINE)[2]
    assert not re.search(r"(?<!\\)<b>|(?<!\\)\[c\]\(|^---$", text, re.MULTILINE)
    assert markdown_text(HOSTILE).replace("|", "\\|") in [row[0] for row in found["Selection"]]
    [config] = DatasetCard(card).data.to_dict()["configs"]
    assert len(config["data_files"][0]["path"]) == len(entries)
    assert card_errors(card, "dataset") == []
    assert str(made) not in card


def test_datasets_loads_files_whose_names_are_patterns(made: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    records = [json.loads(line) for line in (made / "images.jsonl").read_text().splitlines()]
    names = ["a[1]*b?", "pl ain", "{x,y}"]
    write_records(tmp_path / "c.jsonl", [{**record, "source": name} for name in names for record in records])
    mprm.select(str(tmp_path / "c.jsonl"), rho=0.5).write_all(str(tmp_path / "out"), by_source=True)
    manifest = subset_manifest(tmp_path / "out" / "bis-0.5.manifest.json")
    assert manifest is not None
    (tmp_path / "out" / "README.md").write_text(dataset_card({"bis-0.5": manifest}, repo="org/x"))
    assert len(datasets.load_dataset(str(tmp_path / "out"), split="train")) == 15

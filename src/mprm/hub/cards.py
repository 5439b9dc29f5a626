"""Cards: what the README.md of a trained model or of subsets says, from configs, manifests and metrics alone.

No folder of this machine is named: a file by its own name and its hash. Text from data is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from mprm.data.output import Table, markdown_text, printable
from mprm.data.records import DATA_FILE
from mprm.errors import counted
from mprm.evaluation.bootstrap import METRICS
from mprm.models.checkpoint import PRMConfig
from mprm.models.families import PROCESSOR_FILES
from mprm.selection.stats import STATISTICS, Statistics, total

CARD = "README.md"
MARK = re.compile(r"\n<!-- made by mprm; XXH3-64 of the above: (\w+) -->\n\Z")
LICENCE = {"license": r"[a-z0-9.-]+", "license_name": r"[\w.-]+", "license_link": r"https://[\w./%~#-]+"}
"""Keys of a card, and what they may hold; a link into the base checkpoint's own folder would lead nowhere."""
SHOWN = (
    *(
        "learning_rate",
        "beta1",
        "beta2",
        "epsilon",
        "weight_decay",
        "warmup",
        "max_grad_norm",
        "batch_size",
        "epochs",
    ),
    *("max_length", "precision", "lora_rank", "lora_alpha", "seed"),
)
"""Options of a run that its card shows."""
PROMPT = ("prompt_layout", "prompt_version", "step_token", "positive", "negative", "image_settings", "labels")
TAGS = ["process-reward-model", "prm", "mprm"]
CITATION = """## Citation

```bibtex
@article{li2026training,
  title  = {Training Data Efficiency in Multimodal Process Reward Models},
  author = {Li, Jinyuan and Huang, Chengsong and Huang, Langlin and Xu, Shaoyang and Liu, Haolin and Zhang, Wenxuan
            and Huang, Jiaxin},
  year   = {2026},
  url    = {https://github.com/JinYuanLi0012/Balanced-Info-MPRM}
}
```"""


def file_name(path: str) -> str:
    """The name of a file, folder or URL without the folders around it, and without what a URL asks for.

    >>> file_name("/home/me/a.jsonl"), file_name("https://me:secret@host/x/a.jsonl?key=secret")
    ('a.jsonl', 'a.jsonl')
    """
    return re.split(r"[/\\]", (re.split(r"[?#]", path)[0] if "://" in path else path).rstrip("/\\"))[-1]


def licence_of(folder: str | Path) -> dict[str, str]:
    """What the card in a checkpoint's folder says of its licence; empty where there is none that can be read."""
    try:
        head = re.match(r"---\s*\n(.*?\n)---\s", (Path(folder) / CARD).read_text("utf-8"), re.DOTALL)
        card = msgspec.yaml.decode(head[1], type=dict[str, Any]) if head else {}
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError, ImportError):
        return {}
    licence = {key: value for key in LICENCE if re.fullmatch(LICENCE[key], value := str(card.get(key) or ""))}
    is_whole = len(licence) == len(LICENCE) if licence.get("license") == "other" else "license" in licence
    return licence if is_whole else {}


def hub_name(base: str | None) -> str | None:
    """The name on the hub of a base checkpoint that training took from there; None for a folder."""
    pinned = re.fullmatch(r"([\w.-]+/[\w.-]+)@[0-9a-f]{40}", base or "")
    return pinned and pinned[1]


def model_card(
    folder: Path,
    config: PRMConfig,
    options: Mapping[str, Any],
    *,
    name: str,
    repo: str | None = None,
    base: str | None = None,
    licence: str | None = None,
    evaluations: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The card of the model in ``folder``, from its configuration and the options of its run.

    ``repo`` is where it is uploaded to, ``base`` the base checkpoint's name on the hub, where the configuration does
    not know it; ``evaluations`` are contents of metrics.json, whose last model this is.
    """
    data, base = config.data, base or hub_name(config.base)
    is_adapter = (folder / "adapter_config.json").is_file()
    has_images = any((folder / file).is_file() for file in PROCESSOR_FILES)
    stated = {"license": licence} if licence else config.base_licence
    hub_files = (re.match(r"hf://datasets/([\w.-]+/[\w.-]+)", entry["path"]) for entry in data["inputs"])
    metadata = {
        **stated,
        "library_name": "mprm",
        "pipeline_tag": "image-text-to-text" if has_images else "text-classification",
        "base_model": base,
        "base_model_relation": base and ("adapter" if is_adapter else "finetune"),
        "datasets": list(dict.fromkeys(match[1] for match in hub_files if match)),
        "tags": [*TAGS, *(["lora"] if is_adapter else [])],
        "model-index": [{"name": name, "results": [*map(_result, evaluations)]}] if evaluations else None,
    }
    base_name = base or file_name(config.base or "an unnamed checkpoint")
    how = "LoRA adapter on" if is_adapter else "fine-tuned from"
    about = "A process reward model: the probability that each step of a solution is correct. Trained by mprm"
    about += f" {config.mprm}, {how} {base_name} (fingerprint {config.base_fingerprint})."
    about += f" Licence: {stated.get('license', 'not stated, as the card of the base checkpoint names none')}."
    root, images = (', image_root="images"', 'images=["1.png"], ') if has_images else ("", "")
    use = [
        f"import mprm\n\nprm = mprm.PRM.from_pretrained({json.dumps(repo or name)}{root})",
        f'prm.score(question="…", {images}steps=["…", "…"])  # such as [0.98, 0.03]',
    ]
    needs = f"The adapter looks for its base checkpoint in the folder {base_name}, where Python runs."
    n_dropped = sum(sum(kinds.values()) for kinds in data["dropped"].values())
    share = f"{data['positive_steps']:,} of them positive ({data['positive_steps'] / data['steps']:.2%})"
    lost = f"{data['steps_lost_to_truncation']:,} steps of {data['rollouts_truncated']:,} rollouts"
    notes = [
        f"{counted(data['steps'], 'step')}, {share}.",
        f"Dropped: {counted(n_dropped, 'rollout')}. Cut off by truncation: {lost}.",
        *([] if "subsets" in data else [f"Selection: {data['select']}."]),  # of a run of an earlier version
        *data["warnings"],
    ]
    rows = [(source, f"{n:,}") for source, n in (*data["by_source"].items(), ("all", data["rollouts"]))]
    settings = {name: options.get(name) for name in SHOWN} | {name: getattr(config, name) for name in PROMPT}
    settings["optimizer steps"] = -(-data["rollouts"] // options["batch_size"]) * options["epochs"]
    return _card(
        metadata,
        f"# {markdown_text(name)}",
        markdown_text(about),
        _code(*use),
        markdown_text(needs) if is_adapter and not base else "",
        _inputs(data["inputs"], "Training data"),
        *map(_account, data.get("subsets", ())),
        _table("Rollouts trained on", ["source", "rollouts"], rows, notes),
        _table(
            "Training and prompt", ["option", "value"], [(k, f"{v}") for k, v in settings.items() if v is not None]
        ),
        *map(_evaluation, evaluations),
    )


def dataset_card(manifests: Mapping[str, Mapping[str, Any]], *, repo: str, licence: str | None = None) -> str:
    """The card of subsets, from the manifests that ``mprm select`` wrote, by the name of each subset's file."""
    names = {subset: re.sub(r"[^\w.-]", "-", DATA_FILE.sub("", subset)) for subset in manifests}
    first, sections = next(iter(manifests)), list[str]()
    for subset, manifest in manifests.items():
        entries = zip(data_files(manifest), output_files(manifest), strict=True)
        rows = [(file, f"{e['n_rollouts']:,}", f"{e['n_bytes']:,}", e["xxh3_128"]) for file, e in entries]
        target, formats = manifest["config"]["to"], sorted({entry["format"] for entry in manifest["inputs"]})
        kind = f"{', '.join(formats)}, lines as they were" if target == "same" else f"{target}, written anew"
        notes = [f"Format: {kind}.", *manifest["warnings"]]
        sections += [_table(subset, ["file", "rollouts", "bytes", "XXH3-128"], rows, notes), _account(manifest)]
        if "statistics" in manifest:  # earlier versions did not write them
            statistics = msgspec.convert(manifest["statistics"], dict[str, Statistics])
            lines = [*statistics.items(), ("all", total(statistics))]
            cells = [(source, *(column.cell(values) for column in STATISTICS)) for source, values in lines]
            heads = ["source", *(column.head for column in STATISTICS)]
            sections.append(_table("Labels of the kept rollouts", heads, cells))
        sections.append(_inputs(manifest["inputs"], "Source files"))
    metadata = {
        "license": licence,
        "tags": TAGS,
        "configs": [
            {"config_name": names[subset], "data_files": [{"split": "train", "path": [*map(escape, data_files(m))]}]}
            for subset, m in manifests.items()
        ],
    }
    about = "Rollouts with step labels, selected by mprm to train process reward models."
    stated = f"Licence: {licence or 'not stated; the terms of the source files apply'}."
    use = [
        f'import datasets\nimport mprm\n\ndatasets.load_dataset("{repo}", "{names[first]}", split="train")',
        f"mprm.open_corpus({json.dumps(f'hf://datasets/{repo}/{first}')})",
    ]
    return _card(metadata, f"# {markdown_text(repo)}", f"{about} {stated}", _code(*use), *sections)


def subset_manifest(path: str | Path) -> dict[str, Any] | None:
    """The manifest that ``mprm select`` wrote; None where there is none."""
    try:
        manifest = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    return manifest if manifest.get("command") == "select" else None


def output_files(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a manifest says of each data file of its output."""
    return list(manifest["output"].get("files", [manifest["output"]]))


def data_files(manifest: Mapping[str, Any]) -> list[str]:
    """The data files of a manifest, as seen from beside it; ``files`` names what was dropped after them."""
    return list(manifest["files"][: len(output_files(manifest))])


def _inputs(entries: Iterable[Mapping[str, Any]], title: str) -> str:
    columns = ("source", "format", "n_bytes", "xxh3_128")
    rows = [(file_name(entry["path"]), *(f"{entry[name]}" for name in columns)) for entry in entries]
    return _table(title, ["file", "source", "format", "bytes", "XXH3-128"], rows)


def _account(manifest: Mapping[str, Any]) -> str:
    """How a subset was selected: the options, and for each source what became of its records."""
    names, accounts = ("read", "kept", "left", "dropped"), manifest["sources"]
    every = {name: sum(account[name] for account in accounts.values()) for name in names}
    rows = [(s, *(f"{account[name]:,}" for name in names)) for s, account in (*accounts.items(), ("all", every))]
    options = ", ".join(f"{key} {value}" for key, value in manifest["config"].items() if value not in (None, {}, []))
    return _table("Selection", ["source", "read", "kept", "not selected", "dropped"], rows, [f"Options: {options}."])


def _benchmark(metrics: Mapping[str, Any]) -> str:
    files = ", ".join(file_name(file["path"]) for file in metrics["benchmark"])
    return printable(metrics["headline"]["benchmark"] or files or "saved scores")


def _interval(value: Mapping[str, Any]) -> str:
    return "–" if value["low"] is None else f"{value['low']:.4f} to {value['high']:.4f}"


def _result(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation as a result of the hub's model-index."""
    name, values = _benchmark(metrics), metrics["models"][-1]["metrics"]["all"]
    values = {metric: value for metric, value in values.items() if value["value"] is not None}
    return {
        "task": {"type": "text-classification", "name": "step correctness"},
        "dataset": {"type": re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "benchmark", "name": name},
        "metrics": [
            {"type": metric, "value": v["value"], "name": f"{METRICS[metric]} (95% interval {_interval(v)})"}
            for metric, v in values.items()
        ],
    }


def _evaluation(metrics: Mapping[str, Any]) -> str:
    model, headline = metrics["models"][-1], metrics["headline"]["metric"]
    metric = "macro_f1" if headline == "overall" else headline
    lines = [(METRICS[name], value) for name, value in model["metrics"]["all"].items()]
    lines += [(f"{METRICS[metric]}: {source}", of[metric]) for source, of in model["metrics"]["sources"].items()]
    rows = [(name, f"{v['value']:.4f}", _interval(v)) for name, v in lines if v["value"] is not None]
    size = f"{model['counts']['n_solutions']:,} solutions of {model['counts']['n_problems']:,} problems"
    notes = [f"{note}." for note in (metrics["threshold"], *metrics["notes"], *model["warnings"])]
    for file in metrics["benchmark"]:  # notes may say where a record stands
        notes = [note.replace(file["path"], file_name(file["path"])) for note in notes]
    return _table(f"Evaluation on {_benchmark(metrics)}: {size}", ["metric", "value", "95% interval"], rows, notes)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    return Table(title=title, heads=heads, rows=rows, notes=notes).markdown().strip()


def _code(*lines: str) -> str:
    return "\n".join(["## Use", "", "```python", *map(str, lines), "```"])


def _card(metadata: Mapping[str, Any], *sections: str) -> str:
    """The card, with a mark at its end by which a later change is known."""
    head = msgspec.yaml.encode({key: value for key, value in metadata.items() if value}).decode()
    text = f"---\n{head}---\n\n" + "\n\n".join([*filter(None, sections), CITATION]) + "\n"
    return f"{text}\n<!-- made by mprm; XXH3-64 of the above: {xxhash.xxh3_64_hexdigest(text.encode())} -->\n"


def is_written_by_hand(card: str) -> bool:
    """Whether somebody wrote or changed the card; the template that peft leaves in a run is nobody's."""
    mark = MARK.search(card)
    is_changed = mark is None or mark[1] != xxhash.xxh3_64_hexdigest(card[: mark.start()].encode())
    return is_changed and "# Model Card for Model ID" not in card

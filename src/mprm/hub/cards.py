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

from mprm.data.output import MANIFEST_SUFFIX, Table, markdown_text, printable
from mprm.data.records import DATA_FILE
from mprm.evaluation.bootstrap import METRICS
from mprm.models.checkpoint import PRMConfig
from mprm.models.families import PROCESSOR_FILES
from mprm.selection.stats import STATISTICS, Statistics, total

CARD = "README.md"
MARK = "<!-- mprm push writes this card anew. Delete this line to keep what you change in it. -->\n"
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
PROMPT = ("prompt_layout", "prompt_version", "step_token", "positive", "negative", "image_settings", "labels", "loss")
TAGS = ["process-reward-model", "prm", "mprm"]
CITATION = """## Citation

```bibtex
@article{li2026training,
  title = {Training Data Efficiency in Multimodal Process Reward Models}, year = {2026},
  author = {Li, Jinyuan and Huang, Chengsong and Huang, Langlin and Xu, Shaoyang and Liu, Haolin and Zhang, Wenxuan
            and Huang, Jiaxin}, url = {https://github.com/JinYuanLi0012/Balanced-Info-MPRM}
}
```"""


def file_name(path: str) -> str:
    """The name of a file, folder or URL without the folders around it, and without what a URL asks for.

    >>> file_name("/home/me/a.jsonl"), file_name("https://me:secret@host/x/a.jsonl?key=secret")
    ('a.jsonl', 'a.jsonl')
    """
    return re.split(r"[/\\]", (re.split(r"[?#]", path)[0] if "://" in path else path).rstrip("/\\"))[-1]


def hub_name(base: str | None) -> str | None:
    """The name on the hub of a base checkpoint that training took from there; None for a folder."""
    pinned = re.fullmatch(r"([\w.-]+/[\w.-]+)@[0-9a-f]{40}", base or "")
    return pinned and pinned[1]


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
    datasets = re.findall(r"^hf://datasets/([\w.-]+/[\w.-]+)", "\n".join(e["path"] for e in data["inputs"]), re.M)
    metadata = {
        **stated,
        "library_name": "mprm",
        "pipeline_tag": "image-text-to-text" if has_images else "text-classification",
        "base_model": base,
        "base_model_relation": base and ("adapter" if is_adapter else "finetune"),
        "datasets": list(dict.fromkeys(datasets)),
        "tags": [*TAGS, *(["lora"] if is_adapter else [])],
        "model-index": [{"name": name, "results": [*map(_result, evaluations)]}] if evaluations else None,
    }
    base_name = base or file_name(config.base or "an unnamed checkpoint")
    how = "LoRA adapter on" if is_adapter else "fine-tuned from"
    about = "A process reward model: the probability that each step of a solution is correct. Trained by mprm"
    about += f" {config.mprm}, {how} {base_name} (fingerprint {config.base_fingerprint})."
    about += " It is looked for in a folder of this name." if is_adapter and not base else ""
    about += f" Licence: {stated.get('license', 'not stated, as the card of the base checkpoint names none')}."
    root, images = (', image_root="images"', 'images=["1.png"], ') if has_images else ("", "")
    use = f"import mprm\n\nprm = mprm.PRM.from_pretrained({json.dumps(repo or name)}{root})\n"
    use += f'prm.score(question="…", {images}steps=["…", "…"])  # such as [0.98, 0.03]'
    n_dropped = sum(sum(kinds.values()) for kinds in data["dropped"].values())
    share = f"{data['positive_steps']:,} of them positive ({data['positive_steps'] / data['steps']:.2%})"
    notes = [
        f"{data['steps']:,} steps, {share}. {n_dropped:,} rollouts were dropped; truncation cut off"
        f" {data['steps_lost_to_truncation']:,} steps of {data['rollouts_truncated']:,} rollouts.",
        *([] if "subsets" in data else [f"Selection: {data['select']}."]),  # of a run of an earlier version
        *data["warnings"],
    ]
    rows = [(source, f"{n:,}") for source, n in (*data["by_source"].items(), ("all", data["rollouts"]))]
    settings = {key: options.get(key) for key in SHOWN} | {key: getattr(config, key) for key in PROMPT}
    settings["optimizer steps"] = -(-data["rollouts"] // options["batch_size"]) * options["epochs"]
    return _card(
        metadata,
        name,
        markdown_text(about),
        f"## Use\n\n```python\n{use}\n```",
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
    same = [subset for subset, name in names.items() if list(names.values()).count(name) > 1]
    names |= {subset: re.sub(r"[^\w.-]", lambda letter: f"-{ord(letter[0]):x}-", subset) for subset in same}
    first, sections, configs = next(iter(manifests)), list[str](), list[dict[str, Any]]()
    for subset, manifest in manifests.items():
        entries = output_files(manifest)
        files = [{"split": "train", "path": [escape(name) for name in entries]}]
        configs.append({"config_name": names[subset], "data_files": files})
        rows = [(n, f"{e['n_rollouts']:,}", f"{e['n_bytes']:,}", e["xxh3_128"]) for n, e in entries.items()]
        target, formats = manifest["config"]["to"], sorted({entry["format"] for entry in manifest["inputs"]})
        kind = f"{', '.join(formats)}, lines as they were" if target == "same" else f"{target}, written anew"
        notes = [f"Format: {kind}.", *manifest["warnings"]]
        sections += [_table(subset, ["file", "rollouts", "bytes", "XXH3-128"], rows, notes), _account(manifest)]
        if "statistics" in manifest:  # earlier versions did not write them
            statistics = msgspec.convert(manifest["statistics"], dict[str, Statistics])
            lines = [*statistics.items(), ("all", total(statistics))]
            cells = [(source, *(column.cell(values) for column in STATISTICS)) for source, values in lines]
            sections.append(_table("Labels", ["source", *(column.head for column in STATISTICS)], cells))
        sections.append(_inputs(manifest["inputs"], "Source files"))
    about = "Rollouts with step labels, selected by mprm to train process reward models."
    about += f" Licence: {licence or 'not stated; the terms of the source files apply'}."
    use = f'import datasets\nimport mprm\n\ndatasets.load_dataset("{repo}", "{names[first]}", split="train")\n'
    use += f"mprm.open_corpus({json.dumps(f'hf://datasets/{repo}/{first}')})"
    metadata = {"license": licence, "tags": TAGS, "configs": configs}
    return _card(metadata, repo, about, f"## Use\n\n```python\n{use}\n```", *sections)


def subset_manifest(path: str | Path | bytes) -> dict[str, Any] | None:
    """The manifest that ``mprm select`` wrote, from its file or content; None where there is none."""
    try:
        content = path if isinstance(path, bytes) else Path(path).read_bytes()
        manifest = msgspec.json.decode(content, type=dict[str, Any])
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    is_whole = {"config", "inputs", "sources", "output", "files"} <= manifest.keys()
    return manifest if manifest.get("command") == "select" and is_whole else None


def selections_of(inputs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How ``mprm select`` chose the inputs, by the manifests beside them that are of these very files."""
    selections = {}
    for entry in inputs:
        for beside in (entry["path"], str(Path(entry["path"]).parent)):
            manifest = subset_manifest(beside + MANIFEST_SUFFIX)
            if manifest and entry["xxh3_128"] in [file["xxh3_128"] for file in output_files(manifest).values()]:
                selections[beside] = {name: manifest[name] for name in ("config", "inputs", "sources")}
    return list(selections.values())


def output_files(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a manifest says of each data file, by its name beside it; in ``files``, what was dropped comes last."""
    return dict(zip(manifest["files"], manifest["output"].get("files", [manifest["output"]]), strict=False))


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
    return {
        "task": {"type": "text-classification", "name": "step correctness"},
        "dataset": {"type": re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "benchmark", "name": name},
        "metrics": [
            {"type": metric, "value": v["value"], "name": f"{METRICS[metric]} (95% interval {_interval(v)})"}
            for metric, v in values.items()
            if v["value"] is not None
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


def _card(metadata: Mapping[str, Any], title: str, *sections: str) -> str:
    head = msgspec.yaml.encode({key: value for key, value in metadata.items() if value}).decode()
    return f"---\n{head}---\n\n" + "\n\n".join([f"# {markdown_text(title)}", *sections, CITATION, MARK])

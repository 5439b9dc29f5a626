"""``mprm push``: a trained run or a subset, with its card, on the Hugging Face hub."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Annotated, Any

import msgspec

from mprm.config import Config, DryRun, Force, evaluation, output, takes
from mprm.data.corpus import open_corpus
from mprm.data.hub import reason_of
from mprm.data.output import MANIFEST_SUFFIX, atomic_write, hash_file
from mprm.errors import ConfigError, MissingDependencyError, MprmError, imported
from mprm.evaluation.scores import SCORES
from mprm.hub.cards import CARD, MARK, dataset_card, file_name, hub_name, model_card, output_files, subset_manifest
from mprm.models.checkpoint import (
    PRM_CONFIG,
    TOKENIZER_FILES,
    VOCABULARIES,
    check_weights,
    fingerprint_of,
    read_prm_config,
)
from mprm.progress import Progress, silent

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "config.json", "adapter_config.json")
MODEL_FILES = (*TOKENIZER_FILES, "config.json", "generation_config.json")
"""Beside the weights; named one by one, for whatever else lies in the folder may be private."""
STUBS = {CARD, ".gitattributes"}  # of a new repository
NAME = r"(?!.*(\.\.|--))[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*"
Files = dict[str, Path | bytes]
"""What is uploaded, by its name in the repository."""


@dataclass(frozen=True, kw_only=True)
class PushConfig(Config):
    """Upload a finished training run or a subset, with its card, to the Hugging Face hub.

    Of a run: weights, tokenizer, processor and prm_config.json. No folder of this machine is named in them.
    """

    evaluation: Annotated[
        tuple[str, ...], evaluation("Folders that mprm evaluate --out wrote of this run, for its card.", "DIR")
    ] = ()
    base_model: Annotated[str | None, output("The base checkpoint's name on the hub.", "ORG/NAME")] = None
    license: Annotated[str | None, output("Licence that the card states, such as apache-2.0.", "ID")] = None
    private: Annotated[bool, output("Make a new repository private.")] = False
    revision: Annotated[str | None, output("Branch to upload to, made if it is not there.", "BRANCH")] = None
    with_dropped: Annotated[bool, output("Upload the bad records that a selection dropped, too.")] = False
    force: Force = False
    dry_run: DryRun = False


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was uploaded, or would be."""

    repo: str
    kind: str  # model or dataset
    files: dict[str, int]  # bytes of each
    card: str = field(repr=False)
    notes: tuple[str, ...]
    url: str | None  # None after a dry run


@takes(PushConfig)
def push(
    what: str | Path, repo: str, config: PushConfig | None = None, *, progress: Progress = silent, **options: Any
) -> Pushed:
    """Upload a finished run's folder, or a subset's file or folder, to ``ORGANISATION/NAME``, all in one commit."""
    config = PushConfig.of(config, options)
    for name in (repo, config.base_model):
        if name is not None and not (re.fullmatch(NAME, name) and len(name) <= 96):
            raise ConfigError(f"{name!r} is no name of a repository on the hub; expected ORGANISATION/NAME")
    path, notes = Path(what).expanduser(), list[str]()
    is_run = (path / "train.json").is_file()
    try:
        files, card = (_run_files if is_run else _subset_files)(path, repo, config, notes)
    except MprmError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: its configuration or a manifest is not as mprm wrote it ({error!r})") from error
    except ImportError as error:
        raise MissingDependencyError("mprm push needs huggingface_hub: install mprm with its extra [hub]") from error
    own = path / CARD
    try:
        text = own.read_text(encoding="utf-8") if own.exists() else MARK
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{own} is no UTF-8 text; move it away, and the card is made anew ({error})") from error
    is_own = MARK not in text and "# Model Card for Model ID" not in text  # which peft writes
    if is_own and (config.evaluation or config.license):
        raise ConfigError(f"{own} was written by hand and is not changed; move it away, and the card is made anew")
    if is_own:
        card = text
        notes.append(f"{own} was written by hand and is uploaded as it is.")
    elif "\n## Evaluation on" in text and not config.evaluation:
        notes.append(f"The card has no evaluation any more, as {own} has; name it again with --evaluation.")
    files[CARD] = card.encode()
    url = None if config.dry_run else _upload(repo, files, config, notes, progress, own=is_own)
    card = bytes(files[CARD]).decode() if CARD in files else card
    sizes = {name: len(c) if isinstance(c, bytes) else c.stat().st_size for name, c in sorted(files.items())}
    if url and is_run and not is_own and CARD in files:
        with atomic_write(str(own)) as temporary:
            temporary.write_text(card, encoding="utf-8")
    return Pushed(repo, "model" if is_run else "dataset", sizes, card, tuple(notes), url)


def _run_files(folder: Path, repo: str, config: PushConfig, notes: list[str]) -> tuple[Files, str]:
    """The files of a finished run, and its card."""
    prm_config = read_prm_config(folder)
    is_adapter = (folder / "adapter_config.json").is_file()
    weights = check_weights(folder, "adapter_model" if is_adapter else "model")
    options = msgspec.json.decode((folder / "train.json").read_bytes(), type=dict[str, Any])
    evaluations = [_metrics(Path(name).expanduser(), folder) for name in config.evaluation]
    names: dict[str, Any] = {"name": repo, "repo": repo, "base": config.base_model, "licence": config.license}
    card = model_card(folder, prm_config, options, evaluations=evaluations, **names)
    files: Files = {name: folder / name for name in (*weights, *MODEL_FILES) if (folder / name).is_file()}
    vocabulary = next((name for name in VOCABULARIES if name in files), VOCABULARIES[0])
    needed = ["adapter_config.json" if is_adapter else "config.json", "tokenizer_config.json", vocabulary]
    _check_whole(folder, sorted({*needed, *weights, *files}), prm_config.files)
    pinned = prm_config.base if hub_name(prm_config.base) else file_name(prm_config.base or "")
    base = config.base_model or pinned
    found = prm_config.base_fingerprint
    if is_adapter and prm_config.base and Path(prm_config.base).is_dir() and found == fingerprint_of(prm_config.base):
        found = fingerprint_of(prm_config.base, is_pushed=True)  # a base that is a run has another config on the hub
    files[PRM_CONFIG] = _json({**_without_folders(asdict(prm_config)), "base": base, "base_fingerprint": found})
    if is_adapter:
        adapter = msgspec.json.decode((folder / "adapter_config.json").read_bytes(), type=dict[str, Any])
        files["adapter_config.json"] = _json({**adapter, "base_model_name_or_path": hub_name(base) or base})
    if not (config.base_model or hub_name(pinned)):
        notes.append(f"The base checkpoint is named {base!r}, as its folder; --base-model names it on the hub.")
    return files, card


def _check_whole(folder: Path, names: Iterable[str], hashes: Mapping[str, int | str]) -> None:
    """Raise an error where a file of the model is missing, cut short or not as it was."""
    safetensors = imported("safetensors", "mprm push needs safetensors: install mprm with its extra [hub]")
    for name in names:
        path, before = folder / name, hashes.get(name)
        try:
            if name.endswith(".safetensors"):
                safetensors.safe_open(path, "numpy")  # compares the file's size with its header
            now = hash_file(str(path)) if isinstance(before, str) else path.stat().st_size
        except (safetensors.SafetensorError, OSError) as error:
            raise ConfigError(f"{path} is missing, cut short or unreadable: {error}") from error
        if before not in (None, now):
            raise ConfigError(f"{path} has changed since {PRM_CONFIG} was written")


def _metrics(folder: Path, run: Path) -> dict[str, Any]:
    """The metrics.json of an evaluation, whose last model must be the run, by its weights."""
    try:
        metrics = msgspec.json.decode((folder / "metrics.json").read_bytes(), type=dict[str, Any])
        scored = msgspec.json.decode((folder / (SCORES + MANIFEST_SUFFIX)).read_bytes(), type=dict[str, Any])[
            "config"
        ]
    except OSError as error:
        raise ConfigError(
            f"{error.filename} is missing; expected what mprm evaluate --model {run} --out wrote"
        ) from error
    is_last = metrics["models"][-1]["name"].startswith(scored["model"])  # the second of a name has (2) after it
    if not is_last or scored["model_fingerprint"] != fingerprint_of(run):
        raise ConfigError(f"{folder} is an evaluation of {scored['model']!r}, not of the model that is in {run} now")
    return metrics


def _subset_files(path: Path, repo: str, config: PushConfig, notes: list[str]) -> tuple[Files, str]:
    """The files of one or more subsets, and their card."""
    beside = path.with_name(path.name + MANIFEST_SUFFIX)
    places = sorted(path.glob(f"*{MANIFEST_SUFFIX}")) if path.is_dir() and not beside.is_file() else [beside]
    manifests = {place: manifest for place in places if (manifest := subset_manifest(place))}
    if not manifests:
        expected = "expected a folder that mprm train wrote, or what mprm select wrote with its manifest"
        raise ConfigError(f"{path} is neither a training run nor a subset; {expected}")
    if config.evaluation or config.base_model:
        raise ConfigError(f"--evaluation and --base-model are for a model, and {path} is a subset")
    files: Files = {}
    for place, manifest in manifests.items():
        data = output_files(manifest)
        for name in manifest["files"] if config.with_dropped else data:
            file = place.parent / name
            if not file.resolve().is_relative_to(place.parent.resolve()):
                raise ConfigError(f"{place} names {name!r}, which is not beside it")
            if not file.is_file() or (name in data and hash_file(str(file)) != data[name]["xxh3_128"]):
                raise ConfigError(f"{file} is not as mprm select wrote it, and {place.name} would be wrong about it")
            if name in data:
                files[name] = file
                images = (image for record in open_corpus(str(file), text_only=True) for image in record.images)
                if whole := next((image for image in images if PurePath(image).is_absolute()), None):
                    notes.append(f"Records of {name} hold whole paths, uploaded as they are, such as {whole}.")
            else:
                bad = map(msgspec.json.decode, file.read_bytes().splitlines())
                lines = (msgspec.json.encode({**record, "file": file_name(record["file"])}) for record in bad)
                files[name] = b"\n".join([*lines, b""])
        files[place.name] = _json(_without_folders(manifest))
    by_name = {place.name.removesuffix(MANIFEST_SUFFIX): manifest for place, manifest in manifests.items()}
    return files, dataset_card(by_name, repo=repo, licence=config.license)


def _without_folders(value: Any) -> Any:
    """The value, in which each ``path`` is the file's name alone."""
    if isinstance(value, dict):
        items = value.items()
        return {k: file_name(v) if k == "path" and isinstance(v, str) else _without_folders(v) for k, v in items}
    return [*map(_without_folders, value)] if isinstance(value, list) else value


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _upload(repo: str, files: Files, config: PushConfig, notes: list[str], progress: Progress, *, own: bool) -> str:
    """Upload the files in one commit, without the card where the one on the hub is kept; returns their address."""
    try:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, RepoCard, get_token
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise MissingDependencyError("mprm push needs huggingface_hub: install mprm with its extra [hub]") from error
    if not get_token():
        raise ConfigError("there is no token for the hub; run hf auth login, or set HF_TOKEN")
    if progress is silent or not sys.stderr.isatty():  # else its own bars: only they know how far a file is
        disable_progress_bars()
    kind = "model" if PRM_CONFIG in files else "dataset"
    try:
        RepoCard(bytes(files[CARD]).decode()).validate(kind)  # before there is a repository that would stay empty
        api, where = HfApi(library_name="mprm"), {"repo_id": repo, "repo_type": kind}
        url = str(api.create_repo(**where, private=config.private or None, exist_ok=True))
        if config.private and not api.repo_info(**where).private:
            raise ConfigError(f"{url} is there already and is public; nothing was uploaded")
        branch = config.revision
        at = branch if branch and api.revision_exists(**where, revision=branch) else None
        there = api.list_repo_files(**where, revision=at)
        is_ours = PRM_CONFIG in there if kind == "model" else any(name.endswith(MANIFEST_SUFFIX) for name in there)
        if (theirs := {*there} - STUBS) and not (config.force or is_ours):
            found = f"{url} has files that mprm did not write, such as {min(theirs)}"
            raise ConfigError(f"{found}; push to another name, or replace them with --force")
        if CARD in there and not (config.force or own):
            card = Path(api.hf_hub_download(**where, filename=CARD, revision=at)).read_text("utf-8", "replace")
            if MARK not in card:
                notes.append(f"{CARD} in {repo} was written by hand and is kept; --force replaces it.")
                if config.evaluation or config.license:
                    raise ConfigError(notes[-1])
                del files[CARD]
        if kind == "dataset" and CARD in files and not own:  # configs of the subsets that are there already
            whole = {}
            for name in sorted(n for n in {*there, *files} if n.endswith(MANIFEST_SUFFIX) and "/" not in n):
                place = files.get(name) or Path(api.hf_hub_download(**where, filename=name, revision=at))
                manifest = subset_manifest(place)
                if manifest and output_files(manifest).keys() <= {*there, *files}:
                    whole[name.removesuffix(MANIFEST_SUFFIX)] = manifest
            files[CARD] = dataset_card(whole, repo=repo, licence=config.license).encode()
        if branch:
            api.create_branch(**where, branch=branch, exist_ok=True)
        # weights of two models are of none
        names = [name for name in there if name not in files and "/" not in name] if kind == "model" else []
        stale = [name for name in names if any(fnmatch(name, weights) for weights in WEIGHTS)]
        operations = [CommitOperationAdd(name, content) for name, content in files.items()]
        operations += map(CommitOperationDelete, stale)
        api.create_commit(**where, operations=operations, commit_message="mprm push", revision=branch)
        if stale:
            notes.append(f"Weights in {repo} that this model does not have were deleted: {', '.join(stale)}.")
    except MprmError:
        raise
    except Exception as error:  # each library has its own
        reason = reason_of(error)
        reason = " ".join(str(error).split()) if reason.startswith("cannot be read") else reason
        raise ConfigError(f"{repo} was not uploaded: {reason:.300}") from error
    return url + (f"/tree/{branch}" if branch else "")

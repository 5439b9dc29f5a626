"""What lies elsewhere: models and datasets on the Hugging Face hub, files behind URLs, and why they cannot be had."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from mprm.data.records import HUB_NAME, filesystem
from mprm.errors import ConfigError, DataError, InputNotFoundError, MissingDependencyError, MprmError

CHECKPOINT_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
NOT_NEEDED = ("*/*", "consolidated*.safetensors")
"""Other formats of the weights and checkpoints within a run; and a second copy of the weights, as Mistral's have."""
NO_NAME = re.compile(r"(?=.*://|.*@$)(?:\w+://(?:[^/]+\.[^/]+/)?)?(?:models/)?(\w[\w.-]*/\w[\w.-]*)(?:[/@?#].*)?")
"""A URL of a checkpoint, or a name without the revision after @."""
REASONS = {
    "GatedRepoError": "its licence must be accepted on its page on the hub; then run hf auth login",
    "RevisionNotFoundError": "the hub has no such revision of it; expected a branch, a tag or a commit",
    "RepositoryNotFoundError": "the hub has no such repository, or a private one: check the name, or hf auth login",
    "OfflineModeIsEnabled": "it is not in the cache, and HF_HUB_OFFLINE forbids to download it; unset that",
    **dict.fromkeys(
        ("TransportError", "ConnectionError", "TimeoutError", "ClientConnectionError"),
        "there is no connection ({}); try again, or name a local copy",
    ),
    "FileNotFoundError": "no such file",
}
"""By the name of an exception or of its cause, the first that fits: the libraries need not be installed."""


def reason_of(error: BaseException) -> str:
    """Why something could not be had from afar, and the remedy, in one line."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    names = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    if known := next((text for name, text in REASONS.items() if name in names), None):
        return known.format(first)
    status = next((code for cause in causes if (code := _status_of(cause))), None)
    if status in (401, 403):
        return f"access is refused (HTTP {status}); log in first, to the hub with hf auth login"
    return f"cannot be read: {first}"


def _status_of(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", getattr(error, "status", None))
    return status if isinstance(status, int) else None


@contextmanager
def named_errors(url: str) -> Iterator[None]:
    """Turn whatever a back end raises, each of which has base classes of its own, into one line with the URL."""
    try:
        yield
    except MprmError:
        raise
    except Exception as error:
        reason = reason_of(error)
        kinds = {REASONS["FileNotFoundError"]: InputNotFoundError, "cannot be read": DataError}
        kind = next((kind for start, kind in kinds.items() if reason.startswith(start)), ConfigError)
        raise kind(f"{url}: {reason}") from error


def local_checkpoint(name: str | Path) -> str:
    """The folder of a checkpoint: an existing path as it is, ``org/name`` or ``org/name@revision`` from the hub.

    What is in the cache of huggingface_hub is not downloaded again, and does without a connection.
    """
    match = HUB_NAME.fullmatch(str(name))
    if (place := NO_NAME.fullmatch(str(name))) and not Path(name).expanduser().exists():
        raise ConfigError(f"{name}: neither a folder nor a name on the hub; write {place[1]}, or {place[1]}@REVISION")
    if match is None or Path(name).expanduser().exists():
        return str(name)
    return _snapshot(match["repo"], match["revision"])


def pinned_name(name: str | Path) -> str:
    """``org/name@commit`` of a checkpoint that `local_checkpoint` took from the hub; a path as it is."""
    folder = local_checkpoint(name)
    return folder if folder == str(name) else f"{str(name).partition('@')[0]}@{Path(folder).name}"


@lru_cache  # a process sees one commit, even if the branch moves on
def _snapshot(repo: str, revision: str | None) -> str:
    try:
        from huggingface_hub import HfApi, hf_hub_download, snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingDependencyError(
            f"{repo}: no such folder; for the hub install mprm with its extra [hub]"
        ) from error
    name = repo if revision is None else f"{repo}@{revision}"
    files: dict[str, Any] = {"allow_patterns": list(CHECKPOINT_FILES), "ignore_patterns": list(NOT_NEEDED)}
    commit, offline, cached, names = revision, None, "", list[str]()
    try:
        info = HfApi().model_info(repo, revision=revision, timeout=10)
        commit, names = info.sha, [file.rfilename for file in info.siblings or ()]
    except Exception as error:
        if isinstance(error, HFValidationError) or _status_of(error) in (400, 401, 403, 404):
            raise ConfigError(f"{name}: no such folder here, and {reason_of(error)}") from error
        offline = error  # no connection, or a hub that is down
    try:
        cached = str(snapshot_download(repo, revision=commit, local_files_only=True, **files))
    except LocalEntryNotFoundError as error:
        if offline is not None:
            here = "no such folder here nor checkpoint in the cache"
            raise ConfigError(f"{name}: {here}, and {reason_of(offline)}") from error
    if offline is None and not any(file.endswith(".safetensors") and "/" not in file for file in names):
        pickle = next((file for file in names if file.endswith((".bin", ".pt", ".pth"))), "pytorch_model.bin")
        raise ConfigError(f"{name}: it has no .safetensors files; pickles, such as {pickle}, are not read")
    config = b""
    with suppress(Exception):  # an adapter has none; anything else is told when the rest is downloaded
        path = hf_hub_download(repo, "config.json", revision=commit, local_files_only=offline is not None)
        config = Path(path).read_bytes()
    if re.search(rb'"model_type"\s*:\s*"internvl_chat"', config):
        folder, at = repo.partition("/")[2], "" if revision is None else f" --revision {revision}"
        commands = (
            f"hf download {repo}{at} --local-dir {folder} && mprm convert-internvl {folder} --out {folder}-native"
        )
        raise ConfigError(f"{name} is in InternVL's remote-code layout; download it and convert it: {commands}")
    if offline is not None:
        return cached
    if not cached:
        _say_download(f"{name}, commit {commit}")
    try:
        return str(snapshot_download(repo, revision=revision, **files))  # by the name, which the cache then knows
    except Exception as error:
        raise ConfigError(f"{name}: the download failed: {reason_of(error)}") from error


def _say_download(what: str) -> None:
    """A line where stderr is no terminal, in place of the bars of huggingface_hub."""
    if not sys.stderr.isatty():
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        print(f"downloading {what}", file=sys.stderr)


def dataset_files(paths: Any, patterns: Sequence[str]) -> Any:
    """The files that the patterns name in each of the paths: datasets ``org/name`` on the hub, or folders."""
    if not patterns:
        return paths
    names = [paths] if isinstance(paths, str | Path) else paths
    if not all(pattern.strip("/ ") for pattern in patterns):
        raise ConfigError("--files is empty; expected globs such as 'data/*.jsonl', or none for all files")
    if not isinstance(names, list | tuple) or not all(isinstance(name, str | Path) for name in names):
        raise ConfigError("files says which files of a dataset on the hub are read; expected its name, org/name")
    urls = []
    for name in map(str, names):
        is_local = Path(name).expanduser().is_dir()
        if not is_local and not HUB_NAME.fullmatch(name):
            raise ConfigError(f"{name}: files are those of a dataset on the hub, org/name, or of a folder")
        quoted = name.replace("/", "%2F").replace("%2F", "/", 1)  # a revision may hold a / too
        folder = name if is_local else f"hf://datasets/{quoted}"
        urls += [f"{folder}/{pattern.lstrip('/')}" for pattern in patterns]
    return urls


def pinned_path(fs: Any, path: str) -> str:
    """A path on the hub with the commit in it, so that all of it is read from one; a path elsewhere as it is."""
    is_hub = "hf" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)
    place: Any = fs.resolve_path(path) if is_hub else None
    if not hasattr(place, "repo_type"):
        return path
    from huggingface_hub import HfApi

    api = HfApi(endpoint=fs.endpoint, token=fs.token)
    commit = api.repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision).sha
    kind = "" if place.repo_type == "model" else f"{place.repo_type}s/"
    return f"{kind}{place.repo_id}@{commit}/{place.path_in_repo}".rstrip("/")


def downloaded(url: str) -> str:
    """A file of the hub in the cache of huggingface_hub; the URL is as `pinned_path` makes it."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    with named_errors(url):
        fs, path = filesystem(url)
        place = fs.resolve_path(path)
        file = {"repo_id": place.repo_id, "filename": place.path_in_repo, "repo_type": place.repo_type}
        file["revision"] = place.revision
        if not isinstance(try_to_load_from_cache(**file), str):
            _say_download(url)
        return str(hf_hub_download(**file, endpoint=fs.endpoint, token=fs.token))

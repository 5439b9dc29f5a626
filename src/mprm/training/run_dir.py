"""The folder of a training run: locked by one process, never somebody else's, resumed only as the same run."""

from __future__ import annotations

import fcntl
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from mprm.data.output import atomic_write
from mprm.errors import ConfigError, MprmError, OutputExistsError
from mprm.models.checkpoint import OLD_PRM_CONFIG, PRM_CONFIG, prm_config_path, read_prm_config
from mprm.training.config import TrainConfig

FREE_TO_CHANGE = {
    *("per_device", "pack", "device", "image_root", "dataloader_workers", "report_to"),
    *("save_every", "save_total_limit", "max_optimizer_steps"),
}
"""Options that may differ when a run is resumed: they do not change the result, up to rounding."""


class RunDir:
    """The files of a run in ``out``, and the lock on it."""

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.path = config, Path(config.out)
        self.options = self.path / "train.json"
        self.data = self.path / "data"
        self.training_set = self.data / "train.arrow"
        self.summary = self.data / "summary.json"
        """Counts of the training set; written last, as the mark that it is complete."""
        self._lock = ExitStack()
        self._replaced: Path | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the trained model is there."""
        return prm_config_path(self.path) is not None

    def check(self, inputs: list[str], *, resume: bool, force: bool) -> None:
        """Raise an error where the run cannot go there; changes nothing."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise ConfigError(f"{self.path} is no folder; choose another --out")
        for name in [] if resume else inputs:
            if Path(name).resolve().is_relative_to(self.path.resolve()):
                raise ConfigError(f"{name} is in {self.path}, the folder of the run; choose another --out")
        if not self.path.exists() or not any(self.path.iterdir()):
            return
        if not self.options.is_file():
            raise ConfigError(
                f"{self.path} is not empty and not the folder of a training run ({self.options.name} is not in it);"
                " choose another --out"
            )
        if self.summary.is_file() and not (resume or force):
            raise OutputExistsError(
                f"{self.path} exists already; continue with --resume, replace it with --force, or choose another"
                " folder"
            )

    def lock(self, identity: dict[str, Any], *, resume: bool) -> None:
        """Lock the folder, for a new run or the same one as before.

        An earlier run is moved aside until the new one is finished; a start that never came to training is removed.
        """
        options = msgspec.json.decode(msgspec.json.encode({**self.config.as_dict(), **identity}))  # tuples as lists
        if resume and self.summary.is_file():
            self._take_lock()
            before = read_json(self.options)
            changed = [name for name in options if name not in FREE_TO_CHANGE and before.get(name) != options[name]]
            if changed:
                differences = "; ".join(f"{name} was {before.get(name)!r}, now {options[name]!r}" for name in changed)
                raise ConfigError(f"{self.path} holds another run and cannot be resumed: {differences}")
            return
        if resume:
            print(f"there is no run in {self.path} to resume; it starts now", file=sys.stderr)
        if self.options.is_file():
            self._take_lock()
            if self.summary.is_file():
                replaced = self.path.with_name(self.path.name + ".replaced")
                if replaced.exists():
                    raise ConfigError(
                        f"{replaced} is in the way: an earlier --force was not finished; move or remove it"
                    )
                self._replaced = self.path.rename(replaced)
                print(f"the earlier run is kept in {replaced} until this one is finished", file=sys.stderr)
            else:
                shutil.rmtree(self.data, ignore_errors=True)
                self.options.unlink()
        self.data.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        write_json(self.options, options)

    def _take_lock(self) -> None:
        self._lock.close()
        file = self._lock.enter_context((self.path / "lock").open("a"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ConfigError(
                f"another process is training in {self.path}; wait for it, or choose another --out"
            ) from error

    def release(self) -> None:
        """Unlock the folder; the run that it replaced is removed once this one is finished."""
        self._lock.close()
        if self._replaced is not None and self.is_finished:
            shutil.rmtree(self._replaced)

    def last_checkpoint(self, *, remove_broken: bool) -> str | None:
        """The newest complete checkpoint; what a killed run left half-written is removed."""
        newest = None
        for folder in checkpoints(self.path / "checkpoints"):
            if _is_complete(folder):
                newest = str(folder)
            elif remove_broken:
                shutil.rmtree(folder)
        return newest


def checkpoints(folder: Path) -> list[Path]:
    """The run's checkpoints, oldest first, complete or not."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    return sorted((path for path in steps if steps[path].isdigit()), key=lambda path: int(steps[path]))


def file_sizes(folder: Path) -> dict[str, int]:
    """Size of every file of a checkpoint but ``prm_config.json``."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = (PRM_CONFIG, OLD_PRM_CONFIG)
    return {str(path.relative_to(folder)): path.stat().st_size for path in paths if path.name not in names}


def _is_complete(folder: Path) -> bool:
    """Whether the checkpoint's config is there, and every file that it names has the size it had."""
    try:
        return read_prm_config(folder).files == file_sizes(folder)
    except MprmError:
        return False


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write indented JSON, all of it or nothing."""
    with atomic_write(str(path)) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """The values of a file that `write_json` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is damaged: {error}; start again with --force") from error

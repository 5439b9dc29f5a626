"""The folder of a training run: claimed by one process, never somebody else's, resumed only as the same run."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from mprm.data.output import atomic_write
from mprm.errors import ConfigError, MprmError, OutputExistsError
from mprm.models.checkpoint import CARD, read_prm_config
from mprm.training.config import TrainConfig

CONFIG = "train.json"
DATA = "data"
LOCK = "lock"
FREE_TO_CHANGE = {
    *("per_device", "pack", "workers", "keep", "save_every", "report_to", "max_updates", "device", "image_root"),
}
"""Options that may differ when a run is resumed: they do not change what comes out, but for rounding."""


class RunDir:
    """What lies where in ``out``, and who may write to it."""

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.path = config, Path(config.out)
        self.data = self.path / DATA
        self.summary = self.data / "summary.json"
        self.rollouts = self.data / "train.arrow"
        self.checkpoints = self.path / "checkpoints"
        self._lock: Any = None
        self._aside: Path | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the trained model is there."""
        return (self.path / CARD).is_file()

    def refuse(self, inputs: list[str], *, resume: bool, force: bool) -> None:
        """Stop when the run cannot go there; changes nothing."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise ConfigError(f"{self.path} is no folder; choose another --out")
        if not resume:
            inside = self.path.resolve()
            for name in inputs:
                if Path(name).resolve().is_relative_to(inside):
                    raise ConfigError(f"{name} lies in {self.path}, where the run is to go; choose another --out")
        if not self.path.exists() or not any(self.path.iterdir()):
            return
        if not (self.path / CONFIG).is_file():
            raise ConfigError(
                f"{self.path} is not empty and not the folder of a training run ({CONFIG} is not in it);"
                " choose another --out"
            )
        if self.summary.is_file() and not (resume or force):
            raise OutputExistsError(
                f"{self.path} exists already; go on with --resume, replace it with --force, or choose another folder"
            )

    def claim(self, identity: dict[str, Any], *, resume: bool) -> None:
        """Make the folder this process's, for a new run or the same one as before."""
        written, settings = self.path / CONFIG, _as_read({**asdict(self.config), **identity})
        if resume and self.summary.is_file():
            self._take_lock()
            self._check_another(_decoded(written), settings)
            return
        if resume:
            print(f"there is no run in {self.path} to resume; it begins now", file=sys.stderr)
        if written.is_file():
            self._take_lock()
            self._clear()
        self.data.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        with atomic_write(str(written)) as temporary:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n")

    def _clear(self) -> None:
        """Move a run aside until the new one is finished; a start that never came to training is removed."""
        if not self.summary.is_file():
            shutil.rmtree(self.data, ignore_errors=True)
            (self.path / CONFIG).unlink()
            return
        self._aside = self.path.with_name(self.path.name + ".replaced")
        if self._aside.exists():
            raise ConfigError(f"{self._aside} is in the way: an earlier --force was not finished; move or remove it")
        self.path.rename(self._aside)
        print(f"the earlier run is kept in {self._aside} until this one is finished", file=sys.stderr)

    def _check_another(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        changed = [name for name in now if name not in FREE_TO_CHANGE and before.get(name) != now[name]]
        if changed:
            listed = "; ".join(f"{name} was {before.get(name)!r}, now {now[name]!r}" for name in changed)
            raise ConfigError(f"{self.path} holds another run and cannot be resumed: {listed}")

    def _take_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
        self._lock = (self.path / LOCK).open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            self._lock = None
            raise ConfigError(
                f"another process is training in {self.path}; wait for it, or choose another --out"
            ) from error

    def release(self) -> None:
        """Let others have it; what it replaced is removed once the run is finished."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._aside is not None and self.is_finished:
            shutil.rmtree(self._aside)

    def last_checkpoint(self, *, remove_broken: bool) -> str | None:
        """The newest whole checkpoint; what a killed run left half-written is removed."""
        whole = None
        for folder in checkpoints(self.checkpoints):
            if _is_whole(folder):
                whole = str(folder)
            elif remove_broken:
                shutil.rmtree(folder)
        return whole


def checkpoints(folder: Path) -> list[Path]:
    """The run's checkpoints, oldest first, whole or not."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def sizes_of(folder: Path) -> dict[str, int]:
    """Size of every file of a checkpoint but its card."""
    found = [Path(where, name) for where, _, names in os.walk(folder) for name in names]
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(found) if path.name != CARD}


def _is_whole(folder: Path) -> bool:
    """Whether the checkpoint's card is there, and every file that it names is as large as it was."""
    try:
        card = read_prm_config(folder)
    except MprmError:
        return False
    return card.files == sizes_of(folder)


def _as_read(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as they come back from a file: tuples are lists there."""
    return msgspec.json.decode(msgspec.json.encode(settings), type=dict)


def _decoded(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is damaged: {error}; start anew with --force") from error

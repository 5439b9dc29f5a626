"""What finished cells leave in the lab's folder: one small JSON each, and the step scores of some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mprm.data.output import atomic_write
from mprm.errors import ConfigError, DataError
from mprm.evaluation import FloatArray
from mprm_lab.reproduce.cell import Cell


class CellFiles:
    """The folder ``cells`` of a lab."""

    def __init__(self, lab: Path) -> None:
        self.folder = lab / "cells"

    def path(self, cell: Cell) -> Path:
        """Where the cell's record lies once it is finished."""
        return self.folder / f"{cell.name}.json"

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """The record of a finished cell, None where it is not finished."""
        path = self.path(cell)
        if not path.is_file():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict)
        except msgspec.DecodeError as error:
            raise DataError(f"{path} is damaged: {error}; remove it, and the cell is measured anew") from error

    def write(self, cell: Cell, record: dict[str, Any], scores: FloatArray | None = None) -> None:
        """Keep a finished cell; its record comes last, as the sign that all is there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if scores is not None:
            with atomic_write(str(self._scores(cell))) as temporary, temporary.open("wb") as out:
                np.savez_compressed(out, scores=scores.astype(np.float32))
        with atomic_write(str(self.path(cell))) as temporary:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")

    def scores(self, cell: Cell) -> FloatArray | None:
        """The score of each of the benchmark's steps, shape (S,); None where they were not kept."""
        path = self._scores(cell)
        if not path.is_file():
            return None
        with np.load(path, allow_pickle=False) as found:
            scores: FloatArray = found["scores"].astype(np.float64)
        return scores

    def _scores(self, cell: Cell) -> Path:
        return self.folder / f"{cell.name}.npz"

    def check_others(self, cell: Cell, settings: dict[str, Any]) -> None:
        """Stop when the cell was measured on other data or with other settings than are asked for now."""
        record = self.read(cell)
        before = {} if record is None else record["settings"]
        now = msgspec.json.decode(msgspec.json.encode(settings), type=dict)
        changed = [name for name in {**before, **now} if record and before.get(name) != now.get(name)]
        if changed:
            listed = "; ".join(f"{name} was {before.get(name)!r}, now {now.get(name)!r}" for name in changed)
            raise ConfigError(
                f"{self.path(cell)} was measured otherwise: {listed}. Remove {self.folder} to measure all anew"
            )

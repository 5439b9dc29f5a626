"""The training set as torch sees it: rollouts from a mapped file, encoded when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mprm.backbones.prompt import Encoded, PromptEncoder
from mprm.errors import DataError
from mprm.rollouts.chain import Chain
from mprm.training.labels import IGNORED, step_labels

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Example:
    """One rollout, ready for a batch."""

    encoded: Encoded
    labels: list[float]
    place: str


class TrainingSet:
    """What `mprm.training.prepare.prepare` wrote; an index ``~i`` gives rollout i with its steps ignored."""

    def __init__(self, path: Path, encoder: PromptEncoder, *, tau: float = 0.0, soft: bool = False) -> None:
        import pyarrow as pa

        try:
            self._table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path} is damaged or gone: {error}; start anew with --force") from error
        self._encoder, self._tau, self._soft = encoder, tau, soft
        self.lengths = np.asarray(self._table["n_tokens"], dtype=np.int64)
        self.n_kept = np.asarray(self._table["n_kept"], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, index: int) -> dict[str, Any]:
        """The rollout as it was written."""
        return self._table.slice(index, 1).to_pylist()[0]  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Example:
        is_filler, index = index < 0, (~index if index < 0 else index)
        row = self.row(index)
        encoded = self._encoder.encode(Chain(row["question"], tuple(row["steps"]), tuple(row["images"])))
        if len(encoded.positions) != row["n_kept"]:
            raise DataError(f"{row['place']}: its images or the tokenizer changed since the run was prepared")
        labels = step_labels(row["scores"], tau=self._tau, soft=self._soft)[: len(encoded.positions)]
        return Example(encoded, [IGNORED] * len(labels) if is_filler else labels, row["place"])

    def collate(self, batch: list[Example]) -> dict[str, torch.Tensor | list[str]]:
        """A batch for the step reader, with its labels and where its rollouts come from."""
        import torch

        inputs: dict[str, Any] = self._encoder.collate([example.encoded for example in batch])
        inputs["labels"] = torch.tensor([label for example in batch for label in example.labels])
        inputs["places"] = [example.place for example in batch]
        return inputs

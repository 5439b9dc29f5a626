"""The training set as torch sees it: rollouts from a mapped file, encoded when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mprm.backbones.family import Arrays
from mprm.backbones.pack_prompts import packed
from mprm.backbones.prompt import Encoded, PromptEncoder
from mprm.errors import DataError
from mprm.rollouts.chain import Chain
from mprm.training.labels import IGNORED, step_labels
from mprm.training.prepare import schema


@dataclass(frozen=True, slots=True)
class Example:
    """One rollout, ready for a batch."""

    encoded: Encoded
    labels: list[float]
    place: str


class TrainingSet:
    """What `mprm.training.prepare.prepare` wrote; an index ``~i`` gives rollout i with its steps ignored."""

    def __init__(
        self, path: Path, encoder: PromptEncoder, *, tau: float = 0.0, soft: bool = False, pack: bool = False
    ) -> None:
        import pyarrow as pa

        try:
            self._table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path} is damaged or gone: {error}; start anew with --force") from error
        if self._table.schema != schema():
            raise DataError(f"{path} was prepared by an earlier mprm; start anew with --force")
        self._encoder, self._tau, self._soft, self._pack = encoder, tau, soft, pack
        self._shown: tuple[tuple[Any, ...], Arrays] = ((), {})
        self.lengths = np.asarray(self._table["n_tokens"], dtype=np.int64)
        self.n_kept = np.asarray(self._table["n_kept"], dtype=np.int64)
        self.n_prompt = np.asarray(self._table["n_prompt"], dtype=np.int64)
        self.problems = np.asarray(self._table["problem"], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Example:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Example]:
        """Several at once, which a DataLoader asks for: their rows are read together."""
        rows = self._table.take([~index if index < 0 else index for index in indices]).to_pylist()
        return [self._example(row, is_filler=index < 0) for index, row in zip(indices, rows, strict=True)]

    def _example(self, row: dict[str, Any], *, is_filler: bool) -> Example:
        encoded = self._encoded(Chain(row["question"], tuple(row["steps"]), tuple(row["images"])))
        if len(encoded.positions) != row["n_kept"]:
            raise DataError(f"{row['place']}: its images or the tokenizer changed since the run was prepared")
        labels = step_labels(row["scores"], tau=self._tau, soft=self._soft)[: len(encoded.positions)]
        return Example(encoded, [IGNORED] * len(labels) if is_filler else labels, row["place"])

    def _encoded(self, chain: Chain) -> Encoded:
        """The chain, with the images of the one before where they are the same: they are decoded once."""
        measured = self._encoder.measure(chain)
        if measured.images != self._shown[0]:
            self._shown = (measured.images, self._encoder.see(chain, measured).vision)
        return replace(measured, vision=self._shown[1])

    def collate(self, batch: list[Example]) -> dict[str, Any]:
        """A batch for the step reader, with its labels and where its rollouts come from."""
        import torch

        encoded = [example.encoded for example in batch]
        inputs: dict[str, Any] = packed(self._encoder, encoded) if self._pack else self._encoder.collate(encoded)
        inputs["labels"] = torch.tensor([label for example in batch for label in example.labels])
        inputs["places"] = [example.place for example in batch]
        return inputs

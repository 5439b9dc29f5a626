"""What each step is taught: hard labels at a threshold, or its Monte-Carlo score.

From a corpus to a training set: every image looked at, every rollout measured, what is unusable set apart.

The training set as torch sees it: rollouts from a mapped file, encoded when they are asked for.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from mprm.data.corpus import Corpus, PlacedRollout
from mprm.data.images import listed
from mprm.data.output import Dropped, DroppedRecords
from mprm.data.types import Chain, Rollout
from mprm.errors import DataError
from mprm.models.families import NO_IMAGES, Arrays
from mprm.models.prefix_tree import packed
from mprm.models.prompt import Encoded, PromptEncoder

IGNORED = -100.0
"""The label of a step that has no part in the loss."""


def step_labels(scores: Sequence[float], *, tau: float = 0.0, soft: bool = False) -> list[float]:
    """The target of each step: 1 where its score is strictly above ``tau``, else 0; the score itself when soft.

    Examples
    --------
    >>> step_labels([0.875, 0.0625, 0.0], tau=0.0625)
    [1.0, 0.0, 0.0]
    >>> step_labels([0.875, 0.0625, 0.0], soft=True)
    [0.875, 0.0625, 0.0]
    """
    return list(map(float, scores)) if soft else [float(score > tau) for score in scores]


ROWS = 512
"""Rollouts measured at a time."""
BROKEN = "broken_images.txt"


@dataclass(slots=True)
class Prepared:
    """What became of the corpus."""

    n_rollouts: int = 0
    n_steps: int = 0
    n_positive: int = 0
    """Steps with a score above tau."""
    n_lost: int = 0
    """Steps cut off by truncation from rollouts that are trained on."""
    n_truncated: int = 0
    """Rollouts that lost steps but not all of them."""
    by_source: dict[str, int] = field(default_factory=dict)
    dropped: DroppedRecords = field(default_factory=DroppedRecords)
    broken: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, Any]:
        """For the card and the summary."""
        return {
            "rollouts": self.n_rollouts,
            "steps": self.n_steps,
            "positive_steps": self.n_positive,
            "steps_lost_to_truncation": self.n_lost,
            "rollouts_truncated": self.n_truncated,
            "by_source": self.by_source,
            "dropped": self.dropped.counts,
        }


def chain_of(rollout: Rollout) -> Chain:
    """The rollout as the model sees it, without its labels."""
    return Chain(rollout.question, tuple(step.text for step in rollout.steps), rollout.images)


def schema() -> Any:
    """Columns of a training set."""
    import pyarrow as pa

    return pa.schema(
        [
            ("question", pa.string()),
            ("steps", pa.list_(pa.string())),
            ("scores", pa.list_(pa.float64())),
            ("images", pa.list_(pa.string())),
            ("source", pa.string()),
            ("place", pa.string()),
            ("n_tokens", pa.int32()),
            ("n_kept", pa.int32()),
            ("n_prompt", pa.int32()),
            ("problem", pa.int64()),
        ]
    )


def prepare(
    corpus: Corpus,
    encoder: PromptEncoder,
    path: Path,
    *,
    tau: float,
    skip_bad: bool,
    on_rollouts: Callable[[int], Any] | None = None,
) -> Prepared:
    """Write the training set to an Arrow file that every rank and worker maps.

    All missing and broken images are found before anything is trained; without ``skip_bad`` they stop
    the run together, and the list of all of them is written beside the file.
    """
    import pyarrow as pa

    done, images, sources = Prepared(), _Images(encoder), Counter[str]()
    sees_images = bool(encoder.family.image_tokens)
    placed = corpus.placed(on_bad=done.dropped if skip_bad else None)
    with (
        ThreadPoolExecutor(os.cpu_count()) as pool,
        pa.OSFile(str(path), "wb") as out,
        pa.ipc.new_file(out, schema()) as writer,
    ):
        while batch := list(islice(placed, ROWS)):
            blind = next((one for one in batch if one.rollout.images and not sees_images), None)
            if blind is not None:
                raise DataError(f"{blind.file}:{blind.line}: the rollout has images, and {NO_IMAGES}")
            rows = list(_rows(batch, encoder, images, pool, done, skip_bad=skip_bad))
            for row in rows:
                sources[row["source"]] += 1
                done.n_steps += row["n_kept"]
                done.n_positive += sum(score > tau for score in row["scores"][: row["n_kept"]])
            done.n_rollouts += len(rows)
            if rows:
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema()))
            if on_rollouts is not None:
                on_rollouts(len(batch))
    done.by_source = dict(sources)
    if len(done.dropped):
        done.dropped.write(str(path.parent / "dropped.jsonl"))
    if done.broken:
        everything = path.parent / BROKEN
        everything.write_text("\n".join(sorted(set(done.broken))) + "\n", encoding="utf-8")
        raise DataError(
            f"{len(set(done.broken)):,} images cannot be used:\n{listed(done.broken)}\nAll of them are listed in"
            f" {everything}. Mend them, point --image-root to where images lie, or drop their rollouts with"
            " --skip-bad."
        )
    if not done.n_rollouts:
        named = ", ".join(file.path for file in corpus.files)
        why = f"; all were dropped, see {path.parent / 'dropped.jsonl'}" if len(done.dropped) else ""
        raise DataError(f"{named}: no rollout to train on{why}")
    return done


class _Images:
    """Which images are broken, each looked at once."""

    def __init__(self, encoder: PromptEncoder) -> None:
        self._encoder, self._found = encoder, dict[str, str | None]()

    def look_at(self, paths: set[str], pool: ThreadPoolExecutor) -> None:
        """Decode those not yet seen."""
        new = sorted(paths - self._found.keys())
        self._found.update(zip(new, pool.map(self._encoder.why_unusable, new), strict=True))

    def reasons(self, paths: tuple[str, ...]) -> list[str]:
        """Why some of the images cannot be used."""
        return [reason for path in paths if (reason := self._found[path]) is not None]


def _rows(
    batch: list[PlacedRollout],
    encoder: PromptEncoder,
    images: _Images,
    pool: ThreadPoolExecutor,
    done: Prepared,
    *,
    skip_bad: bool,
) -> Iterator[dict[str, Any]]:
    images.look_at({image for placed in batch for image in placed.rollout.images}, pool)
    whole = []
    for placed in batch:
        reasons = images.reasons(placed.rollout.images)
        if not reasons:
            whole.append(placed)
        elif skip_bad:
            done.dropped(_dropped(placed, "image_broken", "; ".join(reasons)))
        else:
            done.broken += reasons

    def measure(placed: PlacedRollout) -> tuple[Encoded, int]:
        chain = chain_of(placed.rollout)
        return encoder.measure(chain), encoder.n_prompt(chain)

    for placed, (encoded, n_prompt) in zip(whole, pool.map(measure, whole), strict=True):
        if not encoded.positions:
            reason = f"no step is left of {encoded.n_steps} within {encoder.max_length:,} tokens"
            done.dropped(_dropped(placed, "no_step_left", reason))
            continue
        done.n_lost += encoded.n_lost
        done.n_truncated += encoded.n_lost > 0
        rollout = placed.rollout
        yield {
            "question": rollout.question,
            "steps": [step.text for step in rollout.steps],
            "scores": rollout.scores,
            "images": rollout.images,
            "source": placed.source,
            "place": f"{placed.file}:{placed.line}",
            "n_tokens": len(encoded.ids),
            "n_kept": len(encoded.positions),
            "n_prompt": n_prompt,
            "problem": _problem(rollout),
        }


def _problem(rollout: Rollout) -> int:
    """A number that rollouts of the same question and images have in common."""
    return xxhash.xxh3_64_intdigest("\0".join([rollout.question, *rollout.images]).encode("utf-8", "replace")) >> 1


def _dropped(placed: PlacedRollout, kind: str, reason: str) -> Dropped:
    record = msgspec.json.encode(placed.rollout)
    return Dropped(placed.file, placed.line, placed.source, kind, reason, record)


@dataclass(frozen=True, slots=True)
class Example:
    """One rollout, ready for a batch."""

    encoded: Encoded
    labels: list[float]
    place: str


class TrainingSet:
    """What `mprm.training.dataset.prepare` wrote; an index ``~i`` gives rollout i with its steps ignored."""

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

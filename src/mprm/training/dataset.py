"""The training set: every rollout tokenized once into an Arrow file, to which training only adds pixel values."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mprm.data.corpus import Corpus, LocatedRollout
from mprm.data.engine import n_cores
from mprm.data.images import listed
from mprm.data.output import Dropped, DroppedRecords
from mprm.data.types import Chain, location, problem_key
from mprm.errors import DataError
from mprm.models.families import NO_IMAGES
from mprm.models.prefix_tree import collate_tree
from mprm.models.prompt import Prompt, PromptEncoder, TokenizedChain
from mprm.progress import Progress
from mprm.selection.scan import pack_row
from mprm.selection.stats import ROW_TYPE, LabelCounts
from mprm.training.config import TrainConfig
from mprm.training.objective import IGNORED, Labeler, Objective

ROWS = 512
"""Rollouts prepared at a time, and rows of a record batch."""
SCHEMA = pa.schema(
    {
        "input_ids": pa.list_(pa.int32()),
        "prm_positions": pa.list_(pa.int32()),
        "labels": pa.list_(pa.float64()),
        "n_mc": pa.list_(pa.int64()),
        "images": pa.list_(pa.string()),
        "image_sizes": pa.list_(pa.list_(pa.int32(), 2)),
        "location": pa.string(),  # FILE:LINE
        "problem": pa.int64(),
        "n_prompt_tokens": pa.int32(),
    }
)
DROPPED, BROKEN_IMAGES = "dropped.jsonl", "broken_images.txt"


def prepare(
    corpus: Corpus,
    encoder: PromptEncoder,
    path: Path,
    config: TrainConfig,
    dropped: DroppedRecords,
    progress: Progress,
) -> tuple[dict[str, Any], LabelCounts]:
    """Write the training set that every rank and data worker maps into memory; returns its counts, and its labels'.

    ``dropped`` holds the records that a selection before it dropped.

    All missing and broken images are found before anything is trained on; without ``skip_bad`` they stop the run
    together, and the list of all of them is written beside the file.
    """
    sources, targets = Counter[str](), set[float]()
    counts = Counter(steps=0, positive_steps=0, steps_without_label=0)
    counts.update(steps_lost_to_truncation=0, rollouts_truncated=0)
    rows, numbers = bytearray(), dict[str, int]()
    image_errors: dict[str, str | None] = {}
    label, least = Labeler(corpus, config, progress), 0.5 if config.labels == "posterior" else 0.0
    located = corpus.located(on_bad=dropped if config.skip_bad else None)

    @lru_cache(maxsize=ROWS)  # the rollouts of a problem follow each other
    def prompt_of(question: str, images: tuple[str, ...]) -> tuple[Prompt, int]:
        prompt = encoder.prompt(Chain(question, (), images))
        return prompt, encoder.n_prompt_tokens(prompt)

    def tokenize(entry: LocatedRollout) -> tuple[TokenizedChain, int] | str:
        reasons = [error for image in entry.rollout.images if (error := image_errors[image])]
        if reasons:
            return "; ".join(reasons)
        chain = entry.rollout.chain
        prompt, n_prompt = prompt_of(chain.question, chain.images)
        return encoder.tokenize(chain, prompt), n_prompt

    def drop(entry: LocatedRollout, kind: str, reason: str) -> None:
        dropped(Dropped(entry.file, entry.line, entry.source, kind, reason, msgspec.json.encode(entry.rollout)))

    with (
        ThreadPoolExecutor(n_cores() if config.dataloader_workers else 1) as pool,
        pa.OSFile(str(path), "wb") as out,
        pa.ipc.new_file(out, SCHEMA) as writer,
        progress("preparing rollouts", None) as advance,
    ):
        while batch := list(islice(located, ROWS)):
            advance(len(batch))
            _check_images(batch, encoder, image_errors, pool)
            batch_rows = []
            for entry, tokenized in zip(batch, pool.map(tokenize, batch), strict=True):
                if isinstance(tokenized, str):
                    if config.skip_bad:
                        drop(entry, "image_broken", tokenized)
                    continue
                chain, n_prompt = tokenized
                rollout, n_kept = entry.rollout, len(chain.prm_positions)
                if not n_kept:
                    reason = f"no step is left of {chain.n_steps} within {encoder.max_length:,} tokens"
                    drop(entry, "no_step_left", reason)
                    continue
                scores = rollout.scores[:n_kept]
                try:
                    labels, n_mc = (values[:n_kept] for values in label(rollout))
                except DataError as error:
                    if not config.skip_bad:
                        raise DataError(f"{location(entry.file, entry.line)}: {error}") from None
                    drop(entry, "no_counts", str(error))
                    continue
                problem = int(problem_key(rollout.question, rollout.images)[:15], 16)
                tokens = chain.input_ids, chain.prm_positions, labels, n_mc, chain.images, chain.image_sizes
                values = *tokens, location(entry.file, entry.line), problem, n_prompt
                batch_rows.append(dict(zip(SCHEMA.names, values, strict=True)))
                number = numbers.setdefault(entry.source, len(numbers))
                rows += pack_row([], scores, [], tau=config.tau, source=number, n_bytes=0)
                sources[entry.source] += 1
                used = [value for value in labels if value >= 0]
                targets.update(used)
                counts.update(steps=n_kept, positive_steps=sum(value > least for value in used))
                counts.update(steps_without_label=n_kept - len(used))
                counts.update(steps_lost_to_truncation=chain.n_truncated, rollouts_truncated=chain.n_truncated > 0)
            if batch_rows:
                writer.write_batch(pa.RecordBatch.from_pylist(batch_rows, SCHEMA))
    if len(dropped):
        dropped.write(str(path.parent / DROPPED))
    broken = {error for error in image_errors.values() if error}
    if broken and not config.skip_bad:
        everything = path.parent / BROKEN_IMAGES
        everything.write_text("\n".join(sorted(broken)) + "\n", encoding="utf-8")
        raise DataError(
            f"{len(broken):,} images cannot be used:\n{listed(broken)}\nAll of them are listed in {everything}."
            " Fix them, point --image-root to where images are, or drop their rollouts with --skip-bad."
        )
    files = ", ".join(location(file.path) for file in corpus.files)
    if not sources:
        kinds = sum(dropped.counts.values(), Counter[str]())
        most = "".join(f", {n:,} as {kind}" for kind, n in kinds.most_common(1))
        why = f"; all {len(dropped):,} were dropped{most}: see {path.parent / DROPPED}" if len(dropped) else ""
        raise DataError(f"{files}: no rollout to train on{why}")
    if not targets:
        raise DataError(f"{files}: no step has a target; choose other --labels")
    if len(targets) == 1:
        kind = "positive" if counts["positive_steps"] else "negative"
        other = ", or choose another --tau" if "tau" in label.settings and config.loss != "beta-binomial" else ""
        raise DataError(
            f"{files}: all {counts['steps']:,} steps are {kind} (target {targets.pop():g}); expected both labels: a"
            f" model would learn one answer to everything. Add rollouts with the other label{other}."
        )
    summary = {"rollouts": sources.total(), **counts, "by_source": dict(sources), "dropped": dropped.counts}
    summary["labels"] = label.settings
    return summary, LabelCounts(np.frombuffer(rows, ROW_TYPE), [], list(numbers))


def _check_images(
    batch: list[LocatedRollout], encoder: PromptEncoder, errors: dict[str, str | None], pool: ThreadPoolExecutor
) -> None:
    """Add to ``errors`` why each image of the batch cannot be used, or None; each image is decoded once."""
    for entry in batch:
        if entry.rollout.images and not encoder.family.image_tokens:
            raise DataError(f"{location(entry.file, entry.line)}: the rollout has images, and {NO_IMAGES}")
    images = sorted({image for entry in batch for image in entry.rollout.images} - errors.keys())
    errors.update(zip(images, pool.map(encoder.image_error, images), strict=True))


class TrainingSet:
    """What `prepare` wrote; an index ``~i`` gives rollout i with its steps ignored."""

    def __init__(self, path: Path, encoder: PromptEncoder, objective: Objective, *, pack: bool = False) -> None:
        try:
            self._table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()  # mapped, not read
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path} is damaged or gone: {error}; start again with --force") from error
        if self._table.schema != SCHEMA:
            raise DataError(f"{path} was prepared by an earlier mprm; start again with --force")
        self._encoder, self._pack = encoder, pack
        self._batches = self._table.to_batches()
        self._starts = np.cumsum([0, *map(len, self._batches)])[:-1]
        self.lengths = pc.list_value_length(self._table["input_ids"]).to_numpy().astype(np.int64)
        labels = self._table["labels"].combine_chunks()
        n_steps = pc.list_value_length(labels).to_numpy().astype(np.int64)
        self.n_items = objective.n_items(labels.flatten().to_numpy(), n_steps)
        self.problems, self.n_prompt = (self._table[name].to_numpy() for name in ("problem", "n_prompt_tokens"))

    def __len__(self) -> int:
        return len(self.lengths)

    def _row(self, index: int) -> dict[str, Any]:
        # not by Table.slice, which looks at every record batch of every column, nor by Table.take, which copies all
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        row: dict[str, Any] = self._batches[number].slice(index - self._starts[number], 1).to_pylist()[0]
        return row

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        """A micro-batch for `PRMModel`, with its labels and where its rollouts come from."""
        import torch

        chains: list[TokenizedChain] = []
        labels, n_mc, numbers = list[float](), list[int](), list[int]()
        cache: dict[tuple[Any, ...], Any] = {}  # the images of a problem are decoded once
        rows = [self._row(max(index, ~index)) for index in indices]
        for number, (index, row) in enumerate(zip(indices, rows, strict=True)):
            images, sizes = tuple(row["images"]), tuple(map(tuple, row["image_sizes"]))
            chain = TokenizedChain(row["input_ids"], row["prm_positions"], len(row["labels"]), images, sizes)
            try:
                chains.append(self._encoder.add_pixel_values(chain, cache))
            except DataError as error:
                raise DataError(f"{row['location']}: {error}") from error
            labels += [IGNORED] * len(row["labels"]) if index < 0 else row["labels"]
            n_mc += row["n_mc"]
            numbers += [number] * len(row["labels"])
        collated = collate_tree(self._encoder, chains) if self._pack else self._encoder.collate(chains)
        targets = {"labels": torch.tensor(labels), "n_mc": torch.tensor(n_mc), "chains": torch.tensor(numbers)}
        return {**collated, **targets, "locations": [row["location"] for row in rows]}

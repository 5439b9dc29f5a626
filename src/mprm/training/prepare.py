"""From a corpus to a training set: every image looked at, every rollout measured, what is unusable set apart."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from mprm.backbones.prompt import Encoded, PromptEncoder
from mprm.backbones.text import NO_IMAGES
from mprm.errors import DataError
from mprm.rollouts.chain import Chain
from mprm.rollouts.corpus import Corpus, PlacedRollout
from mprm.rollouts.dropped import Dropped, DroppedRecords
from mprm.rollouts.images import listed
from mprm.rollouts.rollout import Rollout

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

"""What a policy is taught: to say what a picture shows, to look things up in it, and to solve problems."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mprm.annotation.questions.prompt import prompt_of
from mprm.annotation.split_steps import JOINT
from mprm.backbones.chat import plain_text
from mprm.backbones.load import Backbone
from mprm.backbones.qwen2_5_vl import as_frames
from mprm.errors import ConfigError
from mprm.lab.world import LOOK, POINT, SOURCES, SPLITS, Problem, as_question, description, draw, problem, solution
from mprm.lab.world.names import OPTIONS
from mprm.lab.world.randomness import draws_for

IGNORED = -100
POINTS = ("value ", "number ")
"""Kinds of facts that a picture holds; see `mprm.lab.world.forms`."""
N_POINTS = 10
N_SEEDS = 10_000_000
"""Seeds of each source that one policy may see."""

Lesson = Callable[[Problem], tuple[str, str]]
"""What is asked about a problem's picture, and what is to be said."""


def seeing(one: Problem) -> tuple[str, str]:
    """Say what the picture shows: every token of it is looked at, which a solution does not need."""
    return LOOK, "\n".join(description(one))


def solving(one: Problem) -> tuple[str, str]:
    """Solve the problem."""
    return prompt_of(as_question(one)), JOINT.join(solution(one))


def pointing(one: Problem) -> tuple[str, str]:
    """Say what is at some places and how many there are of some things: what the steps of solutions look up."""
    draws = draws_for(one.source, one.seed, "solution", 1)
    names = draws.shuffled([name for name in one.facts if name.startswith(POINTS)])
    # most things are in no place: half of what is said is about some that are
    there = [name for name in names if one.facts[name] != "0"][: N_POINTS // 2]
    told = draws.shuffled([*there, *[name for name in names if name not in there][: N_POINTS - len(there)]])
    return POINT, ", ".join(f"{name.partition(' ')[2]} {one.facts[name]}" for name in told) + "."


def choosing(one: Problem) -> tuple[str, str]:
    """Say which option says what, where there are any: the last step of a solution looks one up."""
    if not one.options:
        return pointing(one)
    lettered = list(zip(one.options, OPTIONS, strict=True))
    told = draws_for(one.source, one.seed, "solution", 2).shuffled(lettered)
    return prompt_of(as_question(one)), ", ".join(f"{option} is option {letter}" for option, letter in told) + "."


POOL = 4
"""Batches that are made together."""
LESSONS: tuple[Lesson, ...] = (solving, seeing, solving, pointing, solving, choosing)


class Lessons:
    """A torch data set of problems with what is to be said about them: the sources in turn, seeds from ``first`` on.

    Every second pool of `POOL` batches is of solutions, the others of what they need, in turn.
    """

    def __init__(self, policy: Backbone, n_pools: int, *, batch_size: int, seed: int) -> None:
        # all but the model: data workers need no weights
        self._encoder = Backbone(
            policy.family, SimpleNamespace(device="cpu"), policy.tokenizer, policy.image_processor
        )
        self._n, self._batch_size = n_pools * POOL * batch_size, batch_size
        self._sources = list(SOURCES)
        self._first = SPLITS["train"].start + seed * N_SEEDS
        if not 0 <= self._first <= SPLITS["train"].stop - N_SEEDS:
            raise ConfigError(f"seed {seed} leaves the problems that policies are trained on; expected 0 to 9")
        if self._n // len(self._sources) >= N_SEEDS:
            raise ConfigError(f"{self._n:,} problems are more than there are for one policy, {N_SEEDS:,} a source")

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> dict[str, Any]:
        from PIL import Image

        one = problem(self._sources[index % len(self._sources)], self._first + index // len(self._sources))
        picture = Image.open(io.BytesIO(draw(one))).convert("RGB")
        asked, told = LESSONS[index // (POOL * self._batch_size) % len(LESSONS)](one)
        inputs = self._encoder.encode_chat(asked, [picture], begun=told)
        n_told = len(plain_text(self._encoder.tokenizer).encode(told))
        ids = [*inputs["input_ids"][0].tolist(), self._encoder.tokenizer.eos_token_id]
        vision = {name: inputs[name] for name in ("pixel_values", "image_grid_thw") if name in inputs}
        return {"ids": ids, "n_told": n_told + 1, "vision": vision}

    def is_solving(self, pool: int) -> bool:
        """Whether a pool is one of solutions."""
        return LESSONS[pool % len(LESSONS)] is solving

    def batches(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A pool as batches of rows of about one length, which need little padding."""
        ordered = sorted(rows, key=lambda row: len(row["ids"]))
        starts = range(0, len(ordered), self._batch_size)
        return [self.collate(ordered[start : start + self._batch_size]) for start in starts]

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch, padded on the right; the loss is taken of what is to be said alone."""
        import numpy as np
        import torch

        encoder = self._encoder
        width = max(len(row["ids"]) for row in rows)
        input_ids = torch.full((len(rows), width), encoder.tokenizer.pad_token_id)
        labels = torch.full((len(rows), width), IGNORED)
        for place, row in enumerate(rows):
            ids, n_told = torch.tensor(row["ids"]), row["n_told"]
            input_ids[place, : len(ids)] = ids
            labels[place, len(ids) - n_told : len(ids)] = ids[-n_told:]
        inputs: dict[str, Any] = {"input_ids": input_ids, "labels": labels}
        inputs["pixel_values"] = torch.cat([row["vision"]["pixel_values"] for row in rows])
        inputs |= encoder.family.batch_inputs(encoder.tokenizer, input_ids)
        if "image_grid_thw" in rows[0]["vision"]:
            # positions are reckoned here: the model would go through the pictures one by one
            grids = torch.cat([row["vision"]["image_grid_thw"] for row in rows])
            inputs["image_grid_thw"] = as_frames(grids)
            vision = [{"image_grid_thw": grid[None]} for grid in grids.numpy()]
            positions = [
                encoder.family.positions(encoder.tokenizer, encoder.image_processor, ids, seen)
                for ids, seen in zip(input_ids.numpy(), vision, strict=True)
            ]
            inputs["position_ids"] = torch.from_numpy(np.stack(positions, axis=1))
        return inputs

"""What a policy is taught: to look things up in a picture, and to solve problems."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mprm.data.candidate_formats import JOINT
from mprm.data.questions import prompt_of
from mprm.errors import ConfigError
from mprm.models import Backbone, group_equal_grids, plain_text
from mprm_lab.world import SOURCES, SPLITS, Problem, as_question, draw, places, problem, solution
from mprm_lab.world.glyphs import LETTERS
from mprm_lab.world.randomness import draws_for
from mprm_lab.world.scene import COLOURS, SHAPES
from mprm_lab.world.vocabulary import POINT

IGNORED = -100
N_POINTS = 10
N_SEEDS = 10_000_000
"""Seeds of each source that one policy may see."""
POOL = 4
"""Batches of each lesson that are made together, of the same problems."""
WORDS = (*map(str, range(10)), *LETTERS, *COLOURS, *SHAPES)
"""That name what is at a place."""

Lesson = Callable[[Problem], tuple[str, str]]
"""What is asked about a problem's picture, and what is to be said."""


def solving(one: Problem) -> tuple[str, str]:
    """Solve the problem."""
    return prompt_of(as_question(one)), JOINT.join(solution(one))


def pointing(one: Problem) -> tuple[str, str]:
    """Say what is at some places: what the steps of solutions look up."""
    values = [name for name in one.facts if name.startswith("value ")]
    told = draws_for(one.source, one.seed, "solution", 1).shuffled(values)[:N_POINTS]
    return POINT, ", ".join(f"{name.partition(' ')[2]} {one.facts[name]}" for name in told) + "."


LESSONS: tuple[Lesson, ...] = (solving, pointing)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one lesson, of about one length."""

    inputs: dict[str, Any]
    """What the model takes, but for the pictures."""
    pictures: Any
    """Which of the pool's pictures each row is about, shape (rows,)."""
    names: Any
    """A word for what is at each place of each row's picture, shape (rows, places)."""
    is_solving: bool

    def on(self, device: str) -> Batch:
        """The same on a device."""
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        return Batch(inputs, self.pictures.to(device), self.names.to(device), self.is_solving)


class Lessons:
    """A torch data set of problems, each with all lessons on it: the sources in turn, seeds from ``first`` on.

    In every lesson the picture's own tokens also name what is at each place, as they enter the language model and as
    they leave it: from the words of the lessons alone a model learns to see late, if at all.
    """

    def __init__(self, policy: Backbone, n_pools: int, *, batch_size: int, seed: int) -> None:
        # all but the model: data workers need no weights
        self._encoder = Backbone(
            policy.family, SimpleNamespace(device="cpu"), policy.tokenizer, policy.image_processor
        )
        self._n, self._batch_size = n_pools * POOL * batch_size, batch_size
        self._sources = list(SOURCES)
        self._picture = policy.tokenizer.convert_tokens_to_ids(policy.family.image_tokens[1])
        plain = plain_text(policy.tokenizer)
        self._words = {word: plain.encode(f" {word}") for word in WORDS}
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
        seen = self._encoder.family.preprocess(self._encoder.image_processor, [picture])
        draws = draws_for(one.source, one.seed, "solution", 3)
        names = [self._words[draws.pick(words)][0] for words in places(one)]
        return {
            "vision": seen,
            "names": names,
            "lessons": [self._encoded(lesson(one), picture) for lesson in LESSONS],
        }

    def _encoded(self, lesson: tuple[str, str], picture: Any) -> tuple[list[int], int]:
        """The ids of a lesson, and how many of them, at the end, are to be said."""
        asked, told = lesson
        ids = self._encoder.chat_ids(asked, [picture], prefix=told)
        n_told = len(plain_text(self._encoder.tokenizer).encode(told))
        return [*ids, self._encoder.tokenizer.eos_token_id], n_told + 1

    def pool(self, rows: list[dict[str, Any]]) -> tuple[Any, list[Batch]]:
        """The pictures of all rows, shape (rows, …), and the batches of all lessons on them.

        A batch has rows of about one length, which need little padding.
        """
        import torch

        pixels = torch.stack([torch.as_tensor(row["vision"]["pixel_values"]) for row in rows])
        batches = []
        for number, lesson in enumerate(LESSONS):
            order = sorted(range(len(rows)), key=lambda place: len(rows[place]["lessons"][number][0]))
            for start in range(0, len(order), self._batch_size):
                chosen = order[start : start + self._batch_size]
                inputs = self._collate([rows[place] for place in chosen], number)
                names = torch.tensor([rows[place]["names"] for place in chosen])
                batches.append(Batch(inputs, torch.tensor(chosen), names, lesson is solving))
        return pixels, batches

    def _collate(self, rows: list[dict[str, Any]], lesson: int) -> dict[str, Any]:
        """A batch, padded on the right; the loss is taken of what is to be said, and of the names of places."""
        import numpy as np
        import torch

        encoder = self._encoder
        width = max(len(row["lessons"][lesson][0]) for row in rows)
        input_ids = torch.full((len(rows), width), encoder.tokenizer.pad_token_id)
        labels = torch.full((len(rows), width), IGNORED)
        for place, row in enumerate(rows):
            ids, n_told = torch.tensor(row["lessons"][lesson][0]), row["lessons"][lesson][1]
            input_ids[place, : len(ids)] = ids
            labels[place, len(ids) - n_told : len(ids)] = ids[-n_told:]
            labels[place, 1 : len(ids)][ids[:-1] == self._picture] = torch.tensor(row["names"])
        inputs: dict[str, Any] = {"input_ids": input_ids, "labels": labels}
        inputs |= encoder.family.batch_inputs(encoder.tokenizer, input_ids)
        if "image_grid_thw" in rows[0]["vision"]:
            # positions are reckoned here: the model would go through the pictures one by one
            grids = torch.cat([torch.as_tensor(row["vision"]["image_grid_thw"]) for row in rows])
            inputs["image_grid_thw"] = group_equal_grids(grids)
            vision = [{"image_grid_thw": grid[None]} for grid in grids.numpy()]
            positions = [
                encoder.family.positions(encoder.tokenizer, encoder.image_processor, ids, seen)
                for ids, seen in zip(input_ids.numpy(), vision, strict=True)
            ]
            inputs["position_ids"] = torch.from_numpy(np.stack(positions, axis=1))
        return inputs

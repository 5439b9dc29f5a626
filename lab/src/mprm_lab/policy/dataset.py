"""What a policy is trained on: solutions of problems, and a grounding task that asks what a picture shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mprm.data import prompt_of
from mprm.models import Backbone, group_equal_grids, plain_text
from mprm_lab.world import SOURCES, SPLITS, Problem, draw, problem, solution
from mprm_lab.world.problems import GROUNDING_PROMPT
from mprm_lab.world.rng import rng_of
from mprm_lab.world.scene import COLOURS, LETTERS, SHAPES

STEP_SEPARATOR = "\n\n"
IGNORE_INDEX = -100
"""Label of a token that the loss leaves out."""
N_GROUNDED = 10
"""Cells or bars that a grounding example names."""
N_SEEDS = 10_000_000
"""Seeds of each source that one policy may see; there are policies with seeds 0 to 9."""
BATCHES_PER_POOL = 4
"""Batches of each task that are made together, of the same problems."""
PATCH_WORDS = (*map(str, range(10)), *LETTERS, *COLOURS, *SHAPES)
"""Words for what an image patch shows."""

Task = Callable[[Problem], tuple[str, str]]
"""The prompt about a problem's picture, and the target text."""


def solving_task(problem: Problem) -> tuple[str, str]:
    """Solve the problem."""
    return prompt_of(problem.as_question()), STEP_SEPARATOR.join(solution(problem))


def grounding_task(problem: Problem) -> tuple[str, str]:
    """Name what some cells or bars hold: what the steps of solutions look up."""
    values = [name for name in problem.facts if name.startswith("value ")]
    chosen = rng_of(problem.source, problem.seed, "solution", 1).shuffled(values)[:N_GROUNDED]
    target = ", ".join(f"{name.partition(' ')[2]} {problem.facts[name]}" for name in chosen)
    return GROUNDING_PROMPT, target + "."


TASKS: tuple[Task, ...] = (solving_task, grounding_task)


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples of one task, of about one length."""

    inputs: dict[str, Any]
    """What the model takes, but for the pictures."""
    pictures: Any
    """Index of each example's picture in its pool, shape (B,)."""
    patch_ids: Any
    """A token for what each patch of each example's picture shows, shape (B, patches)."""
    is_solving: bool

    def to(self, device: str) -> Batch:
        """The same on a device."""
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        return Batch(inputs, self.pictures.to(device), self.patch_ids.to(device), self.is_solving)


class PolicyDataset:
    """A torch data set of problems, each with an example of every task: the sources in turn, seeds in order.

    In every task the image tokens also predict what their patches show, as they enter the language model and as they
    leave it: from the target texts alone a small model learns to read pictures late, if at all.
    """

    def __init__(self, policy: Backbone, n_pools: int, *, batch_size: int, seed: int) -> None:
        # all but the model: data workers need no weights
        self._encoder = Backbone(
            policy.family, SimpleNamespace(device="cpu"), policy.tokenizer, policy.image_processor
        )
        self._n, self._batch_size = n_pools * BATCHES_PER_POOL * batch_size, batch_size
        self._sources = list(SOURCES)
        self._image_token = policy.tokenizer.convert_tokens_to_ids(policy.family.image_tokens[1])
        plain = plain_text(policy.tokenizer)
        self._word_ids = {word: plain.encode(f" {word}")[0] for word in PATCH_WORDS}
        self._first = SPLITS["train"].start + seed * N_SEEDS

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> dict[str, Any]:
        turn, number = divmod(index, len(self._sources))
        shown = problem(self._sources[number], self._first + turn)
        picture = draw(shown).convert("RGB")
        rng = rng_of(shown.source, shown.seed, "solution", 3)
        return {
            "vision": self._encoder.family.preprocess(self._encoder.image_processor, [picture]),
            "patch_ids": [self._word_ids[rng.pick(words)] for words in shown.scene.patch_words()],
            "examples": [self._encoded(*task(shown), picture) for task in TASKS],
        }

    def _encoded(self, prompt: str, target: str, picture: Any) -> tuple[list[int], int]:
        """Ids of an example, and how many at the end are the target's."""
        ids = self._encoder.chat_ids(prompt, [picture], prefix=target)
        n_target = len(plain_text(self._encoder.tokenizer).encode(target))
        return [*ids, self._encoder.tokenizer.eos_token_id], n_target + 1

    def collate_pool(self, rows: list[dict[str, Any]]) -> tuple[Any, list[Batch]]:
        """The pictures of all rows, shape (rows, …), and the batches of all tasks on them.

        A batch has examples of about one length, which need little padding.
        """
        import torch

        pixels = torch.stack([torch.as_tensor(row["vision"]["pixel_values"]) for row in rows])
        batches = []
        for number, task in enumerate(TASKS):
            order = sorted(range(len(rows)), key=lambda index: len(rows[index]["examples"][number][0]))
            for start in range(0, len(order), self._batch_size):
                chosen = order[start : start + self._batch_size]
                inputs = self._collate([rows[index] for index in chosen], number)
                patch_ids = torch.tensor([rows[index]["patch_ids"] for index in chosen])
                batches.append(Batch(inputs, torch.tensor(chosen), patch_ids, task is solving_task))
        return pixels, batches

    def _collate(self, rows: list[dict[str, Any]], task: int) -> dict[str, Any]:
        """A batch, padded on the right; labels are the target's tokens, and the patch words at image tokens."""
        import numpy as np
        import torch

        encoder = self._encoder
        width = max(len(row["examples"][task][0]) for row in rows)
        input_ids = torch.full((len(rows), width), encoder.tokenizer.pad_token_id)
        labels = torch.full((len(rows), width), IGNORE_INDEX)
        for index, row in enumerate(rows):
            ids, n_target = torch.tensor(row["examples"][task][0]), row["examples"][task][1]
            input_ids[index, : len(ids)] = ids
            labels[index, len(ids) - n_target : len(ids)] = ids[-n_target:]
            labels[index, 1 : len(ids)][ids[:-1] == self._image_token] = torch.tensor(row["patch_ids"])
        inputs: dict[str, Any] = {"input_ids": input_ids, "labels": labels}
        inputs |= encoder.family.batch_inputs(encoder.tokenizer, input_ids)
        if "image_grid_thw" in rows[0]["vision"]:
            # positions are computed here: the model would go through the pictures one by one
            grids = torch.cat([torch.as_tensor(row["vision"]["image_grid_thw"]) for row in rows])
            inputs["image_grid_thw"] = group_equal_grids(grids)
            vision = [{"image_grid_thw": grid[None]} for grid in grids.numpy()]
            positions = [
                encoder.family.positions(encoder.tokenizer, encoder.image_processor, ids, of_row)
                for ids, of_row in zip(input_ids.numpy(), vision, strict=True)
            ]
            inputs["position_ids"] = torch.from_numpy(np.stack(positions, axis=1))
        return inputs

"""What a policy is trained on: problems to solve, pictures to describe, solutions to read, rollouts to check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from mprm.data import Solution, prompt_of
from mprm.models import Backbone, chat_frame, group_equal_grids, plain_text
from mprm_lab.world import SOURCES, SPLITS, Problem, draw, problem, problem_named, solution
from mprm_lab.world.problems import GROUNDING_PROMPT
from mprm_lab.world.rng import Rng, rng_of
from mprm_lab.world.scene import COLOURS, LETTERS, SHAPES

STEP_SEPARATOR = "\n\n"
IGNORE_INDEX = -100
"""Target of a token that a loss leaves out."""
N_GROUNDED = 10
"""Cells or bars that a grounding example names."""
N_SEEDS = 10_000_000
"""Seeds of each source that one policy may see; there are policies with seeds 0 to 9."""
BUCKET = 32
"""Batches are padded to multiples of this length, so that there are few shapes."""
READING_SHARE, GROUNDING_SHARE = 0.64, 0.2
"""Problems whose solution is also read, and whose picture is also described."""
PATCH_WORDS = (*map(str, range(10)), *LETTERS, *COLOURS, *SHAPES)
"""Words for what an image patch shows."""
MARKERS = tuple(f"<|mark_{number}|>" for number in range(8))
"""Tokens behind the steps that are read or checked: any one of them, so that ``<prm>`` can be one more."""
VERDICTS = {1: "Right", -1: "Wrong"}
"""What a marker is followed by, by the step's label; other words than the reward model's Yes and No."""
LAYOUTS = ("Question: {}\nProcess: ", "Problem: {}\n\nSolution:\n\n", None)
"""What stands before steps with markers: in the user's turn as reward models are prompted, or in a second way; or in
the assistant's turn, where policies solve."""
CHECK_LAYOUTS = (0, 0, 1, 2)
"""The first layout half of the time."""


class Row(NamedTuple):
    """One sequence about one picture; each array has shape (T,)."""

    ids: Any
    targets: Any
    """What follows each token, where the policy learns to write it; the patch's word at image tokens."""
    verdicts: Any
    """At markers whose step is judged, one of the verdict words."""
    is_checked: Any
    """Tokens of steps that are checked."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of about one length, padded on the right."""

    input_ids: Any
    """Shape (B, T), like the three after it."""
    targets: Any
    verdicts: Any
    is_checked: Any
    position_ids: Any
    """Shape (B, T), or (3, B, T) where positions have three axes."""
    image_positions: Any
    """Indices of the image tokens among all B · T, shape (I,)."""
    patch_ids: Any
    """A word for what each image token shows, shape (I,)."""
    pictures: Any
    """Index of each row's picture in its pool, shape (B,)."""

    def map(self, function: Callable[[Any], Any]) -> Batch:
        """The batch with the function of each tensor."""
        return Batch(*(function(getattr(self, field.name)) for field in fields(self)))


class Pool(NamedTuple):
    """Batches, and the pictures they are about."""

    pictures: Any
    """As the vision tower takes them, shape (pictures, …)."""
    grid: Any
    """Shape (1, 3), of every picture; None where the tower needs none."""
    batches: list[Batch]


class RowWriter:
    """Turns problems and steps into rows, with one policy's tokenizer."""

    def __init__(self, policy: Backbone) -> None:
        # all but the model: data workers need no weights
        self.policy = Backbone(policy.family, SimpleNamespace(device="cpu"), policy.tokenizer, policy.image_processor)
        tokenizer, family = policy.tokenizer, policy.family
        self._plain = plain_text(tokenizer)
        self.image_token = tokenizer.convert_tokens_to_ids(family.image_tokens[1])
        self._markers = tokenizer.convert_tokens_to_ids(list(MARKERS))
        self._verdict_ids = {label: self._plain.encode(word)[0] for label, word in VERDICTS.items()}
        self._word_ids = {word: self._plain.encode(f" {word}")[0] for word in PATCH_WORDS}
        self._frame = chat_frame(tokenizer)

    def patch_ids(self, shown: Problem) -> list[int]:
        """A word for each image token, of those that name what is there."""
        rng = rng_of(shown.source, shown.seed, "solution", 3)
        return [self._word_ids[rng.pick(words)] for words in shown.scene.patch_words()]

    def written(self, prompt: str, text: str, picture: Any, patch_ids: list[int]) -> Row:
        """A prompt and the response to it, which the policy learns to write."""
        ids = [*self.policy.chat_ids(prompt, [picture], prefix=text), self.policy.tokenizer.eos_token_id]
        return self._row(ids, range(len(ids) - len(self._plain.encode(text)) - 1, len(ids)), patch_ids)

    def marked(
        self,
        shown: Problem,
        picture: Any,
        steps: Sequence[str],
        *,
        layout: int,
        marker: int,
        patch_ids: list[int] | None = None,
        labels: Sequence[int] | None = None,
    ) -> Row:
        """Steps with a marker behind each: to be read, with patch words, or to be checked, with labels."""
        opening, (ids, after) = LAYOUTS[layout], map(list, self._frame)
        if opening is None:
            ids, after = self.policy.chat_ids(prompt_of(shown.as_question()), [picture]), after[:1]
        else:
            family = self.policy.family
            ids += family.image_ids(self.policy.tokenizer, self.policy.image_processor, picture, picture.size)
            ids += self._plain.encode(family.image_end) if family.image_end else []
        text = (opening or "").format(shown.question)
        first = len(ids) + len(self._plain.encode(text.rstrip()))
        step_tokens: list[int] = []
        marked_at: list[int] = []
        for step in steps:
            ids += self._plain.encode(text + step)
            step_tokens += range(first, len(ids))
            marked_at.append(len(ids))
            ids.append(self._markers[marker])
            text, first = STEP_SEPARATOR, len(ids)
        ids += after
        if labels is None:
            row = self._row(ids, step_tokens, patch_ids)
            row.targets[marked_at] = IGNORE_INDEX  # nothing but a verdict ever follows a marker
            return row
        row = self._row(ids, (), None)
        row.is_checked[step_tokens] = 1
        for position, label in zip(marked_at, labels, strict=True):
            if label:
                row.verdicts[position] = self._verdict_ids[label]
        return row

    def _row(self, ids: list[int], learned: Iterable[int], patch_ids: list[int] | None) -> Row:
        """A row whose tokens at ``learned`` are predicted from those before them."""
        columns = np.full((4, len(ids)), IGNORE_INDEX)
        columns[0], columns[3] = ids, 0
        positions = np.array(list(learned), np.int64)
        columns[1, positions - 1] = columns[0, positions]
        if patch_ids is not None:
            columns[1, columns[0] == self.image_token] = patch_ids
        return Row(*columns)


def grounding_task(problem: Problem) -> tuple[str, str]:
    """Name what some cells or bars hold: what the steps of solutions look up."""
    values = [name for name in problem.facts if name.startswith("value ")]
    chosen = rng_of(problem.source, problem.seed, "solution", 1).shuffled(values)[:N_GROUNDED]
    target = ", ".join(f"{name.partition(' ')[2]} {problem.facts[name]}" for name in chosen)
    return GROUNDING_PROMPT, target + "."


class PolicyDataset:
    """A torch data set of problems, the sources in turn, seeds in order; and of rollouts to check, if there are any.

    Every problem is solved. Another solution of some is read in the layouts of reward models, and the pictures of
    some are described. Image tokens also predict what their patches show: from the target texts alone a small model
    learns to read pictures late, if at all.
    """

    def __init__(self, policy: Backbone, n_problems: int, *, seed: int, rollouts: Sequence[Solution] = ()) -> None:
        self._writer, self._n, self._rollouts = RowWriter(policy), n_problems, rollouts
        self._first = SPLITS["train"].start + seed * N_SEEDS

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> list[tuple[Any, list[Row], list[int]]]:
        """Pictures, each with the rows about it and its patch words."""
        sources = tuple(SOURCES)
        turn, number = divmod(index, len(sources))
        entries = [self._problem(problem(sources[number], self._first + turn))]
        return entries + [self._rollout(number) for number in range(index, len(self._rollouts), self._n)]

    def _problem(self, shown: Problem) -> tuple[Any, list[Row], list[int]]:
        writer, rng = self._writer, rng_of(shown.source, shown.seed, "solution", 4)
        picture, patch_ids = draw(shown).convert("RGB"), self._writer.patch_ids(shown)
        rows = [
            writer.written(prompt_of(shown.as_question()), STEP_SEPARATOR.join(solution(shown)), picture, patch_ids)
        ]
        if rng.chance(READING_SHARE):
            how: dict[str, Any] = {"layout": rng.between(0, 1), "marker": rng.between(0, len(MARKERS) - 1)}
            rows.append(writer.marked(shown, picture, solution(shown, 1), patch_ids=patch_ids, **how))
        if not self._rollouts and rng.chance(GROUNDING_SHARE):
            rows.append(writer.written(*grounding_task(shown), picture, patch_ids))
        return self._preprocessed(picture), rows, patch_ids

    def _rollout(self, number: int) -> tuple[Any, list[Row], list[int]]:
        rollout = self._rollouts[number]
        shown, rng = problem_named(rollout.images[0]), Rng(number)
        picture = draw(shown).convert("RGB")
        rows = []
        for layout in rng.shuffled(CHECK_LAYOUTS)[:2]:
            how: dict[str, Any] = {"layout": layout, "marker": rng.between(0, len(MARKERS) - 1)}
            rows.append(self._writer.marked(shown, picture, rollout.steps, labels=rollout.labels, **how))
        return self._preprocessed(picture), rows, self._writer.patch_ids(shown)

    def _preprocessed(self, picture: Any) -> dict[str, Any]:
        policy = self._writer.policy
        return policy.family.preprocess(policy.image_processor, [picture])

    def collate_pool(self, items: list[list[tuple[Any, list[Row], list[int]]]], *, tokens: int) -> Pool:
        """The pictures of all items, and batches of at most so many tokens of the rows about them."""
        import torch

        entries = [entry for item in items for entry in item]
        vision = [entry[0] for entry in entries]
        pictures = torch.stack([torch.as_tensor(each["pixel_values"]).bfloat16() for each in vision])
        grid = vision[0].get("image_grid_thw")
        listed = [(row, number) for number, (_, rows, _) in enumerate(entries) for row in rows]
        listed.sort(key=lambda entry: len(entry[0].ids), reverse=True)
        batches = []
        while listed:
            length = -(-len(listed[0][0].ids) // BUCKET) * BUCKET
            size = max(1, tokens // length)
            batches.append(self._collate(listed[:size], size, length, [entry[2] for entry in entries], vision[0]))
            del listed[:size]
        return Pool(pictures, grid, batches)

    def _collate(
        self,
        listed: list[tuple[Row, int]],
        size: int,
        length: int,
        patch_ids: Sequence[list[int]],
        vision: dict[str, Any],
    ) -> Batch:
        """A batch of so many rows; where there are fewer, the last is repeated with nothing to learn from it."""
        import torch

        policy = self._writer.policy
        columns = np.full((4, size, length), IGNORE_INDEX)
        columns[0], columns[3] = policy.tokenizer.pad_token_id, 0
        for index in range(size):
            row, _ = listed[min(index, len(listed) - 1)]
            columns[:1, index, : len(row.ids)] = row[:1]
            if index < len(listed):
                columns[1:, index, : len(row.ids)] = row[1:]
        pictures = [listed[min(index, len(listed) - 1)][1] for index in range(size)]
        tools = (policy.tokenizer, policy.image_processor)
        positions = np.stack([policy.family.positions(*tools, ids, vision) for ids in columns[0]], axis=1)
        arrays = [
            *columns,
            positions if len(positions) > 1 else positions[0],
            np.flatnonzero(columns[0] == self._writer.image_token),
            np.concatenate([patch_ids[number] for number in pictures]),
            np.array(pictures),
        ]
        return Batch(*map(torch.from_numpy, arrays))


def image_features(model: Any, pictures: Any, grid: Any) -> Any:
    """Embeddings of the pictures' tokens as the language model takes them, shape (I, H)."""
    import torch

    inputs: dict[str, Any] = {"pixel_values": pictures.flatten(0, 1).to(model.dtype)}
    if grid is not None:
        grids = group_equal_grids(torch.as_tensor(grid).expand(len(pictures), 3))
        inputs["image_grid_thw"] = grids.to(pictures.device)
    features = model.model.get_image_features(**inputs, return_dict=True).pooler_output
    return torch.cat(list(features)) if isinstance(features, tuple | list) else features.flatten(0, -2)


def pools_of(dataset: PolicyDataset, *, n_problems: int, tokens: int, workers: int) -> Iterator[Pool]:
    """Pools of so many problems each, made in worker processes."""
    from functools import partial

    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=n_problems,
        collate_fn=partial(dataset.collate_pool, tokens=tokens),
        num_workers=workers,
    )
    return iter(loader)

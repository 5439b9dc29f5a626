"""Chains packed into one sequence without padding, what they begin with once: inputs for the step reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mprm.backbones.prefix_tree import MIN_SHARED, Ids, lay_out, packs_by_tokens
from mprm.backbones.prompt import Encoded, PromptEncoder

if TYPE_CHECKING:
    import torch


def read_ids(encoded: Encoded) -> Ids:
    """The ids that steps depend on: nothing that stands behind the last ``<prm>`` is seen by any of them."""
    return np.asarray(encoded.ids[: encoded.positions[-1] + 1], dtype=np.int64)


def _kinds(batch: Sequence[Encoded]) -> list[int]:
    """A number for each chain, equal where the images are the same."""
    numbers: dict[tuple[Any, ...], int] = {}
    return [numbers.setdefault(encoded.images, len(numbers)) for encoded in batch]


def pack_numbers(batch: Sequence[Encoded], budget: int) -> list[list[int]]:
    """Numbers of the chains in packs of at most ``budget`` tokens, those that begin alike together."""
    return list(packs_by_tokens([read_ids(encoded) for encoded in batch], _kinds(batch), budget))


def packed(encoder: PromptEncoder, batch: Sequence[Encoded], *, min_shared: int = MIN_SHARED) -> dict[str, Any]:
    """A batch for the step reader: one sequence of all chains, and the tree that says what continues what.

    Each step of each chain has its place in ``prm_index``, chain by chain; a shared step is named as often as
    it is shared. Images are taken from the first chain that shows them; the others need no vision inputs.

    Returns
    -------
    ``input_ids`` (1, T), ``position_ids`` (1, T) or (axes, 1, T), ``prm_index`` (S,), ``tree``, and with images
    ``image_places`` (I,) and ``image_rows`` (I,): where an image's token stands, and which embedding it takes.
    """
    import torch

    kinds, sequences = _kinds(batch), [read_ids(encoded) for encoded in batch]
    laid = lay_out(sequences, kinds, min_shared=min_shared)
    shown = {kind: next(e for e, k in zip(batch, kinds, strict=True) if k == kind and (e.vision or not e.images))
             for kind in kinds}  # fmt: skip
    positions, rows, first_row = [], [], 0
    image_id = encoder.tokenizer.convert_tokens_to_ids(encoder.family.image_tokens[1]) if _sees(encoder) else -1
    first_rows: dict[int, int] = {}
    for kind, encoded in shown.items():
        first_rows[kind] = first_row
        first_row += encoded.ids.count(image_id)
    for number, begin, end in laid.origins:
        ids, kind = sequences[number], kinds[number]
        of_chain = encoder.family.positions(encoder.tokenizer, encoder.image_processor, ids, shown[kind].vision)
        positions.append(of_chain[:, begin:end])
        is_image = ids == image_id
        rows.append(first_rows[kind] + (is_image.cumsum() - 1)[begin:end][is_image[begin:end]])
    input_ids = np.concatenate([sequences[number][begin:end] for number, begin, end in laid.origins])
    index = [laid.places(number)[encoded.positions] for number, encoded in enumerate(batch)]
    position_ids = torch.from_numpy(np.concatenate(positions, axis=1))
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(input_ids)[None],
        "position_ids": position_ids if len(position_ids) == 1 else position_ids[:, None],
        "prm_index": torch.from_numpy(np.concatenate(index)),
        "tree": laid.tree,
    }
    if first_row:
        inputs["image_places"] = torch.from_numpy(np.flatnonzero(input_ids == image_id))
        inputs["image_rows"] = torch.from_numpy(np.concatenate(rows))
        inputs |= _vision([encoded for encoded in shown.values() if encoded.vision])
    return inputs


def _sees(encoder: PromptEncoder) -> bool:
    return bool(encoder.family.image_tokens)


def _vision(shown: Sequence[Encoded]) -> dict[str, torch.Tensor]:
    import torch

    return {name: torch.cat([torch.as_tensor(encoded.vision[name]) for encoded in shown]) for name in shown[0].vision}

"""Chains packed into one sequence without padding, what they begin with once: inputs for the step reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mprm.backbones.prefix_tree import MIN_SHARED, Ids, Laid, lay_out, packs_by_tokens
from mprm.backbones.prompt import Encoded, PromptEncoder
from mprm.backbones.qwen2_5_vl import as_frames


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
    # the last one to be set stays: the first chain of its kind with what its images show
    shown = {kind: encoded for encoded, kind in zip(batch[::-1], kinds[::-1], strict=True) if _is_shown(encoded)}
    family, tokenizer, processor = encoder.family, encoder.tokenizer, encoder.image_processor
    ids, positions = [], []
    for number, begin, end in laid.origins:
        of_chain = family.positions(tokenizer, processor, sequences[number], shown[kinds[number]].vision)
        positions.append(of_chain[:, begin:end])
        ids.append(sequences[number][begin:end])
    position_ids = torch.from_numpy(np.concatenate(positions, axis=1))
    index = [laid.places(number)[encoded.positions] for number, encoded in enumerate(batch)]
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(np.concatenate(ids))[None],
        "position_ids": position_ids if len(position_ids) == 1 else position_ids[:, None],
        "prm_index": torch.from_numpy(np.concatenate(index)),
        "tree": laid.tree,
    }
    if any(encoded.vision for encoded in shown.values()):
        image_id = tokenizer.convert_tokens_to_ids(family.image_tokens[1])
        inputs |= _images(image_id, laid, sequences, kinds, shown)
    return inputs


def _is_shown(encoded: Encoded) -> bool:
    return bool(encoded.vision) or not encoded.images


def _images(
    image_id: int, laid: Laid, sequences: Sequence[Ids], kinds: Sequence[int], shown: dict[int, Encoded]
) -> dict[str, Any]:
    """Vision inputs of the images, each once, and which of their embeddings each image token takes."""
    import torch

    first_rows: dict[int, int] = {}
    n_rows = 0
    for kind, encoded in shown.items():
        first_rows[kind] = n_rows
        n_rows += encoded.ids.count(image_id)
    places, rows = [], []
    for node, (number, begin, end) in zip(laid.tree.nodes, laid.origins, strict=True):
        found = np.flatnonzero(sequences[number] == image_id)
        inside = (found >= begin) & (found < end)
        places.append(found[inside] - begin + node.start)
        rows.append(first_rows[kinds[number]] + np.flatnonzero(inside))
    seen = [encoded.vision for encoded in shown.values() if encoded.vision]
    vision = {name: torch.cat([torch.as_tensor(one[name]) for one in seen]) for name in seen[0]}
    if "image_grid_thw" in vision:
        vision["image_grid_thw"] = as_frames(vision["image_grid_thw"])
    return {
        "image_places": torch.from_numpy(np.concatenate(places)),
        "image_rows": torch.from_numpy(np.concatenate(rows)),
        **vision,
    }

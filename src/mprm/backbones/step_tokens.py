"""The three tokens of a process reward model: ``<prm>`` after each step, Yes and No read there."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from mprm.errors import ConfigError

STEP_TOKEN = "<prm>"
POSITIVE, NEGATIVE = "Yes", "No"


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Ids of the step mark and of the two answers."""

    prm: int
    yes: int
    no: int


def step_tokens(
    tokenizer: Any, *, step: str = STEP_TOKEN, positive: str = POSITIVE, negative: str = NEGATIVE
) -> StepTokens:
    """Ids of the tokens, each checked to be one known token; adds the step mark where it is not there."""
    from tokenizers import AddedToken

    if step not in tokenizer.get_added_vocab():
        # normalized=False: no tokenizer's text clean-up may change what the mark looks like
        tokenizer.add_tokens([AddedToken(step, special=True, normalized=False)], special_tokens=True)
    tokens = StepTokens(_single(tokenizer, step), _single(tokenizer, positive), _single(tokenizer, negative))
    if len({tokens.prm, tokens.yes, tokens.no}) < 3:
        raise ConfigError(f"{step!r}, {positive!r} and {negative!r} must be three tokens, got the ids {tokens}")
    return tokens


def _single(tokenizer: Any, text: str) -> int:
    """The one id that the text is, or an error that says what it is instead."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise ConfigError(
            f"the tokenizer splits {text!r} into {tokenizer.convert_ids_to_tokens(ids)}; expected one known token."
            " Name other answers with --positive and --negative."
        )
    return int(ids[0])


def grow_embeddings(model: Any, tokenizer: Any, new_id: int | None) -> None:
    """Give every token a row in the embeddings and the head, never taking one away; set a new token's rows.

    The table may have more rows than the tokenizer has tokens (Qwen2.5-VL has 152,064 for 151,665): it
    keeps them. A new token starts at the mean of the known ones, so that two loads give the same model.
    """
    import torch

    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    with gathered([table.weight for table in tables]):
        rows = tables[0].weight.shape[0]
    if len(tokenizer) > rows:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if new_id is None:
        return
    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    with torch.no_grad(), gathered([table.weight for table in tables]):
        for table in tables:
            known = table.weight[: min(rows, new_id)]
            table.weight[new_id] = known.float().mean(dim=0).to(known.dtype)


def gathered(weights: list[Any]) -> Any:
    """While it is open every weight is whole, also where DeepSpeed has split it over the ranks."""
    from transformers.integrations import is_deepspeed_zero3_enabled

    if not is_deepspeed_zero3_enabled():
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(weights, modifier_rank=0)

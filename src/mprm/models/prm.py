"""What evaluate and rerank ask of a process reward model.

Step probabilities of many chains, in batches up to a budget of tokens.

PRM: a trained process reward model that scores steps.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, overload

import torch

from mprm.data.types import Chain
from mprm.errors import ConfigError, InputNotFoundError, MissingDependencyError
from mprm.models.checkpoint import PRMConfig, fingerprint_of, need_torch, read_prm_config
from mprm.models.head import StepModel, load_step_model, step_probabilities
from mprm.models.prefix_tree import pack_numbers, packed
from mprm.models.prompt import Encoded, Memory, PromptEncoder

TOKENS_PER_BATCH = 16_384
LOOKAHEAD = 2
"""Batches that are being encoded while one is scored."""


def batches_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in batches of like length, the longest first, each of at most ``budget`` tokens with its padding.

    Examples
    --------
    >>> batches_by_tokens([3, 9, 4, 5], budget=10)
    [[1], [3, 2], [0]]
    """
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if room < 1:
            batches.append([])
            room = max(1, budget // max(1, lengths[index]))
        batches[-1].append(index)
        room -= 1
    return batches


def score_chains(
    model: Any,
    encoder: PromptEncoder,
    chains: Sequence[Chain],
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    rank: int = 0,
    world: int = 1,
    share_prefixes: bool = False,
    on_scored: Callable[[int], None] | None = None,
) -> dict[int, list[float]]:
    """Probability of each step being correct, by the chain's index; nan for steps that truncation cut off.

    With several ranks each scores its share of the batches, and all run the model equally often, as a
    model that is split over them demands.

    Parameters
    ----------
    tokens_per_batch
        Most tokens of a batch, padding counted; a longer chain is a batch of its own.
    share_prefixes
        Compute what chains of the same images begin with once; see `PRMModel.why_no_trees` for models that
        cannot. The scores are the same but for rounding.
    """
    measured = [encoder.measure(chain) for chain in chains]
    lost = {index: [math.nan] * item.n_steps for index, item in enumerate(measured) if not item.positions}
    order = [index for index in range(len(chains)) if index not in lost]
    if share_prefixes:
        numbers = pack_numbers([measured[index] for index in order], tokens_per_batch)
    else:
        numbers = batches_by_tokens([len(measured[index].ids) for index in order], tokens_per_batch)
    batches = [[order[place] for place in batch] for batch in numbers]
    while batches and len(batches) % world:
        batches.append(batches[-1])  # again the last: its scores come out the same
    scores = dict(lost) if rank == 0 else {}
    if on_scored is not None and lost:
        on_scored(len(lost))
    was_training = model.training
    model.eval()
    try:
        for batch, inputs in _collated(
            batches[rank::world], chains, measured, encoder, share_prefixes=share_prefixes
        ):
            found = iter(_probabilities(model, inputs))
            for index in batch:
                encoded = measured[index]
                scores[index] = [*islice(found, len(encoded.positions)), *[math.nan] * encoded.n_lost]
            if on_scored is not None:
                on_scored(len(batch))
    finally:
        model.train(was_training)
    return scores


def _collated(
    batches: Sequence[list[int]],
    chains: Sequence[Chain],
    measured: Sequence[Encoded],
    encoder: PromptEncoder,
    *,
    share_prefixes: bool,
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Each batch with the model's inputs; images of the next ones are decoded meanwhile."""

    def collate(batch: list[int]) -> dict[str, Any]:
        if not share_prefixes:
            return encoder.collate([encoder.see(chains[index], measured[index]) for index in batch])
        first = {measured[index].images: index for index in reversed(batch)}  # the others show the same
        return packed(
            encoder,
            [
                encoder.see(chains[index], measured[index])
                if first[measured[index].images] == index
                else measured[index]
                for index in batch
            ],
        )

    with ThreadPoolExecutor(LOOKAHEAD) as pool:
        waiting = [pool.submit(collate, batch) for batch in batches[:LOOKAHEAD]]
        for number, batch in enumerate(batches):
            inputs = waiting.pop(0).result()
            if number + LOOKAHEAD < len(batches):
                waiting.append(pool.submit(collate, batches[number + LOOKAHEAD]))
            yield batch, inputs


@torch.no_grad()
def _probabilities(model: Any, inputs: dict[str, Any]) -> list[float]:
    device = next(model.parameters()).device
    placed = {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }
    return step_probabilities(model(**placed)["logits"]).tolist()


Steps = list[str] | tuple[str, ...]


class PRM:
    """A process reward model: the probability that each step of a chain is correct.

    Examples
    --------
    Load with ``prm = PRM.from_pretrained("runs/bis10")`` what ``mprm train`` wrote; then
    ``prm.score(question="…", images=["…png"], steps=["…", "…"])`` gives a number for each step.
    """

    def __init__(
        self,
        step_model: StepModel,
        card: PRMConfig,
        *,
        name: str,
        tokens_per_batch: int,
        fingerprint: str,
        share_prefixes: bool = True,
    ) -> None:
        is_whole = hasattr(tokens_per_batch, "__index__") and not isinstance(tokens_per_batch, bool)
        if not is_whole or tokens_per_batch < 1:
            raise ConfigError(f"tokens_per_batch must be a whole number of at least 1, got {tokens_per_batch!r}")
        self.model, self.encoder, self.family = step_model.model, step_model.encoder, step_model.family
        self.card, self.name, self.tokens_per_batch = card, name, tokens_per_batch
        self.fingerprint = fingerprint
        """Tells these weights from others, whatever their folder is called."""
        reason = self.model.why_no_trees
        if share_prefixes and reason is not None:
            print(f"{name} computes the question anew for each of its chains, and slower: {reason}", file=sys.stderr)
        self.shares_prefixes = share_prefixes and reason is None
        """Whether what chains have in common is computed once."""

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        attention: str | None = None,
        image_root: str | Path | None = None,
        tokens_per_batch: int | None = None,
        share_prefixes: bool = True,
        memory: Memory | None = None,
    ) -> PRM:
        """Load what ``mprm train`` wrote: a whole checkpoint, or an adapter on its base.

        Parameters
        ----------
        path
            Folder with weights, tokenizer and ``mprm.json``.
        device, dtype
            ``auto``: the GPU where there is one, bfloat16 there and float32 elsewhere.
        attention
            Attention implementation by transformers' name.
        image_root
            Folder that image paths are relative to.
        tokens_per_batch
            Budget of a batch, padding counted; less needs less memory.
        share_prefixes
            Compute what chains have in common (images, question, leading steps) once, where the model's
            attention allows it. The scores are the same but for rounding.
        memory
            What was encoded before; see `mprm.models.prompt`.
        """
        if not Path(path).is_dir():
            raise InputNotFoundError(f"{path} is not a folder; expected a checkpoint that mprm train wrote")
        need_torch()

        card = read_prm_config(path)
        is_adapter = (Path(path) / "adapter_config.json").is_file()
        if is_adapter and card.base is None:
            raise ConfigError(f"{path} holds an adapter, and its mprm.json does not name the base checkpoint")
        weights = str(card.base) if is_adapter else str(path)
        if is_adapter and card.base_fingerprint not in (None, fingerprint_of(weights)):
            raise ConfigError(f"{weights} is not the checkpoint that the adapter in {path} was trained on")
        step_model = load_step_model(
            weights,
            card,
            dtype=dtype,
            device=device,
            attention=attention,
            image_root=image_root,
            is_trained=not is_adapter,
            memory=memory,
        )
        if is_adapter:
            step_model = StepModel(_with_adapter(step_model.model, path), step_model.encoder, step_model.family)
        budget = TOKENS_PER_BATCH if tokens_per_batch is None else tokens_per_batch
        return cls(
            step_model,
            card,
            name=Path(path).resolve().name,
            tokens_per_batch=budget,
            fingerprint=fingerprint_of(path),
            share_prefixes=share_prefixes,
        )

    @overload
    def score(self, question: str, images: Sequence[Any] = (), steps: Sequence[str] = ()) -> list[float]: ...

    @overload
    def score(self, question: str, images: Sequence[Any], steps: Sequence[Steps]) -> list[list[float]]: ...

    @overload
    def score(self, question: str, *, images: Sequence[Any] = (), steps: Sequence[Steps]) -> list[list[float]]: ...

    def score(
        self, question: str, images: Sequence[Any] = (), steps: Sequence[str] | Sequence[Steps] = ()
    ) -> list[float] | list[list[float]]:
        """Probability that each step is correct, in [0, 1]; nan for steps beyond the model's length.

        Parameters
        ----------
        question
            The question alone, without an instruction how to answer.
        images
            Paths or PIL images.
        steps
            The chain, in order; each is judged in the light of those before it. Or several chains, a list of
            steps each, which gives a list of scores for each.
        """
        listed, shown = _listed(steps), _listed(images)
        are_many = bool(listed) and all(isinstance(chain, list | tuple) for chain in listed)
        some = listed if are_many else (listed,)
        found = self.score_many([Chain(question, tuple(chain), shown) for chain in some])
        return found if are_many else found[0]

    def score_many(
        self, chains: Sequence[Chain], *, on_scored: Callable[[int], None] | None = None
    ) -> list[list[float]]:
        """`score` for many chains, those of a question together; see `StepScorer.score_many`."""
        chains = [_chain(place, chain) for place, chain in enumerate(_listed(chains))]
        for place, chain in enumerate(chains):
            if not all(isinstance(text, str) for text in (chain.question, *chain.steps)):
                raise ConfigError(f"chain {place}: the question and each step must be text, got {chain!r:.200}")
        scores = score_chains(
            self.model,
            self.encoder,
            chains,
            tokens_per_batch=self.tokens_per_batch,
            share_prefixes=self.shares_prefixes,
            on_scored=on_scored,
        )
        return [scores[index] for index in range(len(chains))]


def _listed(given: Any) -> tuple[Any, ...]:
    """What was given as a list, an array or the like; a text, a path or an image alone is none."""
    if not isinstance(given, str | bytes | Path | Mapping | Set):
        with suppress(TypeError):
            return tuple(given)
    raise ConfigError(f"steps and images are lists: steps=['…'], images=['….png']; got {given!r:.200}")


def _chain(place: int, given: Any) -> Chain:
    if not isinstance(given, Chain):
        raise ConfigError(f"chain {place}: expected Chain(question, (step, …), (image, …)), got {given!r:.200}")
    try:
        return Chain(given.question, _listed(given.steps), _listed(given.images))
    except ConfigError as error:
        raise ConfigError(f"chain {place}: {error}") from None


def _with_adapter(model: Any, path: str | Path) -> Any:
    """The model with a LoRA adapter merged into its weights."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise MissingDependencyError("a LoRA adapter needs peft: install mprm with its extra [train]") from error
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapted = PeftModel.from_pretrained(model, str(path))
    missing = [str(warning.message) for warning in caught if "missing adapter keys" in str(warning.message)]
    if missing:
        raise ConfigError(f"{path}: the adapter lacks weights: {missing[0][:300]}")
    return adapted.merge_and_unload().eval()

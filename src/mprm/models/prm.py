"""`PRM`: a process reward model that scores steps, many chains at a time, in batches up to a budget of tokens."""

from __future__ import annotations

import json
import math
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, overload

from mprm.config import PRMLayout, PromptLayout
from mprm.data.hub import local_checkpoint
from mprm.data.images import image_folder
from mprm.data.types import Chain
from mprm.errors import ConfigError, InputNotFoundError, imported
from mprm.models import checkpoint
from mprm.models.checkpoint import PRM_CONFIG, PRMConfig, fingerprint_of
from mprm.models.families import PROCESSOR_FILES
from mprm.models.prefix_tree import collate_tree, pack_chains
from mprm.models.prompt import PromptEncoder, TokenizedChain, step_tokens
from mprm.progress import Progress, silent

TOKENS_PER_BATCH = 16_384
LOOKAHEAD = 2
"""Batches whose images are decoded while one is scored."""


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices in batches of similar length, the longest first, each of at most ``max_tokens`` with its padding.

    Examples
    --------
    >>> batches_by_length([3, 9, 4, 5], max_tokens=10)
    [[1], [3, 2], [0]]
    """
    batches: list[list[int]] = []
    order, start = sorted(range(len(lengths)), key=lambda index: -lengths[index]), 0
    while start < len(order):
        batches.append(order[start : start + max(1, max_tokens // lengths[order[start]])])
        start += len(batches[-1])
    return batches


def score_chains(
    model: Any,
    encoder: PromptEncoder,
    chains: Sequence[Chain],
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    rank: int = 0,
    world_size: int = 1,
    share_prefixes: bool = False,
    read: Callable[[Any], Any] | None = None,
    progress: Progress = silent,
) -> dict[int, list[float]]:
    """Probability of each step being correct, by the chain's index; nan for truncated steps.

    ``read``, logits (S, ...) → (S,), gives another number instead.

    Each of several ranks scores its share of the batches; all run the model equally often, as sharded weights demand.
    """
    from mprm.models.head import step_probabilities

    read = read or step_probabilities
    tokenized = encoder.tokenize_all(chains)
    scores = {i: [math.nan] * chain.n_steps for i, chain in enumerate(tokenized) if not chain.prm_positions}
    options: dict[str, Any] = {"tokens_per_batch": tokens_per_batch, "share_prefixes": share_prefixes}
    with progress("scoring", len(chains)) as advance:
        advance(len(scores))
        for batch, logits in step_logits(model, encoder, tokenized, rank=rank, world_size=world_size, **options):
            probabilities = iter(read(logits).tolist())
            for index in batch:
                chain = tokenized[index]
                known = islice(probabilities, len(chain.prm_positions))
                scores[index] = [*known, *[math.nan] * chain.n_truncated]
            advance(len(batch))
    return scores


def step_logits(
    model: Any,
    encoder: PromptEncoder,
    tokenized: Sequence[TokenizedChain],
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    rank: int = 0,
    world_size: int = 1,
    share_prefixes: bool = False,
) -> Iterator[tuple[list[int], Any]]:
    """Indices of the chains of each batch, and what the model gives at their ``prm_positions``, one after the other.

    Chains without any are left out.
    """
    import torch
    from accelerate.utils import send_to_device

    order = [index for index, chain in enumerate(tokenized) if chain.prm_positions]
    scored = [tokenized[index] for index in order]
    if share_prefixes:
        packs = pack_chains(scored, tokens_per_batch)
    else:
        packs = batches_by_length([len(chain.input_ids) for chain in scored], tokens_per_batch)
    batches = [[order[position] for position in pack] for pack in packs]
    while batches and len(batches) % world_size:
        batches.append(batches[-1])  # the last again: its scores come out the same
    was_training = model.training
    model.eval()
    try:
        for batch, inputs in _collated(batches[rank::world_size], tokenized, encoder, share_prefixes):
            inputs = send_to_device(inputs, next(model.parameters()).device, non_blocking=True)
            with torch.no_grad():
                logits = model(**inputs)["logits"]
            yield batch, logits
    finally:
        model.train(was_training)


def _collated(
    batches: Sequence[list[int]], tokenized: Sequence[TokenizedChain], encoder: PromptEncoder, share_prefixes: bool
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Each batch with the model's inputs; images of the next ones are decoded meanwhile."""

    def collate(batch: list[int]) -> dict[str, Any]:
        cache: dict[tuple[Any, ...], Any] = {}
        chains = [encoder.add_pixel_values(tokenized[index], cache) for index in batch]
        return collate_tree(encoder, chains) if share_prefixes else encoder.collate(chains)

    with ThreadPoolExecutor(LOOKAHEAD) as pool:
        waiting = [pool.submit(collate, batch) for batch in batches[:LOOKAHEAD]]
        for number, batch in enumerate(batches, start=LOOKAHEAD):
            inputs = waiting.pop(0).result()
            waiting += [pool.submit(collate, upcoming) for upcoming in batches[number : number + 1]]
            yield batch, inputs


Steps = list[str] | tuple[str, ...]


class ChainScorer:
    """What scores many chains, and so scores one."""

    def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
        raise NotImplementedError

    @overload
    def score(self, question: str, images: Sequence[Any] = (), steps: Sequence[str] = ()) -> list[float]: ...

    @overload
    def score(self, question: str, images: Sequence[Any] = (), steps: Sequence[Steps] = ()) -> list[list[float]]: ...

    def score(
        self, question: str, images: Sequence[Any] = (), steps: Sequence[str] | Sequence[Steps] = ()
    ) -> list[float] | list[list[float]]:
        """Probability that each step is correct, in [0, 1]; nan for steps beyond the model's length.

        Images are paths or PIL images. Several chains, a list of steps each, give a list of scores for each.
        """
        listed, pictures = _as_tuple(steps), _as_tuple(images)
        is_many = bool(listed) and all(isinstance(chain, list | tuple) for chain in listed)
        chains = listed if is_many else (listed,)
        scores = self.score_many([Chain(question, tuple(chain), pictures) for chain in chains])
        return scores if is_many else scores[0]


@dataclass(eq=False, repr=False)
class PRM(ChainScorer):
    """A process reward model: the probability that each step of a chain is correct.

    ``PRM.from_pretrained("runs/bis10").score(question="…", images=["…png"], steps=["…", "…"])``.
    """

    model: Any
    encoder: PromptEncoder
    config: PRMConfig
    name: str
    fingerprint: str
    """Differs for other weights, whatever their folder is called."""
    tokens_per_batch: int = TOKENS_PER_BATCH
    shares_prefixes: bool = True
    prm_layout: str | None = None
    """Of a model that others trained, see `mprm.models.published`; None for one of ``mprm train``."""
    folder: str | None = None
    """Where it was loaded from."""
    lower_bound: float | None = None
    """Scores are the mean of a step's Beta distribution less so many standard deviations; None for the mean."""

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        config: PRMConfig | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        attention: str | None = None,
        image_root: str | Path | None = None,
        prompt_layout: PromptLayout | None = None,
        prm_layout: PRMLayout | None = None,
        tokens_per_batch: int | None = None,
        share_prefixes: bool = True,
        lower_bound: float | None = None,
    ) -> PRM:
        """Load what ``mprm train`` wrote, a whole checkpoint or an adapter on its base, from a folder or the hub.

        With a ``config``, any backbone is loaded as an untrained process reward model, and its tokens are added where
        they are missing. For ``device``, ``dtype`` and ``attention`` see `mprm.models.load_backbone`. Fewer
        ``tokens_per_batch``, padding counted, need less memory. ``share_prefixes`` computes a common prefix of chains
        once where the model's attention allows it, to the same scores up to rounding. Weights that ``mprm train`` did
        not write need their ``prompt_layout``, and ``<prm>`` in their tokenizer; or they are like a published model,
        which ``config.json`` or ``prm_layout`` tells. ``lower_bound`` is for a model of ``--loss beta-binomial``.
        """
        budget = TOKENS_PER_BATCH if tokens_per_batch is None else tokens_per_batch
        if isinstance(budget, bool) or not hasattr(budget, "__index__") or budget < 1:
            raise ConfigError(f"tokens_per_batch must be a whole number of at least 1, got {budget!r}")
        is_trained, typed, path = config is None, str(path), local_checkpoint(path)
        label = Path(path).resolve().name if path == typed else typed
        is_adapter = is_trained and (Path(path) / "adapter_config.json").is_file()
        has_step_token = any((config, prompt_layout, checkpoint.prm_config_path(path)))
        if has_step_token and prm_layout is not None:
            raise ConfigError(f"{path} is read at <prm>: leave out --prm-layout, which is for models without it")
        if config is None:
            if not Path(path).is_dir():
                raise InputNotFoundError(f"{path} is not a folder; expected a checkpoint that mprm train wrote")
            if not has_step_token:
                checkpoint.need_torch()
                from mprm.models.published import find_layout, load_published

                if name := find_layout(path, prm_layout):
                    compute = {"dtype": dtype, "device": device, "attention": attention}
                    loaded = load_published(str(path), name, image_folder(image_root), **compute)
                    config = PRMConfig(max_length=loaded[1].max_length)
                    fingerprint = fingerprint_of(path) + name
                    return cls._of(label, *loaded, config, fingerprint, budget, share_prefixes, path, name)
            config = checkpoint.read_prm_config(path, prompt_layout)
        has_concentration = config.loss == "beta-binomial"
        if lower_bound is not None and not (isinstance(lower_bound, int | float) and 0 <= lower_bound < math.inf):
            raise ConfigError(f"lower_bound must be a number of at least 0, got {lower_bound!r}")
        if lower_bound is not None and not has_concentration:
            raise ConfigError(f"{path}: only a model of mprm train --loss beta-binomial has a lower bound")
        if is_adapter and config.base is None:
            raise ConfigError(f"{path} holds an adapter, and its {PRM_CONFIG} does not name the base checkpoint")
        weights = local_checkpoint(config.base) if is_adapter and config.base is not None else path
        known = [fingerprint_of(weights, is_pushed=is_pushed) for is_pushed in (False, True)] if is_adapter else []
        if is_adapter and config.base_fingerprint not in (None, *known):
            raise ConfigError(f"{weights} is not the checkpoint that the adapter in {path} was trained on")
        root = image_folder(image_root)
        backbone = checkpoint.load_backbone(
            weights, dtype=dtype, device=device, attention=attention, image_settings=config.image_settings
        )
        from mprm.models.head import grow_embeddings, prm_model  # needs torch, as load_backbone says

        tokenizer, family, processor = backbone.tokenizer, backbone.family, backbone.image_processor
        is_new = config.step_token not in tokenizer.get_added_vocab()
        if is_new and is_trained and not is_adapter:
            raise ConfigError(f"{path}: the tokenizer does not know {config.step_token}, which {PRM_CONFIG} names")
        tokens = step_tokens(tokenizer, step=config.step_token, positive=config.positive, negative=config.negative)
        new_id = tokens.prm if is_new else None
        grow_embeddings(backbone.model, tokenizer, new_id, zero_head=has_concentration)
        model = prm_model(backbone.model, family, tokens, processor, with_concentration=has_concentration)
        prompt = config.max_length, root, config.prompt_layout, config.prompt_version
        encoder = PromptEncoder(tokenizer, processor, family, tokens, *prompt)
        fingerprint = fingerprint_of(path) + ("" if checkpoint.prm_config_path(path) else config.prompt_layout)
        model = _with_adapter(model, path) if is_adapter else model
        fingerprint += "" if lower_bound is None else f" less {lower_bound:g} deviations"
        prm = cls._of(label, model, encoder, config, fingerprint, budget, share_prefixes, path)
        return prm if lower_bound is None else replace(prm, lower_bound=lower_bound)

    @classmethod
    def _of(
        cls,
        name: str,
        model: Any,
        encoder: PromptEncoder,
        config: PRMConfig,
        fingerprint: str,
        budget: int,
        share_prefixes: bool,
        folder: str,
        prm_layout: str | None = None,
    ) -> PRM:
        reason = model.why_no_trees
        if share_prefixes and reason is not None:
            print(f"{name} computes the question again for each of its chains, and slower: {reason}", file=sys.stderr)
        shares = share_prefixes and reason is None
        return cls(model, encoder, config, name, fingerprint, budget, shares, prm_layout, folder)

    def save_pretrained(self, folder: str | Path) -> None:
        if self.prm_layout is not None:
            raise ConfigError(f"{self.name} is a published model of the layout {self.prm_layout}; copy its folder")
        self.model.save_pretrained(str(folder))
        self.save_processor(folder)
        checkpoint.write_prm_config(folder, replace(self.config, files={}))  # those of the folder it came from

    def save_processor(self, folder: str | Path) -> None:
        """Save tokenizer and processor; what mprm does not use of it is copied, as other tools need it."""
        source, target = Path(self.encoder.tokenizer.name_or_path), Path(folder)
        for name in PROCESSOR_FILES:
            if (source / name).is_file() and source.resolve() != target.resolve():
                shutil.copyfile(source / name, target / name)
        self.encoder.tokenizer.save_pretrained(str(folder))
        self.encoder.family.save_processor(self.encoder.image_processor, target)

    def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
        """`score` for many chains, in their order."""
        read = None
        if self.lower_bound is not None:
            from mprm.models.head import lower_bounds

            read = partial(lower_bounds, n_deviations=self.lower_bound)
        return self._read(chains, read, progress)

    def concentrations(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
        """How many continuations the model's belief in each step is worth: the smaller, the less it is sure.

        The success rate of a step is ``Beta(m c, (1 - m) c)``, m its score and c this.
        """
        from mprm.models.head import concentrations

        if self.config.loss != "beta-binomial":
            raise ConfigError(f"{self.name}: only a model of mprm train --loss beta-binomial has concentrations")
        return self._read(chains, concentrations, progress)

    def _read(
        self, chains: Sequence[Chain], read: Callable[[Any], Any] | None, progress: Progress
    ) -> list[list[float]]:
        chains = checked_chains(chains)
        options: dict[str, Any] = {"share_prefixes": self.shares_prefixes, "read": read, "progress": progress}
        numbers = score_chains(self.model, self.encoder, chains, tokens_per_batch=self.tokens_per_batch, **options)
        return [numbers[index] for index in range(len(chains))]


def _as_tuple(values: Any) -> tuple[Any, ...]:
    """The values of a list, an array or the like; a single text, path or image is an error."""
    if not isinstance(values, str | bytes | Path | Mapping | Set):
        with suppress(TypeError):
            return tuple(values)
    raise ConfigError(f"steps and images are lists: steps=['…'], images=['….png']; got {values!r:.200}")


def checked_chains(chains: Any) -> list[Chain]:
    """The chains with tuples of steps and images; an error names the first that is none."""
    return [_checked(index, chain) for index, chain in enumerate(_as_tuple(chains))]


def _checked(index: int, chain: Any) -> Chain:
    if not isinstance(chain, Chain):
        raise ConfigError(f"chain {index}: expected Chain(question, (step, …), (image, …)), got {chain!r:.200}")
    try:
        listed = Chain(chain.question, _as_tuple(chain.steps), _as_tuple(chain.images))
    except ConfigError as error:
        raise ConfigError(f"chain {index}: {error}") from None
    if not all(isinstance(text, str) for text in (listed.question, *listed.steps)):
        raise ConfigError(f"chain {index}: the question and each step must be text, got {listed!r:.200}")
    return listed


def _with_adapter(model: Any, path: str | Path) -> Any:
    peft = imported("peft", "a LoRA adapter needs peft: install mprm with its extra [train]")
    checkpoint.check_weights(path, "adapter_model")
    with checkpoint.named_errors(path, "adapter"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = json.loads((Path(path) / "adapter_config.json").read_bytes())
        if settings.get("peft_type") != "LORA" or settings.get("megatron_config"):  # the latter imports a module
            raise ConfigError(f"{path}: adapter_config.json is not of a LoRA adapter as mprm train writes it")
        adapted = peft.PeftModel.from_pretrained(model, str(path))
    if missing := [str(warning.message) for warning in caught if "missing adapter keys" in str(warning.message)]:
        raise ConfigError(f"{path}: the adapter lacks weights: {missing[0][:300]}")
    return adapted.merge_and_unload().eval()

"""`StepLogProbs`: how likely a policy finds the steps of a solution, where it would have written them itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mprm.answers.options import options_in
from mprm.data.hub import local_checkpoint, pinned_name
from mprm.data.images import image_folder
from mprm.data.questions import prompt_of
from mprm.data.types import STEP_SEPARATOR, Chain, Question
from mprm.errors import ConfigError, DataError
from mprm.models.chat import Backbone, plain_text
from mprm.models.checkpoint import fingerprint_of, load_backbone, prm_config_path
from mprm.models.prm import TOKENS_PER_BATCH, step_logits
from mprm.models.prompt import PromptEncoder, StepTokens, TokenizedChain
from mprm.progress import Progress, silent

ROWS = 4096
"""Tokens whose logits over the whole vocabulary are in memory at a time."""


@dataclass(eq=False, repr=False)
class StepLogProbs:
    """A policy that is asked as `mprm.sample` asks it, and reads solutions instead of writing them."""

    model: Any
    encoder: PromptEncoder
    name: str
    fingerprint: str
    tokens_per_batch: int = TOKENS_PER_BATCH
    share_prefixes: bool = True

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        image_root: str | Path | None = None,
        tokens_per_batch: int | None = None,
        share_prefixes: bool = True,
    ) -> StepLogProbs:
        """Load a policy from a folder or the hub; see `PRM.from_pretrained`."""
        name, path = pinned_name(path), local_checkpoint(path)
        if prm_config_path(path) is not None:
            raise ConfigError(f"{name} is a reward model, and no policy: name what it was trained from, or another")
        reader = cls.of(load_backbone(path, dtype=dtype, device=device), image_root)
        budget = tokens_per_batch or TOKENS_PER_BATCH
        options: dict[str, Any] = {"tokens_per_batch": budget, "share_prefixes": share_prefixes}
        return replace(reader, name=name, fingerprint=fingerprint_of(path), **options)

    @classmethod
    def of(cls, backbone: Backbone, image_root: str | Path | None = None) -> StepLogProbs:
        """A policy that is loaded already; it can no longer be sampled from."""
        from mprm.models.head import prm_model

        # no <prm> is read, the hidden states themselves come out; images are as the sampler and version 1 have them
        tokens, family, processor = StepTokens(-1, -1, -1), backbone.family, backbone.image_processor
        model = prm_model(backbone.model, family, tokens, processor, step_head=lambda hidden: hidden)
        encoder = PromptEncoder(backbone.tokenizer, processor, family, tokens, 1, image_folder(image_root), "chat", 1)
        return cls(model, encoder, family.name, family.name)

    def of_tokens(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[NDArray[np.float64]]]:
        """The log-probabilities of the tokens of each step, given the question and all tokens before them.

        Tokens beyond the policy's length have nan.
        """
        spans = [self._tokenized(chain) for chain in chains]
        tokenized = [chain for chain, _ in spans]
        flat: list[NDArray[np.float64]] = [np.empty(0)] * len(chains)
        shares = self.share_prefixes and self.model.why_no_trees is None
        options: dict[str, Any] = {"tokens_per_batch": self.tokens_per_batch, "share_prefixes": shares}
        with progress("reading", len(chains)) as advance:
            advance(sum(not chain.prm_positions for chain in tokenized))
            for batch, hidden in step_logits(self.model, self.encoder, tokenized, **options):
                targets = [tokenized[i].input_ids[at + 1] for i in batch for at in tokenized[i].prm_positions]
                values = iter(self._log_probs(hidden, targets))
                for index in batch:
                    own = flat[index] = np.fromiter(islice(values, len(tokenized[index].prm_positions)), float)
                    if np.isnan(own).any():
                        raise DataError(f"{self.name} gives nan for a token's probability; try --dtype float32")
                advance(len(batch))
        flat = [
            np.pad(own, (0, ends[-1] - len(own)), constant_values=np.nan)
            for own, (_, ends) in zip(flat, spans, strict=True)
        ]
        return [[own[start:end] for start, end in pairwise(ends)] for own, (_, ends) in zip(flat, spans, strict=True)]

    def _tokenized(self, chain: Chain) -> tuple[TokenizedChain, list[int]]:
        """The solution as its answer, the positions that its tokens are predicted at, and where each step's end."""
        question = Question(id="", question=chain.question, answer="", options=options_in(chain.question))
        prompt = self.encoder.prompt(Chain(prompt_of(question), (), chain.images))
        ids, ends = prompt.ids.copy(), [0]
        for index, step in enumerate(chain.steps):
            ids += plain_text(self.encoder.tokenizer).encode(STEP_SEPARATOR * (index > 0) + step.strip())
            ends.append(len(ids) - len(prompt.ids))
        images = tuple(chain.images[index] for index in prompt.image_sizes)
        ids = ids[: getattr(self.model.config.get_text_config(), "max_position_embeddings", None)]
        positions = list(range(len(prompt.ids) - 1, len(ids) - 1))
        sizes = tuple(prompt.image_sizes.values())
        return TokenizedChain(ids, positions, len(positions), images, sizes), ends

    def _log_probs(self, hidden: Any, targets: Sequence[int]) -> Iterator[float]:
        import torch

        from mprm.models.head import finished

        head = self.model.get_output_embeddings()
        ids = torch.tensor(targets, device=hidden.device)
        with torch.no_grad():
            for rows, own in zip(torch.split(hidden, ROWS), torch.split(ids, ROWS), strict=True):
                logits = finished(self.model.config, head(rows)).float()
                yield from (logits.gather(-1, own[:, None])[:, 0] - logits.logsumexp(-1)).tolist()


STEP_FEATURES = ("mean", "minimum", "running_minimum")


def step_features(steps: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Mean and minimum of the log-probabilities of each step's tokens, and the minimum so far; shape (n_steps, 3).

    >>> step_features([np.log([0.5, 0.5]), np.log([0.25]), np.log([1.0])]).round(2).tolist()
    [[-0.69, -0.69, -0.69], [-1.39, -1.39, -1.39], [0.0, 0.0, -1.39]]
    """
    means = [float(step.mean()) if len(step) else 0.0 for step in steps]
    minima = [float(step.min(initial=0.0)) for step in steps]
    return np.array([means, minima, list(accumulate(minima, min))]).T.reshape(len(steps), len(STEP_FEATURES))

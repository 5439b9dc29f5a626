"""Policies in this process, one request at a time, through transformers' ``generate``."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from mprm.annotation.samplers.sampler import Answered, Completion, Request, derived_seed, failed, numbered
from mprm.data.images import open_image
from mprm.errors import ConfigError, DataError, MprmError
from mprm.models.chat import Backbone


def eos_ids_of(policy: Backbone) -> list[int]:
    """The tokens that end an answer: the generation config's, or the tokenizer's."""
    ids = policy.model.generation_config.eos_token_id
    if ids is None:
        ids = policy.tokenizer.eos_token_id
    if ids is None:
        raise ConfigError("the policy has no end-of-text token; set eos_token_id in its generation_config.json")
    return list(ids) if isinstance(ids, list | tuple) else [int(ids)]


def completion_of(ids: list[int], tokenizer: Any, eos_ids: list[int]) -> Completion:
    """The answer that these tokens are, up to the first that ends it."""
    end = next((position for position, id_ in enumerate(ids) if id_ in eos_ids), None)
    text = tokenizer.decode(ids[:end], skip_special_tokens=True)
    return Completion(text=text, finish_reason="length" if end is None else "stop", n_tokens=len(ids[:end]))


class TransformersSampler:
    """Answers requests one after the other, all ``n`` answers of a request in one batch, seeded by the request.

    So its answers are the same, bit for bit, whatever is requested before and after; on the same kind of device, with
    the same ``n``, ``rows_per_batch`` and versions of torch and transformers. What the policy's own generation config
    sets beyond `SamplingParams`, such as a repetition penalty, holds.

    Parameters
    ----------
    policy
        The model and its tokenizer.
    name, weights
        What manifests call it, and what tells its weights from others under the same name.
    rows_per_batch
        Most answers at a time; more of a request are sampled batch by batch.
    """

    def __init__(self, policy: Backbone, *, name: str, weights: str | None = None, rows_per_batch: int = 16) -> None:
        if rows_per_batch < 1:
            raise ConfigError(f"rows_per_batch must be at least 1, got {rows_per_batch}")
        self._policy, self._eos_ids = policy, eos_ids_of(policy)
        self._rows_per_batch = rows_per_batch
        self.name = name
        self.settings = {"rows_per_batch": rows_per_batch, "weights": weights, "dtype": str(policy.model.dtype)}

    def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
        """See `Sampler.sample`."""
        for following in numbered(requests):
            if following is not None:
                index, request = following
                yield [(index, self._answer(request))]

    def _answer(self, request: Request) -> list[Completion]:
        try:
            images = [open_image(image) for image in request.images]
            inputs = self._policy.encode_chat(request.prompt, images, prefix=request.prefix)
        except DataError as error:  # an image that cannot be read, or that the policy cannot see
            return [failed(error)] * request.n
        completions = []
        for start in range(0, request.n, self._rows_per_batch):
            n_rows = min(self._rows_per_batch, request.n - start)
            seed = request.seed if start == 0 else derived_seed(request.seed, start)
            completions += self._batch(inputs, request, n_rows=n_rows, seed=seed)
        return completions

    def _batch(self, inputs: dict[str, Any], request: Request, *, n_rows: int, seed: int) -> list[Completion]:
        import torch

        model, params = self._policy.model, request.sampling
        settings: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if params.temperature > 0:
            settings = {"do_sample": True, "temperature": params.temperature}
            settings |= {"top_p": params.top_p, "top_k": params.top_k}
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(seed)
            try:
                tokens = model.generate(
                    **inputs,
                    **settings,
                    num_return_sequences=n_rows,
                    max_new_tokens=params.max_new_tokens,
                    eos_token_id=self._eos_ids,
                    pad_token_id=self._eos_ids[0],  # only after a sequence's end, where nothing is read
                )
            except torch.OutOfMemoryError as error:
                raise MprmError(
                    f"{n_rows} answers at a time do not fit into memory; take fewer with --rows-per-batch"
                ) from error
        n_prompt = inputs["input_ids"].shape[1]
        return [completion_of(row[n_prompt:], self._policy.tokenizer, self._eos_ids) for row in tokens.tolist()]

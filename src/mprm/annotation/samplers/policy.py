"""A policy in this process: what it must offer, and how its tokens become completions.

A session for policies that answer one request at a time.

Policies in this process, through transformers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from mprm.annotation.samplers.sampler import Answered, Completion, Request, Session, derived_seed
from mprm.data.images import open_image
from mprm.errors import ConfigError, DataError, MprmError


class Policy(Protocol):
    """A model that can be spoken to; `mprm.models.checkpoint.Backbone` is one."""

    @property
    def model(self) -> Any:
        """Something that can ``generate``."""
        ...

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        ...

    def encode_chat(self, text: str, images: Any = (), *, prefix: str = "") -> dict[str, Any]:
        """Tensors for ``generate``, of one row: the user's turn, and the response's ``prefix``.

        The ids of ``prefix`` come last and depend on nothing else.
        """
        ...


def eos_ids_of(policy: Policy) -> list[int]:
    """The tokens that end an answer: the generation config's, or the tokenizer's."""
    found = policy.model.generation_config.eos_token_id
    if found is None:
        found = policy.tokenizer.eos_token_id
    if found is None:
        raise ConfigError("the policy has no end-of-text token; set eos_token_id in its generation_config.json")
    return list(found) if isinstance(found, list | tuple) else [int(found)]


def completion_of(ids: list[int], *, tokenizer: Any, eos_ids: list[int]) -> Completion:
    """The answer that these tokens are, up to the first that ends it."""
    end = next((place for place, id_ in enumerate(ids) if id_ in eos_ids), None)
    text = tokenizer.decode(ids[:end], skip_special_tokens=True)
    return Completion(text=text, finish_reason="length" if end is None else "stop", n_tokens=len(ids[:end]))


def failed(error: Exception, n: int) -> list[Completion]:
    """Completions of a request that cannot be answered."""
    return [Completion(text="", finish_reason="error", error=str(error))] * n


class OneByOne:
    """See `Session`; answers come in the order of the requests."""

    def __init__(self, answer: Callable[[Request], list[Completion]]) -> None:
        self._answer = answer
        self._asked: deque[tuple[int, Request]] = deque()

    @property
    def room(self) -> int:
        """See `Session.room`."""
        return int(not self._asked)

    def submit(self, number: int, request: Request) -> None:
        """See `Session.submit`."""
        self._asked.append((number, request))

    def wait(self) -> list[Answered]:
        """See `Session.wait`."""
        if not self._asked:
            return []
        number, request = self._asked.popleft()
        return [(number, self._answer(request))]


class TransformersSampler:
    """Answers requests one after the other, all ``n`` answers of a request in one batch.

    A batch holds one request only and is seeded by it. So its answers are the same, bit for bit,
    whatever is asked before, after and besides, and whether a run was interrupted or not; on the same
    kind of device, with the same ``n``, ``rows_per_batch`` and versions of torch and transformers.
    What the policy's own generation config sets beyond `SamplingParams`, such as a repetition penalty, holds.

    Parameters
    ----------
    policy
        The model and its tokenizer.
    name
        What manifests call it.
    weights
        What tells its weights from others under the same name: a run with others is not continued.
    rows_per_batch
        Most answers at a time; more of a request are drawn batch by batch.
    """

    def __init__(self, policy: Policy, *, name: str, weights: str | None = None, rows_per_batch: int = 16) -> None:
        if rows_per_batch < 1:
            raise ConfigError(f"rows_per_batch must be 1 or more, got {rows_per_batch}")
        self._policy = policy
        self._name, self._weights = name, weights
        self._rows_per_batch = rows_per_batch
        self._eos_ids = eos_ids_of(policy)

    @property
    def name(self) -> str:
        """See `Sampler.name`."""
        return self._name

    @property
    def settings(self) -> dict[str, Any]:
        """See `Sampler.settings`."""
        return {
            "rows_per_batch": self._rows_per_batch,
            "weights": self._weights,
            "dtype": str(self._policy.model.dtype),
        }

    @contextmanager
    def session(self) -> Iterator[Session]:
        """See `Sampler.session`."""
        yield OneByOne(self._answer)

    def _answer(self, request: Request) -> list[Completion]:
        try:
            images = [open_image(image) for image in request.images]
            inputs = self._policy.encode_chat(request.prompt, images, prefix=request.prefix)
        except DataError as error:  # an image that cannot be read, or that the policy cannot see
            return failed(error, request.n)
        return list(self._completions(inputs, request))

    def _completions(self, inputs: dict[str, Any], request: Request) -> Iterator[Completion]:
        for start in range(0, request.n, self._rows_per_batch):
            n_rows = min(self._rows_per_batch, request.n - start)
            seed = request.seed if start == 0 else derived_seed(request.seed, start)
            yield from self._batch(inputs, request, n_rows=n_rows, seed=seed)

    def _batch(self, inputs: dict[str, Any], request: Request, *, n_rows: int, seed: int) -> list[Completion]:
        import torch

        model, sampling = self._policy.model, request.sampling
        how: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if sampling.temperature > 0:
            how = {"do_sample": True, "temperature": sampling.temperature}
            how |= {"top_p": sampling.top_p, "top_k": sampling.top_k}
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(seed)
            try:
                tokens = model.generate(
                    **inputs,
                    **how,
                    num_return_sequences=n_rows,
                    max_new_tokens=sampling.max_new_tokens,
                    eos_token_id=self._eos_ids,
                    pad_token_id=self._eos_ids[0],  # only after a row's end, where nothing is read
                )
            except torch.OutOfMemoryError as error:
                raise MprmError(
                    f"{n_rows} answers at a time do not fit into memory; take fewer with --rows-per-batch"
                ) from error
        n_prompt = inputs["input_ids"].shape[1]
        tokenizer, eos_ids = self._policy.tokenizer, self._eos_ids
        return [completion_of(row[n_prompt:], tokenizer=tokenizer, eos_ids=eos_ids) for row in tokens.tolist()]

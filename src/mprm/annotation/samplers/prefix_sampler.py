"""Policies in this process, many requests at a time, what they share computed once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from mprm.annotation.samplers.draw import row_keys
from mprm.annotation.samplers.policy import Policy, completion_of, eos_ids_of, failed
from mprm.annotation.samplers.rows import (
    WINDOW,
    Newcomer,
    Prompt,
    PromptStore,
    Row,
    RowBatch,
    StateShape,
    state_shape_of,
)
from mprm.annotation.samplers.sampler import Answered, Completion, Request, Session
from mprm.errors import ConfigError, DataError, MprmError
from mprm.models.prefix_tree import can_share_prefixes

ROWS = {"cuda": 1024}
ROWS_ELSEWHERE = 64
MEMORY_SHARE = 0.6
"""Of the free memory of a GPU; the rest is for logits, activations and prompts."""
BYTES_ELSEWHERE = 2 << 30
PROMPT_SHARE = 8
"""Prompts that are kept take this part of the tokens, on top of them."""
BATCHES_AHEAD = 2


class PrefixSampler:
    """Answers many requests at a time; what they have in common is computed once.

    A prompt with its images is computed once for all requests that come near each other, a prefix once
    for all continuations of a request, and all rows are continued together: rows that end make room for
    new ones at once.

    The random numbers of a continuation depend on its request's seed and its number alone, so its text
    depends on the request and not on what is asked besides — but for the rounding of logits, which
    depends on the shapes of the batches, and in bfloat16 can tip a draw. The same requests handed in in
    the same order, with the same ``rows`` and ``tokens``, give the same batches and so the same texts, on
    the same kind of device with the same versions. Where ``tokens`` is not given, the free memory of a
    GPU decides it, and two runs differ in it where memory, not ``rows``, limits the batch.

    Parameters
    ----------
    policy
        The model and its tokenizer; see `can_share_prefixes` for those that can be used.
    name
        What manifests call it.
    weights
        What tells its weights from others under the same name: a run with others is not continued.
    rows
        Most continuations at a time; 1,024 on a GPU and 64 elsewhere where None.
    tokens
        Most tokens whose keys and values are held for them, each row at its greatest length. None: what
        fits into 60 % of a GPU's free memory, or into 2 GiB elsewhere. One row is always let in.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        name: str,
        weights: str | None = None,
        rows: int | None = None,
        tokens: int | None = None,
    ) -> None:
        for what, given in (("rows", rows), ("tokens", tokens)):
            if given is not None and given < 1:
                raise ConfigError(f"{what} must be 1 or more, got {given}")
        reason = can_share_prefixes(policy)
        if reason is not None:
            raise ConfigError(f"{name} cannot be sampled with shared prefixes: {reason}; use TransformersSampler")
        self._policy = policy
        self._name, self._weights = name, weights
        self._rows = rows or ROWS.get(policy.model.device.type, ROWS_ELSEWHERE)
        self._tokens = tokens
        self._eos_ids = eos_ids_of(policy)

    @property
    def name(self) -> str:
        """See `Sampler.name`."""
        return self._name

    @property
    def settings(self) -> dict[str, Any]:
        """See `Sampler.settings`."""
        return {"prefixes": "shared", "weights": self._weights, "dtype": str(self._policy.model.dtype)}

    @contextmanager
    def session(self) -> Iterator[Session]:
        """See `Sampler.session`."""
        shape = state_shape_of(self._policy.model)
        tokens = self._tokens or _tokens_that_fit(shape)
        yield _Session(self._policy, shape, self._eos_ids, rows=self._rows, tokens=tokens)


def _tokens_that_fit(shape: StateShape) -> int:
    n_bytes = float(BYTES_ELSEWHERE)
    if shape.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(shape.device)
        unused = torch.cuda.memory_reserved(shape.device) - torch.cuda.memory_allocated(shape.device)
        n_bytes = MEMORY_SHARE * (free + unused)
    return max(1, int(n_bytes) // shape.n_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Continuations of a request that wait."""

    number: int
    request: Request
    continuations: range


class _Session:
    """See `Session`."""

    def __init__(self, policy: Policy, shape: StateShape, eos_ids: list[int], *, rows: int, tokens: int) -> None:
        self._tokenizer = policy.tokenizer
        self._eos_ids = eos_ids
        self._rows, self._tokens = rows, tokens
        self._prompts = PromptStore(policy, most_tokens=tokens // PROMPT_SHARE)
        penalty = policy.model.generation_config.repetition_penalty
        with torch.inference_mode():
            self._batch = RowBatch(policy.model, shape, penalty=1.0 if penalty is None else penalty)
        self._queue: deque[_Job] = deque()
        self._n_each = 1
        self._found: dict[int, list[Completion | None]] = {}
        self._answered: list[Answered] = []

    @property
    def room(self) -> int:
        """See `Session.room`."""
        n_queued = sum(len(job.continuations) for job in self._queue)
        return max(0, -(-(BATCHES_AHEAD * self._rows - n_queued) // self._n_each))

    def submit(self, number: int, request: Request) -> None:
        """See `Session.submit`."""
        self._n_each = request.n
        self._found[number] = [None] * request.n
        self._queue.append(_Job(number=number, request=request, continuations=range(request.n)))

    @torch.inference_mode()
    def wait(self) -> list[Answered]:
        """See `Session.wait`."""
        try:
            while not self._answered and (self._queue or self._batch.rows):
                self._let_in()
                self._continue()
        except torch.OutOfMemoryError as error:
            raise MprmError(
                f"up to {self._rows} answers at a time do not fit into memory; take fewer with --rows-per-batch"
            ) from error
        answered, self._answered = self._answered, []
        return answered

    def _let_in(self) -> None:
        """Let waiting continuations join, in their order; not for the sake of a few, as joining costs a pass."""
        n_rows = len(self._batch.rows)
        if n_rows and self._rows - n_rows < max(1, self._rows // 8):
            return
        n_columns = max((_most_columns(row) for row in self._batch.rows), default=0)
        newcomers = []
        while self._queue and (n_rows == 0 or n_rows + len(self._queue[0].continuations) <= self._rows):
            job = self._queue[0]
            try:
                prompt = self._prompts.prompt(job.request)
                prefix_ids = self._prompts.prefix_ids(job.request.prefix)
            except DataError as error:  # an image that cannot be read, or that the policy cannot see
                self._queue.popleft()
                self._settle(job, failed(error, len(job.continuations)))
                continue
            newcomer = _newcomer(job, prompt, prefix_ids)
            needed = max(n_columns, _most_columns(newcomer.rows[0]))
            n_fit = min(self._rows, self._tokens // needed) - n_rows
            if n_fit < len(newcomer.rows) and n_rows:
                break
            self._queue.popleft()
            n_taken = max(1, min(n_fit, len(newcomer.rows)))
            if n_taken < len(newcomer.rows):  # more than fit even alone: the rest comes in its turn
                self._queue.appendleft(replace(job, continuations=job.continuations[n_taken:]))
            newcomers.append(replace(newcomer, rows=newcomer.rows[:n_taken]))
            n_rows, n_columns = n_rows + n_taken, needed
        if newcomers:
            self._batch.join(newcomers, n_columns=n_columns, most_tokens=self._tokens)

    def _continue(self) -> None:
        rows = self._batch.rows
        if not rows:
            return
        self._batch.step(min(WINDOW, max(row.sampling.max_new_tokens - len(row.drawn) for row in rows)))
        ended = {place for place, row in enumerate(rows) if self._has_ended(row)}
        for place in sorted(ended):
            self._finish(rows[place])
        if ended:
            self._batch.leave(ended)

    def _has_ended(self, row: Row) -> bool:
        is_long = len(row.drawn) >= row.sampling.max_new_tokens
        return is_long or any(id_ in self._eos_ids for id_ in row.drawn[-WINDOW:])

    def _finish(self, row: Row) -> None:
        ids = row.drawn[: row.sampling.max_new_tokens]
        completion = completion_of(ids, tokenizer=self._tokenizer, eos_ids=self._eos_ids)
        self._note(row.request, row.number, completion)

    def _settle(self, job: _Job, completions: list[Completion]) -> None:
        for number, completion in zip(job.continuations, completions, strict=True):
            self._note(job.number, number, completion)

    def _note(self, request: int, number: int, completion: Completion) -> None:
        """Keep a completion; the request is answered with its last one."""
        found = self._found[request]
        found[number] = completion
        whole = [each for each in found if each is not None]
        if len(whole) == len(found):
            del self._found[request]
            self._answered.append((request, whole))


def _newcomer(job: _Job, prompt: Prompt, prefix_ids: list[int]) -> Newcomer:
    ids = prompt.ids + prefix_ids
    keys = row_keys(job.request.seed, job.continuations)
    rows = [
        Row(
            request=job.number,
            number=number,
            sampling=job.request.sampling,
            key=key,
            next_id=ids[-1],
            column=len(ids) - 1,
            offset=prompt.offset,
        )
        for number, key in zip(job.continuations, keys, strict=True)
    ]
    return Newcomer(prompt=prompt, prefix_ids=prefix_ids, rows=rows)


def _most_columns(row: Row) -> int:
    """Columns that a row may come to need; it may be drawn on to the end of a window."""
    return row.column + row.sampling.max_new_tokens - len(row.drawn) + WINDOW

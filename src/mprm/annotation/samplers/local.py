"""Policies in this process: many requests at a time, with prefix caching and continuous batching, or one by one."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import Any

import torch

from mprm.annotation.samplers.decode_batch import WINDOW, DecodeBatch, PrefixCache, SequenceGroup, prefill
from mprm.annotation.samplers.sampler import Answered, Completion, Request, derived_seed, failed, numbered
from mprm.data.images import open_image
from mprm.errors import ConfigError, DataError, MprmError
from mprm.models.chat import Backbone
from mprm.models.prefix_tree import why_not_shared

MEMORY_SHARE = 0.6  # of the free memory of a GPU; the rest is for logits, activations and prompts
BYTES_ELSEWHERE = 2 << 30
PROMPT_SHARE = 8  # prompts that are kept take this part of the tokens, on top of them
BATCHES_AHEAD = 2

KNOWN = (
    *("do_sample", "temperature", "top_k", "top_p", "max_length", "max_new_tokens"),  # given by the request
    *("repetition_penalty", "eos_token_id"),  # followed
    # names, memory, speed, and what counts with several beams alone
    *("bos_token_id", "pad_token_id", "decoder_start_token_id", "num_return_sequences", "transformers_version"),
    *("use_cache", "cache_config", "max_cache_len", "compile_config", "disable_compile", "prefill_chunk_size"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("early_stopping", "length_penalty", "diversity_penalty", "_from_model_config"),
)
NEUTRAL = (
    dict.fromkeys(("num_beams", "num_beam_groups", "typical_p", "encoder_repetition_penalty", "guidance_scale"), 1)
    | dict.fromkeys(("min_length", "min_new_tokens", "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size"), 0)
    | {"encoder_no_repeat_ngram_size": 0}
)
"""Values at which a setting that is not followed here does nothing."""


def eos_ids_of(policy: Backbone) -> list[int]:
    """The tokens that end an answer: the generation config's, or the tokenizer's."""
    given = policy.model.generation_config.eos_token_id
    ids = policy.tokenizer.eos_token_id if given is None else given
    if ids is None:
        raise ConfigError("the policy has no end-of-text token; set eos_token_id in its generation_config.json")
    return list(ids) if isinstance(ids, list | tuple) else [int(ids)]


def completion_of(ids: list[int], tokenizer: Any, eos_ids: list[int], stop: str = "") -> Completion:
    """The answer that these tokens are, up to the first that ends it, or to the stop string."""
    end = next((position for position, id_ in enumerate(ids) if id_ in eos_ids), None)

    def text_of(n: int | None) -> str:
        return str(tokenizer.decode(ids[:n], skip_special_tokens=True))

    text = text_of(end)
    if stop and stop in text:
        n_tokens = bisect_left(range(len(ids)), True, key=lambda n: stop in text_of(n))
        return Completion(text=text.split(stop, 1)[0], finish_reason="stop_string", n_tokens=n_tokens)
    return Completion(text=text, finish_reason="length" if end is None else "stop", n_tokens=len(ids[:end]))


class TransformersSampler:
    """Answers requests one after the other, ``rows_per_batch`` answers of a request at a time, seeded by the request.

    So its answers are the same, bit for bit, whatever is requested before and after; on the same kind of device, with
    the same ``n``, ``rows_per_batch`` and versions of torch and transformers. What the policy's own generation config
    sets beyond `SamplingParams`, such as a repetition penalty, holds. Manifests call the policy ``name``; ``weights``
    tells its weights from others under the same name.
    """

    def __init__(self, policy: Backbone, *, name: str, weights: str | None = None, rows_per_batch: int = 16) -> None:
        if rows_per_batch < 1:
            raise ConfigError(f"rows_per_batch must be at least 1, got {rows_per_batch}")
        self._policy, self._eos_ids, self._rows_per_batch = policy, eos_ids_of(policy), rows_per_batch
        self.name = name
        self.settings = {"rows_per_batch": rows_per_batch, "weights": weights, "dtype": str(policy.model.dtype)}

    def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
        for index, request in filter(None, numbered(requests)):
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
        model, params, is_sampled = self._policy.model, request.sampling, request.sampling.temperature > 0
        options = {name: getattr(params, name) if is_sampled else None for name in ("temperature", "top_p", "top_k")}
        options |= {"do_sample": is_sampled, "num_return_sequences": n_rows, "max_new_tokens": params.max_new_tokens}
        # padding comes after a sequence's end, where nothing is read
        options |= {"eos_token_id": self._eos_ids, "pad_token_id": self._eos_ids[0]}
        if request.stop:
            options |= {"stop_strings": [request.stop], "tokenizer": self._policy.tokenizer}
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(seed)
            try:
                tokens = model.generate(**inputs, **options)
            except torch.OutOfMemoryError as error:
                raise MprmError(f"{n_rows} answers at once do not fit into memory; lower --rows-per-batch") from error
        n_prompt = inputs["input_ids"].shape[1]
        rows = (row[n_prompt:] for row in tokens.tolist())
        return [completion_of(row, self._policy.tokenizer, self._eos_ids, request.stop) for row in rows]


def can_share_prefixes(policy: Backbone) -> str | None:
    """Why `PrefixSampler` cannot sample from this policy, or None where it can.

    Whatever it does not know is a reason: `TransformersSampler` leaves everything to transformers.
    """
    for name, value in policy.model.generation_config.to_dict().items():
        # `is False` beside None: flags that are off; 0 may mean something
        if name not in KNOWN and value is not None and value is not False and value != NEUTRAL.get(name):
            return f"its generation config sets {name} to {value!r}"
    return why_not_shared(policy.model)


class PrefixSampler:
    """Samples many requests at a time: prompts and prefixes are computed once, sequences join and leave one batch.

    The random numbers of a continuation depend on its request's seed and its number alone. Other requests change its
    text only through the rounding of logits, which depends on the shapes of the batches and in bfloat16 can tip a
    sample. The same requests in the same order, with the same ``rows`` and ``tokens``, give the same texts, on the
    same kind of device with the same versions.

    ``name`` and ``weights`` are as in `TransformersSampler`. A batch has at most ``rows`` sequences, by default 1,024
    on a GPU and 64 elsewhere. ``tokens`` is the size of the KV cache, each sequence at its greatest length; by
    default what fits into 60 % of a GPU's free memory, or into 2 GiB elsewhere. One sequence is always let in.
    """

    def __init__(
        self,
        policy: Backbone,
        *,
        name: str,
        weights: str | None = None,
        rows: int | None = None,
        tokens: int | None = None,
    ) -> None:
        for option, value in (("rows", rows), ("tokens", tokens)):
            if value is not None and value < 1:
                raise ConfigError(f"{option} must be at least 1, got {value}")
        if (reason := can_share_prefixes(policy)) is not None:
            raise ConfigError(f"{name} cannot be sampled with shared prefixes: {reason}; use TransformersSampler")
        self.policy, self.eos_ids, self.tokens = policy, eos_ids_of(policy), tokens
        self.rows = rows or (1024 if policy.model.device.type == "cuda" else 64)
        self.name, self.settings = name, {"prefixes": "shared", "weights": weights, "dtype": str(policy.model.dtype)}

    def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
        todo, scheduler = numbered(requests), _Scheduler(self)
        while True:
            while scheduler.n_waiting < BATCHES_AHEAD * self.rows and (following := next(todo, None)) is not None:
                scheduler.add(*following)
            if not (answered := scheduler.run()):
                return
            yield answered


class _Scheduler:
    """Lets waiting sequences into the decode batch, and collects those that end."""

    @torch.inference_mode()
    def __init__(self, sampler: PrefixSampler) -> None:
        policy = sampler.policy
        kv = prefill(policy.model, policy.encode_chat("")).kv
        self._rows, self._tokens = sampler.rows, sampler.tokens or _tokens_that_fit(kv)
        self._tokenizer, self._eos_ids = policy.tokenizer, sampler.eos_ids
        self._prefixes = PrefixCache(policy, max_tokens=self._tokens // PROMPT_SHARE)
        penalty = policy.model.generation_config.repetition_penalty
        self._batch = DecodeBatch(policy.model, kv, penalty=1.0 if penalty is None else penalty)
        # id of a request, the request, and its continuations that are not in the batch yet
        self._queue: deque[tuple[int, Request, range]] = deque()
        self._completions: dict[int, dict[int, Completion]] = {}  # by number, of requests by id
        self._answered: list[Answered] = []

    @property
    def n_waiting(self) -> int:
        return sum(len(numbers) for _, _, numbers in self._queue)

    def add(self, request_id: int, request: Request) -> None:
        self._queue.append((request_id, request, range(request.n)))

    @torch.inference_mode()
    def run(self) -> list[Answered]:
        """Decode until at least one request is answered; nothing where none is left."""
        try:
            while not self._answered and (self._queue or self._batch.sequences):
                self._admit()
                if self._batch.sequences:
                    self._decode()
        except torch.OutOfMemoryError as error:
            text = f"up to {self._rows} answers at once do not fit into memory; lower --rows-per-batch"
            raise MprmError(text) from error
        answered, self._answered = self._answered, []
        return answered

    def _admit(self) -> None:
        """Let waiting sequences join, in their order; not for the sake of a few, as joining costs a forward pass."""
        n_rows = len(self._batch.sequences)
        if n_rows and self._rows - n_rows < max(1, self._rows // 8):
            return
        n_slots = max((sequence.group.max_slots for sequence in self._batch.sequences), default=0)
        groups = []
        while self._queue:
            request_id, request, numbers = self._queue[0]
            if n_rows and n_rows + len(numbers) > self._rows:
                break
            try:
                prompt = self._prefixes.prompt(request)
            except DataError as error:  # an image that cannot be read, or that the policy cannot see
                self._queue.popleft()
                for number in numbers:
                    self._end(request_id, request, number, failed(error))
                continue
            group = SequenceGroup(request_id, request, numbers, prompt, self._prefixes.prefix_ids(request.prefix))
            needed = max(n_slots, group.max_slots)
            n_fit = min(self._rows, self._tokens // needed) - n_rows
            if n_fit < len(numbers) and n_rows:
                break
            self._queue.popleft()
            n_taken = max(1, min(n_fit, len(numbers)))
            if n_taken < len(numbers):  # more than fit even alone: the rest comes in its turn
                self._queue.appendleft((request_id, request, numbers[n_taken:]))
            groups.append(replace(group, numbers=numbers[:n_taken]))
            n_rows, n_slots = n_rows + n_taken, needed
        if groups:
            self._batch.add(groups, n_slots=n_slots, max_tokens=self._tokens)

    def _decode(self) -> None:
        sequences = self._batch.sequences
        limits = [sequence.group.request.sampling.max_new_tokens for sequence in sequences]
        n_left = (limit - len(sequence.sampled) for limit, sequence in zip(limits, sequences, strict=True))
        self._batch.step(min(WINDOW, max(n_left)))
        ended = set()
        for row, (limit, sequence) in enumerate(zip(limits, sequences, strict=True)):
            request, sampled = sequence.group.request, sequence.sampled
            is_over = len(sampled) >= limit or any(id_ in self._eos_ids for id_ in sampled[-WINDOW:])
            if is_over or (request.stop and request.stop in self._tokenizer.decode(sampled)):
                ended.add(row)
                completion = completion_of(sampled[:limit], self._tokenizer, self._eos_ids, request.stop)
                self._end(sequence.group.request_id, request, sequence.number, completion)
        self._batch.remove(ended)

    def _end(self, request_id: int, request: Request, number: int, completion: Completion) -> None:
        """Keep a completion; the request is answered with its last one."""
        completions = self._completions.setdefault(request_id, {})
        completions[number] = completion
        if len(completions) == request.n:
            self._answered.append((request_id, [completions[i] for i in range(request.n)]))
            del self._completions[request_id]


def _tokens_that_fit(kv: torch.Tensor) -> int:
    n_bytes = float(BYTES_ELSEWHERE)
    if kv.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(kv.device)
        unused = torch.cuda.memory_reserved(kv.device) - torch.cuda.memory_allocated(kv.device)
        n_bytes = MEMORY_SHARE * (free + unused)
    return max(1, int(n_bytes) // kv[:, :, :1].nbytes)

"""Policies in many processes at once: one in-process sampler for each GPU of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from mprm.annotation.samplers.sampler import Answered, Request, Sampler, answers, numbered
from mprm.data.engine import RETRIES, joined, ray_result
from mprm.errors import ConfigError

REQUESTS_PER_CALL = 32  # enough to fill a batch; a call that is lost with its node is done again
CALLS_AHEAD = 2  # calls of each worker: one that it works on, and the next


class RaySampler:
    """Shares requests out among workers, in each of which ``make`` makes a sampler.

    By default the cluster is a local one, with as many workers as it has GPUs, or one where it has none.
    """

    def __init__(
        self, make: Callable[[], Sampler], *, workers: int | None = None, address: str | None = None
    ) -> None:
        if workers is not None and workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        ray = joined(address)
        n_gpus = int(ray.cluster_resources().get("GPU", 0))
        n_workers = workers or max(1, n_gpus)
        share = {"num_gpus": min(1.0, n_gpus / n_workers)} if n_gpus else {"num_cpus": 1}
        actor = ray.remote(_Worker).options(max_restarts=RETRIES, max_task_retries=RETRIES, **share)
        self._actors = [actor.remote(make) for _ in range(n_workers)]
        self.name, self.settings = ray_result("worker", ray.get, self._actors[0].described.remote())

    def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
        from ray.util import ActorPool

        todo, waiting = numbered(requests), list[tuple[int, Request]]()
        n_free = len(self._actors) * CALLS_AHEAD
        pool = ActorPool(self._actors * CALLS_AHEAD)
        while True:
            while len(waiting) < n_free * REQUESTS_PER_CALL and (following := next(todo, None)) is not None:
                waiting.append(following)
            while waiting and n_free:
                # a short queue is shared out, not given to one worker
                n = min(REQUESTS_PER_CALL, -(-len(waiting) // n_free))
                pool.submit(lambda actor, batch: actor.answer.remote(batch), waiting[:n])
                del waiting[:n]
                n_free -= 1
            if not pool.has_next():
                return
            yield ray_result("worker", pool.get_next_unordered)
            n_free += 1


class _Worker:
    def __init__(self, make: Callable[[], Sampler]) -> None:
        self._sampler = make()

    def described(self) -> tuple[str, dict[str, Any]]:
        return self._sampler.name, self._sampler.settings

    def answer(self, batch: list[tuple[int, Request]]) -> list[Answered]:
        indices, requests = zip(*batch, strict=True)
        return [(indices[number], completions) for number, completions in answers(self._sampler, requests)]

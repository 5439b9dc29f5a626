"""Policies in many processes at once: one in-process sampler for each GPU of a Ray cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mprm.annotation.samplers.sampler import Answered, Completion, Request, Sampler, Session, answers
from mprm.data.engine import joined
from mprm.errors import ConfigError, MprmError

REQUESTS_PER_CALL = 32
"""Enough to fill a batch; a call that is lost with its node is done again."""
CALLS_AHEAD = 2
"""Calls of each worker: one that it works on, and the next."""
RETRIES = 8


class RaySampler:
    """Shares requests out among workers, each with a policy of its own.

    Parameters
    ----------
    make
        Makes the sampler of a worker, there.
    workers
        How many; as many as the cluster has GPUs, or one where it has none, when None.
    address
        Cluster to join; a Ray of this machine's own when None.
    """

    def __init__(
        self, make: Callable[[], Sampler], *, workers: int | None = None, address: str | None = None
    ) -> None:
        if workers is not None and workers < 1:
            raise ConfigError(f"workers must be 1 or more, got {workers}")
        self._ray = joined(address)
        n_gpus = int(self._ray.cluster_resources().get("GPU", 0))
        n_workers = workers or max(1, n_gpus)
        share = {"num_gpus": min(1.0, n_gpus / n_workers)} if n_gpus else {"num_cpus": 1}
        actor = self._ray.remote(_Worker).options(max_restarts=RETRIES, max_task_retries=RETRIES, **share)
        self._actors = [actor.remote(make) for _ in range(n_workers)]
        self._name, self._settings = self._get(self._actors[0].described.remote())

    @property
    def name(self) -> str:
        """See `Sampler.name`."""
        return str(self._name)

    @property
    def settings(self) -> dict[str, Any]:
        """See `Sampler.settings`."""
        return dict(self._settings)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """See `Sampler.session`."""
        session = _RaySession(self._ray, self._actors, self._get)
        try:
            yield session
        finally:
            session.cancel()

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, MprmError) else MprmError(f"a Ray worker failed: {cause}")) from error
        except self._ray.exceptions.RayError as error:
            raise MprmError(f"Ray lost a worker {RETRIES} times: {error}") from error


class _Worker:
    """Lives on a GPU of its own."""

    def __init__(self, make: Callable[[], Sampler]) -> None:
        self._sampler = make()

    def described(self) -> tuple[str, dict[str, Any]]:
        return self._sampler.name, self._sampler.settings

    def answer(self, requests: list[Request]) -> list[list[Completion]]:
        found: dict[int, list[Completion]] = dict(answers(self._sampler, requests))
        return [found[number] for number in range(len(requests))]


class _RaySession:
    """See `Session`."""

    def __init__(self, ray: Any, actors: list[Any], get: Callable[[Any], Any]) -> None:
        self._ray, self._actors, self._get = ray, actors, get
        self._waiting: deque[tuple[int, Request]] = deque()
        self._calls: dict[Any, tuple[int, list[int]]] = {}
        """By reference: whose call it is, and the numbers of its requests."""

    @property
    def room(self) -> int:
        n_under_way = len(self._waiting) + sum(len(numbers) for _, numbers in self._calls.values())
        return max(0, len(self._actors) * CALLS_AHEAD * REQUESTS_PER_CALL - n_under_way)

    def submit(self, number: int, request: Request) -> None:
        self._waiting.append((number, request))

    def wait(self) -> list[Answered]:
        self._hand_out()
        if not self._calls:
            return []
        done, _ = self._ray.wait(list(self._calls), num_returns=1)
        found: list[Answered] = []
        for reference in done:
            _, numbers = self._calls.pop(reference)
            found += zip(numbers, self._get(reference), strict=True)
        return found

    def _hand_out(self) -> None:
        """Give each worker calls, those with the fewest first."""
        loads = [0] * len(self._actors)
        for worker, _ in self._calls.values():
            loads[worker] += 1
        while self._waiting and min(loads) < CALLS_AHEAD:
            worker = loads.index(min(loads))
            # a short queue is shared out, not given to one worker
            n = min(REQUESTS_PER_CALL, -(-len(self._waiting) // sum(load < CALLS_AHEAD for load in loads)))
            batch = [self._waiting.popleft() for _ in range(n)]
            reference = self._actors[worker].answer.remote([request for _, request in batch])
            self._calls[reference] = worker, [number for number, _ in batch]
            loads[worker] += 1

    def cancel(self) -> None:
        for reference in self._calls:
            self._ray.cancel(reference)

"""The engine of a cluster: the same functions as Ray tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mprm.engines.engine import Item, Result
from mprm.errors import MissingDependencyError, MprmError

RETRIES = 8
"""How often a task starts again when its worker or node dies; tasks only read, so again is the same."""


def ray_module() -> Any:
    """Ray, where it is installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            "the ray engine needs Ray: pip install ray, or install mprm with its extra [ray]"
        ) from error
    return ray


def joined(address: str | None) -> Any:
    """Ray, connected to the cluster at ``address`` or to one of this machine's own."""
    ray = ray_module()
    if not ray.is_initialized():
        try:
            ray.init(
                address,
                log_to_driver=False,
                logging_level="ERROR",
                include_dashboard=False if address is None else None,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise MprmError(f"no Ray cluster answers at {address}: {error}") from error
    return ray


class RayEngine:
    """Works in Ray tasks, on the cluster at ``address`` or on a Ray of this machine's own."""

    def __init__(self, address: str | None) -> None:
        self._ray = ray_module()
        self._address = address

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """See `Engine.map`."""
        ray = joined(self._address)
        task = ray.remote(function).options(max_retries=RETRIES)
        under_way = 4 * max(1, int(ray.cluster_resources().get("CPU", 1)))
        pending: deque[Any] = deque()
        try:
            for item in items:
                pending.append(task.remote(item))
                if len(pending) > under_way:
                    yield self._result(pending.popleft())
            while pending:
                yield self._result(pending.popleft())
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, MprmError) else MprmError(f"a Ray task failed: {cause}")) from error
        except self._ray.exceptions.RayError as error:
            raise MprmError(f"Ray lost a task {RETRIES} times: {error}") from error

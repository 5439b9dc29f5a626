"""What an engine is, and choosing one by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from multiprocessing import current_process
from typing import Literal, Protocol, TypeVar

from mprm.errors import ConfigError

Item = TypeVar("Item")
Result = TypeVar("Result")

EngineName = Literal["local", "ray"]
INLINE_BYTES = 4 << 20
"""Below this much input a process pool costs more than it saves."""


class Engine(Protocol):
    """Maps a function over items, somewhere."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results in the order of the items; the first few items are set to work at once, others as these end."""
        ...


def make_engine(
    name: EngineName, *, n_bytes: int, processes: int | None = None, ray_address: str | None = None
) -> Engine:
    """The engine of that name.

    Parameters
    ----------
    n_bytes
        Size of the input: a small one is worked on in this process.
    processes
        Worker processes of the local engine; all cores when None.
    ray_address
        Cluster to join; a Ray of this machine's own when None.
    """
    if name == "local":
        from mprm.engines.local import InlineEngine, ProcessEngine, n_cores

        if processes is not None and processes < 1:
            raise ConfigError(f"processes must be at least 1, got {processes}")
        if current_process().daemon:
            return InlineEngine()  # a worker of somebody's pool may have no workers of its own
        n_processes = processes if processes is not None else (1 if n_bytes < INLINE_BYTES else n_cores())
        return InlineEngine() if n_processes <= 1 else ProcessEngine(n_processes)
    if name == "ray":
        from mprm.engines.ray import RayEngine

        return RayEngine(ray_address)
    raise ConfigError(f"unknown engine {name!r}; expected local or ray")

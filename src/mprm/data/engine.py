"""Where the work on a corpus runs: this machine's cores, or a Ray cluster. Both map a function over chunks."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, process
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing import current_process
from typing import Any, Protocol, TypeVar

from mprm.config import EngineOptions
from mprm.errors import MprmError, imported

Item = TypeVar("Item")
Result = TypeVar("Result")
Pending = TypeVar("Pending")

INLINE_BYTES = 4 << 20
"""Below this much input a process pool costs more than it saves."""


class Engine(Protocol):
    """Maps a function over items, somewhere."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results in the order of the items; the first few items are set to work at once, others as these end."""
        ...


def make_engine(options: EngineOptions, *, n_bytes: int) -> Engine:
    """The engine that the options ask for; an input of few bytes is processed in this process."""
    if options.engine == "ray":
        return RayEngine(options.ray_address)
    if current_process().daemon:
        return InlineEngine()  # a worker of somebody's pool may have no workers of its own
    n_processes = options.processes or (1 if n_bytes < INLINE_BYTES else n_cores())
    return InlineEngine() if n_processes <= 1 else ProcessEngine(n_processes)


is_worker = False
"""Whether this process is a worker of a pool: it may die without taking the user's session with it."""


def n_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class InlineEngine:
    """Works in this process, one item after the other."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        return map(function, items)


class ProcessEngine:
    """Works in a pool of processes, which lives as long as the engine."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        submit = partial(self._submit, function)
        return _in_order(submit, items, 2 * self.processes + 1, Future.result, Future.cancel)

    def _submit(self, function: Callable[[Item], Result], item: Item) -> Future[Result]:
        if self._pool is None:
            # fork on Linux: workers start in milliseconds, share the parent's memory, and a script that
            # calls mprm needs no __main__ guard. They only decode and copy, so no lock that another
            # thread may have held at the fork is ever asked for.
            context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
            self._pool = ProcessPoolExecutor(self.processes, mp_context=context, initializer=_prepare_worker)
            weakref.finalize(self, _end, self._pool)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            return self._pool.submit(function, item)


def _in_order(
    submit: Callable[[Item], Pending],
    items: Iterable[Item],
    n_pending: int,
    result: Callable[[Pending], Result],
    cancel: Callable[[Pending], object],
) -> Iterator[Result]:
    """The results in the order of the items, of which ``n_pending`` are at work at any time, from now on."""
    rest = iter(items)
    with _living_workers():
        pending = deque(map(submit, islice(rest, n_pending)))

    def results() -> Iterator[Result]:
        try:
            while pending:
                with _living_workers():
                    done = result(pending.popleft())
                    pending.extend(map(submit, islice(rest, 1)))
                yield done
        finally:
            for task in pending:
                cancel(task)

    return results()


def _end(pool: ProcessPoolExecutor) -> None:
    """End a pool without waiting for its workers."""
    thread = pool._executor_manager_thread
    pool.shutdown(wait=False, cancel_futures=True)
    # or Python's exit would wake the thread again, now and then through a pipe that it is just closing
    process._threads_wakeups.pop(thread, None)


@contextmanager
def _living_workers() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise MprmError(
            "a worker process died: it was killed, the machine ran out of memory, or an input was cut short."
            " Nothing was written; run again, with fewer --processes if memory is short."
        ) from error


def _prepare_worker() -> None:
    global is_worker
    is_worker = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends the pool
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no worker outlives a killed parent
    gc.freeze()
    gc.disable()  # decoded records have no cycles; collecting them costs a tenth of the scan


RETRIES = 8
"""How often a task starts again when its worker or node dies; tasks only read, so again is the same."""


def joined(address: str | None) -> Any:
    """Ray, connected to the cluster at ``address`` or to one of this machine's own."""
    ray = imported("ray", "the ray engine needs Ray: install mprm with its extra [ray]")
    if not ray.is_initialized():
        has_dashboard = False if address is None else None
        try:
            ray.init(address, log_to_driver=False, logging_level="ERROR", include_dashboard=has_dashboard)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise MprmError(f"no Ray cluster answers at {address}: {error}") from error
    return ray


def ray_result(noun: str, get: Callable[..., Any], *arguments: Any) -> Any:
    """What ``get`` has from Ray; ``noun`` is what Ray calls its source in an error."""
    from ray.exceptions import RayError, RayTaskError

    try:
        return get(*arguments)
    except RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, MprmError) else MprmError(f"a Ray {noun} failed: {cause}")) from error
    except RayError as error:
        raise MprmError(f"Ray lost a {noun} {RETRIES} times: {error}") from error


class RayEngine:
    """Works in Ray tasks, on the cluster at ``address`` or on a Ray of this machine's own."""

    def __init__(self, address: str | None) -> None:
        self._ray = joined(address)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        task = self._ray.remote(function).options(max_retries=RETRIES)
        n_pending = 4 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        result = partial(ray_result, "task", self._ray.get)
        return _in_order(task.remote, items, n_pending, result, partial(self._ray.cancel, force=True))

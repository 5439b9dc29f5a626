"""The engine of one machine: a pool of processes, or none at all for small work."""

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
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from mprm.engines.engine import Item, Result
from mprm.errors import MprmError


def n_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class InlineEngine:
    """Works in this process, one item after the other."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """See `Engine.map`."""
        return map(function, items)


class ProcessEngine:
    """Works in a pool of processes, which lives as long as the engine."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """See `Engine.map`."""
        rest = iter(items)
        pending = deque(self._submit(function, item) for item in islice(rest, 2 * self.processes + 1))
        return self._results(function, rest, pending)

    def _submit(self, function: Callable[[Item], Result], item: Item) -> Future[Result]:
        if self._pool is None:
            # fork on Linux: workers start in milliseconds, share the parent's memory, and a script that
            # calls mprm needs no __main__ guard. They only decode and copy, so no lock that another
            # thread may have held at the fork is ever asked for.
            method = "fork" if sys.platform == "linux" else "spawn"
            context = multiprocessing.get_context(method)
            self._pool = ProcessPoolExecutor(self.processes, mp_context=context, initializer=_prepare_worker)
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            try:
                return self._pool.submit(function, item)
            except BrokenProcessPool as error:
                raise _worker_died() from error

    def _results(
        self, function: Callable[[Item], Result], rest: Iterator[Item], pending: deque[Future[Result]]
    ) -> Iterator[Result]:
        try:
            while pending:
                result = pending.popleft().result()
                pending.extend(self._submit(function, item) for item in islice(rest, 1))
                yield result
        except BrokenProcessPool as error:
            raise _worker_died() from error
        finally:
            for future in pending:
                future.cancel()


def _worker_died() -> MprmError:
    return MprmError(
        "a worker process died: it was killed, the machine ran out of memory, or an input was cut short."
        " Nothing was written;"
        " run again, with fewer --processes if memory is short."
    )


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends the pool
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no worker outlives a killed parent
    gc.freeze()
    gc.disable()  # decoded records have no cycles; collecting them costs a tenth of the scan

"""The engine of one machine: a pool of processes, or none at all for small work."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

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
    """Works in a pool of processes."""

    def __init__(self, processes: int) -> None:
        self.processes = processes

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """See `Engine.map`."""
        # fork on Linux: workers start in milliseconds, share the parent's memory, and a script that
        # calls mprm needs no __main__ guard. They only decode and copy, so no lock that another
        # thread may have held at the fork is ever asked for.
        method = "fork" if sys.platform == "linux" else "spawn"
        pool = ProcessPoolExecutor(
            self.processes, mp_context=multiprocessing.get_context(method), initializer=_prepare_worker
        )
        pending: deque[Future[Result]] = deque()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                for item in items:
                    pending.append(pool.submit(function, item))
                    if len(pending) > 4 * self.processes:
                        yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise MprmError(
                "a worker process died: it was killed, or the machine ran out of memory. Nothing was written;"
                " run again, with fewer --processes if memory is short."
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends the pool
    gc.freeze()
    gc.disable()  # decoded records have no cycles; collecting them costs a tenth of the scan

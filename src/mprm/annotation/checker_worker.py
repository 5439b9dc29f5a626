"""The worker process of the answer checker: reads comparisons from its input, writes outcomes to its output.

Run by `mprm.annotation.answers.pool` as ``python -m``, not forked: it shares no locks with a parent that has
threads or a GPU, and a script that calls mprm needs no ``__main__`` guard. Messages are JSON, one a line.

"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import sys
from dataclasses import asdict
from typing import IO

from mprm.answers.compare import Outcome, first_equal

READY = b"ready\n"
MEMORY = 4 << 30
"""Bytes that a worker may take: towers of powers would take all there are."""
SPARE_S = 1.0
"""How much longer than its parent a worker waits before it ends itself."""
LOOK_S = 2.0
"""How often an idle worker looks whether its parent is still there."""


def main() -> None:
    """Answer until the input ends or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends its workers
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no outcome
    logging.disable(logging.CRITICAL)
    _limit_memory()
    first_equal("1", ["1+0"])  # loads everything, before the clock of a comparison runs
    out.write(READY)
    parent = os.getppid()
    while _waits(sys.stdin.buffer, parent) and (line := sys.stdin.buffer.readline()):
        job = json.loads(line)
        # the default action of the alarm ends the process even in C code: a worker whose parent was killed
        # dies soon after it. PR_SET_PDEATHSIG would fire when the parent's thread ends, not the parent
        signal.setitimer(signal.ITIMER_REAL, job["timeout_s"] + SPARE_S)
        outcome = _compared(job["answer"], job["candidates"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        out.write(json.dumps(asdict(outcome)).encode() + b"\n")


def _waits(source: IO[bytes], parent: int) -> bool:
    """Whether there is input, or its end; False when the parent is gone and someone else holds the pipe open."""
    while not select.select([source], [], [], LOOK_S)[0]:
        if os.getppid() != parent:
            return False
    return True


def _compared(answer: str, candidates: list[str]) -> Outcome:
    try:
        return first_equal(answer, candidates)
    except MemoryError:
        return Outcome(failed=True, reason="math-verify ran out of memory")
    except Exception as error:  # sympy and the parser raise whatever they like
        return Outcome(failed=True, reason=f"math-verify failed with {type(error).__name__}")


def _limit_memory() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()

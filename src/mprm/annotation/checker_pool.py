"""Worker processes for comparisons that may hang or crash: killed at the time-out, and replaced."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from mprm.annotation.checker_worker import READY
from mprm.answers.compare import Outcome
from mprm.errors import MprmError

START_S = 120.0
"""How long a worker may take to start: it loads an algebra system, perhaps from a slow disk."""


@dataclass(frozen=True, slots=True)
class Job:
    """An answer, and the expressions to compare it with: the gold answer, then any others."""

    answer: str
    candidates: tuple[str, ...]


class Worker:
    """One process, and what it is doing."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mprm.annotation.checker_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.is_ready = False
        self.place: int | None = None
        """Which job it works on."""
        self.deadline = time.monotonic() + START_S

    @property
    def output(self) -> IO[bytes]:
        """Where its outcomes come from."""
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a job."""
        return self.is_ready and self.place is None

    def send(self, place: int, job: Job, timeout_s: float) -> bool:
        """Give it a job; False when the process has died since the last one."""
        assert self.process.stdin is not None
        message = {"answer": job.answer, "candidates": job.candidates, "timeout_s": timeout_s}
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return False
        self.place, self.deadline = place, time.monotonic() + timeout_s
        return True

    def end(self) -> int:
        """Kill the process, whatever it does; its exit status."""
        self.process.kill()
        status = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                assert pipe is not None
                pipe.close()
            except OSError:
                pass  # closing flushes what a dead process did not read
        return status


class WorkerPool:
    """Up to ``processes`` workers, started when there is work for them."""

    def __init__(self, processes: int, timeout_s: float) -> None:
        self.processes, self.timeout_s = processes, timeout_s
        self.workers: list[Worker] = []

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[int, Outcome], None, None]:
        """(place, outcome) of every job, in the order in which they end."""
        waiting = deque(range(len(jobs)))
        n_left = len(jobs)
        try:
            while n_left:
                self._hand_out(jobs, waiting)
                for place, outcome in self._outcomes():
                    n_left -= 1
                    yield place, outcome
        finally:
            for worker in [worker for worker in self.workers if worker.place is not None]:
                self._drop(worker)  # the caller went away before the end

    def _hand_out(self, jobs: Sequence[Job], waiting: deque[int]) -> None:
        """Start the workers that are needed, and give the idle ones their next job."""
        n_free = sum(worker.place is None for worker in self.workers)
        for _ in range(min(len(waiting) - n_free, self.processes - len(self.workers))):
            self.workers.append(Worker())
        for worker in [worker for worker in self.workers if worker.is_idle]:
            if not waiting:
                break
            if worker.send(waiting[0], jobs[waiting[0]], self.timeout_s):
                waiting.popleft()
            else:
                self._drop(worker)

    def _outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """Wait for something to happen, and tell what ended by it."""
        busy = [worker for worker in self.workers if not worker.is_idle]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            next_deadline = min((worker.deadline for worker in busy), default=0.0)
            ready = selector.select(max(0.0, next_deadline - time.monotonic()))
        for key, _ in ready:
            yield from self._heard(key.data)
        now = time.monotonic()
        for worker in busy:
            if worker in self.workers and not worker.is_idle and worker.deadline <= now:
                yield from self._lost(worker, f"math-verify took longer than {self.timeout_s:g} s")

    def _heard(self, worker: Worker) -> Iterator[tuple[int, Outcome]]:
        line = worker.output.readline()
        if line == READY:
            worker.is_ready = True
        elif line.endswith(b"\n") and worker.place is not None:
            place, worker.place = worker.place, None
            yield place, Outcome(**json.loads(line))
        else:
            yield from self._lost(worker, None)

    def _lost(self, worker: Worker, reason: str | None) -> Iterator[tuple[int, Outcome]]:
        """Take leave of a worker that died, or is killed for ``reason``; its job has failed."""
        status = self._drop(worker)
        if not worker.is_ready:
            raise MprmError(
                f"a worker of the answer checker did not start (exit status {status});"
                " to see why, run: python -m mprm.annotation.checker_worker"
            )
        if worker.place is not None:
            crashed = f"the worker process died ({_cause(status)})"
            yield worker.place, Outcome(failed=True, reason=reason or crashed, crashed=reason is None)

    def _drop(self, worker: Worker) -> int:
        self.workers.remove(worker)
        return worker.end()

    def close(self) -> None:
        """End all workers."""
        for worker in list(self.workers):
            self._drop(worker)


def _cause(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"

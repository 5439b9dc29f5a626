"""Grading responses by their final answers, thousands at a time, in worker processes that can be killed.

Workers are subprocesses, one a thread, and not a `pebble.ProcessPool`, which is as fast but whose spawn and
forkserver contexts run a script without a ``__main__`` guard again, whose fork context gives workers the threads,
locks and address space of a parent that may use a GPU, and which breaks when an idle worker dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import astuple
from importlib.util import find_spec
from multiprocessing.connection import wait
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from mprm.answers.grade import READY, Comparison, GradedAnswer, grade
from mprm.data.engine import n_cores
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError, MissingDependencyError, MprmError, shown

START_S = 120.0  # how long a worker may take to start: it loads an algebra system, perhaps from a slow disk


class AnswerChecker(contextlib.AbstractContextManager["AnswerChecker"]):
    """Grades responses; owns the worker processes in which math-verify runs.

    Most grades need no algebra: equal or different numbers, letters and words. The rest go to the workers,
    each pair of answer and gold answer once. A comparison that takes too long is killed; its grade, and that
    of one whose worker crashed, is ``failed``. There is a worker for each core unless ``processes`` says otherwise.
    """

    def __init__(self, timeout_s: float = 5.0, processes: int | None = None) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s must be a number of seconds above 0, got {timeout_s}")
        if processes is not None and processes < 1:
            raise ConfigError(f"processes must be at least 1, got {processes}")
        if find_spec("math_verify") is None:
            raise MissingDependencyError("checking answers needs math-verify: pip install math-verify")
        self._known: dict[Comparison, GradedAnswer] = {}
        self._lock = threading.Lock()
        # one a thread; processes start when there is work for them
        self._workers = [_Worker(timeout_s) for _ in range(processes or n_cores())]
        self._idle = deque(self._workers)
        self._threads = ThreadPoolExecutor(len(self._workers))
        self.close = weakref.finalize(self, _stop, self._threads, self._workers)

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, response: str, question: Question) -> GradedAnswer:
        return self.check_many([(response, question)])[0]

    def check_many(
        self,
        pairs: Sequence[tuple[str, Question]],
        *,
        on_checked: Callable[[int, GradedAnswer], Any] = lambda *_: None,
    ) -> list[GradedAnswer]:
        """Grades in the order of the responses; ``on_checked`` gets an index and its grade as soon as it is known."""
        for index, (response, question) in enumerate(pairs):
            for text, what in ((response, "response"), (question.answer, f"gold answer of question {question.id!r}")):
                if not isinstance(text, str):
                    raise DataError(f"pair {index}: the {what} is {shown(text)}; expected text")
        grades: dict[int, GradedAnswer] = {}
        indices: dict[Comparison, list[int]] = {}
        with self._lock:
            for index, (response, question) in enumerate(pairs):
                outcome = grade(response, question.answer, question.options)
                if isinstance(outcome, Comparison):
                    if outcome not in self._known:
                        indices.setdefault(outcome, []).append(index)
                        continue
                    outcome = self._known[outcome]
                grades[index] = outcome
                on_checked(index, outcome)
            futures = {self._threads.submit(_grade, self._idle, comparison): comparison for comparison in indices}
            try:
                for future in as_completed(futures):
                    comparison = futures[future]
                    try:
                        graded = self._known[comparison] = future.result()
                    except _WorkerDiedError as error:  # perhaps not of the comparison: another attempt may succeed
                        graded = GradedAnswer("failed", comparison.key, str(error))
                    for index in indices[comparison]:
                        grades[index] = graded
                        on_checked(index, graded)
            except BaseException:  # no worker keeps a comparison that nobody waits for
                for future in futures:
                    future.cancel()
                for worker in self._workers:
                    worker.interrupt()
                raise
        return [grades[index] for index in range(len(pairs))]


def _grade(idle: deque[_Worker], comparison: Comparison) -> GradedAnswer:
    """The grade by one of the idle workers; runs in a thread, which keeps no reference to the checker."""
    worker = idle.pop()
    try:
        return worker.grade(comparison)
    finally:
        idle.append(worker)


def _stop(threads: ThreadPoolExecutor, workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.interrupt()
    threads.shutdown(cancel_futures=True)
    for worker in workers:
        worker.discard()


class _WorkerDiedError(Exception):
    """Says what a worker died of."""


class _Worker:
    """A process that grades comparisons, one at a time; a new one after it was killed or has died."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.process: Popen[bytes] | None = None

    def grade(self, comparison: Comparison) -> GradedAnswer:
        """The grade by algebra; raises `_WorkerDiedError` where the process dies meanwhile."""
        if self.process is None or self.process.poll() is not None:
            self._start()
        line = self._exchange(json.dumps([self._timeout_s, *astuple(comparison)]) + "\n", self._timeout_s)
        if line is None:
            self.discard()
            return GradedAnswer("failed", comparison.key, f"math-verify took longer than {self._timeout_s:g} s")
        if not line.endswith(b"\n"):
            status = self.discard()
            cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise _WorkerDiedError(f"the worker process died ({cause})")
        return GradedAnswer(**json.loads(line))

    def _start(self) -> None:
        self.discard()
        command = [sys.executable, "-P", "-m", "mprm.answers.grade"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment)
        if self._exchange("", START_S) != READY:
            problem = f"a worker of the answer checker did not start (exit status {self.discard()})"
            raise MprmError(f"{problem}; to see why, run: python -m mprm.answers.grade")

    def _exchange(self, message: str, timeout_s: float) -> bytes | None:
        """The next line of the process, without its end where the process died; None after the time-out."""
        process: Any = self.process
        with contextlib.suppress(OSError):  # a broken pipe: reading tells
            process.stdin.write(message.encode())
            process.stdin.flush()
        return process.stdout.readline() if wait([process.stdout.fileno()], timeout_s) else None

    def interrupt(self) -> None:
        """Kill the process, whatever it does; for other threads than the one that works with it."""
        if self.process is not None:
            self.process.kill()

    def discard(self) -> int:
        """Kill the process and let go of it; its exit status."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.kill()
        with contextlib.suppress(OSError):  # closing flushes what a dead process did not read
            process.communicate()
        return process.returncode

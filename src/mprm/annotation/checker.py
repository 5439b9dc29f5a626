"""Grading responses by their final answers, thousands at a time, in worker processes that can be killed.

Workers are plain subprocesses, one a thread, and not a `pebble.ProcessPool`. Speed is the same (about 100 checks/s
on two cores, 2 s to start, 1.0 s until a check of 1 s is killed against 1.1 s), but pebble's spawn and forkserver
contexts run the caller's script again where it has no ``__main__`` guard, its fork context copies threads, locks and
the address space of a parent that uses a GPU, so that no memory limit of a worker can hold, and a worker that dies
while it is idle breaks the whole pool.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

from mprm.answers.grade import READY, Comparison, GradedAnswer, grade
from mprm.data.engine import n_cores
from mprm.data.format import shown
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError, MissingDependencyError, MprmError

START_S = 120.0
"""How long a worker may take to start: it loads an algebra system, perhaps from a slow disk."""


class AnswerChecker:
    r"""Grades responses; owns the worker processes in which math-verify runs.

    Most grades need no algebra: equal or different numbers, letters and words. The rest go to the workers,
    each pair of answer and gold answer once. A comparison that takes too long is killed; its grade, and that
    of one whose worker crashed, is ``failed``.

    Parameters
    ----------
    timeout_s
        Seconds that one comparison may take.
    processes
        Worker processes; all cores when None.

    Examples
    --------
    >>> with AnswerChecker() as checker:
    ...     question = Question(id="1", question="Half of one?", answer=r"\frac{1}{2}")
    ...     checker.check(r"It is \boxed{0.5}.", question)
    GradedAnswer(grade='correct', answer='0.5', reason=None)
    """

    def __init__(self, timeout_s: float = 5.0, processes: int | None = None) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s must be a number of seconds above 0, got {timeout_s}")
        if processes is not None and processes < 1:
            raise ConfigError(f"processes must be at least 1, got {processes}")
        if find_spec("math_verify") is None:
            raise MissingDependencyError(
                "checking answers needs math-verify: pip install math-verify,"
                " or install mprm with its extra [annotate]"
            )
        self._timeout_s, self._n_processes = timeout_s, processes or n_cores()
        self._workers: _Workers | None = None
        self._known: dict[Comparison, GradedAnswer] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> AnswerChecker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; they start again when there is more to check."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._workers is not None:
            self._workers.stop()
            self._workers = None

    def check(self, response: str, question: Question) -> GradedAnswer:
        """The grade of one response."""
        return self.check_many([(response, question)])[0]

    def check_many(
        self,
        pairs: Sequence[tuple[str, Question]],
        *,
        on_checked: Callable[[int, GradedAnswer], Any] | None = None,
    ) -> list[GradedAnswer]:
        """The grades of many responses, in their order.

        Parameters
        ----------
        pairs
            Responses, each with its question; an error names their index.
        on_checked
            Called with the index of a response and its grade, as soon as it is known.
        """
        for index, (response, question) in enumerate(pairs):
            _check_text(index, response, question)
        grades: dict[int, GradedAnswer] = {}
        indices: dict[Comparison, list[int]] = {}

        def settle(index: int, graded: GradedAnswer) -> None:
            grades[index] = graded
            if on_checked is not None:
                on_checked(index, graded)

        with self._lock:
            for index, (response, question) in enumerate(pairs):
                outcome = grade(response, question.answer, question.options)
                if isinstance(outcome, Comparison) and outcome not in self._known:
                    indices.setdefault(outcome, []).append(index)
                else:
                    settle(index, self._known[outcome] if isinstance(outcome, Comparison) else outcome)
            try:
                futures = {self._submit(comparison): comparison for comparison in indices}
                for future in as_completed(futures):
                    comparison = futures[future]
                    try:
                        graded = self._known[comparison] = future.result()
                    except _WorkerDiedError as error:  # perhaps not of the comparison: another attempt may succeed
                        graded = GradedAnswer("failed", comparison.key, str(error))
                    for index in indices[comparison]:
                        settle(index, graded)
            except BaseException:
                self._stop()  # no worker keeps a comparison that nobody waits for
                raise
        return [grades[index] for index in range(len(pairs))]

    def _submit(self, comparison: Comparison) -> Future[GradedAnswer]:
        if self._workers is None:
            self._workers = _Workers(self._n_processes, self._timeout_s)
            weakref.finalize(self, self._workers.stop)
        return self._workers.submit(comparison)


def _check_text(index: int, response: Any, question: Question) -> None:
    """Stop at what cannot be compared, before anything is."""
    if not isinstance(response, str):
        raise DataError(f"pair {index}: the response is {shown(response)}; expected text")
    if not isinstance(question.answer, str):
        raise DataError(
            f"pair {index}: question {question.id!r} has the gold answer {shown(question.answer)}; expected text"
        )


class _WorkerDiedError(Exception):
    """Says what a worker died of."""


class _Workers:
    """Up to ``n`` threads, each with a worker process of its own, started when there is work for them."""

    def __init__(self, n: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(n)
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self.is_stopped = False
        self.processes: list[subprocess.Popen[bytes]] = []

    def submit(self, comparison: Comparison) -> Future[GradedAnswer]:
        """The graded answer, once a worker has it; raises `_WorkerDiedError` where the worker died."""
        return self._threads.submit(self._grade, comparison)

    def _grade(self, comparison: Comparison) -> GradedAnswer:
        process: subprocess.Popen[bytes] | None = getattr(self._of_thread, "process", None)
        if process is None or process.poll() is not None:  # one that died while it was idle costs nothing
            process = self._of_thread.process = self._start()
        assert process.stdin is not None
        message = [self._timeout_s, comparison.latex, comparison.candidates, comparison.key, comparison.names]
        with contextlib.suppress(OSError):  # a broken pipe: reading tells
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        line = _read_line(process, self._timeout_s)
        if line is None:
            self._discard(process)
            return GradedAnswer("failed", comparison.key, f"math-verify took longer than {self._timeout_s:g} s")
        if not line.endswith(b"\n"):
            status = self._discard(process)
            cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise _WorkerDiedError(f"the worker process died ({cause})")
        return GradedAnswer(**json.loads(line))

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self.is_stopped:
                raise _WorkerDiedError("the workers were stopped")
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mprm.answers.grade"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            self.processes.append(process)
        if _read_line(process, START_S) != READY:
            raise MprmError(
                f"a worker of the answer checker did not start (exit status {self._discard(process)});"
                " to see why, run: python -m mprm.answers.grade"
            )
        return process

    def _discard(self, process: subprocess.Popen[bytes]) -> int:
        """Kill the process, whatever it does; its exit status."""
        process.kill()
        status = process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # closing flushes what a dead process did not read
                pipe.close()
        with self._lock:
            self.processes.remove(process)
        return status

    def stop(self) -> None:
        """Kill all processes and end the threads; there is no more to submit."""
        with self._lock:
            self.is_stopped = True
            processes = list(self.processes)
        for process in processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in list(self.processes):
            self._discard(process)


def _read_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
    """A line of the process's output, without its end where the process died; None after the time-out."""
    assert process.stdout is not None
    return process.stdout.readline() if wait([process.stdout.fileno()], timeout_s) else None

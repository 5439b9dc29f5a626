"""Kill a command at each of its renames, removals and fsyncs, and look at what it leaves."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

POINTS = ("fsync", "rename", "replace", "unlink", "rmdir")
"""Functions of `os` before and after which a command is killed."""
State = Mapping[str, bytes]


def run_until(command: Callable[[], object], point: int | None) -> int | None:
    """Run the command in a forked child that kills itself at the n-th point; its exit code, None where it was killed.

    Point 2 n is just before the n-th call, 2 n + 1 just after it. What the command prints is thrown away.
    """
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
    code = 70
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):
            os.dup2(null, descriptor)
        sys.stdout, sys.stderr = (os.fdopen(os.dup(null), "w") for _ in range(2))
        n_points = 0

        def killing(function: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **options: object) -> object:
                nonlocal n_points
                for turn in range(2):
                    if n_points == point:
                        os.kill(os.getpid(), signal.SIGKILL)
                    n_points += 1
                    if turn == 0:
                        result = function(*arguments, **options)
                return result

            return call

        for name in POINTS:
            setattr(os, name, killing(getattr(os, name)))
        code = int(command() or 0)  # type: ignore[call-overload]
    except BaseException:
        code = 70
    finally:
        os._exit(code)


def state_of(folder: Path) -> State:
    """The files that a user sees, and what is in them."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {str(path.relative_to(folder)): path for path in paths}
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(".") and "/." not in name}


def restore(folder: Path, state: State) -> None:
    """Make the folder hold these files and no others, hidden ones removed too."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in state.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

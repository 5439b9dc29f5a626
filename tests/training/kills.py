"""Kills `mprm train` at every change of its folder, resumes it, and compares the weights with those of a whole run.

python -m tests.training.kills FOLDER [EVERY]

A change is a file opened to be written, renamed or removed, a folder made or removed, or an fsync. FOLDER is new. With
EVERY, only each EVERY-th change is tried. torch is imported once, and each run is a fork of this process.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch  # noqa: F401
import transformers  # noqa: F401

from mprm.training import TrainConfig, train
from tests.tiny_models import save_tiny
from tests.tiny_rollouts import bar_records, text_records, write_records

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}


def on_change(folder: Path, call: Callable[[], None]) -> None:
    """Call the function before every change in the folder, and after every fsync."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            is_change = isinstance(args[2], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
        else:
            is_change = event in CHANGES
        if is_change and str(args[0]).startswith(str(folder)):
            call()

    fsync = os.fsync

    def synced(handle: Any) -> None:
        fsync(handle)
        call()

    os.fsync = synced
    sys.addaudithook(hook)


def forked(work: Callable[[], None]) -> int:
    """Do the work in a fork; returns how it ended: 0, 1 after an exception, or the negative signal."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(root: Path, every: int = 1) -> None:
    save_tiny("text", root / "base")
    data = str(write_records(root / "text.jsonl", text_records(bar_records(6, root / "images"))))

    def run(out: Path, **options: Any) -> None:
        config = TrainConfig(
            model=str(root / "base"),
            out=str(out),
            batch_size=2,
            learning_rate=1e-3,
            text_only=True,
            device="cpu",
            dataloader_workers=0,
            report_to=("none",),
            save_every=1,
            save_total_limit=1,
            strategy="bis",
            rho=1.0,
        )
        train(data, config, **options)

    def counted() -> None:
        n = 0

        def count() -> None:
            nonlocal n
            n += 1

        on_change(root / "whole", count)
        run(root / "whole")
        (root / "count").write_text(" ".join([str(n), *sys.modules]))

    assert forked(counted) == 0
    count, *modules = (root / "count").read_text().split()
    n_changes = int(count)
    for module in modules:  # once, and not in every fork
        with suppress(Exception):
            importlib.import_module(module)
    whole = (root / "whole" / "model.safetensors").read_bytes()
    out = root / "run"
    for number in range(0, n_changes, every):
        shutil.rmtree(out, ignore_errors=True)
        left = number

        def kill() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def killed() -> None:
            on_change(out, kill)
            run(out)

        assert forked(killed) == -signal.SIGKILL, number
        files = sorted(str(path.relative_to(out)) for path in out.rglob("*"))
        assert forked(lambda: run(out, resume=True)) == 0, (number, files)
        assert (out / "model.safetensors").read_bytes() == whole, (number, files)
        assert forked(lambda: run(out, resume=True)) == 0, (number, files)
        assert (out / "model.safetensors").read_bytes() == whole, (number, files)
        assert not list(out.glob("model.partial*")), (number, files)
    print(f"{len(range(0, n_changes, every))} kills of {n_changes} changes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))

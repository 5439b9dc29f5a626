"""A progress bar on stderr for whatever goes over a corpus's chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from mprm.data.records import Chunk

SHOW_AFTER_S = 0.5
"""Short work shows no bar."""
REFRESH_S = 0.1
LINE_EVERY_S = 30.0
"""How often a log is told where there is no terminal."""


@contextmanager
def progress(title: str, n_bytes: int) -> Iterator[Callable[[Chunk], Any]]:
    """A function to call after each chunk; the bar counts its bytes.

    The bar is drawn by hand, not by a thread: workers are forked while it runs.
    """
    bar: Any = None
    started = shown = monotonic()
    done = 0

    def advance(chunk: Chunk) -> None:
        nonlocal bar, shown, done
        done += chunk.stop - chunk.start if chunk.container != "parquet" else 0
        now = monotonic()
        if now - started < SHOW_AFTER_S or now - shown < REFRESH_S:
            return
        shown = now
        if bar is None:
            bar = _bar(title, n_bytes)
        bar.update(bar.task_ids[0], completed=min(done, n_bytes), refresh=True)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.update(bar.task_ids[0], completed=n_bytes, refresh=True)
            bar.stop()


@contextmanager
def counting(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function to call with how many more are done; the bar shows how many of ``total``, if that is known."""
    with noting(title, total) as advance:
        yield lambda n: advance(n, "")


@contextmanager
def noting(title: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """Like `counting`, with a word on how things stand, which the bar shows as well."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    bar = Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal)
    task, done, shown = bar.add_task(title, total=total, note=""), 0, monotonic()

    def advance(n: int, note: str) -> None:
        nonlocal done, shown
        done += n
        if not console.is_terminal:
            if monotonic() - shown > LINE_EVERY_S:  # for whoever follows a log
                shown = monotonic()
                of = "" if total is None else f" of {total:,}"
                console.print(f"{title}: {done:,}{of}" + (f", {note}" if note else ""))
        elif monotonic() - shown > REFRESH_S:
            shown = monotonic()
            bar.start()  # again and again: does nothing once it runs
            bar.update(task, completed=done, note=note, refresh=True)
            if total is not None and done >= total:
                bar.stop()  # other things may be shown before the block ends

    try:
        yield advance
    finally:
        bar.stop()


def _bar(title: str, n_bytes: int) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        auto_refresh=False,
        transient=True,
        disable=not console.is_terminal,
    )
    bar.start()
    bar.add_task(title, total=n_bytes)
    return bar

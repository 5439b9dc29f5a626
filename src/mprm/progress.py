"""The one way to report progress: a stage asks for a bar with a title and a total, and advances it.

Every function that can take longer than two seconds has a keyword ``progress``. In Python it is silent by default;
the command line passes `progress_bar`, and a script can do the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any, Literal, Protocol

SHOW_AFTER_S = 0.5
"""Short work shows no bar."""
REFRESH_S = 0.1
LOG_EVERY_S = 30.0
"""How often a line is printed where stderr is no terminal."""

Unit = Literal["items", "bytes"]


class Advance(Protocol):
    """Called with how much more is done, and optionally with a note that the bar shows."""

    def __call__(self, n: int, note: str = "") -> None: ...


class Progress(Protocol):
    """Opens a progress bar; `total` is None where it is not known."""

    def __call__(self, title: str, total: int | None, unit: Unit = "items") -> AbstractContextManager[Advance]: ...


@contextmanager
def silent(title: str, total: int | None, unit: Unit = "items") -> Iterator[Advance]:  # noqa: ARG001
    """Report nothing."""
    yield lambda n, note="": None  # noqa: ARG005


@contextmanager
def progress_bar(title: str, total: int | None, unit: Unit = "items") -> Iterator[Advance]:
    """A bar on stderr; a line every half minute where stderr is no terminal.

    The bar is drawn by the caller's own thread: workers are forked while it runs.
    """
    bar: Any = None
    is_terminal = sys.stderr.isatty()
    done, started = 0, monotonic()
    first: tuple[float, int] | None = None
    shown = started if is_terminal else started - LOG_EVERY_S + 2  # a log gets its first line early

    def advance(n: int, note: str = "") -> None:
        nonlocal bar, done, first, shown
        done += n
        now = monotonic()
        is_last = total is not None and done >= total
        # from the first call on: it tells what an earlier run has done, or ends a first item that is slow
        first = first or (now, done)
        left = "-:--:--"
        if total is not None and done > first[1]:
            left = str(timedelta(seconds=round(max(0, total - done) * (now - first[0]) / (done - first[1]))))
        if not is_terminal:
            if now - shown > LOG_EVERY_S and unit == "items":
                shown = now
                of_total = f" of {total:,}, {left} left" if total else ""
                print(f"{title}: {done:,}{of_total}{f', {note}' if note else ''}", file=sys.stderr, flush=True)
            return
        if now - started < SHOW_AFTER_S or (now - shown < REFRESH_S and not (is_last and bar is not None)):
            return
        shown = now
        if bar is None:
            bar = _bar(title, total, unit)
        bar.update(bar.task_ids[0], completed=done, left=left, note=note)
        bar.start()  # does nothing while it runs
        bar.refresh()
        if is_last:
            bar.stop()  # other things may be printed before the block ends

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def _bar(title: str, total: int | None, unit: Unit) -> Any:
    # here and not above: rich takes longer to load than most work takes
    from rich import progress as rich
    from rich.console import Console

    counts = [rich.DownloadColumn(), rich.TransferSpeedColumn()] if unit == "bytes" else [rich.MofNCompleteColumn()]
    bar = rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        *counts,
        # not rich's estimate, which forgets what is older than 30 s: one step of a large model
        rich.TextColumn("{task.fields[left]}", style="progress.remaining"),
        rich.TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    bar.add_task(title, total=total, left="-:--:--", note="")
    return bar

"""What a coroutine hands out, as a plain iterator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Item = TypeVar("Item")


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def stream(work: Callable[[Callable[[Item], None]], Coroutine[Any, Any, None]]) -> Iterator[Item]:
    """What ``work(put)`` puts, while it runs in a thread of its own; its error is raised here.

    Whoever stops iterating early cancels the work, and waits until it has let go of its connections.
    """
    items: SimpleQueue[Item | _End] = SimpleQueue()
    loop = asyncio.new_event_loop()
    task = loop.create_task(work(items.put))

    def run() -> None:
        error: BaseException | None = None
        try:
            loop.run_until_complete(task)
        except BaseException as raised:
            error = raised
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            items.put(_End(error))

    thread = Thread(target=run, name="mprm-stream", daemon=True)
    thread.start()
    try:
        while not isinstance(item := items.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to cancel
            loop.call_soon_threadsafe(task.cancel)
        thread.join()

"""A session with a server: requests are answered in a thread of their own, many at a time."""

from __future__ import annotations

import asyncio
import contextlib
from queue import Empty, SimpleQueue
from threading import Thread

from mprm.annotation.samplers.conversation import Conversation, conversation
from mprm.annotation.samplers.sampler import Answered, Request
from mprm.annotation.samplers.server_settings import ServerSettings


class _End:
    """The thread is done, because of this error unless the session was closed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class HTTPSession:
    """See `Session`; requests are answered in any order.

    There is room for as many posts as may be in flight and some more, which are sent as soon as a place is
    free. A request counts once, or as often as the server has to be asked for its answers one by one.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._places = settings.concurrency + 1 + settings.concurrency // 8
        self._settings = settings
        self._asked: asyncio.Queue[tuple[int, Request]] = asyncio.Queue()
        self._done: SimpleQueue[Answered | _End] = SimpleQueue()
        self._conversation: Conversation | None = None
        self._n_open = 0
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._work())
        self._thread = Thread(target=self._run, name="mprm-http", daemon=True)
        self._thread.start()

    @property
    def room(self) -> int:
        """See `Session.room`."""
        n_unanswered = self._n_open - self._done.qsize()
        n_posts = self._conversation.n_posts if self._conversation is not None else 0
        return max(0, self._places - max(n_unanswered, n_posts))

    def submit(self, number: int, request: Request) -> None:
        """See `Session.submit`; raises what `wait` will raise next."""
        if self._error is not None:
            raise self._error
        self._n_open += 1
        with contextlib.suppress(RuntimeError):  # the loop is closed: the next wait tells why
            self._loop.call_soon_threadsafe(self._asked.put_nowait, (number, request))

    def wait(self) -> list[Answered]:
        """See `Session.wait`; an error is raised after all that was answered before it is handed out."""
        if self._error is not None:
            raise self._error
        if not self._n_open:
            return []
        found = [self._next()]
        while not self._done.empty():
            found.append(self._done.get())
        answered = []
        for item in found:
            if isinstance(item, _End):
                self._error = item.error or RuntimeError("the session is closed")
            else:
                answered.append(item)
        self._n_open -= len(answered)
        if not answered and self._error is not None:
            raise self._error
        return answered

    def _next(self) -> Answered | _End:
        while True:
            try:
                # not for ever: Ctrl-C does not wake this thread where another one gets the signal
                return self._done.get(timeout=0.2)
            except Empty:
                continue

    def close(self) -> None:
        """Give up what is under way, and wait until the connections are closed."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to cancel
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as raised:
            error = raised
        finally:
            self._loop.run_until_complete(_cancel(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._done.put(_End(error))

    async def _work(self) -> None:
        try:
            async with conversation(self._settings) as self._conversation, asyncio.TaskGroup() as group:
                while True:
                    number, request = await self._asked.get()
                    group.create_task(self._answer(self._conversation, number, request))
        except* Exception as errors:
            raise errors.exceptions[0] from None

    async def _answer(self, server: Conversation, number: int, request: Request) -> None:
        self._done.put((number, await server.answer(request)))


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""An event loop on a thread of its own, for callers outside of any loop that do slow things in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """`run` and `close` are those of asyncio.Runner, but the loop goes on while nothing is run.

    So answers are read and timers fire although the caller is busy elsewhere. One that is not closed does not keep the
    interpreter from its exit.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What it returns. A caller that is interrupted, as by Ctrl-C, cancels it, however early."""
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(lambda task: _hand_over(task, outcome))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        try:
            self._loop.call_soon_threadsafe(begin)
            return outcome.result()
        except BaseException:
            # The loop runs both callbacks in this order, so a task that was begun is cancelled.
            if not outcome.done():
                self._loop.call_soon_threadsafe(cancel)
            raise

    def close(self) -> None:
        """Cancels what still runs on the loop, and waits until the thread has ended."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_closed())

    async def _until_closed(self) -> None:
        await self._closing.wait()


def _hand_over(task: asyncio.Task[T], outcome: Future[T]) -> None:
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())

"""The disk threads: work that may wait for the device, kept off the loop and in order per key."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Job(NamedTuple):
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class DiskThreads:
    """A few threads that share one queue of keys, each key standing for its own queue of work.

    A key is in the queue at most once, and is put back only after its work is done: that alone keeps the
    order per key, and lets one busy partition take no more than its turn.
    Threads start with the first work. Cancelling a future stops nobody: the work is done, its result dropped.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"num.io.threads is {count}; at least 1 is needed")
        self.count = count
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Job]] = {}
        self._ready: SimpleQueue[str | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._drained = threading.Condition(self._lock)
        self._closed = False

    def submit(self, key: str, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the disk threads have been closed")
            if not self._threads:
                self._start()
            queue = self._waiting.get(key)
            if queue is None:
                self._waiting[key] = deque((_Job(work, loop, future),))
                self._ready.put(key)
            else:
                queue.append(_Job(work, loop, future))
        return future

    def close(self) -> None:
        """Finish all that was submitted, then end the threads. Results still reach a loop that goes on running."""
        with self._lock:
            self._closed = True
            while self._waiting:
                self._drained.wait()
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start(self) -> None:
        for number in range(self.count):
            thread = threading.Thread(target=self._serve, name=f"disk-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        while (key := self._ready.get()) is not None:
            # The job stays at the head of its queue while it runs: that is what marks the key as busy.
            _run(self._waiting[key][0])
            with self._lock:
                queue = self._waiting[key]
                queue.popleft()
                if queue:
                    self._ready.put(key)
                else:
                    del self._waiting[key]
                    if not self._waiting:
                        self._drained.notify_all()


def _run(job: _Job) -> None:
    result: object = None
    failure: BaseException | None = None
    try:
        result = job.work()
    except StopIteration as stop:  # no future can carry it, and its waiter would wait for ever
        failure = RuntimeError(f"disk work raised {stop!r}")
    except BaseException as raised:
        failure = raised
    try:
        job.loop.call_soon_threadsafe(_deliver, job.future, result, failure)
    except RuntimeError:
        if not job.loop.is_closed():
            raise


def _deliver(future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
    if future.cancelled():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)

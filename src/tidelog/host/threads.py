"""The disk threads: work that may wait for the device, kept off the loop and in order per key."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class _Job:
    __slots__ = ("claims", "future", "loop", "work")

    def __init__(
        self,
        work: Callable[[], Any],
        loop: asyncio.AbstractEventLoop | None,
        future: asyncio.Future[Any] | None,
    ) -> None:
        self.work = work
        self.loop = loop
        """None if nobody is told of the end."""
        self.future = future
        self.claims: list[None] = [None]
        """Whoever takes the one that is in it does the work."""


_FEW_QUEUES = 64

_Queue = deque[_Job]
"""The work of one key, in its order. The first is being done, or is in the queue of what is ready."""


class DiskThreads:
    """A few threads that share one queue of what is ready, each key having its own queue of work.

    There is no lock: a thread that held one could wait for the GIL behind all the others, and the loop would wait for
    it, for a tenth of a second when very many logs are opened. What one thread does to a queue of another is one
    operation of the interpreter (append, popleft, pop, put).

    Always: a job is taken out of its queue when it is done and told, and is begun only while it is the first. So the
    results of a key come in the order of its work. Where a job comes as the one before it is taken out, both threads
    may call it ready; the first to claim it does it.

    Threads start with the first work, which all comes from one loop. Cancelling a future stops nobody: the work is
    done, its result dropped.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"num.io.threads is {count}; at least 1 is needed")
        self.count = count
        self._queues: dict[str, _Queue] = {}
        """Only the loop's own thread puts queues in and takes them out; empty ones may stay."""
        self._most_queues = _FEW_QUEUES
        """With more of them, empty ones are taken out."""
        self._ready: SimpleQueue[_Queue | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, key: str, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._closed:
            raise RuntimeError("the disk threads have been closed")
        if not self._threads:
            self._start()
        queue = self._queues.get(key)
        if queue is None:
            if len(self._queues) >= self._most_queues:
                self._drop_empty()
            queue = self._queues[key] = deque()
        self._add(queue, _Job(work, loop, future))
        return future

    def _drop_empty(self) -> None:
        self._queues = {key: queue for key, queue in self._queues.items() if queue}
        self._most_queues = max(2 * len(self._queues), _FEW_QUEUES)

    def close(self) -> None:
        """Finish all that was submitted, then end the threads. Results still reach a loop that goes on running."""
        if self._closed:
            return
        self._closed = True
        for queue in self._queues.values():
            end = threading.Event()
            self._add(queue, _Job(end.set, None, None))
            end.wait()
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

    def _add(self, queue: _Queue, job: _Job) -> None:
        queue.append(job)
        if len(queue) == 1:
            self._ready.put(queue)

    def _serve(self) -> None:
        while (queue := self._ready.get()) is not None:
            self._do_first(queue)

    def _do_first(self, queue: _Queue) -> None:
        """A method of its own, so that a thread that waits for work holds neither its last job nor what came of it."""
        try:
            job = queue[0]
            job.claims.pop()
        except IndexError:  # another thread does it, or has done it
            return
        self._tell(job, *_done(job.work))
        queue.popleft()
        if queue:
            self._ready.put(queue)

    def _tell(self, job: _Job, result: object, failure: BaseException | None) -> None:
        if job.loop is None or job.future is None:
            return
        try:
            job.loop.call_soon_threadsafe(_deliver, job.future, result, failure)
        except RuntimeError:
            if not job.loop.is_closed():
                raise


def _deliver(future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
    """On the loop."""
    if future.cancelled():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)


def _done(work: Callable[[], Any]) -> tuple[object, BaseException | None]:
    try:
        return work(), None
    except StopIteration as stop:  # no future can carry it, and its waiter would wait for ever
        return None, RuntimeError(f"disk work raised {stop!r}")
    except BaseException as raised:
        return None, raised

"""The disk threads of a simulated host: timers that do work a little later."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

_SLOW_MS = 100.0
_DELIVERY_SHARE = 0.1
"""The part of a delay that passes between the work and the news of it."""


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]


class SimWork:
    """Work by key, in order within a key and in any order across keys, each piece after a delay of its own.

    Done and known to be done are two moments, as with real threads: a crash may come in between, and so may
    the next piece of the same key. The news of both comes in the order they were done.
    """

    def __init__(self, chance: random.Random) -> None:
        self.delay_ms = (0.05, 2.0)
        """How long a piece takes: between these two."""
        self.is_running = False
        """While a piece is being done, which on a real host would be on a thread."""
        self._chance = chance
        self._queues: dict[str, deque[_Job]] = {}
        self._last_delivery: dict[str, float] = {}
        """When the news of the last piece of a key is due."""

    @property
    def is_slow(self) -> bool:
        """A follower that has to sync so slowly does not catch up with a leader that is written to."""
        return self.delay_ms[1] > _SLOW_MS

    def submit(self, key: str, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(key, deque())
        queue.append(_Job(work, future))
        if len(queue) == 1:
            self._schedule(key, queue)
        return future

    def drop(self) -> None:
        """Forget what is not done: its process is dead."""
        self._queues = {}
        self._last_delivery = {}

    def _schedule(self, key: str, queue: deque[_Job]) -> None:
        shortest_ms, longest_ms = self.delay_ms
        delay_s = (shortest_ms + (longest_ms - shortest_ms) * self._chance.random()) / 1e3
        asyncio.get_running_loop().call_later(delay_s * (1 - _DELIVERY_SHARE), self._run_first, key, queue, delay_s)

    def _run_first(self, key: str, queue: deque[_Job], delay_s: float) -> None:
        if self._queues.get(key) is not queue:
            return  # dropped since
        job = queue[0]
        result: object = None
        failure: Exception | None = None
        self.is_running = True
        try:
            result = job.work()
        except StopIteration as stop:
            failure = RuntimeError(f"disk work raised {stop!r}")
        except Exception as raised:
            failure = raised
        finally:
            self.is_running = False
        if self._queues.get(key) is not queue:
            return  # its process died in the midst of it
        loop = asyncio.get_running_loop()
        due = max(loop.time() + delay_s * _DELIVERY_SHARE, self._last_delivery.get(key, 0.0))
        self._last_delivery[key] = due
        loop.call_at(due, _deliver, job.future, result, failure)
        queue.popleft()
        if queue:
            self._schedule(key, queue)
        else:
            del self._queues[key]


def _deliver(future: asyncio.Future[Any], result: object, failure: Exception | None) -> None:
    if future.cancelled():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)

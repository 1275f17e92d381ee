"""Who waits for a high watermark, and how much of a turn of the loop is spent on answering those who need not wait."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TypeAlias

from tidelog.errors import ErrorCode
from tidelog.ports import Clock
from tidelog.types import Offset

Answer: TypeAlias = Callable[[ErrorCode], None]

_TURN_NS = 5_000_000
_LOOK_EVERY = 16
"""Answers after which the clock is looked at."""


class Waiter:
    """Waits until the high watermark reaches an offset."""

    __slots__ = ("_queue", "answer", "offset")

    def __init__(self, queue: CommitQueue, offset: Offset, answer: Answer) -> None:
        self._queue = queue
        self.offset = offset
        self.answer: Answer | None = answer
        """None when it waits no more."""

    def forget(self) -> None:
        """Its time is over: it is not told any more."""
        if self.answer is not None:
            self.answer = None
            self._queue.forgotten()


class CommitQueue:
    """Those who wait for the high watermark of one partition, the lowest offset first.

    Many may give up at the same time. So one who waits no more stays in its place, and all of them are taken out when
    they are more than half of the queue.
    """

    __slots__ = ("_forgotten", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[Waiter] = deque()
        """Some of them may wait no more."""
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self.waiters) - self._forgotten

    def __iter__(self) -> Iterator[Waiter]:
        return (waiter for waiter in self.waiters if waiter.answer is not None)

    def add(self, offset: Offset, answer: Answer) -> Waiter:
        waiters, waiter = self.waiters, Waiter(self, offset, answer)
        if waiters and offset < waiters[-1].offset:
            insort(waiters, waiter, key=attrgetter("offset"))  # a retry of what was written before others
        else:
            waiters.append(waiter)
        return waiter

    def first_offset(self) -> Offset | None:
        """What the first one waits for; None if there is none."""
        waiters = self.waiters
        while waiters and waiters[0].answer is None:
            waiters.popleft()
            self._forgotten -= 1
        return waiters[0].offset if waiters else None

    def pop(self) -> Answer:
        """Of the first one, after `first_offset`."""
        waiter = self.waiters.popleft()
        answer, waiter.answer = waiter.answer, None
        assert answer is not None, "the first one waits no more"
        return answer

    def forgotten(self) -> None:
        """One of them waits no more."""
        self._forgotten += 1
        if self._forgotten * 2 > len(self.waiters):
            self.waiters, self._forgotten = deque(self), 0


class AnswerTime:
    """What all partitions spend on answers: 5 ms in a turn of the loop. The rest is answered in the next turns.

    In the simulator no time passes within a turn, so all are answered at once.

    Always: while time of the present turn is measured, or something is put off, `_next_turn` is scheduled.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked = 0
        self._end_ns: int | None = None
        """Of the time in this turn; None if it is not measured, since there were only a few answers."""
        self._is_over = False
        self._put_off: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def is_over(self) -> bool:
        """To be asked before each answer."""
        self._asked += 1
        if self._asked % _LOOK_EVERY == 0 and not self._is_over:
            now_ns = self._clock.monotonic_ns()
            if self._end_ns is None:
                self._end_ns = now_ns + _TURN_NS
                self._schedule()
            self._is_over = now_ns >= self._end_ns
        return self._is_over

    def put_off(self, callback: Callable[[], None]) -> None:
        """Call it in a later turn that has time left."""
        self._put_off.append(callback)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled, self._is_over, self._end_ns = False, False, None
        if not self._put_off:
            return
        self._end_ns = self._clock.monotonic_ns() + _TURN_NS
        self._schedule()
        while self._put_off and not self._is_over:
            self._put_off.popleft()()

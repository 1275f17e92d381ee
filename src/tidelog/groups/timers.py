"""All timers of a coordinator in one heap, cheap for those that are put off again and again.

A heartbeat only moves its timer's deadline; the heap learns of it when the time that it knows has come. So thousands of
members that heartbeat cost one move in the heap for each session timeout, not for each heartbeat.
"""

from __future__ import annotations

import heapq
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.groups.group import Group

NEVER = 2**63 - 1


class TimerKind(Enum):
    SESSION = "session"
    """A member has not been heard of."""
    PENDING = "pending"
    """A member id was given out and nobody came back with it."""
    JOIN = "join"
    """The members had their time to join."""
    SYNC = "sync"
    """The members had their time to fetch their assignment."""


class Timer:
    """One deadline of a group or of a member. `queued_ms` is where it stands in the heap; it is never later."""

    __slots__ = ("deadline_ms", "group", "kind", "member_id", "queued_ms")

    def __init__(self, kind: TimerKind, group: Group, member_id: str = "") -> None:
        self.kind = kind
        self.group = group
        self.member_id = member_id
        self.deadline_ms = NEVER
        self.queued_ms = NEVER


_FEW = 1_000
"""So many cancelled timers are not worth the work."""


class Timers:
    """Always: each timer with a deadline stands in the heap at that time or earlier."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._pushed = 0
        self._cancelled = 0
        """How many were cancelled since the heap was last rid of them."""

    def set(self, timer: Timer, deadline_ms: int) -> None:
        timer.deadline_ms = deadline_ms
        if deadline_ms < timer.queued_ms:
            self._push(timer)

    def cancel(self, timer: Timer) -> None:
        """It stays in the heap until its time comes, or until half of the heap is of this kind."""
        if timer.deadline_ms == NEVER:
            return
        timer.deadline_ms = NEVER
        self._cancelled += 1
        if self._cancelled >= max(_FEW, len(self._heap) // 2):
            self._drop_cancelled()

    def _drop_cancelled(self) -> None:
        kept = []
        for entry in self._heap:
            queued_ms, _, timer = entry
            if timer.queued_ms == queued_ms and timer.deadline_ms != NEVER:
                kept.append(entry)
            elif timer.queued_ms == queued_ms:
                timer.queued_ms = NEVER
        heapq.heapify(kept)
        self._heap, self._cancelled = kept, 0

    def next_ms(self) -> int | None:
        """When to look again; None if there is nothing to wait for."""
        while self._heap:
            queued_ms, _, timer = self._heap[0]
            if timer.queued_ms == queued_ms and timer.deadline_ms == queued_ms:
                return queued_ms
            self._take_first()
        return None

    def pop_due(self, now_ms: int) -> Timer | None:
        """The timer that is due longest, now without a deadline."""
        while self._heap and self._heap[0][0] <= now_ms:
            timer = self._take_first()
            if timer is not None and timer.deadline_ms <= now_ms:
                timer.deadline_ms = NEVER
                return timer
        return None

    def _take_first(self) -> Timer | None:
        """Out of the heap, or back to where it should be; None if the timer stands earlier by now."""
        queued_ms, _, timer = self._heap[0]
        if timer.queued_ms != queued_ms:
            heapq.heappop(self._heap)
            return None
        timer.queued_ms = NEVER
        if timer.deadline_ms in (queued_ms, NEVER):
            heapq.heappop(self._heap)
        else:
            heapq.heapreplace(self._heap, self._entry(timer))
        return timer

    def _push(self, timer: Timer) -> None:
        heapq.heappush(self._heap, self._entry(timer))

    def _entry(self, timer: Timer) -> tuple[int, int, Timer]:
        self._pushed += 1
        timer.queued_ms = timer.deadline_ms
        return timer.deadline_ms, self._pushed, timer

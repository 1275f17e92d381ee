"""How many bytes of requests the whole broker holds: those that are being read and those that are not answered yet.

A large request gets its room in steps, as its bytes come. Clients that want room get it in the order in which they
asked. When there is none, they are not read from until some comes back. Small requests wait only for requests that are
complete, which the broker answers by itself: those that are half read depend on their clients. Brokers do not wait for
clients and have a reserve beyond the bound: a produce that holds room may be waiting for what another broker asks.

A client can begin a request and not go on with it. Three rules keep such requests from filling the room:
- While others wait, a request that hardly comes on gives back what it does not use, and gets small steps from then on.
  So what is counted is about what was really sent.
- Requests that are only half read could fill all of the room, and then none of them could ever be completed. So when
  hardly anything else holds room, the first that waits may go on, and for that time the bound is exceeded by one
  request.
- If a request has waited for too long, half-read requests make room, the least progressed first (`in_the_way`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from tidelog.metrics import Metrics
from tidelog.ports import Clock

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection

STEP_BYTES = 1024 * 1024
SMALL_STEP_BYTES = 64 * 1024
LOOK_EVERY_S = 0.2
"""While requests wait, those that are half read must bring a small step in this time to keep what they do not use."""
_SMALL_PART = 8
"""Small requests get room while complete requests hold less than an eighth of it."""
_BROKERS_PART = 4
"""Requests of brokers get room up to a quarter above the bound."""
_STANDSTILL = 3
"""If no request has got room for so many times the patience, even requests that come on have to make room."""
_NO_BOUND = 1 << 62
_UNSEEN = -1


class _Ask(NamedTuple):
    """What a connection waits for."""

    size: int
    since_ns: int


class _Line:
    """Clients, or brokers, that wait for room; the first one is next."""

    __slots__ = ("limit", "moved_ns", "paused", "waiting")

    def __init__(self) -> None:
        self.limit = _NO_BOUND
        self.waiting: dict[ServerConnection, _Ask] = {}
        """Those that want so many bytes for the next step of a request."""
        self.paused: dict[ServerConnection, None] = {}
        """Those that are not read from because the room is full, and hold none for a request that is half read."""
        self.moved_ns = 0
        """When the first of those that wait last got room, or came to an empty line."""

    def overdue_bytes(self, before_ns: int) -> int:
        return sum(ask.size for ask in self.waiting.values() if ask.since_ns <= before_ns)


class _Hold:
    """A request that is half read, as the last look at it found it."""

    __slots__ = ("came", "step")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """No look has found it reading; it gets large steps."""
        self.came = _UNSEEN
        self.step = STEP_BYTES

    def is_slow(self, came: int) -> bool:
        """Whether less than a small step has come since the last look; if so, it gets no more than that next time."""
        is_slow = self.came != _UNSEEN and came < self.came + SMALL_STEP_BYTES
        self.came = came
        self.step = SMALL_STEP_BYTES if is_slow else STEP_BYTES
        return is_slow


class RequestRoom:
    """Always: `held` is what all requests have been given and have not returned, `unfinished` the part of it that
    belongs to requests that are not read to their end."""

    def __init__(self, metrics: Metrics, clock: Clock, max_bytes: int = 0) -> None:
        self.held = 0
        self.unfinished = 0
        self.max_bytes = _NO_BOUND
        self._clock = clock
        self._clients = _Line()
        self._brokers = _Line()
        self._lines = (self._brokers, self._clients)
        self._half_read: dict[ServerConnection, _Hold] = {}
        self._exceeding: ServerConnection | None = None
        """It gets what its request needs although that does not fit."""
        self._is_looking = False
        self.reconfigure(max_bytes)
        gauge, prefix = metrics.gauge, "kafka_network_socket_server_memory_pool_"
        gauge(prefix + "used", lambda: self.held)
        gauge(prefix + "size", lambda: self.max_bytes if self.max_bytes < _NO_BOUND else -1)
        gauge(prefix + "waiting_connections", lambda: sum(len(line.waiting) + len(line.paused) for line in self._lines))

    def reconfigure(self, max_bytes: int) -> None:
        """0 or less is without a bound, as in Kafka."""
        self.max_bytes = max_bytes if max_bytes > 0 else _NO_BOUND
        self._clients.limit = self.max_bytes
        self._brokers.limit = self.max_bytes + self.max_bytes // _BROKERS_PART

    def _line_of(self, connection: ServerConnection) -> _Line:
        return self._brokers if connection.is_broker else self._clients

    @property
    def _is_small_full(self) -> bool:
        """Whether complete requests hold all that small requests may have beyond the bound."""
        return self.held - self.unfinished >= self.max_bytes // _SMALL_PART

    def is_full_for(self, connection: ServerConnection) -> bool:
        return self.held >= self._line_of(connection).limit and self._is_small_full

    # Requests that are being read

    def take(self, connection: ServerConnection) -> int:
        """Room for the next step of a request, and how much that is; 0 if there is none: then `room_came` follows."""
        hold = self._half_read.get(connection)
        if hold is None:
            hold = self._half_read[connection] = _Hold()
        size = min(connection.missing_room, hold.step)
        line = self._line_of(connection)
        if self._may_take(connection, line, size):
            self._grant(size)
            return size
        now_ns = self._clock.monotonic_ns()
        if not line.waiting:
            line.moved_ns = now_ns
        line.waiting[connection] = _Ask(size, now_ns)
        self._look_soon()
        return 0

    def _may_take(self, connection: ServerConnection, line: _Line, size: int) -> bool:
        if self.held + size <= line.limit and (connection.is_broker or not line.waiting):
            return True
        return connection is self._exceeding or (not line.waiting and self._may_exceed(connection))

    def _may_exceed(self, connection: ServerConnection) -> bool:
        if self._exceeding is not None or self._is_small_full:
            return False
        self._exceeding = connection
        return True

    def _grant(self, size: int) -> None:
        self.held += size
        self.unfinished += size

    def finished(self, connection: ServerConnection, size: int) -> None:
        """A request that had taken this much is read to its end."""
        self.unfinished -= size
        self._half_read.pop(connection, None)
        if self._exceeding is connection:
            self._exceeding = None

    # Room that comes back

    def give(self, size: int) -> None:
        self.held -= size
        for line in self._lines:
            if line.waiting or line.paused:
                self._admit(line)

    def pause(self, connection: ServerConnection) -> None:
        """To be told by `room_came`."""
        self._line_of(connection).paused[connection] = None

    def forget(self, connection: ServerConnection, unfinished: int, finished: int) -> None:
        """It is closed; so much it held."""
        for line in self._lines:
            line.waiting.pop(connection, None)
            line.paused.pop(connection, None)
        self.finished(connection, unfinished)
        self.give(unfinished + finished)

    def _admit(self, line: _Line) -> None:
        """Small requests first: they are the many, and the half-read ones may be stalled."""
        while line.paused:
            connection = next(iter(line.paused))
            if self.is_full_for(connection):
                break
            del line.paused[connection]
            connection.room_came(0)
        while line.waiting:
            connection, ask = next(iter(line.waiting.items()))
            if self.held + ask.size > line.limit and not self._may_exceed(connection):
                break
            del line.waiting[connection]
            line.moved_ns = self._clock.monotonic_ns()
            self._grant(ask.size)
            connection.room_came(ask.size)

    # Half-read requests that are in the way

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        """Take back what half-read requests do not use, if they have not come on since the last look."""
        self._is_looking = False
        if not any(line.waiting for line in self._lines):
            for hold in self._half_read.values():
                hold.reset()
            return
        unused = 0
        for connection, hold in self._half_read.items():
            if connection in self._line_of(connection).waiting:
                hold.reset()
            elif hold.is_slow(connection.came_bytes):
                unused += connection.return_unused()
        self._look_soon()
        self.unfinished -= unused
        self.give(unused)

    def in_the_way(self, now_ns: int, patience_ns: int) -> list[ServerConnection]:
        """Connections whose half-read requests have to make room: others have waited for it for too long.

        Requests that are read from and do not come on are the first. A request that waits for room itself can do
        nothing about it: it makes room only if none got any for so long, half-read requests hold most of it, and the
        one that exceeds the bound does not come on either. If that lasts, all have to, and that one first.
        """
        before_ns = now_ns - patience_ns
        missing = sum(line.overdue_bytes(before_ns) for line in self._lines)
        if not missing:
            return []
        missing += self.held - self.max_bytes
        stands_ns = now_ns - min(line.moved_ns for line in self._lines if line.waiting)
        if self.unfinished < self.held - self.unfinished:
            stands_ns = 0
        exceeding, is_stuck = self._exceeding, stands_ns >= _STANDSTILL * patience_ns
        is_moving = stands_ns < patience_ns or (exceeding is not None and exceeding.came_on_ns > before_ns)
        found: list[ServerConnection] = []
        for connection in sorted(
            (known for known in self._half_read if known.granted),
            key=lambda known: (not is_stuck or known is not exceeding, known.came_on_ns),
        ):
            if missing <= 0:
                break
            ask = self._line_of(connection).waiting.get(connection)
            if is_stuck or (connection.came_on_ns <= before_ns and (ask is None or not is_moving)):
                missing -= connection.granted + (0 if ask is None else ask.size)
                found.append(connection)
        return found

"""What the connections of clients, or of brokers, hold of the room, and which of them wait for more.

Requests are small if they are cut out of a chunk that was read (16 kB), short up to 256 kB, and large if they get their
room in several steps. Small requests are counted when they are there. For others room is asked for as their bytes come.

- Small requests are read while the share has room, and beyond that while small requests and unread answers hold less
  than an eighth of it. So they wait neither for half-read requests, which depend on their clients, nor for other
  complete ones that wait to be handled.
- Short requests get room beyond the share as well, while short requests and unread answers hold less than an eighth.
- Large requests that are complete may wait for long until they are handled. If they hold half of the share, no large
  request is read any further.
- A connection that holds less than one small request may bring one into a further eighth. So a client that waits for
  each answer does not wait for those that send very many small requests ahead.
- What comes back is dealt out to all that wait (`asks`).

A client can begin a request and not go on with it. Three rules keep such requests from filling the share:
- While others wait, a request that hardly comes on gives back what it does not use, and gets small steps from then on.
  So what is counted is about what was really sent.
- Requests that are only half read could fill the share, and then none of them could ever be completed. So when hardly
  anything else holds room, the first that waits may go on, and for that time the share is exceeded by one request.
- If a request has waited for too long, half-read requests make room, the least progressed first.

A client can also ask and not read the answers. These take room, and so do the requests that wait behind them. Brokers
do not wait for the room that answers take. Which connections have to go if others wait for too long says `in_the_way`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.net.asks import Ask, Asks, Kind
from tidelog.ports import Clock

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection

SMALL_BYTES = 16 * 1024
"""What a chunk holds. A request that does not come with one chunk asks for room."""
SHORT_BYTES = 256 * 1024
STEP_BYTES = 1024 * 1024
SMALL_STEP_BYTES = 64 * 1024
NO_BOUND = 1 << 62
SMALL_PART = 8
"""Small requests and answers may always hold an eighth of the share, and short requests another one."""
LIGHT_EIGHTHS = 3
"""If small and short requests hold their eighths beyond the share, those who hold hardly anything have another one."""
LARGE_PART = 2
"""No large request is read on while complete ones hold half of the share."""
_LIGHT, _HEAVY = Kind.SHORT, Kind.MIDDLE
"""Connections that are paused wait in two queues: those that hold less than one small request, and the others."""
_UNSEEN = -1


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


class Share:
    """Always: `held` is what its requests have been given and have not returned, with their answers where these count.
    `unfinished` is the part of requests that are not read to their end, `complete` the part of complete requests that
    are not small, `large` the part of complete requests that are large, and `short` what short requests were given."""

    def __init__(self, clock: Clock, on_room: Callable[[], None], *, is_of_brokers: bool) -> None:
        """`on_room` is called when somebody waits who might get room; `admit` has to follow."""
        self.limit = NO_BOUND
        self.held = 0
        self.unfinished = 0
        self.complete = 0
        self.large = 0
        self.short = 0
        self.answers = 0
        """Bytes of answers that wait to be sent."""
        self.waiting = Asks()
        """Those that want room for the next step of a request."""
        self.paused = Asks()
        """Those that are not read from because the share is full, and hold none for a request that is half read."""
        self._clock = clock
        self._on_room = on_room
        self.is_of_brokers = is_of_brokers
        self.moved_ns = 0
        """When one of those that wait last got room, or the first of them came. Short requests do not count: they may
        get room while no other can."""
        self.half_read: dict[ServerConnection, _Hold] = {}
        self.untaken: dict[ServerConnection, int] = {}
        """Connections whose answers hold room, and since when: their clients do not take them, or not fast enough."""
        self.exceeding: ServerConnection | None = None
        """It gets what its request needs although that does not fit."""

    @property
    def waiting_count(self) -> int:
        return len(self.waiting) + len(self.paused)

    def is_full_for(self, connection: ServerConnection) -> bool:
        """Whether no further small request of this connection may be read."""
        if self._small_room() > 0:
            return False
        return connection.releasable_bytes >= SMALL_BYTES or self.held >= self.limit + LIGHT_EIGHTHS * self.limit // 8

    def _small_room(self) -> int:
        """Bytes that small requests may still bring."""
        small = self.held - self.unfinished - self.complete
        return max(self.limit - self.held, self.limit // SMALL_PART - small)

    @property
    def may_go_on(self) -> bool:
        """There is room for the next of those that wait with small requests."""
        return self._next_paused() is not None

    def _next_paused(self) -> Ask | None:
        """The ask that is due first of all; or of light connections, if there is room for them only."""
        for paused in reversed((self._next_light(), self.paused.first(_HEAVY))):
            if paused is not None and not self.is_full_for(paused.connection):
                return paused
        return None

    def _next_light(self) -> Ask | None:
        """One that has become heavy while it was paused waits with the heavy ones."""
        while (ask := self.paused.first(_LIGHT)) is not None and ask.connection.releasable_bytes >= SMALL_BYTES:
            self.paused.add(Ask(ask.connection, _HEAVY, ask.size, ask.since_ns))
        return ask

    # Requests that are being read

    def take(self, connection: ServerConnection) -> int:
        """Room for the next step of a request, and how much that is; 0 if there is none: then `room_came` follows."""
        hold = self.half_read.get(connection)
        if hold is None:
            hold = self.half_read[connection] = _Hold()
        kind, size = _kind_of(connection), min(connection.missing_room, hold.step)
        if connection is self.exceeding or (not self.waiting and self._may_take(connection, kind, size)):
            self._grant(connection, size)
            return size
        now_ns = self._clock.monotonic_ns()
        if not self.waiting:
            self.moved_ns = now_ns
        self.waiting.add(Ask(connection, kind, size, now_ns))
        self._on_room()
        return 0

    @property
    def is_open_to_large(self) -> bool:
        """Whether large requests may be read on."""
        return self.large < self.limit // LARGE_PART

    def _has_short_room(self, size: int) -> bool:
        answers = 0 if self.is_of_brokers else self.answers
        return self.short + answers + size <= self.limit // SMALL_PART

    def _may_take(self, connection: ServerConnection, kind: Kind, size: int) -> bool:
        """A request that does not fit may exceed the share, if hardly any complete requests and answers hold it."""
        if self.held + size <= self.limit and (kind is not Kind.LARGE or self.is_open_to_large):
            return True
        if kind is Kind.SHORT and self._has_short_room(size):
            return True
        if self.exceeding is not None or self.held - self.unfinished >= self.limit // SMALL_PART:
            return False
        self.exceeding = connection
        return True

    def _grant(self, connection: ServerConnection, size: int) -> None:
        """Give room to a request that is half read, or take it back if the size is negative."""
        self.held += size
        self.unfinished += size
        if connection.request_bytes <= SHORT_BYTES:
            self.short += size

    def finished(self, connection: ServerConnection, size: int) -> None:
        """A request that has got this much is read to its end, and complete."""
        self._end(connection, size)
        self.count(size)

    def _end(self, connection: ServerConnection, unfinished: int) -> None:
        self._grant(connection, -unfinished)
        self.half_read.pop(connection, None)
        if self.exceeding is connection:
            self.exceeding = None

    def count(self, size: int) -> None:
        """A complete request of this size is here."""
        self.held += size
        if size > SMALL_BYTES:
            self._count_complete(size, size)

    def _count_complete(self, request_bytes: int, size: int) -> None:
        self.complete += size
        if request_bytes <= SHORT_BYTES:
            self.short += size
        elif request_bytes > STEP_BYTES:
            self.large += size

    # Room that comes back

    def give(self, size: int) -> None:
        """A complete request of this size is answered, or needs its bytes no more."""
        self.held -= size
        if size > SMALL_BYTES:
            self._count_complete(size, -size)
        if self.paused.by_connection or self.waiting.by_connection:
            self._on_room()

    def pause(self, connection: ServerConnection) -> None:
        """To be told by `room_came`."""
        weight = _LIGHT if connection.releasable_bytes < SMALL_BYTES else _HEAVY
        self.paused.add(Ask(connection, weight, SMALL_BYTES, self._clock.monotonic_ns()))

    def lighter(self, connection: ServerConnection) -> None:
        """It holds less than before: one that is paused need not wait with the heavy ones any more."""
        ask = self.paused.by_connection.get(connection)
        if ask is not None and ask.kind is _HEAVY and connection.releasable_bytes < SMALL_BYTES:
            self.paused.add(Ask(connection, _LIGHT, ask.size, ask.since_ns))

    def forget(self, connection: ServerConnection, unfinished: int) -> None:
        """It is closed; so much its half-read request held."""
        self.waiting.withdraw(connection)
        self.paused.withdraw(connection)
        self._end(connection, unfinished)
        self._on_room()

    def admit(self) -> None:
        """Read on from those that wait, as far as there is room. Small requests first: they are the many. What they
        bring comes later: if there is still room then, `admit` has to follow again (`may_go_on`).

        What follows from reading on may change anything here, but does not call this again.
        """
        for _ in range(max(self._small_room(), 0) // SMALL_BYTES + 1):
            if (paused := self._next_paused()) is None:
                break
            self.paused.serve(paused)
            _read_on(paused.connection, 0)
        while (ask := self._next()) is not None and self._may_take(ask.connection, ask.kind, ask.size):
            self.waiting.serve(ask)
            if ask.kind is not Kind.SHORT:
                self.moved_ns = self._clock.monotonic_ns()
            self._grant(ask.connection, ask.size)
            _read_on(ask.connection, ask.size)

    def _next(self) -> Ask | None:
        """The ask that is due, of those for which there may be room."""
        short = self.waiting.first(Kind.SHORT)
        if short is not None and self._has_short_room(short.size):
            return short
        return self.waiting.first(Kind.LARGE if self.is_open_to_large else Kind.MIDDLE)

    def take_back_unused(self) -> None:
        """Half-read requests return what they do not use, if they have not come on since the last look."""
        if not self.waiting:
            for hold in self.half_read.values():
                hold.reset()
            return
        for connection, hold in self.half_read.items():
            if connection in self.waiting.by_connection:
                hold.reset()
            elif hold.is_slow(connection.came_bytes):
                self._grant(connection, -connection.return_unused())
        self._on_room()

    # Answers

    def answers_wait(self, connection: ServerConnection, size: int) -> None:
        """So many more bytes of its answers wait to be sent. They take room even if there is none: they exist."""
        self.answers += size
        if not self.is_of_brokers:
            self.held += size
        if connection not in self.untaken:
            self.untaken[connection] = self._clock.monotonic_ns()

    def answers_gone(self, connection: ServerConnection, size: int, *, is_all: bool) -> None:
        """They were sent, or their client is gone."""
        if is_all:
            self.untaken.pop(connection, None)
        self.answers -= size
        if not self.is_of_brokers:
            self.held -= size
        if self.paused.by_connection:
            self.lighter(connection)
        self._on_room()


def _kind_of(connection: ServerConnection) -> Kind:
    """Of the request that is half read."""
    if connection.request_bytes <= SHORT_BYTES:
        return Kind.SHORT
    return Kind.LARGE if connection.request_bytes > STEP_BYTES else Kind.MIDDLE


def _read_on(connection: ServerConnection, size: int) -> None:
    try:
        connection.room_came(size)
    except Exception as failure:  # a fault of ours ends this connection and no other
        connection.close(f"it cannot be read from: {failure!r}", failure)

"""Who is next to get room: connections that wait for it share what comes by bytes.

Each connection that waits has one ask, for the next step of one request. Asks are served as if the room that comes
were dealt out evenly to all of them, a byte each: an ask is due when every other connection could have had as many
bytes as this one would hold then in complete requests and unread answers. So a small ask passes large ones that came
shortly before, a connection that holds little passes those that hold much, and nothing that comes later can put an ask
off for ever.

Requests of different sizes have queues of their own: at times only the smaller ones may have room (see `share`).
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection

_SPARE = 64
"""A queue may hold this many asks that were withdrawn, and as many as there are asks."""


class Kind(IntEnum):
    """How large a request is for which room is asked."""

    SHORT = 0
    MIDDLE = 1
    LARGE = 2


class Ask:
    """What a connection waits for."""

    __slots__ = ("connection", "kind", "since_ns", "size")

    def __init__(self, connection: ServerConnection, kind: Kind, size: int, since_ns: int) -> None:
        self.connection = connection
        self.kind = kind
        self.size = size
        self.since_ns = since_ns


_Queue = list[tuple[float, int, Ask]]
"""A heap of asks, by when each is due."""


class Asks:
    """Always: every ask of `by_connection` stands in exactly one queue; other asks in a queue were withdrawn."""

    def __init__(self) -> None:
        self.by_connection: dict[ServerConnection, Ask] = {}
        self._queues: tuple[_Queue, ...] = tuple([] for _ in Kind)
        self._dealt = 0.0
        """How many bytes a connection would have got that had waited all the time."""
        self._number = 0

    def __len__(self) -> int:
        return len(self.by_connection)

    def add(self, ask: Ask) -> None:
        self.by_connection[ask.connection] = ask
        self._number += 1
        queue = self._queues[ask.kind]
        due = self._dealt + ask.connection.releasable_bytes + ask.size
        heappush(queue, (due, self._number, ask))
        if len(queue) > 2 * len(self.by_connection) + _SPARE:
            queue[:] = [entry for entry in queue if self._is_open(entry[2])]
            heapify(queue)

    def withdraw(self, connection: ServerConnection) -> None:
        """It is closed."""
        self.by_connection.pop(connection, None)

    def _is_open(self, ask: Ask) -> bool:
        return self.by_connection.get(ask.connection) is ask

    def first(self, largest: Kind) -> Ask | None:
        """The ask that is due first, of all that are not larger than this kind."""
        heads = []
        for queue in self._queues[: largest + 1]:
            while queue and not self._is_open(queue[0][2]):
                heappop(queue)
            heads += queue[:1]
        return min(heads)[2] if heads else None

    def serve(self, ask: Ask) -> None:
        """The ask that was `first` gets what it waits for."""
        heappop(self._queues[ask.kind])
        self._dealt += ask.size / len(self.by_connection)
        del self.by_connection[ask.connection]

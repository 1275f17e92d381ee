"""How many bytes of requests the whole broker holds: those that are being read and those that are not answered yet.

A large request gets its room in steps, as its bytes come. So a client that announces much and sends little holds
little, and what is counted is about what is really in memory. Clients that want room get it in the order in which they
asked. When there is none, they are not read from until some comes back.

Requests that are only half read could fill all of the room, and then none of them could ever be completed. So when
nothing else holds room, the first that waits gets all that its request needs, and for that time the bound is exceeded
by one request. Brokers wait for nobody and have a reserve beyond the bound: a produce that holds room may be waiting
for what another broker asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.metrics import Metrics

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection

STEP_BYTES = 1024 * 1024
_BROKERS_PART = 4
"""Requests of brokers get room up to a quarter above the bound."""
_NO_BOUND = 1 << 62


class RequestRoom:
    """Always: `held` is what all requests have been given and have not returned, `unfinished` the part of it that
    belongs to requests that are not read to their end."""

    def __init__(self, metrics: Metrics, max_bytes: int = 0) -> None:
        self.held = 0
        self.unfinished = 0
        self.max_bytes = _NO_BOUND
        self._waiting: dict[ServerConnection, int] = {}
        """Those that want so many bytes for the next step of a request."""
        self._paused: dict[ServerConnection, None] = {}
        """Those that are not read from because the room is full, and hold none for a request that is half read."""
        self._exceeding: ServerConnection | None = None
        """Got all that its request needs although it does not fit."""
        self.reconfigure(max_bytes)
        gauge, prefix = metrics.gauge, "kafka_network_socket_server_memory_pool_"
        gauge(prefix + "used", lambda: self.held)
        gauge(prefix + "size", lambda: self.max_bytes if self.max_bytes < _NO_BOUND else -1)
        gauge(prefix + "waiting_connections", lambda: len(self._waiting) + len(self._paused))

    def reconfigure(self, max_bytes: int) -> None:
        """0 or less is without a bound, as in Kafka."""
        self.max_bytes = max_bytes if max_bytes > 0 else _NO_BOUND

    def _limit(self, connection: ServerConnection) -> int:
        return self.max_bytes + self.max_bytes // _BROKERS_PART if connection.is_broker else self.max_bytes

    def is_full_for(self, connection: ServerConnection) -> bool:
        return self.held >= self.max_bytes and self.held >= self._limit(connection)

    def take(self, connection: ServerConnection, size: int) -> int:
        """Room for so many more bytes of a request, or for all that is missing of it, and how much that is.

        0 if there is none: then `room_came` says when there is.
        """
        fits = self.held + size <= self._limit(connection)
        if self._waiting and not (fits and connection.is_broker):
            self._waiting[connection] = size
            return 0
        if not fits:
            if not self._may_exceed:
                self._waiting[connection] = size
                return 0
            self._exceeding, size = connection, connection.missing_room
        self._grant(size)
        return size

    @property
    def _may_exceed(self) -> bool:
        return self.held == self.unfinished and self._exceeding is None

    def _grant(self, size: int) -> None:
        self.held += size
        self.unfinished += size

    def finished(self, connection: ServerConnection, size: int) -> None:
        """A request that had taken this much is read to its end."""
        self.unfinished -= size
        if self._exceeding is connection:
            self._exceeding = None

    def give(self, size: int) -> None:
        self.held -= size
        if self._waiting or self._paused:
            self._admit()

    def pause(self, connection: ServerConnection) -> None:
        """To be told by `room_came`."""
        self._paused[connection] = None

    def forget(self, connection: ServerConnection, unfinished: int, finished: int) -> None:
        """It is closed; so much it held."""
        self._waiting.pop(connection, None)
        self._paused.pop(connection, None)
        self.finished(connection, unfinished)
        self.give(unfinished + finished)

    def _admit(self) -> None:
        """Small requests first: they are the many, and the half-read ones may be stalled."""
        while self._paused:
            connection = next(iter(self._paused))
            if self.is_full_for(connection) and self.held > self.unfinished:
                break
            del self._paused[connection]
            connection.room_came(0)
        while self._waiting:
            connection, size = next(iter(self._waiting.items()))
            if self.held + size > self._limit(connection):
                if not self._may_exceed:
                    break
                self._exceeding, size = connection, connection.missing_room
            del self._waiting[connection]
            self._grant(size)
            connection.room_came(size)

"""Connections that take turns: one request of each, so that a client which sends much ahead makes itself wait alone."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection


class Ring:
    """Connections that have requests to be handled; the first one is next.

    Always: a connection that `is_queued` is in exactly one ring, its `ring`, and `requests` counts what waits in the
    queues of all connections in it.
    """

    __slots__ = ("capacity", "connections", "kept_out", "requests")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.requests = 0
        self.connections: deque[ServerConnection] = deque()
        self.kept_out: deque[ServerConnection] = deque()
        """Connections that are not read from because the ring is full."""

    @property
    def is_full(self) -> bool:
        return self.requests >= self.capacity

    def enter(self, connection: ServerConnection) -> None:
        connection.ring = self
        connection.is_queued = True
        self.connections.append(connection)
        self.requests += len(connection.queue)

    def left_by(self, connection: ServerConnection) -> None:
        """It was the first and is served no more, with whatever waits in its queue."""
        connection.is_queued = False
        self.requests -= len(connection.queue)

    def keep_out(self, connection: ServerConnection) -> None:
        """Its `resume` is called when the ring is not full any more."""
        if not connection.is_kept_out:
            connection.is_kept_out = True
            self.kept_out.append(connection)

    def let_in(self) -> None:
        while self.kept_out and not self.is_full:
            connection = self.kept_out.popleft()
            connection.is_kept_out = False
            connection.resume()

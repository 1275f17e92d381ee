"""How many bytes the whole broker holds for its connections: requests that are being read or are not answered yet,
and answers in memory that are not sent yet, unless a connection has only few bytes of these.

Clients share the room. Brokers have a reserve beyond it that no client can use: a produce that holds room may be
waiting for what another broker asks. Nothing proves that a connection is a broker's, so brokers have no more than their
reserve, and what they hold keeps no client from being read. How each of the two is shared out is told in `share`.

Room that comes back is given to others in a turn of the loop of its own. Whoever gets some may close its connection in
the same moment, and so give room back: if that were dealt out at once, it could go on without an end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidelog.metrics import Metrics
from tidelog.net.in_the_way import in_the_way
from tidelog.net.share import NO_BOUND, Share
from tidelog.ports import Clock

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection

LOOK_EVERY_S = 0.2
"""While requests wait, those that are half read must bring a small step in this time to keep what they do not use."""
_BROKERS_PART = 4
"""The reserve of brokers is a quarter of the room."""


class RequestRoom:
    """The room of clients, and the reserve of brokers."""

    def __init__(self, metrics: Metrics, clock: Clock, max_bytes: int = 0) -> None:
        self.clients = Share(clock, self._room_came, is_of_brokers=False)
        self.brokers = Share(clock, self._room_came, is_of_brokers=True)
        self._shares = (self.brokers, self.clients)
        self._is_admitting = False
        self._is_looking = False
        self.reconfigure(max_bytes)
        gauge = metrics.gauge
        gauge(
            "kafka_network_socketserver_memorypoolused",
            "Bytes that requests and unread answers hold.",
            lambda: self.held,
        )
        gauge(
            "tidelog_memory_pool_size",
            "Bytes that requests of clients may hold (queued.max.request.bytes); -1: no limit.",
            lambda: self.clients.limit if self.clients.limit < NO_BOUND else -1,
        )
        gauge(
            "tidelog_memory_pool_waiting_connections",
            "Connections that are not read from until there is room for their requests.",
            lambda: sum(share.waiting_count for share in self._shares),
        )

    def reconfigure(self, max_bytes: int) -> None:
        """0 or less is without a bound, as in Kafka."""
        is_bounded = max_bytes > 0
        self.clients.limit = max_bytes if is_bounded else NO_BOUND
        self.brokers.limit = max_bytes // _BROKERS_PART if is_bounded else NO_BOUND

    @property
    def held(self) -> int:
        """What all requests and answers hold."""
        return self.clients.held + self.brokers.held + self.brokers.answers

    def _room_came(self) -> None:
        if not self._is_admitting and any(share.waiting_count for share in self._shares):
            self._is_admitting = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        self._is_admitting = False
        for share in self._shares:
            share.admit()
        if any(share.may_go_on for share in self._shares):
            self._room_came()
        if not self._is_looking and any(share.waiting for share in self._shares):
            self._is_looking = True
            asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._is_looking = False
        for share in self._shares:
            share.take_back_unused()

    def in_the_way(self, now_ns: int, patience_ns: int) -> list[ServerConnection]:
        """Connections that have to make room: others have waited for it for too long."""
        return [connection for share in self._shares for connection in in_the_way(share, now_ns, patience_ns)]

"""Lookups by time that have to decompress a large batch (ListOffsets): few at a time, and connections take turns.

Each may need memory for a whole batch and the time to decompress it, so only some run at once. A connection has one of
them under way, and its next one waits behind those of the other connections. So a client that asks for many makes its
own requests wait, and not those of others. If a client goes, its lookups that have not begun are dropped.

Lookups that have little or nothing to decompress do not come here.
"""

from __future__ import annotations

import asyncio
from collections import deque

from tidelog.metrics import Metrics
from tidelog.net.channel import Call
from tidelog.net.connection import ServerConnection

_AT_A_TIME = 2


class Lookups:
    """Always: a connection in `_order` has a lookup that waits and none under way; while a place is free, `_order` is
    empty."""

    def __init__(self, metrics: Metrics) -> None:
        self._free = _AT_A_TIME
        self._waiting: dict[ServerConnection, deque[asyncio.Future[bool]]] = {}
        """What waits, of each connection that has a lookup here."""
        self._order: deque[ServerConnection] = deque()
        """The first one is next."""
        metrics.gauge(
            "tidelog_connections_with_heavy_lookups",
            "Connections with lookups that are large, under way or waiting.",
            lambda: len(self._waiting),
        )

    async def enter(self, call: Call) -> bool:
        """Returns when it is the turn of this request; then `leave` must follow. False if its client has gone."""
        connection = call.connection
        if connection.is_closed:
            return False
        if self._free and connection not in self._waiting:
            self._free -= 1
            self._waiting[connection] = deque()
            return True
        if connection not in self._waiting:
            self._waiting[connection] = deque()
            self._order.append(connection)
        begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[connection].append(begun)
        call.when_gone = lambda: None if begun.done() else begun.set_result(False)
        try:
            return await begun
        except asyncio.CancelledError:
            if not begun.cancelled() and begun.result():
                self.leave(connection)
            raise
        finally:
            call.when_gone = None

    def leave(self, connection: ServerConnection) -> None:
        """The lookup of this connection is over."""
        self._free += 1
        if self._waiting[connection]:
            self._order.append(connection)
        else:
            del self._waiting[connection]
        while self._free and self._order:
            self._begin(self._order.popleft())

    def _begin(self, connection: ServerConnection) -> None:
        """Its first lookup that is still wanted, if there is one."""
        waiting = self._waiting[connection]
        while waiting:
            begun = waiting.popleft()
            if not begun.done():
                self._free -= 1
                begun.set_result(True)
                return
        del self._waiting[connection]

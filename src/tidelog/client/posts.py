"""What brokers do not answer: batches with acks=0, and how a client finds out that they were handled."""

from __future__ import annotations

import asyncio

from tidelog.client.contacts import unanswered_text
from tidelog.client.waits import Waits
from tidelog.net.calling import Connection, ConnectionClosedError


class Posts:
    """The connections that have taken batches with acks=0 since they were last confirmed.

    The kernel may still hold the batches, and a broker may drop what it has not handled when the connection ends. A
    broker that refuses such a batch ends the connection. So each connection must answer once behind the batches.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._counts: dict[Connection, int] = {}
        """How many requests each has taken. Connections that have ended stay until `confirm` tells of them."""

    def note(self, connection: Connection, posted: asyncio.Future[None]) -> None:
        """A request was posted there. If the connection has not taken it whole, the request is sent again."""
        if posted.exception() is None:
            self._counts[connection] = self._counts.get(connection, 0) + 1

    async def confirm(self, timeout_ms: float) -> None:
        """Wait until brokers have handled what they were sent before this call.

        ConnectionClosedError if a connection has ended since, or does not answer in time. It is raised once.
        """
        asked = dict(self._counts)
        try:
            await asyncio.gather(*[self._confirm(connection, timeout_ms) for connection in asked])
        except ConnectionClosedError as failure:
            for connection in asked:
                if connection.closed:
                    self._counts.pop(connection, None)
            told = f"whether all batches that were sent with acks=0 are written is unknown: {failure}"
            raise ConnectionClosedError(told) from failure
        for connection, count in asked.items():
            if self._counts.get(connection) == count:
                del self._counts[connection]

    async def _confirm(self, connection: Connection, timeout_ms: float) -> None:
        with self._waits.unanswered(unanswered_text(connection, "ApiVersions"), asyncio.get_running_loop().time()):
            await connection.negotiate(timeout_ms=timeout_ms)

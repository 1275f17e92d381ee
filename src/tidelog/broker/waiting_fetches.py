"""How many fetches may wait for more to read.

The records of fetches do not fill the memory, but each fetch that waits has to be looked at when a partition of it
changes. Kafka serves one request of a connection at a time, so on a connection of its clients one fetch waits.
"""

from __future__ import annotations

from tidelog.broker.fetch_sessions import NO_SESSION, FetchSession
from tidelog.metrics import Metrics
from tidelog.net.connection import ServerConnection

MOST_OF_CONNECTION = 2


class WaitingFetches:
    """A connection has at most MOST_OF_CONNECTION of them. Those without a session keep their partitions only while
    they wait, and have at most `most_partitions` together.

    A fetch that may not wait is answered with what there is. Answers of a connection keep their order, so this answer
    leaves after those of the fetches that wait, and a client with many fetches does not ask more often than it would.
    """

    def __init__(self, most_partitions: int, metrics: Metrics) -> None:
        self._most_partitions = most_partitions
        self._partitions = 0
        """Of fetches without a session."""
        self._of: dict[ServerConnection, int] = {}
        metrics.gauge(
            "tidelog_fetch_waiting_partitions",
            "Partitions of fetches that wait and have no session.",
            lambda: self._partitions,
        )
        metrics.gauge(
            "tidelog_fetch_waiting_connections", "Connections that have fetches that wait.", lambda: len(self._of)
        )

    def may_wait(self, session: FetchSession, connection: ServerConnection) -> bool:
        if self._of.get(connection, 0) >= MOST_OF_CONNECTION:
            return False
        return session.id != NO_SESSION or self._partitions + len(session.items) <= self._most_partitions

    def begin(self, session: FetchSession, connection: ServerConnection) -> int:
        """A fetch waits; what this returns is given to `end`."""
        self._of[connection] = self._of.get(connection, 0) + 1
        partitions = 0 if session.id != NO_SESSION else len(session.items)
        self._partitions += partitions
        return partitions

    def end(self, connection: ServerConnection, partitions: int) -> None:
        self._partitions -= partitions
        count = self._of.pop(connection) - 1
        if count:
            self._of[connection] = count

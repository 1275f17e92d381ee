"""Which connections a broker takes, so that its file descriptors last.

Clients may have a share of the descriptors. When it is used, a new connection takes the place of the client that has
been idle for the longest time and is owed nothing. If there is no such client, the connection may come from a broker,
which the acceptor cannot know where clients and brokers share a listener. So beyond the clients' share there is a
reserve, and a connection in it is on trial: its first request says whether a broker sent it, and if not it is closed.
Whoever says nothing is the first to go when the reserve is full. A broker sends its first request at once, so it is
known before others push it out. Connections of a separate inter-broker listener are a broker's from the start.

Nothing proves that a connection is a broker's, so the sum of all connections has a bound as well.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING

from tidelog.config.broker import BrokerConfig
from tidelog.metrics import Metrics
from tidelog.ports import Capacity, Clock

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection

_log = logging.getLogger(__name__)

_IDLEST = 64
"""How many idle connections one look at all of them finds."""
_LOOK_AGAIN_NS = 200_000_000
_TELL_AGAIN_NS = 60_000_000_000
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """By Kafka's names; the shares are of the process's file descriptors."""

    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    client_share: int
    broker_reserve: int
    replaceable_idle_ms: int
    """A client that is owed nothing and has been idle for this long may have to make room for another one."""

    @classmethod
    def of(cls, config: BrokerConfig, capacity: Capacity) -> ConnectionLimits:
        return cls(
            max_connections=config["max.connections"],
            max_connections_per_ip=config["max.connections.per.ip"],
            max_connections_per_ip_overrides=config.max_connections_per_ip_overrides,
            client_share=capacity.client_connections,
            broker_reserve=capacity.broker_connections,
            replaceable_idle_ms=config["tidelog.connections.replaceable.idle.ms"],
        )

    @property
    def clients(self) -> int:
        return min(self.max_connections, self.client_share)


class Admission:
    """Counts connections, refuses those that are too many, and makes room.

    Always: each connection that counts is a known broker's, a client's or on trial, and all of them are at most the
    clients' share and the reserve.
    """

    def __init__(self, limits: ConnectionLimits, clock: Clock, metrics: Metrics, broker_listener: str | None) -> None:
        self.limits = limits
        self._clock = clock
        self._broker_listener = broker_listener
        """Unless it is also the clients'."""
        self._counted: dict[ServerConnection, None] = {}
        self._clients: dict[ServerConnection, None] = {}
        self._on_trial: dict[ServerConnection, None] = {}
        self._per_host: Tally[str] = Tally()
        self._idlest: list[tuple[int, ServerConnection]] = []
        """Found by the last look at all clients, with when each was active; the idlest is the last."""
        self._look_at_ns = 0
        self._tell_at_ns = 0
        self._refused = metrics.counter(
            "tidelog_refused_connections_total", "New connections that were closed because there are too many."
        )
        self._replaced = metrics.counter(
            "tidelog_replaced_connections_total",
            "Idle connections that were closed because others needed their places.",
        )
        gauge = metrics.gauge
        gauge("tidelog_client_connection_limit", "Connections that clients may have.", lambda: self.limits.clients)
        gauge("tidelog_client_connection_count", "Connections of clients.", lambda: len(self._clients))
        gauge(
            "tidelog_trial_connection_count",
            "Connections whose first request will say whether a broker opened them.",
            lambda: len(self._on_trial),
        )

    @property
    def count(self) -> int:
        return len(self._counted)

    def admit(self, connection: ServerConnection) -> None:
        """Count a new connection, or close it."""
        limits, host = self.limits, connection.client_host
        if connection.listener == self._broker_listener:
            connection.is_broker = connection.is_known = True
        per_ip = limits.max_connections_per_ip_overrides.get(host, limits.max_connections_per_ip)
        if len(self._counted) >= limits.max_connections and not (connection.is_broker and self._replace(0)):
            self._refuse(connection, f"there are max.connections = {limits.max_connections} already")
        elif self._per_host[host] >= per_ip:
            self._refuse(connection, f"{host} has max.connections.per.ip = {per_ip} already")
        elif not self._find_place(connection):
            self._refuse_for_share(connection)
        else:
            self._per_host[host] += 1
            self._counted[connection] = None

    def _find_place(self, connection: ServerConnection) -> bool:
        limits = self.limits
        has_room = len(self._counted) < limits.client_share + limits.broker_reserve
        if connection.is_broker:
            return has_room or self._end_trial() or self._replace(0)
        if (has_room and len(self._clients) < limits.client_share) or self._replace(limits.replaceable_idle_ms):
            self._clients[connection] = None
            return True
        if limits.broker_reserve and (has_room or self._end_trial()):
            self._on_trial[connection] = None
            return True
        return False

    def identified(self, connection: ServerConnection) -> None:
        """Its first request has said whether it is a broker's."""
        if connection.is_broker:
            self._clients.pop(connection, None)
            self._on_trial.pop(connection, None)
        elif connection in self._on_trial:
            del self._on_trial[connection]
            if len(self._clients) < self.limits.client_share:
                self._clients[connection] = None
            else:
                self._refuse_for_share(connection)

    def forget(self, connection: ServerConnection) -> None:
        if connection in self._counted:
            del self._counted[connection]
            self._clients.pop(connection, None)
            self._on_trial.pop(connection, None)
            self._per_host[connection.client_host] -= 1
            if not self._per_host[connection.client_host]:
                del self._per_host[connection.client_host]

    def _refuse(self, connection: ServerConnection, why: str) -> None:
        self._refused.add()
        connection.close(why)

    def _refuse_for_share(self, connection: ServerConnection) -> None:
        """There may be very many of these, so they are logged once a minute."""
        self._refused.add()
        why = f"clients have all {self.limits.client_share} connections that the limit of open files leaves them"
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._tell_at_ns:
            self._tell_at_ns = now_ns + _TELL_AGAIN_NS
            _log.warning("connections are refused: %s; raise that limit (ulimit -n)", why)
        connection.close(why, level=logging.DEBUG)

    def _end_trial(self) -> bool:
        """Close the connection that has been on trial for the longest time."""
        connection = next(iter(self._on_trial), None)
        if connection is None:
            return False
        self._refuse_for_share(connection)
        self.forget(connection)
        return True

    def _replace(self, idle_ms: int) -> bool:
        """Close the client that has been idle for the longest time, if that is long enough.

        A look at all clients costs time. For a client there is one now and then; for a broker whenever no client is
        left of those that the last look found.
        """
        now_ns = self._clock.monotonic_ns()
        before_ns = now_ns - idle_ms * _NS_PER_MS
        if self._replace_found(before_ns):
            return True
        if self._idlest or (idle_ms and now_ns < self._look_at_ns):
            return False
        found = nsmallest(
            _IDLEST,
            (known for known in self._clients if known.owes_nothing),
            key=lambda known: known.last_active_ns,
        )
        self._idlest = [(known.last_active_ns, known) for known in reversed(found)]
        self._look_at_ns = now_ns + _LOOK_AGAIN_NS
        return self._replace_found(before_ns)

    def _replace_found(self, before_ns: int) -> bool:
        while self._idlest:
            active_ns, connection = self._idlest[-1]
            is_same = connection in self._clients and connection.last_active_ns == active_ns
            if is_same and active_ns > before_ns:
                break
            self._idlest.pop()
            if is_same and connection.owes_nothing:
                self._replaced.add()
                connection.close("it is idle, and another connection needs its place", level=logging.DEBUG)
                self.forget(connection)
                return True
        return False

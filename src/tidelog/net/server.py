"""The socket server: acceptors deal connections to network workers, each with its own response queue (S7.1).

Acceptors and workers are objects on the broker's loop, not threads; num.network.threads is the number of workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidelog.metrics import Metrics
from tidelog.net.channel import Call, RequestChannel
from tidelog.net.connection import ServerConnection

_log = logging.getLogger(__name__)

_IDLE_CHECK_S = 1.0
_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """By Kafka's names and with its defaults."""

    num_network_threads: int = 3
    socket_request_max_bytes: int = 100 * 1024 * 1024
    connections_max_idle_ms: int = 600_000
    max_connections: int = _MAX_INT
    max_connections_per_ip: int = _MAX_INT
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    backlog: int = 50


class NetworkWorker:
    """Some of the connections, and the queue of those that have answers to send."""

    def __init__(
        self,
        server: SocketServer,
        channel: RequestChannel,
        number: int,
        on_sent: Callable[[Call], None],
        metrics: Metrics,
    ) -> None:
        self.connections: dict[ServerConnection, None] = {}
        self._server = server
        self._channel = channel
        self._ready: dict[ServerConnection, None] = {}
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self.sent = on_sent
        label = str(number)
        metrics.gauge(
            "kafka_network_processor_connection_count", lambda: len(self.connections), network_processor=label
        )
        metrics.gauge("kafka_network_request_channel_response_queue_size", lambda: len(self._ready), processor=label)

    def opened(self, connection: ServerConnection) -> None:
        self.connections[connection] = None
        refusal = self._server.refusal(connection)
        if refusal:
            connection.close(refusal)

    def closed(self, connection: ServerConnection) -> None:
        self.connections.pop(connection, None)
        self._ready.pop(connection, None)
        self._server.forget(connection)

    def answer_ready(self, connection: ServerConnection) -> None:
        """While requests are handled `send` follows by itself; later answers have to ask for it."""
        self._ready[connection] = None
        if not self._scheduled and not self._channel.is_serving:
            self._scheduled = True
            self._loop.call_soon(self.send)

    def send(self) -> None:
        self._scheduled = False
        while self._ready:
            ready, self._ready = self._ready, {}
            for connection in ready:
                try:
                    connection.send_ready()
                except Exception as failure:  # a fault of ours ends this connection and no other
                    connection.close(f"an answer cannot be sent: {failure!r}", failure)

    def close_idle(self, before_ns: int) -> None:
        """Silent, stalled and waiting ones alike: the broker cannot tell a patient client from one that is gone."""
        for connection in list(self.connections):
            if connection.last_active_ns < before_ns and not connection.is_closed:
                connection.close("nothing was read from it or taken by it for connections.max.idle.ms")


class SocketServer:
    """All listeners of one broker."""

    def __init__(
        self, channel: RequestChannel, limits: ServerLimits, on_sent: Callable[[Call], None], metrics: Metrics
    ) -> None:
        self._channel = channel
        self._on_sent = on_sent
        self._metrics = metrics
        self._workers: list[NetworkWorker] = []
        self._next_worker = 0
        self._servers: list[asyncio.AbstractServer] = []
        self._per_host: Tally[str] = Tally()
        self._counted: dict[ServerConnection, None] = {}
        self._refused = metrics.counter("kafka_network_socket_server_refused_connections_total")
        self._idle_check: asyncio.TimerHandle | None = None
        self.reconfigure(limits)

    def reconfigure(self, limits: ServerLimits) -> None:
        """Hold new connections to these; workers that are not wanted any more keep what they have."""
        self._limits = limits
        for number in range(len(self._workers), limits.num_network_threads):
            worker = NetworkWorker(self, self._channel, number, self._on_sent, self._metrics)
            self._workers.append(worker)
            self._channel.after_turn.append(worker.send)

    async def listen(self, name: str, host: str, port: int) -> int:
        """Open a listener; the port it got, which is another one if 0 was asked for."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: self._accept(name), host or None, port, backlog=self._limits.backlog, reuse_address=True
        )
        self._servers.append(server)
        if self._idle_check is None and self._limits.connections_max_idle_ms >= 0:
            self._idle_check = loop.call_later(_IDLE_CHECK_S, self._close_idle)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _accept(self, listener: str) -> ServerConnection:
        worker = self._workers[self._next_worker % self._limits.num_network_threads]
        self._next_worker += 1
        return ServerConnection(worker, listener, self._channel, self._limits.socket_request_max_bytes)

    def refusal(self, connection: ServerConnection) -> str:
        """Why a new connection is not welcome; empty if it is, and then it counts."""
        limits, host = self._limits, connection.client_host
        per_ip = limits.max_connections_per_ip_overrides.get(host, limits.max_connections_per_ip)
        if len(self._counted) >= limits.max_connections:
            why = f"there are max.connections = {limits.max_connections} already"
        elif self._per_host[host] >= per_ip:
            why = f"{host} has max.connections.per.ip = {per_ip} already"
        else:
            self._per_host[host] += 1
            self._counted[connection] = None
            return ""
        self._refused.add()
        return why

    def forget(self, connection: ServerConnection) -> None:
        if connection in self._counted:
            del self._counted[connection]
            self._per_host[connection.client_host] -= 1
            if not self._per_host[connection.client_host]:
                del self._per_host[connection.client_host]

    @property
    def connection_count(self) -> int:
        return len(self._counted)

    def _close_idle(self) -> None:
        before_ns = self._channel.clock.monotonic_ns() - self._limits.connections_max_idle_ms * 1_000_000
        for worker in self._workers:
            worker.close_idle(before_ns)
        self._idle_check = asyncio.get_running_loop().call_later(_IDLE_CHECK_S, self._close_idle)

    def stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def close(self) -> None:
        """No new connections, and an end to those there are."""
        self.stop_listening()
        if self._idle_check is not None:
            self._idle_check.cancel()
        for worker in self._workers:
            for connection in list(worker.connections):
                connection.close("the broker stops")

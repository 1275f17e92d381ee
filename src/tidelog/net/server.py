"""The socket server: acceptors deal connections to network workers, each with its own response queue (S7.1).

Acceptors and workers are objects on the broker's loop, not threads; num.network.threads is the number of workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidelog.config.broker import BrokerConfig
from tidelog.metrics import Found, Metrics
from tidelog.net.admission import Admission, ConnectionLimits
from tidelog.net.channel import Call, RequestChannel
from tidelog.net.connection import ServerConnection
from tidelog.net.identity import is_of_broker
from tidelog.net.room import RequestRoom
from tidelog.ports import Capacity
from tidelog.types import Buffer

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_PATIENCE_PART = 10
"""Requests wait for room for a tenth of tidelog.request.read.timeout.ms before others must make some."""
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """By Kafka's names."""

    num_network_threads: int
    socket_request_max_bytes: int
    queued_max_request_bytes: int
    request_read_timeout_ms: int
    connections_max_idle_ms: int
    connections: ConnectionLimits
    backlog: int

    @classmethod
    def of(cls, config: BrokerConfig, capacity: Capacity) -> ServerLimits:
        largest = config["socket.request.max.bytes"]
        return cls(
            num_network_threads=config["num.network.threads"],
            socket_request_max_bytes=largest,
            queued_max_request_bytes=config["queued.max.request.bytes"] or max(largest, capacity.memory_bytes // 8),
            request_read_timeout_ms=config["tidelog.request.read.timeout.ms"],
            connections_max_idle_ms=config["connections.max.idle.ms"],
            connections=ConnectionLimits.of(config, capacity),
            backlog=config["socket.listen.backlog.size"],
        )


@dataclass(frozen=True, slots=True)
class InterBroker:
    """How connections of other brokers are known."""

    listener: str | None = None
    """Where only brokers connect, if there is such a listener."""
    keys: frozenset[int] = frozenset()
    """Requests that only brokers send."""


class NetworkWorker:
    """Some of the connections, and the queue of those that have answers to send."""

    def __init__(
        self,
        server: SocketServer,
        channel: RequestChannel,
        number: int,
        on_sent: Callable[[Call], None],
    ) -> None:
        self.connections: dict[ServerConnection, None] = {}
        self.room: RequestRoom = server.room
        self._server = server
        self._channel = channel
        self.ready: dict[ServerConnection, None] = {}
        """Connections that have answers to send."""
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self.sent = on_sent
        self.label = str(number)
        """In metrics."""

    def opened(self, connection: ServerConnection) -> None:
        self.connections[connection] = None
        self._server.admission.admit(connection)

    def is_of_broker(self, frame: Buffer) -> bool:
        return is_of_broker(frame, self._server.inter_broker.keys)

    def identified(self, connection: ServerConnection) -> None:
        self._server.admission.identified(connection)

    def closed(self, connection: ServerConnection) -> None:
        self.connections.pop(connection, None)
        self.ready.pop(connection, None)
        self._server.admission.forget(connection)

    def answer_ready(self, connection: ServerConnection) -> None:
        """While requests are handled `send` follows by itself; later answers have to ask for it."""
        self.ready[connection] = None
        if not self._scheduled and not self._channel.is_serving:
            self._scheduled = True
            self._loop.call_soon(self.send)

    def send(self) -> None:
        self._scheduled = False
        while self.ready:
            ready, self.ready = self.ready, {}
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

    def close_slow(self, before_ns: int) -> int:
        """Those that began a request and do not go on with it hold memory; how many there were."""
        slow = [connection for connection in self.connections if connection.is_too_slow(before_ns)]
        for connection in slow:
            connection.close("its request was not read to its end in time (tidelog.request.read.timeout.ms)")
        return len(slow)


class SocketServer:
    """All listeners of one broker."""

    def __init__(
        self,
        channel: RequestChannel,
        limits: ServerLimits,
        on_sent: Callable[[Call], None],
        metrics: Metrics,
        inter_broker: InterBroker | None = None,
    ) -> None:
        self.inter_broker = inter_broker or InterBroker()
        self.room = RequestRoom(metrics, channel.clock)
        self.admission = Admission(limits.connections, channel.clock, metrics, self.inter_broker.listener)
        self._channel = channel
        self._on_sent = on_sent
        self._workers: list[NetworkWorker] = []
        self._listeners: list[str] = []
        self._next_worker = 0
        self._servers: list[asyncio.AbstractServer] = []
        self._slow = metrics.counter(
            "tidelog_slow_connections_closed_total",
            "Connections that were closed because they did not send their requests or read their answers in time.",
        )
        metrics.series(
            "kafka_server_socket_server_metrics_connection_count",
            "Connections that are open.",
            ("listener", "networkProcessor"),
            self._connection_counts,
        )
        metrics.series(
            "kafka_network_requestchannel_responsequeuesize",
            "Connections that have answers to send; without a processor: those of all.",
            ("processor",),
            self._response_queue_sizes,
        )
        self._look: asyncio.TimerHandle | None = None
        self.reconfigure(limits)

    def reconfigure(self, limits: ServerLimits) -> None:
        """Hold new connections to these; workers that are not wanted any more keep what they have."""
        self._limits = limits
        self.room.reconfigure(limits.queued_max_request_bytes)
        self.admission.limits = limits.connections
        for number in range(len(self._workers), limits.num_network_threads):
            worker = NetworkWorker(self, self._channel, number, self._on_sent)
            self._workers.append(worker)
            self._channel.workers.append(worker)

    async def listen(self, name: str, host: str, port: int) -> int:
        """Open a listener; the port it got, which is another one if 0 was asked for."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: self._accept(name), host or None, port, backlog=self._limits.backlog, reuse_address=True
        )
        self._servers.append(server)
        self._listeners.append(name)
        if self._look is None:
            self._look = loop.call_later(_LOOK_EVERY_S, self._look_at_all)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _accept(self, listener: str) -> ServerConnection:
        worker = self._workers[self._next_worker % self._limits.num_network_threads]
        self._next_worker += 1
        return ServerConnection(worker, listener, self._channel, self._limits.socket_request_max_bytes)

    def _connection_counts(self) -> Iterator[Found]:
        for worker in self._workers:
            counts = Tally(connection.listener for connection in worker.connections)
            for listener in self._listeners:
                yield (listener, worker.label), counts[listener]

    def _response_queue_sizes(self) -> Iterator[Found]:
        yield ("",), sum(len(worker.ready) for worker in self._workers)
        for worker in self._workers:
            yield (worker.label,), len(worker.ready)

    def _look_at_all(self) -> None:
        """The next look is certain before this one begins, whatever fails in it."""
        self._look = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look_at_all)
        now_ns, limits = self._channel.clock.monotonic_ns(), self._limits
        for worker in self._workers:
            if limits.connections_max_idle_ms >= 0:
                worker.close_idle(now_ns - limits.connections_max_idle_ms * _NS_PER_MS)
            if limits.request_read_timeout_ms >= 0:
                self._slow.add(worker.close_slow(now_ns - limits.request_read_timeout_ms * _NS_PER_MS))
        if limits.request_read_timeout_ms >= 0:
            self._make_room(now_ns, limits.request_read_timeout_ms * _NS_PER_MS // _PATIENCE_PART)

    def _make_room(self, now_ns: int, patience_ns: int) -> None:
        for connection in self.room.in_the_way(now_ns, patience_ns):
            self._slow.add()
            connection.close(
                "others wait for the room that its half-read request, or what waits behind its unread answers, holds"
                " (queued.max.request.bytes)"
            )

    def stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def close(self) -> None:
        """No new connections, and an end to those there are."""
        self.stop_listening()
        if self._look is not None:
            self._look.cancel()
        for worker in self._workers:
            for connection in list(worker.connections):
                connection.close("the broker stops")

"""The request channel: bounded queues between the network workers and the handlers (S7.1).

Everything runs on one loop. Each connection has its own queue, and the channel serves one request of each connection in
turn: a client that sends many requests ahead makes its own requests wait, not those of others. Control requests have
a small queue of their own that is served first (S7.3).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.metrics import Metrics
from tidelog.ports import Clock
from tidelog.types import Buffer

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection

_TURN = 64
"""Requests handled before the loop may look at its sockets again, so that control requests need not wait long."""
_TURN_NS = 10_000_000
"""A turn that has taken this long ends after the request that is being handled."""


class Call:
    """One request on its way through the broker, and the place of its answer in its connection."""

    __slots__ = (
        "answer_bytes",
        "answered_ns",
        "api_key",
        "arrived_ns",
        "client_id",
        "connection",
        "correlation_id",
        "frame",
        "handled_ns",
        "is_done",
        "parts",
        "taken_ns",
        "version",
        "when_gone",
    )

    def __init__(self, connection: ServerConnection, frame: Buffer, api_key: int, arrived_ns: int) -> None:
        self.connection = connection
        self.frame: Buffer | None = frame
        """The bytes of the request, until it was answered or `let_go`."""
        self.api_key = api_key
        self.version = -1
        self.correlation_id = -1
        self.client_id: str | None = None
        self.arrived_ns = arrived_ns
        self.taken_ns = arrived_ns
        self.handled_ns = 0
        self.answered_ns = 0
        self.is_done = False
        self.parts: Sequence[Any] = ()
        """The answer as frames.encode_response gives it; nothing if none is to be sent."""
        self.answer_bytes = 0
        """Of the answer in memory; regions of files are not."""
        self.when_gone: Callable[[], None] | None = None
        """Called if the client goes before its answer: whoever waits for something on its behalf need not any more."""

    @property
    def client_host(self) -> str:
        return self.connection.client_host

    @property
    def listener(self) -> str:
        return self.connection.listener

    def let_go(self) -> None:
        """The bytes of the request are not needed any more, and no view of them is kept: it only waits."""
        self.connection.let_go(self)

    def answer(self, parts: Sequence[Any]) -> None:
        """Send this when all earlier answers of the connection are on their way."""
        assert not self.is_done, "a request is answered once"
        self.parts = parts
        self.is_done = True
        self.connection.answered(self)


class RequestChannel:
    """Queues requests and hands them to `handle`: control first, then one of each connection in turn.

    Requests of one connection keep their order. When `capacity` data requests wait, connections stop reading until
    there is room: nothing is dropped, nothing grows without bound (S7.4).

    Always: a connection is in the ring if and only if it `is_queued`, and `_queued` counts the requests of those.
    """

    def __init__(
        self,
        handle: Callable[[Call], None],
        capacity: int,
        control_keys: frozenset[int],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.control_keys = control_keys
        self.clock = clock
        self.capacity = capacity
        self.after_turn: list[Callable[[], None]] = []
        """Called when some requests were handled: the workers send what is ready."""
        self._handle = handle
        self._end_of_turn: deque[Callable[[], None]] = deque()
        self._control: deque[Call] = deque()
        self._ring: deque[ServerConnection] = deque()
        """Connections that have data requests to be handled; the first one is next."""
        self._queued = 0
        self._kept_out: deque[ServerConnection] = deque()
        self._scheduled = False
        self.is_serving = False
        """Answers that are ready are sent when the turn is over."""
        self._loop = asyncio.get_running_loop()
        metrics.gauge("kafka_network_request_channel_request_queue_size", lambda: self._queued)
        metrics.gauge("kafka_network_request_channel_control_queue_size", lambda: len(self._control))

    @property
    def is_full(self) -> bool:
        return self._queued >= self.capacity

    def put(self, call: Call) -> None:
        """Control requests pass data requests, but not those of their own connection."""
        connection = call.connection
        if call.api_key in self.control_keys and not connection.queue:
            self._control.append(call)
        else:
            connection.queue.append(call)
            if connection.is_queued:
                self._queued += 1
            else:
                self._enter(connection)
        if not self._scheduled and not self.is_serving:
            self._schedule()

    def put_back(self, connection: ServerConnection) -> None:
        """It was stalled and takes answers again: the requests that it left waiting are handled."""
        if connection.queue and not connection.is_queued:
            self._enter(connection)
            self._schedule()

    def put_in_front(self, connection: ServerConnection, calls: Iterable[Call]) -> None:
        """Requests that were to be handled and are not yet, before those that have come since."""
        before = len(connection.queue)
        connection.queue.extendleft(reversed(list(calls)))
        if connection.is_queued:
            self._queued += len(connection.queue) - before
        elif connection.queue and not connection.is_stalled:
            self._enter(connection)
            self._schedule()

    def _enter(self, connection: ServerConnection) -> None:
        connection.is_queued = True
        self._ring.append(connection)
        self._queued += len(connection.queue)

    def drop(self, connection: ServerConnection) -> None:
        """It is closed, so its requests are not handled."""
        if connection.is_queued:
            self._queued -= len(connection.queue)
        connection.queue.clear()

    def _schedule(self) -> None:
        if not self._scheduled and not self.is_serving:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def at_end_of_turn(self, callback: Callable[[], None]) -> None:
        """Call it when the requests that are being handled now have all been, before their answers are sent."""
        if self.is_serving:
            self._end_of_turn.append(callback)
        else:
            self._loop.call_soon(callback)

    def keep_out(self, connection: ServerConnection) -> None:
        """To be told by `resume` when there is room again."""
        if not connection.is_kept_out:
            connection.is_kept_out = True
            self._kept_out.append(connection)

    def _serve(self) -> None:
        self._scheduled = False
        self.is_serving = True
        try:
            self._serve_turn()
            self._end_turn()
            for send in self.after_turn:
                send()
        finally:
            self.is_serving = False
        if self._control or self._ring:
            self._schedule()

    def _end_turn(self) -> None:
        while self._end_of_turn:
            try:
                self._end_of_turn.popleft()()
            except Exception as failure:  # a fault of ours, and nobody else's turn
                self._loop.call_exception_handler({"message": "at the end of a turn", "exception": failure})

    def _serve_turn(self) -> None:
        control, ring, handle = self._control, self._ring, self._handle
        end_ns = self.clock.monotonic_ns() + _TURN_NS
        for _ in range(_TURN):
            if control:
                call = control.popleft()
            elif ring:
                connection = ring.popleft()
                queue = connection.queue
                if connection.is_stalled or not queue:
                    connection.is_queued = False
                    self._queued -= len(queue)
                    continue
                call = queue.popleft()
                self._queued -= 1
                if queue:
                    ring.append(connection)
                else:
                    connection.is_queued = False
            else:
                break
            try:
                handle(call)
            except Exception as failure:  # a fault of ours ends this connection and no other
                call.connection.close(f"a request failed: {failure!r}", failure)
            if call.handled_ns > end_ns:
                break
        while self._kept_out and not self.is_full:
            connection = self._kept_out.popleft()
            connection.is_kept_out = False
            connection.resume()

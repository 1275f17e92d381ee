"""The request channel: bounded queues between the network workers and the handlers (S7.1).

Everything runs on one loop. Each connection has its own queue, and the channel serves one request of each connection in
turn: a client that sends many requests ahead makes its own requests wait, not those of others.

Control requests have a small ring of their own that is served first (S7.3). Nothing proves that the controller sent
them, so two rules keep them from taking all the time. A controller waits for each answer before it sends its next
request; what a connection has sent behind a control request has no precedence. And while data requests wait, control
requests get no more than about half of the time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.metrics import Metrics
from tidelog.net.ring import Ring
from tidelog.ports import Clock
from tidelog.types import Buffer
from tidelog.wording import shown

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection
    from tidelog.net.server import NetworkWorker

_TURN = 64
"""Requests handled before the loop may look at its sockets again, so that control requests need not wait long."""
_TURN_NS = 10_000_000
"""A turn that has taken this long ends after the request that is being handled."""
_END_OF_TURN_NS = 5_000_000
"""The same for what is called at its end."""
_CONTROL_CAPACITY = 20
"""Control requests that wait, as in Kafka, before their connections are not read from."""
_AHEAD_NS = 2_000_000
"""Control requests are served first until they have taken so much more time than the data requests that wait."""
_REQUEST_NS = 50_000
"""Counts for each request beside its time: data requests get their share also by a clock that stands still."""


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
        "size_bytes",
        "taken_ns",
        "version",
        "waited_ns",
        "when_gone",
    )

    def __init__(self, connection: ServerConnection, frame: Buffer, api_key: int, arrived_ns: int) -> None:
        self.connection = connection
        self.frame: Buffer | None = frame
        """The bytes of the request, until it was answered or `let_go`."""
        self.size_bytes = len(frame)
        self.waited_ns = 0
        """For how long its handler only waited for others, before it returned."""
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
        self.when_gone: Callable[[], object] | None = None
        """Called if the client goes before its answer: whoever waits for something on its behalf need not any more."""

    @property
    def client_host(self) -> str:
        return self.connection.client_host

    @property
    def listener(self) -> str:
        return self.connection.listener

    @property
    def sender(self) -> str:
        """Who sent it, for the log."""
        return f"client {shown(self.client_id)} at {self.client_host}"

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
        self.data = Ring(capacity)
        self.control = Ring(_CONTROL_CAPACITY)
        """Connections whose first request is a control request that came when none of theirs waited."""
        self.workers: list[NetworkWorker] = []
        """When some requests were handled, they send what is ready."""
        self._handle = handle
        self._end_of_turn: deque[Callable[[], None]] = deque()
        self._ahead_ns = 0
        """By how much control requests have taken more time than data requests that waited."""
        self._scheduled = False
        self.is_serving = False
        """Answers that are ready are sent when the turn is over."""
        self._loop = asyncio.get_running_loop()
        metrics.gauge(
            "kafka_network_requestchannel_requestqueuesize",
            "Requests that wait to be handled.",
            lambda: self.data.requests,
        )
        metrics.gauge(
            "tidelog_control_request_queue_size",
            "Requests of the controller that wait to be handled.",
            lambda: self.control.requests,
        )

    def put(self, call: Call) -> None:
        """Control requests pass data requests, but not those of their own connection."""
        connection = call.connection
        connection.queue.append(call)
        if connection.is_queued:
            connection.ring.requests += 1
        else:
            (self.control if call.api_key in self.control_keys else self.data).enter(connection)
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
            connection.ring.requests += len(connection.queue) - before
        elif connection.queue and not connection.is_stalled:
            self._enter(connection)
            self._schedule()

    def _enter(self, connection: ServerConnection) -> None:
        is_control = connection.queue[0].api_key in self.control_keys
        (self.control if is_control else self.data).enter(connection)

    def drop(self, connection: ServerConnection) -> None:
        """It is closed, so its requests are not handled."""
        if connection.is_queued:
            connection.ring.requests -= len(connection.queue)
        connection.queue.clear()

    def _schedule(self) -> None:
        if not self._scheduled and not self.is_serving:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def at_end_of_turn(self, callback: Callable[[], None]) -> None:
        """Call it when the requests that are being handled now have all been, before their answers are sent.

        If none are being handled, the next turn comes soon. A turn that takes long leaves the rest to the next.
        """
        self._end_of_turn.append(callback)
        self._schedule()

    def _serve(self) -> None:
        self._scheduled = False
        self.is_serving = True
        try:
            self._serve_turn()
            if self._end_of_turn:
                self._end_turn()
            for worker in self.workers:
                if worker.ready:
                    worker.send()
        finally:
            self.is_serving = False
        if self.control.connections or self.data.connections or self._end_of_turn:
            self._schedule()

    def _end_turn(self) -> None:
        """In the order they were asked for. At least one is called, so all of them are in the end."""
        end_ns = self.clock.monotonic_ns() + _END_OF_TURN_NS
        while self._end_of_turn:
            try:
                self._end_of_turn.popleft()()
            except Exception as failure:  # a fault of ours, which must not keep the others from being called
                self._loop.call_exception_handler({"message": "at the end of a turn", "exception": failure})
            if self.clock.monotonic_ns() > end_ns:
                break

    def _serve_turn(self) -> None:
        control, data, clock, handle = self.control, self.data, self.clock, self._handle
        before_ns = clock.monotonic_ns()
        end_ns = before_ns + _TURN_NS
        for _ in range(_TURN):
            ring = data
            if control.connections and (self._ahead_ns <= _AHEAD_NS or not data.connections):
                ring = control
            elif not data.connections:
                break
            connection = ring.connections.popleft()
            queue = connection.queue
            if connection.is_stalled or not queue:
                ring.left_by(connection)
                continue
            call = queue.popleft()
            ring.requests -= 1
            if not queue:
                connection.is_queued = False
            elif ring is data:
                data.connections.append(connection)
            else:
                control.left_by(connection)
                data.enter(connection)
            try:
                handle(call)
            except Exception as failure:  # a fault of ours ends this connection and no other
                connection.close(f"a request failed: {failure!r}", failure)
            now_ns = clock.monotonic_ns()
            if ring is control or self._ahead_ns:
                self._weigh(ring is control, now_ns - before_ns + _REQUEST_NS)
            if now_ns > end_ns:
                break
            before_ns = now_ns
        if control.kept_out:
            control.let_in()
        if data.kept_out:
            data.let_in()

    def _weigh(self, is_control: bool, cost_ns: int) -> None:
        """One very long control request does not put the next ones off for more than a turn."""
        if not is_control:
            self._ahead_ns = max(0, self._ahead_ns - cost_ns)
        elif self.data.connections:
            self._ahead_ns = min(self._ahead_ns + cost_ns, _TURN_NS)
        else:
            self._ahead_ns = 0

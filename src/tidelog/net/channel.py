"""The request channel: one bounded queue between the network workers and the handlers (S7.1).

Everything runs on one loop. Control requests have a small queue of their own that is served first (S7.3).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.metrics import Metrics
from tidelog.ports import Clock
from tidelog.types import Buffer

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection

_TURN = 64
"""Requests handled before the loop may look at its sockets again, so that control requests need not wait long."""


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
        """The bytes of the request, until it was handled."""
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

    def answer(self, parts: Sequence[Any]) -> None:
        """Send this when all earlier answers of the connection are on their way."""
        assert not self.is_done, "a request is answered once"
        self.parts = parts
        self.is_done = True
        self.connection.answered(self)


class RequestChannel:
    """Queues requests and hands them to `handle`, control first, each kind in the order it came.

    When `capacity` data requests wait, connections stop reading until there is room: nothing is dropped, nothing
    grows without bound (S7.4).
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
        self._data: deque[Call] = deque()
        self._kept_out: deque[ServerConnection] = deque()
        self._scheduled = False
        self.is_serving = False
        """Answers that are ready are sent when the turn is over."""
        self._loop = asyncio.get_running_loop()
        metrics.gauge("kafka_network_request_channel_request_queue_size", lambda: len(self._data))
        metrics.gauge("kafka_network_request_channel_control_queue_size", lambda: len(self._control))

    @property
    def is_full(self) -> bool:
        return len(self._data) >= self.capacity

    def put(self, call: Call) -> None:
        """Control requests pass data requests, but not those of their own connection."""
        if call.api_key in self.control_keys and not call.connection.queued_data:
            self._control.append(call)
        else:
            call.connection.queued_data += 1
            self._data.append(call)
        self._schedule()

    def put_back(self, calls: Sequence[Call]) -> None:
        """Data requests that were set aside: their connection takes answers again. Later ones of it may wait here."""
        self._data.extendleft(reversed(calls))
        self._schedule()

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
        if self._control or self._data:
            self._schedule()

    def _end_turn(self) -> None:
        while self._end_of_turn:
            try:
                self._end_of_turn.popleft()()
            except Exception as failure:  # a fault of ours, and nobody else's turn
                self._loop.call_exception_handler({"message": "at the end of a turn", "exception": failure})

    def _serve_turn(self) -> None:
        control, data, handle = self._control, self._data, self._handle
        for _ in range(_TURN):
            if control:
                call = control.popleft()
            elif data:
                call = data.popleft()
                connection = call.connection
                if connection.is_stalled:
                    connection.set_aside(call)
                    continue
                connection.queued_data -= 1
            else:
                break
            try:
                handle(call)
            except Exception as failure:  # a fault of ours ends this connection and no other
                call.connection.close(f"a request failed: {failure!r}", failure)
        while self._kept_out and not self.is_full:
            connection = self._kept_out.popleft()
            connection.is_kept_out = False
            connection.resume()

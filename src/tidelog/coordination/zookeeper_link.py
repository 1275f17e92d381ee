"""The line to ZooKeeper: kazoo's client with its thread, made to speak to the loop.

One thread of kazoo reads the socket. All it has to say (answers, events, changes of state) reaches the loop by one
queue, the loop's own, in the order it stood on the socket: that is what lets a session be told of a change before it
can read it. kazoo's usual handler has two queues with a thread each, and so promises less.

Nothing here decides anything; `zookeeper` does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import PING_XID, STOP_CONNECTING, ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import Callback, KazooState
from kazoo.retry import KazooRetry

from tidelog.ports import Clock

_KAZOO_LOG = logging.getLogger(f"{__name__}.kazoo")
# It warns of every attempt to connect; that a session is suspended, or was not opened, is said by those who hold it.
_KAZOO_LOG.setLevel(logging.ERROR)
_log = logging.getLogger(__name__)

_RECONNECT_DELAY_S = 0.05
_LONGEST_RECONNECT_DELAY_S = 1.0
_HANDSHAKES_PER_TIMEOUT = 3
"""A server that just starts may take a connection and never answer on it, and one that is gone takes none; a session
must live to try another."""
_ANSWERED_WITH = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError, NoChildrenForEphemeralsError)
"""Errors that only a server can have found."""
_CUT_OFF = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, AuthFailedError)
"""Errors that kazoo gives to all that is unanswered, just before or after it tells of another state."""

Send = Callable[[], "Answer"]
OnArrival = Callable[["Answer"], None]


class Answer:
    """What kazoo fills in when a request is answered; `on_arrival` is then called on the loop, once.

    To be set in the turn of the loop in which the request is made: nothing arrives within a turn.
    """

    def __init__(self, handler: _LoopHandler) -> None:
        self.value: Any = None
        self.exception: Exception | None = None
        self.on_arrival: OnArrival | None = None
        self._handler = handler
        self._sent_ns = handler.clock.monotonic_ns()

    def set(self, value: Any = None) -> None:
        self.value = value
        self._handler.renew(self._sent_ns)
        self._handler.post(self._arrive)

    def set_exception(self, exception: Exception) -> None:
        self.exception = exception
        if isinstance(exception, _ANSWERED_WITH):
            self._handler.renew(self._sent_ns)
        self._handler.post(self._arrive)

    def _arrive(self) -> None:
        on_arrival, self.on_arrival = self.on_arrival, None
        if on_arrival is not None:
            on_arrival(self)


class _LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, but callbacks run on the loop and there are no worker threads."""

    def __init__(self, clock: Clock, renew: Callable[[int], None]) -> None:
        super().__init__()
        self.clock = clock
        self.renew = renew
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """There is nothing to stop."""

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def async_result(self) -> Answer:
        return Answer(self)

    def dispatch_callback(self, callback: Callback) -> None:
        self.post(callback.func, *callback.args)

    def create_connection(self, *arguments: Any, timeout: float, **options: Any) -> socket.socket:
        timeout /= _HANDSHAKES_PER_TIMEOUT
        connection: socket.socket = super().create_connection(*arguments, timeout=timeout, **options)
        self._socket = connection
        return connection

    def drop_connection(self) -> None:
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                _log.debug("the connection to ZooKeeper was gone already")


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, watched for what it does not tell: the timeout the server grants, and when pings were sent.

    It lives for one session: after that is over, no other is made.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_over = False
        self.negotiated_ms = 0
        self._pings: deque[int] = deque()
        """When those were sent that are not answered yet."""

    def _connect_loop(self, retry: KazooRetry) -> Any:
        return STOP_CONNECTING if self.is_over else super()._connect_loop(retry)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        sent_ns = self.handler.clock.monotonic_ns()
        if isinstance(request, Connect):
            self._pings.clear()
            timeout = min(timeout, request.time_out / 1e3 / _HANDSHAKES_PER_TIMEOUT)
        found = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect) and found[0].time_out > 0:
            self.negotiated_ms = found[0].time_out
            self.handler.renew(sent_ns)
        return found

    def _send_ping(self, connect_timeout: float) -> None:
        self._pings.append(self.handler.clock.monotonic_ns())
        super()._send_ping(connect_timeout)

    def _read_header(self, timeout: float) -> Any:
        found = super()._read_header(timeout)
        if found[0].xid == PING_XID:
            self.handler.renew(self._pings.popleft())
        return found


class _Client(KazooClient):  # type: ignore[misc]
    def __init__(self, hosts: str, timeout_s: float, handler: _LoopHandler) -> None:
        retry = KazooRetry(
            max_tries=-1,
            delay=_RECONNECT_DELAY_S,
            max_delay=_LONGEST_RECONNECT_DELAY_S,
            sleep_func=handler.sleep_func,
        )
        super().__init__(hosts, timeout=timeout_s, handler=handler, connection_retry=retry, logger=_KAZOO_LOG)
        self._connection = _Connection(self, self._conn_retry.copy(), logger=_KAZOO_LOG)


class Link:
    """One session's client. `on_state` gets kazoo's state and the number of the last change that was seen.

    No more than `max_in_flight` requests are with kazoo at a time: to hand it one takes a byte in a small pipe that
    nobody empties while there is no connection, and the loop must not wait for that.
    `renewed_ns` is written by kazoo's thread alone, so it is right even while the loop is busy with something else.
    """

    def __init__(
        self, hosts: str, timeout_ms: int, max_in_flight: int, clock: Clock, on_state: Callable[[str, int], None]
    ) -> None:
        self.renewed_ns = clock.monotonic_ns() - timeout_ms * 1_000_000
        """When the last request that was answered had been sent."""
        self.session_id = 0
        self._on_state = on_state
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._queued: deque[tuple[Send, OnArrival]] = deque()
        self._handler = _LoopHandler(clock, self._renew)
        self.client = _Client(hosts, timeout_ms / 1e3, self._handler)
        self.client.add_listener(self._changed)
        self._stopped: asyncio.Future[None] | None = None

    @property
    def negotiated_ms(self) -> int:
        """What the server made of the timeout that was asked for."""
        return int(self.client._connection.negotiated_ms)

    def start(self) -> None:
        self.client.start_async()

    def ask(self, send: Send, on_arrival: OnArrival) -> None:
        """Answers arrive in the order of the questions. What is unsent when the connection is lost is never sent."""
        if not self._queued and self._in_flight < self._max_in_flight:
            self._send(send, on_arrival)
        else:
            self._queued.append((send, on_arrival))

    def _send(self, send: Send, on_arrival: OnArrival) -> None:
        self._in_flight += 1
        send().on_arrival = partial(self._arrived, on_arrival)

    def _arrived(self, on_arrival: OnArrival, answer: Answer) -> None:
        self._in_flight -= 1
        on_arrival(answer)
        if self._queued and not isinstance(answer.exception, _CUT_OFF):
            self._send(*self._queued.popleft())

    def _state_arrived(self, state: str, seen_id: int) -> None:
        if state != KazooState.CONNECTED:
            self._queued.clear()
        self._on_state(state, seen_id)

    def drop(self) -> None:
        """Give this connection up, so that the next one is tried."""
        self._handler.drop_connection()

    def stop(self) -> asyncio.Future[None]:
        """Close the session if it can be reached. Done when the thread has ended."""
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
            self._handler.spawn(self._stop)
        return self._stopped

    # On kazoo's thread, or one to end it

    def _renew(self, sent_ns: int) -> None:
        self.renewed_ns = max(self.renewed_ns, sent_ns)

    def _changed(self, state: str) -> None:
        if state == KazooState.LOST:
            self.client._connection.is_over = True
        elif state == KazooState.CONNECTED:
            self.session_id = int(self.client.client_id[0])
        self._handler.post(self._state_arrived, state, self.client.last_zxid)

    def _stop(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except (KazooException, OSError) as failure:
            _log.warning("the session with ZooKeeper was not closed in order: %s", failure)
        self._handler.post(self._ended)

    def _ended(self) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

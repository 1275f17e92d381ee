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
    ConnectionDropped,
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
_LONGEST_RECONNECT_DELAY_S = 0.1
"""A broker is back within a second of ZooKeeper's return, so it may not sleep for long between two attempts."""
_LONGEST_CONNECT_S = 1.0
"""To take a connection costs a server nothing; if it does not, the network drops what is sent to it."""
_FIRST_HANDSHAKES_S = (0.2, 0.3)
_HANDSHAKES_PER_TIMEOUT = 3
"""A server that just starts may take a connection and never answer on it, or two of them. So the first two handshakes
may take this long. One that is slow needs more time, and each attempt costs it something: every further handshake may
take _MORE_PATIENT times as long as the one before, up to this part of the timeout."""
_MORE_PATIENT = 3
_MORE_PATIENT_BY_ALL = 1.4
"""Each handshake, with whichever server, takes at least so many times as long as the one before."""
_MOST_TIMES = 10
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
        timeout = min(timeout / _HANDSHAKES_PER_TIMEOUT, _LONGEST_CONNECT_S)
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
    """kazoo's connection, which tells what kazoo keeps to itself: the timeout that the server grants with each
    handshake (`on_granted`), and when pings were sent.

    It serves one session. kazoo would open another session when the server says that this one has expired; here the
    thread ends instead.
    """

    def __init__(self, *arguments: Any, on_granted: Callable[[int, int], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_over = False
        self._on_granted = on_granted
        self._pings: deque[int] = deque()
        """When the unanswered pings were sent."""
        self._server = ("", 0)
        self._is_taken = False
        """The connection to it."""
        self._unanswered: dict[tuple[str, int], int] = {}
        """Handshakes with each server, since it answered one or refused a connection."""
        self._just_started: set[tuple[str, int]] = set()
        """Servers that refused a connection before they took one."""

    def _connect_loop(self, retry: KazooRetry) -> Any:
        """kazoo alone goes on for ever if it is stopped while no host name can be resolved."""
        is_over = self.is_over or self.client._stopped.is_set()
        return STOP_CONNECTING if is_over else super()._connect_loop(retry)

    def _connect_attempt(self, *arguments: Any) -> Any:
        return STOP_CONNECTING if self.is_over else super()._connect_attempt(*arguments)

    def _connect(self, host: str, address: str, port: int) -> Any:
        self._server, self._is_taken = (address, port), False
        try:
            return super()._connect(host, address, port)
        except ConnectionDropped:
            if not self._is_taken:
                self._unanswered.pop(self._server, None)
                self._just_started.add(self._server)
            raise

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        self._pings.clear()
        sent_ns = self.handler.clock.monotonic_ns()
        found = self._shake_hands(timeout, request)
        if found[0].time_out > 0:
            self._on_granted(sent_ns, found[0].time_out)
        return found

    def _shake_hands(self, timeout: float, request: Connect) -> Any:
        """Only a server that took the connection and said nothing gets more time at the next attempt. A connection that
        was refused says that the server is away, and it may leave the first handshake after its start unanswered."""
        self._is_taken = True
        longest_s = min(timeout, self.client._session_timeout / 1e3 / _HANDSHAKES_PER_TIMEOUT)
        unanswered = self._unanswered.get(self._server, 0)
        try:
            by_all = unanswered if self._server in self._just_started else sum(self._unanswered.values())
            patience_s = _handshake_s(unanswered, by_all)
            found = super()._invoke(min(patience_s, longest_s), request)
        except self.handler.timeout_exception:
            self._unanswered[self._server] = unanswered + 1
            if unanswered >= len(_FIRST_HANDSHAKES_S):
                self._just_started.discard(self._server)
            raise
        self._unanswered.clear()
        self._just_started.clear()
        return found

    def _send_ping(self, connect_timeout: float) -> None:
        self._pings.append(self.handler.clock.monotonic_ns())
        super()._send_ping(connect_timeout)

    def _read_header(self, timeout: float) -> Any:
        found = super()._read_header(timeout)
        if found[0].xid == PING_XID:
            self.handler.renew(self._pings.popleft())
        return found


def _handshake_s(unanswered: int, unanswered_by_all: int) -> float:
    """How long a handshake may take after so many that this server did not answer, and all servers together.

    Many servers that are all slow are asked in turn, so the first ones have grown patient slowly when the last one is
    asked for the first time.
    """
    by_all_s = _FIRST_HANDSHAKES_S[0] * float(_MORE_PATIENT_BY_ALL ** min(unanswered_by_all, _MOST_TIMES))
    if unanswered < len(_FIRST_HANDSHAKES_S):
        return max(_FIRST_HANDSHAKES_S[unanswered], by_all_s)
    more = min(unanswered - len(_FIRST_HANDSHAKES_S) + 1, _MOST_TIMES)
    return max(_FIRST_HANDSHAKES_S[-1] * float(_MORE_PATIENT**more), by_all_s)


class _Client(KazooClient):  # type: ignore[misc]
    def __init__(
        self, hosts: str, timeout_s: float, handler: _LoopHandler, on_granted: Callable[[int, int], None]
    ) -> None:
        retry = KazooRetry(
            max_tries=-1,
            delay=_RECONNECT_DELAY_S,
            max_delay=_LONGEST_RECONNECT_DELAY_S,
            sleep_func=handler.sleep_func,
        )
        super().__init__(hosts, timeout=timeout_s, handler=handler, connection_retry=retry, logger=_KAZOO_LOG)
        self._connection = _Connection(self, self._conn_retry.copy(), on_granted=on_granted, logger=_KAZOO_LOG)


class Link:
    """One session's client. `on_state` gets kazoo's state and the number of the last change that was seen.

    No more than `max_in_flight` requests are with kazoo at a time: to hand it one takes a byte in a small pipe that
    nobody empties while there is no connection, and the loop must not wait for that.
    `current_until_ns` is written by kazoo's thread alone, so it is right even while the loop is busy with something
    else.
    """

    def __init__(
        self, hosts: str, timeout_ms: int, max_in_flight: int, clock: Clock, on_state: Callable[[str, int], None]
    ) -> None:
        self.current_until_ns = clock.monotonic_ns()
        """When the last answered request was sent, plus the timeout: the server ends the session later than that."""
        self.timeout_ms = timeout_ms
        """What the server granted; before it did, what is asked for."""
        self.session_id = 0
        self._on_state = on_state
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._queued: deque[tuple[Send, OnArrival]] = deque()
        self._handler = _LoopHandler(clock, self._renew)
        self.client = _Client(hosts, timeout_ms / 1e3, self._handler, self._granted)
        self.client.add_listener(self._changed)
        self._stopped: asyncio.Future[None] | None = None

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

    def _granted(self, sent_ns: int, timeout_ms: int) -> None:
        """The session is opened, or it goes on; a server that was restarted may grant another timeout than before."""
        self.timeout_ms = timeout_ms
        self.current_until_ns = sent_ns + timeout_ms * 1_000_000

    def _renew(self, sent_ns: int) -> None:
        self.current_until_ns = max(self.current_until_ns, sent_ns + self.timeout_ms * 1_000_000)

    def _changed(self, state: str) -> None:
        if state == KazooState.LOST:
            self.client._connection.is_over = True
            self.current_until_ns = 0  # the loop may hear of it much later
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

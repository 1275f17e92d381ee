"""The calling side of a connection: requests go out one after the other, answers come back in that order.

Nothing here tries again: a connection that failed stays failed, and whoever holds it opens the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections import deque
from typing import Any, cast

from tidelog import __version__
from tidelog.errors import ErrorCode, TidelogError, UnsupportedVersionError, error_code
from tidelog.net.direct import DirectWriter
from tidelog.types import Buffer
from tidelog.wire.api import API, API_VERSIONS
from tidelog.wire.frames import decode_response, encode_request
from tidelog.wire.messages.headers import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.schema import Message
from tidelog.wire.versions import Versions
from tidelog.wording import counted

DEFAULT_CONNECT_TIMEOUT_MS = 10_000
"""Kafka's socket.connection.setup.timeout.ms."""

MAX_RESPONSE_BYTES = 2**30
"""More than any broker answers; bytes of another protocol, read as a size, are mostly above it."""

_SCRATCH_BYTES = 64 * 1024
_SIZE = struct.Struct(">i")
_CORRELATION_AND_ERROR = struct.Struct(">ih")
_MAX_CORRELATION_ID = 0x7FFFFFFF
_NO_LINGER = struct.pack("ii", 1, 0)
"""SO_LINGER on, for 0 s: close resets the connection."""


class ConnectionClosedError(TidelogError):
    """The connection has ended, by either side or by the network. Whether the request was carried out is unknown."""

    code = ErrorCode.NETWORK_EXCEPTION


class CannotConnectError(ConnectionClosedError):
    """There is no connection in the first place: nobody listens, no such host, or no answer in time."""


class RequestTimedOutError(ConnectionClosedError):
    """The answer did not come in time, and that ended the connection: every later answer would come behind it."""

    code = ErrorCode.REQUEST_TIMED_OUT


class _Pending:
    """A request that waits for its answer or, if it was posted, until the network has taken it."""

    __slots__ = ("api_key", "correlation_id", "future", "timer", "version")

    def __init__(self, correlation_id: int, api_key: int, version: int, future: asyncio.Future[Any]) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.version = version
        self.future = future
        self.timer: asyncio.TimerHandle | None = None


class FrameReader(asyncio.BufferedProtocol):
    """Cuts what comes in into frames.

    Small frames are copied out of one reused buffer. A frame that has not come whole is read straight into a buffer of
    its own, so that records in a large answer are views of what the kernel wrote.
    """

    def __init__(self) -> None:
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        self._scratch_end = 0
        self._frame: memoryview | None = None
        """The frame under way, if its size is known."""
        self._frame_end = 0

    def frame_received(self, frame: Buffer) -> None:
        """A whole frame, without its size; the buffer is the receiver's."""
        raise NotImplementedError

    def bad_size(self, size: int) -> None:
        """No frame can have that size; nothing that follows is looked at."""
        raise NotImplementedError

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_end :]
        return self._scratch_view[self._scratch_end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is None:
            self._scratch_end += nbytes
            self._cut()
            return
        self._frame_end += nbytes
        if self._frame_end == len(self._frame):
            frame, self._frame = self._frame, None
            self.frame_received(frame)

    def _cut(self) -> None:
        view, start, end = self._scratch_view, 0, self._scratch_end
        while end - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(view, start)
            start += _SIZE.size
            if not _SIZE.size <= size <= MAX_RESPONSE_BYTES:
                self._scratch_end = 0
                self.bad_size(size)
                return
            if size > end - start:
                self._frame, self._frame_end = memoryview(bytearray(size)), end - start
                self._frame[: end - start] = view[start:end]
                start = end
                break
            self.frame_received(bytes(view[start : start + size]))
            start += size
        view[: end - start] = view[start:end]
        self._scratch_end = end - start


class Connection(FrameReader):
    """A connection to one broker.

    Always: answers are handed out in the order of the requests, and every future of `send` and `post` is done when the
    connection is, with ConnectionClosedError if there was no answer or the network has not taken all.
    """

    def __init__(self, host: str, port: int, client_id: str | None) -> None:
        super().__init__()
        self.host = host
        self.port = port
        self.client_id = client_id
        self.versions: dict[int, Versions] = {}
        """What the broker speaks, by API key; known after `negotiate`."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._writer: DirectWriter
        self._pending: deque[_Pending] = deque()
        self._posted: list[_Pending] = []
        """Posted requests that the network has not taken."""
        self._has_posted = False
        self._correlation_id = 0
        self._failure: ConnectionClosedError | None = None
        self._writing_paused = False
        self._drain_waiters: list[asyncio.Future[None]] = []

    @classmethod
    async def open(
        cls, host: str, port: int, *, client_id: str | None, connect_timeout_ms: float = DEFAULT_CONNECT_TIMEOUT_MS
    ) -> Connection:
        """CannotConnectError, which names the address and the cause, if it does not come about."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(lambda: cls(host, port, client_id), host, port)
        except TimeoutError as failure:
            raise CannotConnectError(
                f"{host}:{port} did not take the connection within {connect_timeout_ms:.0f} ms"
            ) from failure
        except OSError as failure:
            raise CannotConnectError(f"cannot connect to {host}:{port}: {_cause(failure)}") from failure
        return connection

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._pending)} unanswered"
        return f"<Connection {self.host}:{self.port} {state}>"

    @property
    def closed(self) -> bool:
        return self._failure is not None

    @property
    def unanswered(self) -> int:
        """How many requests wait for their answers."""
        return len(self._pending)

    # Requests

    async def negotiate(self, *, timeout_ms: float | None = None) -> dict[int, Versions]:
        """Ask what the broker speaks.

        A broker that does not know our version of the question says so in version 0, with the versions it would
        take, or none if it is old (KIP-511); then it is asked once more.
        """
        version = API[API_VERSIONS].versions.last
        request = ApiVersionsRequest(client_software_name="tidelog", client_software_version=__version__)
        response: ApiVersionsResponse = await self.call(request, version, timeout_ms=timeout_ms)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = next((entry.max_version for entry in response.api_keys if entry.api_key == API_VERSIONS), 0)
            response = await self.call(request, min(version - 1, offered), timeout_ms=timeout_ms)
        if response.error_code:
            raise UnsupportedVersionError(
                f"{self.host}:{self.port} does not tell its versions: {error_code(response.error_code).name}"
            )
        self.versions = {entry.api_key: Versions(entry.min_version, entry.max_version) for entry in response.api_keys}
        return self.versions

    def pick(self, api_key: int, wanted: Versions | None = None) -> int:
        """The highest version that the broker and we have, among the wanted ones; UnsupportedVersionError if none."""
        api = API[api_key]
        ours = api.versions if wanted is None else wanted
        theirs = self.versions.get(api_key)
        if theirs is None:
            raise UnsupportedVersionError(f"{self.host}:{self.port} does not serve {api.name}")
        version = min(ours.last, theirs.last, api.versions.last)
        if version < max(ours.first, theirs.first, api.versions.first):
            raise UnsupportedVersionError(f"{self.host}:{self.port} serves {api.name} {theirs}, wanted is {ours}")
        return version

    def send(self, request: Message, version: int, *, timeout_ms: float | None = None) -> asyncio.Future[Any]:
        """Send without waiting for answers still to come; the future is the response.

        After `timeout_ms` without an answer the connection is closed, and the future ends with RequestTimedOutError.
        Cancelling the future makes its answer unheard, and changes nothing else.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._failure is not None:
            future.set_exception(self._closed_before())
            return future
        correlation_id = self._write(request, version)
        pending = _Pending(correlation_id, request.__schema__.api_key, version, future)
        if timeout_ms is not None:
            pending.timer = self._loop.call_later(timeout_ms / 1000, self._timed_out, pending, "answer", timeout_ms)
        self._pending.append(pending)
        return future

    async def call(self, request: Message, version: int, *, timeout_ms: float | None = None) -> Any:
        """Send, and wait for the response."""
        await self.drain()
        return await self.send(request, version, timeout_ms=timeout_ms)

    def post(self, request: Message, version: int, *, timeout_ms: float | None = None) -> asyncio.Future[None]:
        """Send a request that the broker does not answer: Produce with acks=0.

        The future is done when the kernel has taken all of it, and delivers it even if this process ends. After
        `timeout_ms` the connection is closed instead, and the future ends with RequestTimedOutError.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if self._failure is not None:
            future.set_exception(self._closed_before())
            return future
        if not self._has_posted:
            assert self._transport is not None
            self._has_posted = True
            self._transport.set_write_buffer_limits(high=0)  # `resume_writing` is called when the buffer is empty
        correlation_id = self._write(request, version)
        if self._is_written_out:
            future.set_result(None)
            return future
        posted = _Pending(correlation_id, request.__schema__.api_key, version, future)
        if timeout_ms is not None:
            posted.timer = self._loop.call_later(timeout_ms / 1000, self._timed_out, posted, "take", timeout_ms)
        self._posted.append(posted)
        return future

    async def drain(self) -> None:
        """Wait while more is written than the network takes; at once if it is closed."""
        if self._writing_paused and not self.closed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """What was posted still goes out, while the loop runs; what was sent and not answered fails."""
        self._fail(ConnectionClosedError(f"the connection to {self.host}:{self.port} was closed by this side"))

    def abort(self) -> None:
        """Give up: the connection is reset, and what the network has not taken is not delivered.

        What the peer's kernel has received may still be read there, after the requests of a newer connection. If
        requests were posted, this side's kernel delivers what it has taken: their senders count on it.
        """
        self._abort(ConnectionClosedError(f"the connection to {self.host}:{self.port} was reset by this side"))

    def _write(self, request: Message, version: int) -> int:
        assert self._transport is not None
        correlation_id = self._correlation_id
        parts = encode_request(request, version, correlation_id, self.client_id)
        self._correlation_id = (correlation_id + 1) & _MAX_CORRELATION_ID
        self._writer.write(parts)
        return correlation_id

    # Answers

    def frame_received(self, frame: Buffer) -> None:
        if self._failure is not None:
            return
        (correlation_id,) = _SIZE.unpack_from(frame)
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            self._break(f"answered request {correlation_id}, which is not the one whose turn it is")
            return
        pending = self._pending[0]
        try:
            response = decode_response(pending.api_key, _version_of_answer(pending, frame), frame).response
        except TidelogError as failure:
            self._break(f"gave a malformed answer to {API[pending.api_key].name} v{pending.version}: {failure}")
            return
        self._pending.popleft()
        if pending.timer is not None:
            pending.timer.cancel()
        if not pending.future.done():
            pending.future.set_result(response)

    def bad_size(self, size: int) -> None:
        self._break(f"sent an answer of {size} bytes; it does not seem to speak Kafka's protocol without TLS")

    def _timed_out(self, pending: _Pending, verb: str, timeout_ms: float) -> None:
        told = f"did not {verb} {API[pending.api_key].name} within {timeout_ms:.0f} ms"
        self._abort(RequestTimedOutError(f"{self.host}:{self.port} {told}"))

    # The end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._writer = DirectWriter(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        cause = f"was lost: {exc}" if exc is not None else "was closed by the broker"
        requests = f" with {counted(len(self._pending), 'request')} unanswered" if self._pending else ""
        self._fail(ConnectionClosedError(f"the connection to {self.host}:{self.port} {cause}{requests}"))
        self._let_writers_go()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._let_writers_go()
        if self._posted and self._is_written_out:
            posted, self._posted = self._posted, []
            for request in posted:
                if request.timer is not None:
                    request.timer.cancel()
                if not request.future.done():
                    request.future.set_result(None)

    @property
    def _is_written_out(self) -> bool:
        """The kernel has taken all bytes. The buffer of a transport that failed is empty as well, but it is closing."""
        assert self._transport is not None
        return not self._transport.get_write_buffer_size() and not self._transport.is_closing()

    def _break(self, fault: str) -> None:
        self._abort(ConnectionClosedError(f"{self.host}:{self.port} {fault}"))

    def _abort(self, failure: ConnectionClosedError) -> None:
        """Before `_fail`, which closes in good order: a transport that is closed already takes no abort."""
        if self._failure is None and self._transport is not None:
            if not self._has_posted:
                _drop_unsent(self._transport)
            self._transport.abort()
        self._fail(failure)

    def _fail(self, failure: ConnectionClosedError) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        if self._transport is not None:
            self._transport.close()
        unfinished = [*self._pending, *self._posted]
        self._pending, self._posted = deque(), []
        for request in unfinished:
            if request.timer is not None:
                request.timer.cancel()
            if not request.future.done():
                request.future.set_exception(failure)
        self._let_writers_go()

    def _let_writers_go(self) -> None:
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _closed_before(self) -> ConnectionClosedError:
        """Raised for a request that was never sent; the failure itself may be someone else's traceback by now."""
        return ConnectionClosedError(str(self._failure))


def _drop_unsent(transport: asyncio.Transport) -> None:
    """Have the kernel reset the connection when it is closed, instead of delivering what it still holds."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):  # the connection is gone already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def _cause(failure: OSError) -> str:
    """The system's word for it; what asyncio and resolvers say instead has no positive number."""
    return os.strerror(failure.errno) if failure.errno is not None and failure.errno > 0 else str(failure)


def _version_of_answer(pending: _Pending, frame: Buffer) -> int:
    """The request's, but for an ApiVersions that the broker does not know: it is answered in version 0 (KIP-511)."""
    if pending.api_key == API_VERSIONS and len(frame) >= _CORRELATION_AND_ERROR.size:
        _, error_code = _CORRELATION_AND_ERROR.unpack_from(frame)
        if error_code == ErrorCode.UNSUPPORTED_VERSION:
            return 0
    return pending.version

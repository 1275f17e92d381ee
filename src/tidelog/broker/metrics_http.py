"""HTTP on a port of its own: GET /metrics for Prometheus, /healthz and /readyz for whoever watches processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from tidelog.broker.pacing import Pace, SlowLane
from tidelog.metrics import Metrics

_log = logging.getLogger(__name__)

_MAX_REQUEST_BYTES = 8192
_PATIENCE_S = 30.0
"""Within it a request is there and its answer taken, or the connection ends."""
_MOST_CONNECTIONS = 100
"""They take file descriptors, which the logs and the brokers' clients need: one more, and the oldest of them ends."""
_MOST_UNTAKEN = 10
"""Answers that clients have not taken yet: one more, and the oldest of these connections ends."""
_COST_OF_PIECE = 250
"""Elements of a slice: a gauge may have to look at many things."""
_METRICS, _HEALTH, _READY = b"/metrics", b"/healthz", b"/readyz"


class Pages:
    """What is answered. Those who ask for the metrics while the page is being made get the same page: each takes
    memory and time, and anybody may ask."""

    def __init__(
        self,
        metrics: Metrics,
        lane: SlowLane,
        why_not_ready: Callable[[], str],
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        self._metrics = metrics
        self._lane = lane
        self.why_not_ready = why_not_ready
        """In one line; empty if the broker is ready."""
        self._prepare = prepare
        """Asks others for what the page needs of them."""
        self._making: asyncio.Task[bytes] | None = None
        self._server: asyncio.Server | None = None
        self._open: dict[_Connection, None] = {}
        self._untaken: dict[_Connection, None] = {}

    async def listen(self, host: str, port: int) -> int:
        """The port, which is another one if 0 was asked for."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def opened(self, connection: _Connection) -> None:
        self._open[connection] = None
        if len(self._open) > _MOST_CONNECTIONS:
            next(iter(self._open)).abort()

    def sent(self, connection: _Connection) -> None:
        """Its answer is on its way. A page may be large, so few are held for those who do not take them."""
        self._untaken[connection] = None
        if len(self._untaken) > _MOST_UNTAKEN:
            next(iter(self._untaken)).abort()

    def gone(self, connection: _Connection) -> None:
        """It has its answer, or has given up."""
        self._open.pop(connection, None)
        self._untaken.pop(connection, None)

    async def metrics(self) -> bytes:
        """Goes on for the others if one of those who wait for it goes."""
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make())
        return await asyncio.shield(self._making)

    async def _make(self) -> bytes:
        """In slices: with thousands of partitions the page takes long to make."""
        await self._prepare()
        pace, page = Pace(self._lane), []
        for lines in self._metrics.pieces():
            if lines:
                page.append(("\n".join(lines) + "\n").encode(errors="replace"))
            await pace.spend(_COST_OF_PIECE)
        return b"".join(page)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)


class _Connection(asyncio.Protocol):
    """Answers one request and closes."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._task: asyncio.Task[None] | None = None
        self._request = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._transport.abort)
        self._pages.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._pages.gone(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._request += data
        if b"\r\n\r\n" in self._request or b"\n\n" in self._request:
            self._answer()
        elif len(self._request) > _MAX_REQUEST_BYTES:
            self._transport.abort()

    def _answer(self) -> None:
        method, _, rest = self._request.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            self._send(method, "405 Method Not Allowed", b"only GET and HEAD\n")
        elif path in (_METRICS, b"/"):
            self._transport.pause_reading()  # what comes behind a request is not looked at, so it is not kept
            self._task = asyncio.create_task(self._send_metrics(method))
        elif path == _HEALTH:
            self._send(method, "200 OK", b"ok\n")
        elif path == _READY:
            self._send_readiness(method)
        else:
            self._send(method, "404 Not Found", b"there are /metrics, /healthz and /readyz\n")

    def _send(self, method: bytes, status: str, content: bytes) -> None:
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        ).encode()
        self._transport.write(head)
        if method != b"HEAD":
            self._transport.write(content)
        self._pages.sent(self)
        self._transport.close()

    def abort(self) -> None:
        self._pages.gone(self)
        self._transport.abort()

    def _send_readiness(self, method: bytes) -> None:
        reason = self._pages.why_not_ready()
        if reason:
            self._send(method, "503 Service Unavailable", f"{reason}\n".encode(errors="replace"))
        else:
            self._send(method, "200 OK", b"ok\n")

    async def _send_metrics(self, method: bytes) -> None:
        try:
            page = await self._pages.metrics()
        except Exception as failure:  # a gauge of something that is not there yet, or no longer
            _log.warning("the metrics cannot be read: %r", failure)
            self._send(method, "503 Service Unavailable", f"{failure!r}\n".encode(errors="replace"))
            return
        self._send(method, "200 OK", page)

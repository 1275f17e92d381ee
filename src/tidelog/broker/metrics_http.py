"""The metrics for Prometheus: GET /metrics on a port of its own."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from tidelog.broker.pacing import Pace, SlowLane
from tidelog.metrics import Metrics

_log = logging.getLogger(__name__)

_MAX_REQUEST_BYTES = 8192
_PATIENCE_S = 30.0
"""Within it a request is there and its answer taken, or the connection ends."""
_COST_OF_FAMILY = 250
"""Elements of a slice: a gauge may have to look at all partitions."""


class MetricsPage(asyncio.Protocol):
    """Answers one request and closes."""

    def __init__(self, metrics: Metrics, lane: SlowLane) -> None:
        self._metrics = metrics
        self._lane = lane
        self._task: asyncio.Task[None] | None = None
        self._request = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._request += data
        if self._task is not None:
            return
        if b"\r\n\r\n" in self._request or b"\n\n" in self._request:
            self._answer()
        elif len(self._request) > _MAX_REQUEST_BYTES:
            self._transport.abort()

    def _answer(self) -> None:
        method, _, rest = self._request.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            self._send(method, "405 Method Not Allowed", "only GET\n")
        elif path in (b"/metrics", b"/"):
            self._task = asyncio.ensure_future(self._send_page(method))
        else:
            self._send(method, "404 Not Found", "there is only /metrics\n")

    def _send(self, method: bytes, status: str, body: str) -> None:
        content = body.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        ).encode()
        self._transport.write(head if method == b"HEAD" else head + content)
        self._transport.close()

    async def _send_page(self, method: bytes) -> None:
        """In slices: with thousands of partitions the page takes long to make."""
        pace, page = Pace(self._lane), []
        try:
            for lines in self._metrics.families():
                page += lines
                await pace.spend(max(len(lines), _COST_OF_FAMILY))
        except Exception as failure:  # a gauge of something that is not there yet, or no longer
            _log.warning("the metrics cannot be read: %r", failure)
            self._send(method, "503 Service Unavailable", f"{failure!r}\n")
            return
        self._send(method, "200 OK", "\n".join(page) + "\n")


async def serve_metrics(metrics: Metrics, lane: SlowLane, host: str, port: int) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(lambda: MetricsPage(metrics, lane), host, port)

"""The metrics for Prometheus: GET /metrics on a port of its own."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from tidelog.metrics import Metrics

_log = logging.getLogger(__name__)

_MAX_REQUEST_BYTES = 8192
_PATIENCE_S = 30.0
"""Within it a request is there and its answer taken, or the connection ends."""


class MetricsPage(asyncio.Protocol):
    """Answers one request and closes."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._request = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()

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
            status, body = "405 Method Not Allowed", "only GET\n"
        elif path in (b"/metrics", b"/"):
            status, body = self._page()
        else:
            status, body = "404 Not Found", "there is only /metrics\n"
        content = body.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        ).encode()
        self._transport.write(head if method == b"HEAD" else head + content)
        self._transport.close()

    def _page(self) -> tuple[str, str]:
        try:
            return "200 OK", self._metrics.text()
        except Exception as failure:  # a gauge of something that is not there yet, or no longer
            _log.warning("the metrics cannot be read: %r", failure)
            return "503 Service Unavailable", f"{failure!r}\n"


async def serve_metrics(metrics: Metrics, host: str, port: int) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(lambda: MetricsPage(metrics), host, port)

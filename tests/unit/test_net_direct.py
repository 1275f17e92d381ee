"""A writer that goes past asyncio's transport: what it leaves to it behaves alike on every Python."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog.net.direct import DirectWriter

PAGE = bytes(4096)


class _Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.paused = False
        self.lost = asyncio.get_running_loop().create_future()

    def pause_writing(self) -> None:
        self.paused = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@asynccontextmanager
async def _connected() -> AsyncIterator[tuple[asyncio.Transport, _Client, socket.socket]]:
    """A transport of asyncio, and the other end, which reads nothing."""
    ours, theirs = socket.socketpair()
    transport, client = await asyncio.get_running_loop().create_connection(_Client, sock=ours)
    with theirs:
        try:
            yield transport, client, theirs
        finally:
            transport.abort()
            await client.lost


def test_a_write_to_a_transport_that_was_closed_is_dropped() -> None:
    async def story() -> None:
        async with _connected() as (transport, client, theirs):
            writer = DirectWriter(transport)
            transport.close()
            writer.write([b"too ", b"late"])
            assert await client.lost is None
            writer.write([b"too ", b"late"])
            assert theirs.recv(100) == b""

    asyncio.run(story())


def test_the_transport_tells_to_stop_when_many_buffers_wait() -> None:
    async def story() -> None:
        async with _connected() as (transport, client, _):
            writer = DirectWriter(transport)
            while writer.is_direct:
                writer.write([PAGE])
            for _ in range(100):
                writer.write([PAGE, PAGE])
            assert client.paused

    asyncio.run(story())

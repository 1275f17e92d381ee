"""Writing to a transport's socket itself while the transport holds nothing back.

The way through the transport costs as much as all the rest of a small request, and a turn of the loop.
"""

from __future__ import annotations

import asyncio
import os

from tidelog.types import Buffer

_MOST_BUFFERS = 512
_NO_SOCKET = -1
_ASYNCIO = "asyncio.selector_events"
"""Its transports got a `writelines` of their own in Python 3.12. It fails once the transport is closing, and early
versions never tell the writer to stop. So the buffers are joined, as Python 3.11 does."""


class DirectWriter:
    """In the order of the calls; what the socket does not take is left with the transport, which tells when to stop."""

    __slots__ = ("_joins", "_transport", "socket")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._joins = type(transport).__module__ == _ASYNCIO
        socket = transport.get_extra_info("socket")
        self.socket: int = _NO_SOCKET if socket is None else socket.fileno()

    @property
    def is_direct(self) -> bool:
        """Whether bytes written to the socket itself come next. One that is closing may be another's socket soon."""
        transport = self._transport
        return self.socket >= 0 and not transport.is_closing() and not transport.get_write_buffer_size()

    def write(self, buffers: list[Buffer]) -> None:
        if not self.is_direct or len(buffers) > _MOST_BUFFERS:
            if self._joins:
                self._transport.write(b"".join(buffers))
            else:
                self._transport.writelines(buffers)
            return
        try:
            sent = os.writev(self.socket, buffers)
        except OSError:
            sent = 0  # full, or broken: the transport finds out
        for buffer in buffers:
            if sent < len(buffer):
                self._transport.write(memoryview(buffer)[sent:])
            sent = max(sent - len(buffer), 0)

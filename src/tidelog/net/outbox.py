"""What a connection still has to send: bytes, and regions of files that are read only as the client takes them.

A client that stops reading therefore costs one slice, however much it asked for.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from tidelog.errors import TidelogError
from tidelog.types import Buffer

SLICE_BYTES = 128 * 1024
"""What is read at once, and so about what a stalled client costs; larger ones are no faster."""
_DIRECT_BYTES = 512 * 1024
"""What is sent at once where it need not be read."""
_WAITING_BYTES = 32 * 1024
"""What is left with the transport when the socket takes no more."""
HIGH_WATER_BYTES = 16 * 1024
"""Above it the transport says stop. Below a slice, so that a slice is sent at once or makes us wait."""
_MOST_BUFFERS = 512
_NO_SOCKET = -1
_IN_MEMORY = (bytes, bytearray, memoryview)
_TURN_BYTES = 2 * 1024 * 1024
"""Sent to one connection before the others have their turn."""


class RegionGoneError(TidelogError):
    """A region that was promised cannot be read any more; the connection has to end."""


class Region(Protocol):
    """Bytes in a file that an answer announces by their number, and that are read when they are sent."""

    def __len__(self) -> int: ...

    def read_now(self, start: int, size: int) -> Buffer | None:
        """None if that would have to wait for the device; RegionGoneError if they are not there any more."""
        ...

    def send_now(self, socket: int, start: int, size: int) -> int | None:
        """Straight into a socket without copying: how much it took; None if these have to be read and written."""
        ...

    async def read(self, start: int, size: int) -> Buffer: ...


class Outbox:
    """Sends parts in order through one transport, as fast as that takes them and no faster.

    `on_failure` hears why the rest cannot be sent; `on_empty` is told when the last of it went by itself, later than
    the `push` or `resume` that asked for it.
    """

    __slots__ = ("_is_reading", "_offset", "_on_empty", "_on_failure", "_parts", "_socket", "_transport", "is_paused")

    def __init__(
        self, transport: asyncio.Transport, on_failure: Callable[[str], None], on_empty: Callable[[], None]
    ) -> None:
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._transport = transport
        socket = transport.get_extra_info("socket")
        self._socket: int = _NO_SOCKET if socket is None else socket.fileno()
        """To write to while the transport holds nothing back: the way through it costs as much as the rest."""
        self._on_failure = on_failure
        self._on_empty = on_empty
        self._parts: deque[Any] = deque()
        self._offset = 0
        """How much of the first part, a region, is already sent."""
        self.is_paused = False
        self._is_reading = False

    @property
    def is_empty(self) -> bool:
        return not self._parts and not self.is_paused

    def put(self, parts: Iterable[Any]) -> None:
        """`push` sends them."""
        self._parts.extend(parts)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.push()

    def drop(self) -> None:
        """The client is gone."""
        self._parts.clear()
        self.is_paused = True

    def push(self) -> None:
        """Give the transport what it takes now; the rest waits for `resume`, or for its turn."""
        parts, sent = self._parts, 0
        while parts and not self.is_paused and not self._is_reading:
            if sent >= _TURN_BYTES:
                self._is_reading = True  # so that nobody else sends meanwhile
                asyncio.get_running_loop().call_soon(self._go_on, None)
                return
            if isinstance(parts[0], _IN_MEMORY):
                gathered: list[Buffer] = [parts.popleft()]
                while parts and isinstance(parts[0], _IN_MEMORY):
                    gathered.append(parts.popleft())
                self._write(gathered)
            else:
                sent += self._push_slice(parts[0])

    @property
    def _is_direct(self) -> bool:
        """Whether bytes written to the socket itself come next. One that is closing may be another's socket soon."""
        transport = self._transport
        return self._socket >= 0 and not transport.is_closing() and not transport.get_write_buffer_size()

    def _write(self, buffers: list[Buffer]) -> None:
        if not self._is_direct or len(buffers) > _MOST_BUFFERS:
            self._transport.writelines(buffers)
            return
        try:
            sent = os.writev(self._socket, buffers)
        except OSError:
            sent = 0  # full, or broken: the transport finds out
        for buffer in buffers:
            if sent < len(buffer):
                self._transport.write(memoryview(buffer)[sent:])
            sent = max(sent - len(buffer), 0)

    def _push_slice(self, region: Region) -> int:
        left = len(region) - self._offset
        size = min(left, SLICE_BYTES)
        try:
            if self._is_direct:
                sent = region.send_now(self._socket, self._offset, min(left, _DIRECT_BYTES))
                if sent:
                    self._sent(region, sent)
                    return sent
                if sent == 0:
                    size = min(size, _WAITING_BYTES)  # it is full: leave some with the transport, which tells when not
            data = region.read_now(self._offset, size)
        except TidelogError as failure:
            self._on_failure(f"an answer cannot be read: {failure}")
            return 0
        if data is None:
            self._is_reading = True
            asyncio.ensure_future(region.read(self._offset, size)).add_done_callback(self._read_later)
            return 0
        self._send_slice(region, data)
        return size

    def _sent(self, region: Region, size: int) -> None:
        self._offset += size
        if self._offset == len(region):
            self._parts.popleft()
            self._offset = 0

    def _send_slice(self, region: Region, data: Buffer) -> None:
        self._sent(region, len(data))
        self._transport.write(data)

    def _read_later(self, reading: asyncio.Future[Buffer]) -> None:
        failure = asyncio.CancelledError("given up") if reading.cancelled() else reading.exception()
        if failure is not None:
            self._on_failure(f"an answer cannot be read: {failure}")
        elif self._parts:
            self._go_on(reading.result())

    def _go_on(self, data: Buffer | None) -> None:
        self._is_reading = False
        if data is not None:
            self._send_slice(self._parts[0], data)
        self.push()
        if self.is_empty:
            self._on_empty()

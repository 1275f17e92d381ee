"""What a connection still has to send: bytes, and regions of files that are read only as the client takes them.

A client that stops reading therefore costs one slice, however much it asked for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sized
from typing import Any, Protocol

from tidelog.errors import TidelogError
from tidelog.net.direct import DirectWriter
from tidelog.types import Buffer

SLICE_BYTES = 128 * 1024
"""What is read at once, and so about what a stalled client costs; larger ones are no faster."""
_DIRECT_BYTES = 512 * 1024
"""What is sent at once where it need not be read."""
_SMALL_BYTES = 16 * 1024
"""Regions up to this are copied: that costs less than a write of their own."""
_WAITING_BYTES = 32 * 1024
"""What is left with the transport when the socket takes no more."""
HIGH_WATER_BYTES = 16 * 1024
"""Above it the transport says stop. Below a slice, so that a slice is sent at once or makes us wait."""
_IN_MEMORY = (bytes, bytearray, memoryview)
_TURN_BYTES = 2 * 1024 * 1024
"""Sent to one connection before the others have their turn."""
_GATHERED_BYTES = 512 * 1024
"""The most bytes in memory that go with one write. What the socket does not take of them is copied by the transport."""


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

    __slots__ = ("_is_reading", "_offset", "_on_empty", "_on_failure", "_parts", "_transport", "_writer", "is_paused")

    def __init__(
        self, transport: asyncio.Transport, on_failure: Callable[[str], None], on_empty: Callable[[], None]
    ) -> None:
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._transport = transport
        self._writer = DirectWriter(transport)
        self._on_failure = on_failure
        self._on_empty = on_empty
        self._parts: deque[Any] = deque()
        self._offset = 0
        """How much of the first part, a region or bytes that are too many for one write, is already sent."""
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
            gathered = self._gather()
            if gathered:
                self._writer.write(gathered)
                if not parts:
                    return  # as after most answers
                sent += sum(map(len, gathered))
            elif parts:
                sent += self._push_slice(parts[0])

    def _gather(self) -> list[Buffer]:
        """What goes with one write: bytes, and small regions between them.

        An answer with little in it would else be sent in three pieces, and the client woken for each.
        """
        parts, gathered, read, room = self._parts, [], 0, _GATHERED_BYTES
        while parts and read < SLICE_BYTES and room > 0:
            part = parts[0]
            if isinstance(part, _IN_MEMORY):
                if self._offset or len(part) > room:
                    part = memoryview(part)[self._offset : self._offset + room]
                    self._sent(parts[0], len(part))
                else:
                    parts.popleft()
                room -= len(part)
            else:
                if self._offset or len(part) > _SMALL_BYTES:
                    break
                try:
                    part = part.read_now(0, len(part))
                except TidelogError as failure:
                    self._on_failure(f"an answer cannot be read: {failure}")
                    return []
                if part is None:
                    break
                read += len(part)
                parts.popleft()
            gathered.append(part)
        return gathered

    def _push_slice(self, region: Region) -> int:
        left = len(region) - self._offset
        size = min(left, SLICE_BYTES)
        try:
            if self._writer.is_direct:
                sent = region.send_now(self._writer.socket, self._offset, min(left, _DIRECT_BYTES))
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
            asyncio.create_task(region.read(self._offset, size)).add_done_callback(self._read_later)
            return 0
        self._send_slice(region, data)
        return size

    def _sent(self, first: Sized, size: int) -> None:
        """So much more of the first part."""
        self._offset += size
        if self._offset == len(first):
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

"""One end of a simulated connection, as asyncio's protocols know transports."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Iterable
from contextvars import Context
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from tidelog.lab.link import Link
from tidelog.lab.process import KERNEL, SimProcess
from tidelog.types import Buffer

if TYPE_CHECKING:
    from tidelog.lab.network import SimNetwork

Address: TypeAlias = tuple[str, int]

_WINDOW_BYTES = 256 * 1024
"""How much may be under way or unread at the other end; the rest waits here and counts as write buffer."""
_HIGH_WATER_BYTES = 64 * 1024


class Signal(Enum):
    """What travels besides bytes."""

    FIN = "fin"
    RESET = "reset"


class SimTransport(asyncio.Transport):
    """What one process holds of a connection, and the bytes on their way from it.

    Always: what the other end gets is a prefix of what was written here, in order. Segments under way wait
    in one queue and each arrival takes the first, so no jitter and no healed cut can change their order. Bytes of
    different connections have no order among each other, and what is under way when this end closes may come late.
    """

    peer: SimTransport

    def __init__(
        self, network: SimNetwork, process: SimProcess, context: Context, local: Address, remote: Address, link: Link
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.process = process
        self.label = f"{local[0]}:{local[1]}>{remote[0]}:{remote[1]}"
        self._network = network
        self._loop = network.loop
        self.context = context
        self._link = link
        self._protocol: asyncio.BaseProtocol | None = None
        self.gone = False
        """This end is no more: closed, reset, or its process died."""
        self._closing = False
        # Sending
        self._unsent: deque[bytes | memoryview] = deque()
        self._unsent_bytes = 0
        self._window_used = 0
        self._under_way: deque[bytes | Signal] = deque()
        self._last_arrival = 0.0
        self._stalled_arrivals = 0
        self._lateness_s = 0.0
        """Of all that is under way since this end is gone."""
        self._eof_written = False
        self._fin_sent = False
        self._writing_paused = False
        self._high_water = _HIGH_WATER_BYTES
        self._low_water = _HIGH_WATER_BYTES // 4
        # Receiving
        self._received: deque[bytes | Signal] = deque()
        self._reading_paused = False

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """The process has taken the connection: from now on the protocol hears of it."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._feed()

    # Writing

    def write(self, data: Buffer) -> None:
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._pump()
        if self._unsent_bytes > self._high_water and not self._writing_paused and self._protocol is not None:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._closing and not self._eof_written:
            self._eof_written = True
            self._pump()

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_water = high if high is not None else (_HIGH_WATER_BYTES if low is None else 4 * low)
        self._low_water = low if low is not None else self._high_water // 4
        if not self._high_water >= self._low_water >= 0:
            raise ValueError(f"high ({self._high_water!r}) must be >= low ({self._low_water!r}) must be >= 0")

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_water, self._high_water

    # Reading

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused and not self._closing:
            self._reading_paused = False
            self._loop.call_soon(self._feed, context=self.context)

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    # Ending

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """What was written still goes out; what comes in is no longer wanted."""
        if not self._closing:
            self._closing = True
            self._pump()

    def abort(self) -> None:
        if not self.gone:
            self._launch(Signal.RESET)
            self._lose(None)

    def reset(self) -> None:
        """As if the network had torn the connection: both ends hear of it, each in its own time."""
        self._lose(_reset_error(self.label))

    def die(self, *, silently: bool) -> None:
        """The process is dead, so nobody here is told. Its kernel says goodbye, unless the power is gone too."""
        if self.gone:
            return
        self._forget()
        if not silently and not self._fin_sent:
            self._launch(Signal.FIN)

    def stalled_bytes_go_on(self) -> None:
        """The link is whole again."""
        count, self._stalled_arrivals = self._stalled_arrivals, 0
        for _ in range(count):
            self._schedule_arrival(0)

    # On the way there

    def _pump(self) -> None:
        """Send as much as the window takes; then, if that was all, what was asked for after it."""
        while self._unsent and self._window_used < _WINDOW_BYTES:
            data = self._unsent.popleft()
            count = self._link.split_point(min(len(data), _WINDOW_BYTES - self._window_used))
            if count < len(data):
                self._unsent.appendleft(memoryview(data)[count:])
            self._unsent_bytes -= count
            self._window_used += count
            self._launch(bytes(data[:count]))
        if self._writing_paused and self._unsent_bytes <= self._low_water:
            self._writing_paused = False
            self._loop.call_soon(self._resume_writing, context=self.context)
        if self._unsent or self.gone:
            return
        if (self._eof_written or self._closing) and not self._fin_sent:
            self._fin_sent = True
            self._launch(Signal.FIN)
        if self._closing:
            self._lose(None)

    def _launch(self, segment: bytes | Signal) -> None:
        self._under_way.append(segment)
        self._schedule_arrival(len(segment) if isinstance(segment, bytes) else 0)

    def _schedule_arrival(self, size: int) -> None:
        when = self._link.arrival_time(self._loop.time(), size)
        self._last_arrival = max(when, self._last_arrival)
        self._loop.call_at(self._last_arrival, self._arrive, context=KERNEL)

    def _arrive(self, *, late: bool = False) -> None:
        if self._link.is_cut:
            self._stalled_arrivals += 1
        elif self._lateness_s and not late:
            self._loop.call_later(self._lateness_s, partial(self._arrive, late=True), context=KERNEL)
        elif self._under_way:
            self.peer._receive(self._under_way.popleft())

    # At the other end

    def _receive(self, segment: bytes | Signal) -> None:
        if self.gone:
            if isinstance(segment, bytes) and self._network.is_up(self.process.host):
                self._launch(Signal.RESET)
            return
        if segment is Signal.RESET:
            self._loop.note("net", self.peer.label, "reset")
            self._lose(_reset_error(self.label))
            return
        self._loop.note("net", self.peer.label, len(segment) if isinstance(segment, bytes) else "fin")
        self._received.append(segment)
        if self.process.frozen:
            self._loop.call_soon(self._feed, context=self.context)
        else:
            self.context.run(self._feed)

    def _feed(self) -> None:
        """Hand to the protocol what has come in, for as long as it wants it."""
        while self._received and not self._reading_paused and not self._closing and self._protocol is not None:
            segment = self._received.popleft()
            if isinstance(segment, bytes):
                rest = self._deliver(segment)
                if rest:
                    self._received.appendleft(rest)
                self.peer._window_opens(len(segment) - len(rest))
            elif not self._protocol.eof_received():  # type: ignore[attr-defined]
                self.close()

    def _deliver(self, data: bytes) -> bytes:
        """What the protocol did not want any more: it may say stop between two buffers."""
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)  # type: ignore[union-attr]
            return b""
        rest = memoryview(data)
        while rest and not self._closing and not self._reading_paused:
            buffer: memoryview = memoryview(protocol.get_buffer(len(rest)))
            count = min(len(buffer), len(rest))
            if not count:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:count] = rest[:count]
            rest = rest[count:]
            del buffer  # a protocol may resize its buffer once it is told of the bytes
            protocol.buffer_updated(count)
            protocol = self._protocol
            assert isinstance(protocol, asyncio.BufferedProtocol)
        return b"" if self._closing else bytes(rest)

    def _window_opens(self, size: int) -> None:
        self._window_used -= size
        if self._unsent:
            self._pump()

    def _resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def _lose(self, cause: Exception | None) -> None:
        if not self.gone:
            self._forget()
            self._loop.call_soon(self._tell_lost, cause, context=self.context)

    def _forget(self) -> None:
        self.gone = self._closing = True
        if any(isinstance(segment, bytes) for segment in self._under_way):
            self._lateness_s = self._link.lateness_s()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._received.clear()
        self._network.end_gone(self)

    def _tell_lost(self, cause: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(cause)


def _reset_error(label: str) -> Exception:
    return ConnectionResetError(errno.ECONNRESET, f"{os.strerror(errno.ECONNRESET)} ({label})")

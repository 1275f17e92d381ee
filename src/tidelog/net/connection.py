"""One client's connection: bytes in, requests out, answers back in their order.

A large request is read straight into a buffer of its own; small ones share a chunk that is never written over, so
that views of either may be kept as long as they are needed.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, cast

from tidelog.net.buffers import blank
from tidelog.net.channel import Call, RequestChannel
from tidelog.net.outbox import Outbox

if TYPE_CHECKING:
    from tidelog.net.server import NetworkWorker

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 16 * 1024
_ROOM_BYTES = 2 * 1024
"""Less than this left in a chunk, and the next read gets a new one."""
_SIZE = struct.Struct(">i")
_SIZE_AND_KEY = struct.Struct(">ih")
_MAX_UNANSWERED = 256
_MAX_UNANSWERED_BYTES = 64 * 1024 * 1024
_MAX_UNSENT_BYTES = 1024 * 1024
_MAX_REASON = 500
_NOTHING = memoryview(bytearray())


class ServerConnection(asyncio.BufferedProtocol):
    """Answers leave in the order of their requests (S7.4); requests are handled without waiting for earlier answers.

    Reading stops while the channel is full, while too many answers are owed, or too many bytes wait to be answered or
    to be sent. So a client costs at most that much, whatever it asks for and however little it takes.
    """

    def __init__(self, worker: NetworkWorker, listener: str, channel: RequestChannel, max_request_bytes: int) -> None:
        self.listener = listener
        self.client_host = ""
        self.queued_data = 0
        """Requests of this connection in the data queue."""
        self.last_active_ns = 0
        """When something was last read from it or taken by it."""
        self.is_closed = False
        self.is_kept_out = False
        """The channel was full and will say when it is not."""
        self.is_stalled = False
        """Too many bytes of answers wait here; its requests wait aside until they are gone."""
        self._worker = worker
        self._channel = channel
        self._max_request_bytes = max_request_bytes
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self._owed: deque[Call] = deque()
        """Calls in the order they came; the first may wait for its answer while later ones have theirs."""
        self._aside: list[Call] = []
        self._unanswered_bytes = 0
        self._unsent = 0
        self._unsent_bytes = 0
        """Answers, and their bytes in memory, since the outbox was last empty."""
        self._held_bytes = 0
        """Of answers that wait for earlier ones, or for the outbox."""
        self._is_reading = True
        self._chunk = memoryview(blank(_CHUNK_BYTES))
        self._start = 0
        self._end = 0
        """What was read into the chunk and is not yet cut lies between them."""
        self._body: memoryview | None = None
        self._body_end = 0

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._outbox = Outbox(self._transport, self.close, self._settle)
        peer = transport.get_extra_info("peername")
        self.client_host = peer[0] if peer else "unknown"
        self.last_active_ns = self._channel.clock.monotonic_ns()
        self._worker.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return self._body[self._body_end :]
        if len(self._chunk) - self._end < _ROOM_BYTES:
            self._new_chunk()
        return self._chunk[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        body = self._body
        if body is None:
            self._end += nbytes
            self._cut()
            return
        self._body_end += nbytes
        if self._body_end == len(body):
            self._body = None
            self._take(body)
            self._cut()
        else:
            self.last_active_ns = self._channel.clock.monotonic_ns()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._drop()
        del self._outbox  # it knows this connection: without the circle both go now, and not when cycles are looked for
        self._worker.closed(self)

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()
        self.send_ready()

    # Requests

    def _new_chunk(self) -> None:
        """What was not cut yet moves along; what was cut stays where it is, for whoever looks at it."""
        rest = self._chunk[self._start : self._end]
        chunk = memoryview(blank(_CHUNK_BYTES))
        chunk[: len(rest)] = rest
        self._chunk, self._start, self._end = chunk, 0, len(rest)

    def _cut(self) -> None:
        """Cut whole requests off what was read, as long as they are welcome."""
        while self._is_reading and not self.is_closed:
            have = self._end - self._start
            if have < _SIZE.size:
                break
            (size,) = _SIZE.unpack_from(self._chunk, self._start)
            if not _SIZE_AND_KEY.size - _SIZE.size < size <= self._max_request_bytes:
                self.close(
                    f"a request of {size} bytes; allowed are up to socket.request.max.bytes = {self._max_request_bytes}"
                )
                break
            start = self._start + _SIZE.size
            if have - _SIZE.size >= size:
                self._start = start + size
                self._take(self._chunk[start : self._start])
            else:
                if size > _CHUNK_BYTES - _ROOM_BYTES:
                    self._begin_body(size, start)
                break

    def _begin_body(self, size: int, start: int) -> None:
        try:
            body = memoryview(blank(size))
        except MemoryError:
            self.close(f"no memory for a request of {size} bytes; socket.request.max.bytes may be too large")
            return
        have = self._end - start
        body[:have] = self._chunk[start : self._end]
        self._start = self._end
        self._body, self._body_end = body, have

    def _take(self, frame: memoryview) -> None:
        now_ns = self._channel.clock.monotonic_ns()
        self.last_active_ns = now_ns
        self._unanswered_bytes += len(frame)
        call = Call(self, frame, int.from_bytes(frame[:2], "big", signed=True), now_ns)
        self._owed.append(call)
        self._channel.put(call)
        if self.queued_data and self._channel.is_full:
            self._pause_reading()
            self._channel.keep_out(self)
        elif self._owes_too_much:
            self._pause_reading()

    def set_aside(self, call: Call) -> None:
        """Not now: its answer would only add to those that the client does not take."""
        self._aside.append(call)

    @property
    def _owes_too_much(self) -> bool:
        return (
            len(self._owed) + self._unsent >= _MAX_UNANSWERED
            or self._unanswered_bytes >= _MAX_UNANSWERED_BYTES
            or self.is_stalled
        )

    def _pause_reading(self) -> None:
        if self._is_reading and not self.is_closed:
            self._is_reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on, unless there is another reason not to."""
        if self._is_reading or self.is_closed or self._owes_too_much:
            return
        if self._channel.is_full:
            self._channel.keep_out(self)
            return
        self._is_reading = True
        self._cut()
        if self._is_reading and not self.is_closed:
            self._transport.resume_reading()

    # Answers

    def answered(self, call: Call) -> None:
        if call.frame is not None:
            self._unanswered_bytes -= len(call.frame)
            call.frame = None
        size = 0
        for part in call.parts:
            if isinstance(part, (bytes, bytearray, memoryview)):
                size += len(part)
        call.answer_bytes = size
        self._held_bytes += size
        if self._held_bytes + self._unsent_bytes >= _MAX_UNSENT_BYTES:
            self.is_stalled = True
        if self._owed and self._owed[0].is_done:
            self._worker.answer_ready(self)
        elif not self._is_reading:
            self.resume()

    def send_ready(self) -> None:
        """Send the answers whose turn it is."""
        owed, outbox = self._owed, self._outbox
        if self.is_closed or outbox.is_paused:
            return
        while owed and owed[0].is_done:
            call = owed.popleft()
            outbox.put(call.parts)
            self._unsent += 1
            self._unsent_bytes += call.answer_bytes
            self._held_bytes -= call.answer_bytes
            self._worker.sent(call)
        outbox.push()
        self.last_active_ns = self._channel.clock.monotonic_ns()
        self._settle()

    def _settle(self) -> None:
        """After something was sent: may we go on?"""
        if self._outbox.is_empty:
            self._unsent = self._unsent_bytes = 0
            if self.is_stalled and self._held_bytes < _MAX_UNSENT_BYTES:
                self.is_stalled = False
                aside, self._aside = self._aside, []
                self._channel.put_back(aside)
        if not self._is_reading:
            self.resume()

    # The end

    def close(self, why: str, fault: BaseException | None = None) -> None:
        """Cut it off, with one line that says why, and if it is a fault of ours, where."""
        why = "".join(one if one.isprintable() else " " for one in why[:_MAX_REASON])  # clients may have named things
        if fault is not None:
            _log.error("closing the connection from %s: %s", self.client_host, why, exc_info=fault)
        if not self.is_closed:
            self.is_closed = True
            if fault is None:
                _log.info("closing the connection from %s: %s", self.client_host, why)
            self._drop()
            self._transport.abort()

    def _drop(self) -> None:
        """Nobody is left to read from or to answer."""
        owed, self._owed = self._owed, deque()
        self._aside.clear()
        self._outbox.drop()
        self._body = None
        self._chunk, self._start, self._end = _NOTHING, 0, 0
        for call in owed:
            call.frame = None
            if call.when_gone is not None:
                call.when_gone()

"""One client's connection: bytes in, requests out, answers back in their order.

A large request is read straight into a buffer of its own; small ones share a chunk that is never written over, so
that views of either may be kept as long as they are needed.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from tidelog.net.buffers import blank
from tidelog.net.channel import Call, RequestChannel
from tidelog.net.identity import BEGINNING_BYTES, HEADER_BYTES
from tidelog.net.outbox import Outbox
from tidelog.net.share import SMALL_BYTES
from tidelog.types import Buffer
from tidelog.wire.api import API_VERSIONS

if TYPE_CHECKING:
    from tidelog.net.server import NetworkWorker

_log = logging.getLogger(__name__)

_CHUNK_BYTES = SMALL_BYTES
_ROOM_BYTES = 2 * 1024
"""Less than this left in a chunk, and the next read gets a new one."""
_SIZE = struct.Struct(">i")
_KEY = struct.Struct(">h")
_MAX_UNANSWERED = 256
_MAX_UNANSWERED_BYTES = 8 * 1024 * 1024
"""With so many bytes of requests that wait, no further request is begun to be read."""
_MAX_UNSENT_BYTES = 1024 * 1024
_COUNTED_BYTES = 16 * 1024
"""Answers of one connection that wait to be sent count in the broker's room if they have so many bytes together."""
_PROGRESS_BYTES = 1024 * 1024
"""If so much more of a request comes within tidelog.request.read.timeout.ms, its client is not too slow."""
_MAX_REASON = 500
_IN_MEMORY = (bytes, bytearray, memoryview)
_NOTHING = memoryview(bytearray())


class ServerConnection(asyncio.BufferedProtocol):
    """Answers leave in the order of their requests (S7.4); requests are handled without waiting for earlier answers.

    Reading stops while the channel or the broker's room for requests is full, while too many answers are owed, or too
    many bytes wait to be answered or to be sent. So a client costs at most that much, whatever it asks for and however
    little it takes. What all clients together cost is bounded by the room, in which large answers count as well.
    """

    def __init__(self, worker: NetworkWorker, listener: str, channel: RequestChannel, max_request_bytes: int) -> None:
        self.listener = listener
        self.client_host = ""
        self.queue: deque[Call] = deque()
        """Requests that the channel has not handed out yet."""
        self.is_queued = False
        """The channel comes to these requests by itself."""
        self.ring = channel.data
        """Where it takes its turn, or last did."""
        self.last_active_ns = 0
        """When something was last read from it or taken by it."""
        self.is_closed = False
        self.is_kept_out = False
        """Its ring was full and will say when it is not."""
        self.is_known = False
        """A request of it has shown whether it comes from a broker."""
        self.is_broker = False
        self.is_stalled = False
        """Too many bytes of answers wait here; its requests wait in `queue` until they are gone."""
        self._worker = worker
        self._channel = channel
        self._share = worker.room.clients
        """Where its requests and answers count."""
        self._max_request_bytes = max_request_bytes
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self._owed: deque[Call] = deque()
        """Calls in the order they came; the first may wait for its answer while later ones have theirs."""
        self._unanswered_bytes = 0
        self._kept: dict[Call, None] = {}
        """Their bytes are in use until they are let go, even if the client goes before that."""
        self._unsent = 0
        self._unsent_bytes = 0
        """Answers, and their bytes in memory, since the outbox was last empty."""
        self._held_bytes = 0
        """Of answers that wait for earlier ones, or for the outbox."""
        self._counted_bytes = 0
        """How many bytes of its answers count in the room."""
        self._is_reading = True
        self._chunk = memoryview(blank(_CHUNK_BYTES))
        self._start = 0
        self._end = 0
        """What was read into the chunk and is not yet cut lies between them."""
        self._body: memoryview | None = None
        self._body_end = 0
        self._size = 0
        """Of the request for which the body is, or for which it waits."""
        self._granted = 0
        """How many bytes of it may be read: so much room was given to it."""
        self._waits_for_room = False
        self._partial_ns = 0
        """Since when a request is being read without enough of it having come; 0 if none is half read."""
        self._partial_bytes = 0
        """Of the body, at that time."""

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._outbox = Outbox(self._transport, self.close, self._settle)
        peer = transport.get_extra_info("peername")
        self.client_host = peer[0] if peer else "unknown"
        self.last_active_ns = self._channel.clock.monotonic_ns()
        self._worker.opened(self)
        if self.is_broker:
            self._share = self._worker.room.brokers

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return self._body[self._body_end : self._granted]
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
            self._share.finished(self, self._granted)
            self._granted = 0
            self._take(body)
            self._cut()
            return
        now_ns = self.last_active_ns = self._channel.clock.monotonic_ns()
        if self._body_end >= self._partial_bytes + _PROGRESS_BYTES:
            self._partial_ns, self._partial_bytes = now_ns, self._body_end
        if self._body_end == self._granted:
            self._get_room()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        try:
            self._drop()
        finally:
            del self._outbox  # it knows this connection: without the circle both go now, not when cycles are looked for
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
                if have:
                    self._note_partial()
                break
            (size,) = _SIZE.unpack_from(self._chunk, self._start)
            if not _KEY.size < size <= self._max_request_bytes:
                self.close(
                    f"a request of {size} bytes; allowed are up to socket.request.max.bytes = {self._max_request_bytes}"
                )
                break
            start = self._start + _SIZE.size
            if have - _SIZE.size >= size:
                self._start = start + size
                frame = self._chunk[start : self._start]
                if not self.is_known and not self._identify(frame):
                    break
                self._share.held += size
                self._take(frame)
            else:
                self._note_partial()
                if size > _CHUNK_BYTES - _ROOM_BYTES and (self.is_known or have - _SIZE.size >= BEGINNING_BYTES):
                    self._begin_body(size, start)
                break

    def _note_partial(self) -> None:
        if not self._partial_ns:
            self._partial_ns, self._partial_bytes = self._channel.clock.monotonic_ns(), 0

    def is_too_slow(self, before_ns: int) -> bool:
        """A request that is half read has not come on since then, and not because it was made to wait.

        One that holds room must not hold it for ever, whatever it waits for: others wait for that room.
        """
        if not 0 < self._partial_ns < before_ns:
            return False
        return self._is_reading or self._granted > 0

    def _begin_body(self, size: int, start: int) -> None:
        """What was read of it stays in the chunk until there is room for its first step."""
        self._size = size
        if not self._granted:
            frame = self._chunk[start : self._end]
            if (not self.is_known and not self._identify(frame)) or not self._get_room():
                return
        try:
            body = memoryview(blank(size))
        except MemoryError:
            self.close(f"no memory for a request of {size} bytes; lower socket.request.max.bytes")
            return
        have = self._end - start
        body[:have] = self._chunk[start : self._end]
        self._start = self._end
        self._body, self._body_end = body, have

    def _identify(self, frame: memoryview) -> bool:
        """By the beginning of a request. ApiVersions, with which every connection may begin, does not say. False if the
        connection is closed for what it is."""
        if len(frame) >= HEADER_BYTES:
            self.is_broker = self._worker.is_of_broker(frame)
            self.is_known = self.is_broker or _KEY.unpack_from(frame)[0] != API_VERSIONS
            if self.is_broker:
                self._join_brokers()
            if self.is_known:
                self._worker.identified(self)
        return not self.is_closed

    def _join_brokers(self) -> None:
        """What it holds moves to the brokers' share."""
        before, self._share = self._share, self._worker.room.brokers
        for call in self._owed:
            if call.frame is not None:
                self._share.count(len(call.frame))
                before.give(len(call.frame))
        if self._counted_bytes:
            self._share.answers_wait(self, self._counted_bytes)
            before.answers_gone(self, self._counted_bytes, is_all=True)

    @property
    def request_bytes(self) -> int:
        """The size of the request which is half read."""
        return self._size

    @property
    def granted(self) -> int:
        """The room that the request which is half read has."""
        return self._granted

    @property
    def came_bytes(self) -> int:
        """How much of the request which is half read has come, apart from what waits for its room."""
        return 0 if self._body is None else self._body_end

    @property
    def came_on_ns(self) -> int:
        """When enough of that request had come last."""
        return self._partial_ns

    @property
    def missing_room(self) -> int:
        """What the request that is half read still needs."""
        return self._size - self._granted

    def _get_room(self) -> bool:
        """For the next step of the request. False if there is none: then reading goes on with `room_came`."""
        granted = self._share.take(self)
        self._granted += granted
        if not granted:
            self._waits_for_room = True
            self._pause_reading()
        return granted > 0

    def return_unused(self) -> int:
        """The room that the request which is half read does not use belongs to others; how much that is."""
        unused = self._granted if self._body is None else max(0, self._granted - self._body_end - _CHUNK_BYTES)
        self._granted -= unused
        return unused

    def room_came(self, size: int) -> None:
        """Go on, with so many more bytes of the request that is half read."""
        self._granted += size
        self._waits_for_room = False
        self.resume()

    def _take(self, frame: memoryview) -> None:
        now_ns = self._channel.clock.monotonic_ns()
        self.last_active_ns = now_ns
        self._partial_ns = 0
        self._unanswered_bytes += len(frame)
        call = Call(self, frame, _KEY.unpack_from(frame)[0], now_ns)
        self._owed.append(call)
        self._channel.put(call)
        if self.queue and self.ring.requests >= self.ring.capacity:
            self._pause_reading()
            self.ring.keep_out(self)
        elif self._owes_too_much:
            self._pause_reading()
        elif self._share.held >= self._share.limit and self._share.is_full_for(self):
            self._waits_for_room = True
            self._pause_reading()
            self._share.pause(self)

    def take_back(self, calls: Iterable[Call]) -> None:
        """Requests that were to be served and were not: the client does not take the answers to those before them."""
        self._channel.put_in_front(self, calls)

    @property
    def unanswered(self) -> int:
        """Requests under way, and answers that have not left."""
        return len(self._owed) + self._unsent

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
        if self._is_reading or self.is_closed or self._owes_too_much or self._waits_for_room:
            return
        if self.ring.is_full:
            self.ring.keep_out(self)
            return
        self._is_reading = True
        if self._partial_ns:
            self._partial_ns = self._channel.clock.monotonic_ns()
        self._cut()
        if self._is_reading and not self.is_closed:
            self._transport.resume_reading()

    # Answers

    def keep(self, call: Call) -> None:
        """Its bytes are worked on, so they count as held until `let_go`, even if the connection is closed before."""
        if call.frame is not None:
            self._kept[call] = None

    def let_go(self, call: Call) -> None:
        """Its bytes are not needed any more, though it is not answered: they make room for other requests."""
        if call.frame is not None:
            self._let_go(call, call.frame)
            if not self._is_reading:
                self.resume()

    def _let_go(self, call: Call, frame: Buffer) -> None:
        size = len(frame)
        call.frame = None
        if self._kept:
            self._kept.pop(call, None)
        if not self.is_closed:
            self._unanswered_bytes -= size
            if not self._is_reading:
                self._share.lighter(self)
        self._share.give(size)

    def answered(self, call: Call) -> None:
        frame = call.frame
        if frame is not None:
            self._let_go(call, frame)
        size = 0
        for part in call.parts:
            if isinstance(part, _IN_MEMORY):
                size += len(part)
        call.answer_bytes = size
        self._held_bytes += size
        if self._held_bytes + self._unsent_bytes >= _COUNTED_BYTES:
            self._count_answers()
        if self._owed and self._owed[0].is_done:
            self._worker.answer_ready(self)
        elif not self._is_reading:
            self.resume()

    def _count_answers(self) -> None:
        """Answers that wait take room; if they are too many, nothing more is read. A body that has begun is read on:
        what it holds it holds anyway."""
        size = self._held_bytes + self._unsent_bytes
        self._share.answers_wait(self, size - self._counted_bytes)
        self._counted_bytes = size
        if size >= _MAX_UNSENT_BYTES:
            self.is_stalled = True
            if self._body is None:
                self._pause_reading()

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
            if self._counted_bytes:
                self._answers_sent()
            if self.is_stalled and self._held_bytes < _MAX_UNSENT_BYTES:
                self.is_stalled = False
                self._channel.put_back(self)
        if not self._is_reading:
            self.resume()

    def _answers_sent(self) -> None:
        """All but those that wait for earlier ones."""
        sent = self._counted_bytes - (self._held_bytes if self._held_bytes >= _COUNTED_BYTES else 0)
        self._counted_bytes -= sent
        self._share.answers_gone(self, sent, is_all=not self._counted_bytes)

    @property
    def releasable_bytes(self) -> int:
        """The room that its complete requests and its answers hold."""
        return self._unanswered_bytes + self._counted_bytes

    def behind_since(self, untaken_ns: int) -> int:
        """Since when its client keeps room from others, if it has had answers to take since then: a client that takes
        one answer after the other slowly keeps its requests waiting for longer."""
        return min(untaken_ns, self.queue[0].arrived_ns) if self.is_stalled and self.queue else untaken_ns

    # The end

    @property
    def owes_nothing(self) -> bool:
        """Nothing of a request was read, and every answer was sent."""
        return not self._owed and not self._partial_ns and self._outbox.is_empty

    def close(self, why: str, fault: BaseException | None = None, *, level: int = logging.INFO) -> None:
        """Cut it off, with one line that says why, and if it is a fault of ours, where."""
        why = "".join(one if one.isprintable() else " " for one in why[:_MAX_REASON])  # clients may have named things
        if fault is not None:
            _log.error("closing the connection from %s: %s", self.client_host, why, exc_info=fault)
        if not self.is_closed:
            self.is_closed = True
            if fault is None:
                _log.log(level, "closing the connection from %s: %s", self.client_host, why)
            try:
                self._drop()
            finally:
                self._transport.abort()

    def _drop(self) -> None:
        """Nobody is left to read from or to answer."""
        owed, self._owed = self._owed, deque()
        self._channel.drop(self)
        self._outbox.drop()
        self._body = None
        self._chunk, self._start, self._end = _NOTHING, 0, 0
        self._unanswered_bytes = 0
        granted, self._granted = self._granted, 0
        counted, self._counted_bytes = self._counted_bytes, 0
        for call in owed:
            if call.frame is not None and call not in self._kept:
                self._share.give(len(call.frame))
                call.frame = None
        if counted:
            self._share.answers_gone(self, counted, is_all=True)
        self._share.forget(self, granted)
        for call in owed:
            if call.when_gone is not None:
                _tell(call.when_gone)


def _tell(when_gone: Callable[[], object]) -> None:
    """A fault of ours must not keep the others from being told."""
    try:
        when_gone()
    except Exception:
        _log.exception("a request of a client that has gone cannot be given up")

"""What the coordinator writes into one partition of __consumer_offsets: all of a turn in one batch.

A write that is too large for one batch goes into the log as several, one in each turn of the loop; what comes after it
waits until it is complete. It is settled as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tidelog.broker import write_path
from tidelog.broker.partition import Partition, RequestError
from tidelog.broker.write_path import Written
from tidelog.errors import ErrorCode, TidelogError
from tidelog.groups import Record, Write
from tidelog.records.build import build_batch
from tidelog.records.header import HEADER_SIZE, Codec, read_header

_log = logging.getLogger(__name__)

_MOST_PER_RECORD = 40
"""Bytes of a record beside its key and value, at most."""
_LOOK_AGAIN_S = 0.01
_MANY_RECORDS = 2_000
"""A write of more records is not measured in one go, nor put into a batch with others."""


class WriteSettings(NamedTuple):
    """By Kafka's names."""

    timeout_ms: int = 5_000
    codec: Codec = Codec.NONE


class _Batch:
    """Writes that were appended together, or failed together."""

    __slots__ = ("code", "only_waits", "timer", "writes")

    def __init__(self, writes: Sequence[Write]) -> None:
        self.writes = writes
        self.code: ErrorCode | None = None
        """What became of it, once that is known."""
        self.only_waits = False
        """It has no records: it is over when those before it are."""
        self.timer: asyncio.TimerHandle | None = None


class Writes:
    """Appended in their order and settled in their order."""

    def __init__(
        self,
        partition: Partition,
        settings: WriteSettings,
        *,
        wall_ms: Callable[[], int],
        at_end_of_turn: Callable[[Callable[[], None]], None],
        settle: Callable[[Write, ErrorCode], None],
    ) -> None:
        self._partition = partition
        self._settings = settings
        self._wall_ms = wall_ms
        self._at_end_of_turn = at_end_of_turn
        self._settle = settle
        self._gathered: list[Write] = []
        self._large: asyncio.Task[None] | None = None
        """Brings a large write into the log."""
        self._behind: list[asyncio.TimerHandle] = []
        """Of those that wait for it to be complete."""
        self._is_over = False
        self._unsettled: deque[_Batch] = deque()
        self._flushes: dict[asyncio.Task[None], None] = {}

    def add(self, write: Write) -> None:
        if not self._gathered:
            self._at_end_of_turn(self._append_gathered)
        self._gathered.append(write)
        if self._large is not None:
            self._start_timers_behind([write])

    def most_of_record(self) -> int:
        """How many bytes of key and value a record may have."""
        return self._limit() - _MOST_PER_RECORD

    def _limit(self) -> int:
        return self._partition.log.config.max_message_bytes - HEADER_SIZE

    # Appending

    def _append_gathered(self) -> None:
        if self._large is not None:
            return  # they are appended when it is complete
        gathered, self._gathered = self._gathered, []
        chunks = self._split(gathered)
        for writes, is_large in chunks:
            batch = _Batch(writes)
            self._unsettled.append(batch)
            if is_large:
                self._gathered[:0] = [write for chunk, _ in chunks for write in chunk]
                self._start_timer(batch)
                self._large = asyncio.create_task(self._append_large(batch, writes[0].records))
                self._start_timers_behind(self._gathered)
                break
            self._append(batch)
        self._tell()

    def _split(self, writes: Iterable[Write]) -> Iterator[tuple[list[Write], bool]]:
        """As many as go into one batch, and whether it is a large write, which is alone. A record that is too large by
        itself is refused by the log."""
        limit = self._limit()
        chunk: list[Write] = []
        size = 0
        for write in writes:
            count = len(write.records)
            needed = limit + 1 if count > _MANY_RECORDS else sum(map(_size, write.records))
            if chunk and size + needed > limit:
                yield chunk, False
                chunk, size = [], 0
            if needed > limit and count > 1:
                yield [write], True
                continue
            chunk.append(write)
            size += needed
        if chunk:
            yield chunk, False

    def _append(self, batch: _Batch) -> None:
        try:
            records = [record for write in batch.writes for record in write.records]
            if not records:
                batch.code, batch.only_waits = ErrorCode.NONE, True
                if len(self._unsettled) > 1:
                    self._start_timer(batch)
                return
            self._check_leader()
            self._appended(batch, self._append_records(records))
        except TidelogError as failure:
            self._failed(batch, failure.code)
        except Exception:
            self._failed_unexpectedly(batch)

    async def _append_large(self, batch: _Batch, records: list[Record]) -> None:
        """What it is refused for is found before its first part. Only if this broker ceases to lead in between, a part
        of it may stay in the log. The client hears an error then, and commits again at the next coordinator."""
        try:
            self._check_leader()
            for part in _parts(records, self._limit()):
                await self._lead_again()
                written = self._append_records(part)
            self._appended(batch, written)
        except TidelogError as failure:
            self._failed(batch, failure.code)
        except Exception:
            self._failed_unexpectedly(batch)
        finally:
            batch.writes = [write._replace(records=[]) for write in batch.writes]
            self._large = None
            self._stop_timers_behind()
            self._append_gathered()

    def _failed(self, batch: _Batch, code: ErrorCode) -> None:
        """What is not in the log does not wait for what is: that may take long."""
        self._unsettled.remove(batch)
        if batch.timer is not None:
            batch.timer.cancel()
        self._settle_all(batch, code)

    def _failed_unexpectedly(self, batch: _Batch) -> None:
        """Whatever it is, such as a want of memory: without an end of this batch no later one is ever settled."""
        _log.exception("a write to %s failed unexpectedly", self._partition.name)
        self._failed(batch, ErrorCode.UNKNOWN_SERVER_ERROR)

    async def _lead_again(self) -> None:
        """Other requests have their turn first. Between two terms of this broker, and while its session may be over,
        nothing is appended; the rest of a write waits for that, so that the log has all of it or none."""
        await asyncio.sleep(0)
        while not self._is_over:
            if self._partition.leader is not None and self._partition.is_current:
                return
            await asyncio.sleep(_LOOK_AGAIN_S)
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _appended(self, batch: _Batch, written: Written) -> None:
        if written.is_committed:
            batch.code = written.commit_result()
            return
        self._start_timer(batch)
        written.when_committed(partial(self._settled, batch))

    def _start_timer(self, batch: _Batch) -> None:
        if batch.timer is not None:
            return  # a large write began to wait before it was in the log
        loop = asyncio.get_running_loop()
        batch.timer = loop.call_later(self._settings.timeout_ms / 1000, self._too_late, batch)

    def _start_timers_behind(self, writes: Iterable[Write]) -> None:
        """The large write may have to wait for long, and nobody waits longer for what is behind it than for itself."""
        loop, late_s = asyncio.get_running_loop(), self._settings.timeout_ms / 1000
        self._behind += [loop.call_later(late_s, self._settle, write, ErrorCode.REQUEST_TIMED_OUT) for write in writes]

    def _stop_timers_behind(self) -> None:
        for timer in self._behind:
            timer.cancel()
        self._behind.clear()

    def _check_leader(self) -> None:
        leader = self._partition.leader
        if leader is None or self._is_over or not self._partition.is_current:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not leader.has_enough_replicas():
            raise RequestError(ErrorCode.NOT_ENOUGH_REPLICAS)

    def _append_records(self, records: list[Record]) -> Written:
        now_ms = self._wall_ms()
        data = build_batch(((now_ms, key, value) for key, value in records), codec=self._settings.codec)
        written = write_path.write(self._partition, data, read_header(data))
        if written.needs_flush:
            # If it fails, the log is offline, and whoever waits for the commit is told.
            flush = asyncio.create_task(written.flush())
            self._flushes[flush] = None
            flush.add_done_callback(lambda flush: self._flushes.pop(flush))
        else:
            written.tell_readers()
        return written

    # Settling

    def _settled(self, batch: _Batch, code: ErrorCode) -> None:
        batch.code = code
        self._tell()

    def _tell(self) -> None:
        unsettled = self._unsettled
        while unsettled and (code := unsettled[0].code) is not None:
            batch = unsettled.popleft()
            if batch.timer is not None:
                batch.timer.cancel()
            self._settle_all(batch, code)

    def _settle_all(self, batch: _Batch, code: ErrorCode) -> None:
        for write in batch.writes:
            self._settle(write, code)

    def _too_late(self, batch: _Batch) -> None:
        """What is in the log may be committed yet; but nobody waits that long for an answer."""
        if batch.only_waits:
            self._unsettled.remove(batch)
        self._settle_all(batch, ErrorCode.REQUEST_TIMED_OUT)

    def end(self) -> None:
        """This broker coordinates these groups no more, or it has loaded them anew: what is not appended yet fails."""
        self._is_over = True

    async def close(self) -> None:
        """Nobody is told of anything any more."""
        self._gathered.clear()
        self._stop_timers_behind()
        if self._large is not None:
            self._large.cancel()
            await asyncio.gather(self._large, return_exceptions=True)
        for batch in self._unsettled:
            if batch.timer is not None:
                batch.timer.cancel()
        await asyncio.gather(*self._flushes, return_exceptions=True)


def _parts(records: Iterable[Record], limit: int) -> Iterator[list[Record]]:
    """As many as go into one batch, again and again."""
    part: list[Record] = []
    room = limit
    for record in records:
        needed = _size(record)
        if part and needed > room:
            yield part
            part, room = [], limit
        part.append(record)
        room -= needed
    yield part


def _size(record: Record) -> int:
    key, value = record
    return len(key) + len(value or b"") + _MOST_PER_RECORD

"""What the coordinator writes into one partition of __consumer_offsets: all of a turn in one batch."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tidelog.broker.partition import Partition, RequestError
from tidelog.errors import ErrorCode, StorageError, TidelogError
from tidelog.groups import Record, Write
from tidelog.records.build import build_batch
from tidelog.records.header import HEADER_SIZE, Codec, read_header
from tidelog.replication.leader import Leader
from tidelog.types import Offset

_MOST_PER_RECORD = 40
"""Bytes of a record beside its key and value, at most."""


class WriteSettings(NamedTuple):
    """By Kafka's names."""

    timeout_ms: int = 5_000
    codec: Codec = Codec.NONE


class _Batch:
    """Writes that were appended together, or failed together."""

    __slots__ = ("code", "timer", "writes")

    def __init__(self, writes: Sequence[Write]) -> None:
        self.writes = writes
        self.code: ErrorCode | None = None
        """What became of it, once that is known."""
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
        self._unsettled: deque[_Batch] = deque()
        self._flushes: dict[asyncio.Task[None], None] = {}

    def add(self, write: Write) -> None:
        if not self._gathered:
            self._at_end_of_turn(self._append_gathered)
        self._gathered.append(write)

    # Appending

    def _append_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        for writes in self._split(gathered):
            batch = _Batch(writes)
            self._unsettled.append(batch)
            self._append(batch)
        self._tell()

    def _split(self, writes: Iterable[Write]) -> Iterator[list[Write]]:
        """As many as go into one batch; one that is too large by itself is refused by the log."""
        limit = self._partition.log.config.max_message_bytes - HEADER_SIZE
        chunk: list[Write] = []
        size = 0
        for write in writes:
            needed = sum(map(_size, write.records))
            if chunk and size + needed > limit:
                yield chunk
                chunk, size = [], 0
            chunk.append(write)
            size += needed
        if chunk:
            yield chunk

    def _append(self, batch: _Batch) -> None:
        records = [record for write in batch.writes for record in write.records]
        if not records:
            batch.code = ErrorCode.NONE
            return
        partition = self._partition
        try:
            leader = self._leader()
            end = self._append_records(leader, records)
        except TidelogError as failure:
            batch.code = failure.code
            return
        if partition.is_committed(end):
            batch.code = partition.commit_result(leader)
            return
        partition.when_committed(end, partial(self._settled, batch))
        loop = asyncio.get_running_loop()
        batch.timer = loop.call_later(self._settings.timeout_ms / 1000, self._too_late, batch)

    def _leader(self) -> Leader:
        leader = self._partition.leader
        if leader is None or not self._partition.is_current:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not leader.has_enough_replicas():
            raise RequestError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return leader

    def _append_records(self, leader: Leader, records: list[Record]) -> Offset:
        """Where the log ends with them."""
        partition, now_ms = self._partition, self._wall_ms()
        data = build_batch(((now_ms, key, value) for key, value in records), codec=self._settings.codec)
        partition.append(data, read_header(data))
        end = partition.log.log_end_offset
        if partition.log.flush_due:
            flush = asyncio.ensure_future(self._flush(leader))
            self._flushes[flush] = None
            flush.add_done_callback(lambda flush: self._flushes.pop(flush))
        else:
            partition.advance(leader, end)
            partition.appended_all()
        return end

    async def _flush(self, leader: Leader) -> None:
        with contextlib.suppress(StorageError):  # the log is offline then, and whoever waits for it has been told
            await self._partition.flush_and_advance(leader)

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
            for write in batch.writes:
                self._settle(write, code)

    def _too_late(self, batch: _Batch) -> None:
        """They are in the log and may be committed yet; but nobody waits that long for an answer."""
        for write in batch.writes:
            self._settle(write, ErrorCode.REQUEST_TIMED_OUT)

    async def close(self) -> None:
        """Nobody is told of anything any more."""
        for batch in self._unsettled:
            if batch.timer is not None:
                batch.timer.cancel()
        await asyncio.gather(*self._flushes, return_exceptions=True)


def _size(record: Record) -> int:
    key, value = record
    return len(key) + len(value or b"") + _MOST_PER_RECORD

"""The log of one partition: append at the end, read anywhere.

It belongs to the event loop. Its plain methods are quick and work at once, its coroutines wait for disk
threads; what those run touches files, and hands results back to the loop. `trimming` cuts a log at either
end, `loading` brings it back after a stop or a crash, `cleaner` compacts it.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from tidelog.config.topic import TopicConfig
from tidelog.errors import NoDescriptorError, OffsetOutOfRangeError, RecordTooLargeError, StorageError
from tidelog.log import names
from tidelog.log.checkpoints import write_epoch_checkpoint
from tidelog.log.cleaning import Cleaning
from tidelog.log.copied import checked_batches
from tidelog.log.index_memory import IndexMemory
from tidelog.log.loading import LoadedLog, Opening, load
from tidelog.log.producer_room import ProducerRoom
from tidelog.log.producer_state import to_entries
from tidelog.log.producers import AppendOrigin, Producers
from tidelog.log.reading import (
    ANY_SIZE,
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    Extent,
    FoundTimestamp,
    Region,
    find_max_timestamp,
    find_timestamp,
    locate,
)
from tidelog.log.replay import note_producer
from tidelog.log.segment import MAX_RELATIVE_OFFSET, NotCachedError, Segment
from tidelog.log.segments import Segments
from tidelog.log.transaction_index import AbortedTxn
from tidelog.log.work import FileWork
from tidelog.ports import Clock, Disk
from tidelog.records.control import read_marker
from tidelog.records.header import LENGTH_END, BatchHeader
from tidelog.records.validate import validate
from tidelog.types import NO_EPOCH, NO_TIMESTAMP, Buffer, Epoch, Offset, TopicPartition

_PLACE = struct.Struct(">qii")
_NOT_WRITTEN = -1
"""Base offset, length, leader epoch: the part of a batch that a leader writes itself; the CRC does not cover it."""

T = TypeVar("T")
OnFailure = Callable[[StorageError], None]


async def _nothing_to_persist() -> None:
    """A log without a log directory has no checkpoint."""


class Appended(NamedTuple):
    """Where a batch went. A duplicate went there earlier, and was not written again (S13.1)."""

    base_offset: Offset
    last_offset: Offset
    max_timestamp: int
    duplicate: bool = False


class Log:
    """Always: durable_log_start <= log_start_offset <= high_watermark <= log_end_offset >= recovery_point.

    After a StorageError nothing more may be written: `on_failure` tells the owner, who takes the
    whole log directory offline.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        partition: TopicPartition,
        config: TopicConfig,
        loaded: LoadedLog,
        on_failure: OnFailure,
        index_memory: IndexMemory,
    ) -> None:
        self.partition = partition
        self.directory = directory
        self.config = config
        self.disk = disk
        self.clock = clock
        self.failed: StorageError | None = None
        self.work = FileWork(disk, directory, self._fail)
        self.segments: Segments = loaded.segments
        self.epochs = loaded.epochs
        self.producers: Producers = loaded.producers
        self.snapshots = loaded.snapshots
        self.log_start_offset: Offset = loaded.log_start_offset
        self.durable_log_start: Offset = loaded.durable_log_start
        """What the checkpoint on the device says: after a crash or a power loss the log starts there or later."""
        self.log_end_offset: Offset = loaded.log_end_offset
        self.recovery_point: Offset = loaded.recovery_point
        self.last_flush_ms = clock.wall_ms()
        self._synced_names: set[tuple[Segment, bool]] = set()
        """Segments whose names are on the device, each with whether its transaction index had a file then."""
        self.persist_checkpoints: Callable[[], Awaitable[None]] = _nothing_to_persist
        """Set by the log directory: writes recovery point and log start down where a restart looks for them."""
        self.reshaping = asyncio.Lock()
        """Held while segments are taken away, so that they go one at a time, and while a cleaning begins."""
        self.being_cut = False
        """While `trimming` takes the end off, nothing may be appended."""
        self.cuts = 0
        """How often `trimming` took the end off: what a disk thread was looking for meanwhile is looked for again."""
        self.cleaning: Cleaning | None = None
        self._high_watermark: Offset = loaded.log_start_offset
        self._on_failure = on_failure
        self._index_memory = index_memory
        self.producer_room: ProducerRoom | None = None
        """The bounds for new producers, None if there are none. Whoever serves the log sets it."""

    def _fail(self, failure: StorageError) -> None:
        self.failed = failure
        self._on_failure(failure)

    @classmethod
    async def open(
        cls,
        disk: Disk,
        clock: Clock,
        directory: str,
        partition: TopicPartition,
        config: TopicConfig,
        *,
        clean: bool = False,
        recovery_point: Offset = 0,
        log_start_offset: Offset = 0,
        high_watermark: Offset = 0,
        on_failure: OnFailure = lambda failure: None,
        on_loss: Callable[[], None] = lambda: None,
        index_memory: IndexMemory | None = None,
    ) -> Log:
        """Open what is there, or an empty log. `clean`: the last owner closed it, so nothing needs checking."""
        state = Opening(clean, recovery_point, log_start_offset, high_watermark, on_loss)
        loaded = await disk.submit(directory, lambda: load(disk, clock, directory, config, state))
        log = cls(disk, clock, directory, partition, config, loaded, on_failure, index_memory or IndexMemory())
        log.high_watermark = high_watermark
        return log

    # Where the tide is

    @property
    def high_watermark(self) -> Offset:
        """Up to where the log is committed (S2); the replication rules decide it and set it here."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: Offset) -> None:
        self._high_watermark = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.producers.on_high_watermark(self._high_watermark)

    @property
    def last_stable_offset(self) -> Offset:
        """Up to where read_committed may read (S13.3)."""
        return self.producers.last_stable_offset(self._high_watermark, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    # Append

    def append_as_leader(
        self,
        batch: Buffer,
        leader_epoch: Epoch,
        *,
        header: BatchHeader | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Appended:
        """Give one batch the next offsets and write it. With `header` the caller has checked the batch."""
        if header is None:
            header = validate(batch)
        size = header.length + LENGTH_END
        if size > self.config.max_message_bytes:
            raise RecordTooLargeError(
                f"a batch of {size} bytes for {self.partition} is above "
                f"max.message.bytes = {self.config.max_message_bytes}"
            )
        base_offset, now_ms = self.log_end_offset, 0
        if header.producer_id >= 0:
            now_ms = self.clock.monotonic_ms()
            if header.is_control:
                self._check_marker(batch, header, origin)
            elif (known := self.producers.check(header, now_ms, origin, self._admit)) is not None:
                return Appended(known.base_offset, known.last_offset, known.timestamp, duplicate=True)
        buffers = (_PLACE.pack(base_offset, header.length, leader_epoch), memoryview(batch)[_PLACE.size :])
        last_offset = base_offset + header.last_offset_delta
        position = _NOT_WRITTEN
        try:
            segment = self._segment_for(header, last_offset, size)
            position = segment.write(buffers, size)
            self._note(segment, header, base_offset, leader_epoch, position, batch, 0, now_ms)
        except (StorageError, FileNotFoundError) as failure:
            raise self._failed_by(failure, position) from failure
        self.log_end_offset = last_offset + 1
        return Appended(base_offset, last_offset, header.max_timestamp)

    def _admit(self) -> None:
        """Before the first batch of a producer."""
        if self.producer_room is not None:
            self.producer_room.admit(self.producers, self._high_watermark)

    def append_as_follower(self, buffer: Buffer, leader_epoch: Epoch | None = None) -> int:
        """Take over batches with the offsets and epochs their leader gave them; how many bytes were whole batches.

        A torn batch at the end, as fetch answers have, is left for the next fetch. If one batch is refused, none is
        written. `leader_epoch` is the one in which they were fetched; None where any epoch will do.
        """
        batches, size = checked_batches(self.partition, buffer, self.log_end_offset, leader_epoch)
        if batches:
            self._copy(batches, memoryview(buffer)[:size])
        return size

    def _copy(self, batches: list[BatchHeader], buffer: memoryview) -> None:
        position = _NOT_WRITTEN
        try:
            segment = self._segment_for(batches[0], batches[-1].last_offset, len(buffer))
            position = start = segment.write((buffer,), len(buffer))
            now_ms = self.clock.monotonic_ms()
            for header in batches:
                epoch = header.partition_leader_epoch
                self._note(segment, header, header.base_offset, epoch, position, buffer, position - start, now_ms)
                position += header.length + LENGTH_END
        except (StorageError, FileNotFoundError) as failure:
            raise self._failed_by(failure, position) from failure
        self.log_end_offset = batches[-1].next_offset

    def _segment_for(self, first: BatchHeader, last_offset: Offset, size: int) -> Segment:
        """Where to write next: the active segment, or a new one if it is time for that."""
        assert not self.being_cut, f"append to {self.partition} while its end is being cut"
        if self.failed is not None:
            raise StorageError(f"{self.partition} is offline: {self.failed}")
        segment = self.segments.active
        return self.roll(last_offset) if self._must_roll(segment, first, last_offset, size) else segment

    def _note(
        self,
        segment: Segment,
        header: BatchHeader,
        base_offset: Offset,
        leader_epoch: Epoch,
        position: int,
        source: Buffer,
        at: int,
        now_ms: int,
    ) -> None:
        """What a batch means for everything that is derived from the log; it was written at `position`.

        `now_ms` counts only for a batch of a producer.
        """
        segment.note(header, base_offset, position)
        if leader_epoch != self.epochs.latest_epoch:
            self._note_epoch(leader_epoch, base_offset)
        if header.producer_id >= 0:
            note_producer(self.producers, header, base_offset, source, at, segment.transactions, now_ms)

    def _failed_by(self, failure: StorageError | FileNotFoundError, position: int) -> StorageError:
        """Notify the owner once. That no file could be opened passes if nothing was written. If batches are in the file
        but not in the log, they would be written again behind them."""
        if isinstance(failure, NoDescriptorError):
            if position == _NOT_WRITTEN:
                return failure
            failure = StorageError(f"batches of {self.partition} were written, but not noted: {failure}")
        if isinstance(failure, FileNotFoundError):
            failure = StorageError(f"the directory of {self.partition} is gone: {failure}")
        if self.failed is None:
            self._fail(failure)
        return failure

    def _check_marker(self, batch: Buffer, header: BatchHeader, origin: AppendOrigin) -> None:
        marker = read_marker(batch, header)
        if marker is not None:
            self.producers.check_marker(header, marker.coordinator_epoch, origin)

    def _note_epoch(self, epoch: Epoch, start_offset: Offset) -> None:
        """After a crash it is learnt again from the batches, so nobody waits for the file."""
        if self.epochs.assign(epoch, start_offset):
            self.work.start(self.epochs_writer())

    def begin_epoch(self, epoch: Epoch) -> None:
        """This replica leads from here on: the term is known before its first record (S4.2, edge case 3).

        Nobody waits for the file either, a thousand partitions may begin a term at once. If the machine dies before
        it is synced, the term has left records, and is learnt from them, or it has left nothing that anybody copied.
        """
        self._note_epoch(epoch, self.log_end_offset)

    def epochs_writer(self) -> Callable[[], None]:
        entries = list(self.epochs.entries)
        path = os.path.join(self.directory, names.LEADER_EPOCHS)
        return lambda: write_epoch_checkpoint(self.disk, path, entries)

    # Roll and flush

    def _must_roll(self, segment: Segment, first: BatchHeader, last_offset: Offset, size: int) -> bool:
        if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if segment.size == 0:
            return False
        config = self.config
        if segment.size > config.segment_bytes - size or segment.index_full:
            return True
        age_ms = (
            first.max_timestamp - segment.first_timestamp
            if segment.first_timestamp >= 0
            else self.clock.wall_ms() - segment.created_ms
        )
        return age_ms > config.segment_ms - config.segment_jitter_ms

    def roll(self, to_hold: Offset | None = None) -> Segment:
        """Start a new segment at once; the old one is completed and synced by a disk thread.

        It starts at the log's end even where the next batch comes after a gap, unless that is so wide that
        `to_hold`, the last offset to be written now, would be out of its reach.
        """
        old = self.segments.active
        start = self.log_end_offset
        if to_hold is not None:
            start = max(start, to_hold - MAX_RELATIVE_OFFSET)
        if old.size == 0 and old.base_offset == start:
            return old
        new = Segment.new(self.disk, self.directory, start, self.config, self.clock.wall_ms())
        old.complete_time_index()
        saves = self._saves()
        self.segments.add(new)
        producers, now_ms = self.producers.facts(), self.clock.monotonic_ms()

        def seal() -> None:
            for save in saves:
                save()
            # Last, because it tells recovery that all before `start` was on the device.
            self.snapshots.write(start, to_entries(producers, now_ms))

        def sealed() -> None:
            self._flushed(start)
            old.sealed = old is not self.segments.active  # which it is again if the new one was cut off since
            self._index_memory.used(old)

        self.work.start(seal, sealed)
        return new

    async def flush_if_due(self) -> None:
        """To be awaited between an append and its acknowledgement, so that flush.messages=1 means synced."""
        if self.flush_due:
            await self.flush()

    @property
    def flush_due(self) -> bool:
        """flush.messages or flush.ms asks for a flush."""
        unflushed = self.log_end_offset - self.recovery_point
        if unflushed >= self.config.flush_messages:
            return True
        return unflushed > 0 and self.clock.wall_ms() - self.last_flush_ms >= self.config.flush_ms

    async def flush(self) -> None:
        """Sync all that was appended until now. Most times that is one file: the active segment's records."""
        if self.being_cut:
            # The disk thread would write the index as it is now after the cut, with entries of what was cut off.
            async with self.reshaping:
                pass
        end, saves = self.log_end_offset, self._saves()
        names = {(segment, segment.transactions.has_file) for segment in self._unflushed()}
        has_new_names = not names <= self._synced_names

        def sync() -> None:
            for save in saves:
                save()
            if has_new_names:
                self.disk.sync_directory(self.directory)
            elif not self.disk.exists(self.directory):
                raise FileNotFoundError(f"{self.directory} was removed")

        await self.work.run(sync)
        self._synced_names = names
        self._flushed(end)

    def _unflushed(self) -> list[Segment]:
        """All from the recovery point on: a killed predecessor may have left several segments unsynced."""
        return list(self.segments)[self.segments.place_of(self.recovery_point) :]

    def _saves(self) -> list[Callable[[], None]]:
        return [segment.save(sync=True) for segment in self._unflushed()]

    def _flushed(self, offset: Offset) -> None:
        if not self.being_cut:  # else `offset` may be part of what goes
            self.recovery_point = max(self.recovery_point, min(offset, self.log_end_offset))
        self.last_flush_ms = self.clock.wall_ms()

    # Read

    def read_now(
        self, offset: Offset, max_bytes: int, end_offset: Offset | None = None, *, min_one: bool = True
    ) -> Region:
        """The batches from the one that holds `offset`, below `end_offset` (the log's end if None).

        At most `max_bytes`, but with `min_one` never less than one batch; the last batch may be cut.
        NotCachedError if it cannot be told without waiting for the device.
        """
        end = self._readable_end(offset, end_offset)
        return locate(self.segments, offset, max_bytes, end, self._extent, min_one, cached=True)

    async def read(
        self, offset: Offset, max_bytes: int, end_offset: Offset | None = None, *, min_one: bool = True
    ) -> Region:
        """Like read_now, waiting for the device where that is needed."""
        try:
            return self.read_now(offset, max_bytes, end_offset, min_one=min_one)
        except NotCachedError:
            pass

        def look(segments: Segments) -> Callable[[], Region]:
            end, extent = self._readable_end(offset, end_offset), self._extent
            return lambda: locate(segments, offset, max_bytes, end, extent, min_one, cached=False)

        region, segments = await self._look_up(look)
        self._index_memory.used(segments[segments.place_of(region.base_offset)])
        return region

    @property
    def _extent(self) -> Extent:
        return Extent(self.log_end_offset, self.segments.active.size)

    async def _look_up(self, look: Callable[[Segments], Callable[[], T]]) -> tuple[T, Segments]:
        """Search a copy of the segments on a disk thread, and again if they were cut or taken away under it."""
        while True:
            segments, cuts = self.segments.copy(), self.cuts
            try:
                found = await self.work.beside(look(segments))
            except (ValueError, FileNotFoundError):
                if cuts == self.cuts and list(segments) == list(self.segments) and not self.being_cut:
                    raise
            else:
                if cuts == self.cuts:
                    return found, segments

    async def bytes_of(self, region: Region) -> Buffer:
        """What stands in a region; on the loop if it is in the page cache, else by a disk thread.

        Nothing if it was cut or its file removed since: whoever asks again for the offset hears what became of it.
        """
        try:
            if region.is_void or not region.size:
                return b""
            data = region.file.read_cached(region.position, region.size)
            if data is None:
                data = await self.work.beside(region.read)
            return b"" if region.is_void else data
        except ValueError:
            return b""

    def _readable_end(self, offset: Offset, end_offset: Offset | None) -> Offset:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.partition} is not in {self.log_start_offset}..{self.log_end_offset}"
            )
        return self.log_end_offset if end_offset is None else min(end_offset, self.log_end_offset)

    async def find_offset(
        self, timestamp_ms: int, end_offset: Offset | None = None, *, most_compressed_bytes: int = ANY_SIZE
    ) -> FoundTimestamp | None:
        """The first record at or after a time, or what LATEST, EARLIEST, MAX_TIMESTAMP and EARLIEST_LOCAL mean.

        Records at and above `end_offset` (the log's end if None) do not count; None if none is left. HeavyLookupError
        if a larger compressed batch would have to be decompressed.
        """
        end = self.log_end_offset if end_offset is None else min(end_offset, self.log_end_offset)
        if timestamp_ms in (LATEST, EARLIEST, EARLIEST_LOCAL):
            offset = end if timestamp_ms == LATEST else self.log_start_offset
            epoch = self.epochs.epoch_for_offset(offset)
            return FoundTimestamp(NO_TIMESTAMP, offset, NO_EPOCH if epoch is None else epoch)

        def look(segments: Segments) -> Callable[[], FoundTimestamp | None]:
            start = self.log_start_offset
            if timestamp_ms == MAX_TIMESTAMP:
                return lambda: find_max_timestamp(segments, start, most_compressed_bytes)
            return lambda: find_timestamp(segments, timestamp_ms, start, most_compressed_bytes)

        found, segments = await self._look_up(look)
        if found is not None:
            self._index_memory.used(segments[segments.place_of(found.offset)])
        return found if found is not None and found.offset < end else None

    def nothing_aborted_from(self, offset: Offset) -> bool:
        """Told at once: no segment from the one that holds `offset` on knows of an aborted transaction."""
        segments = self.segments
        places = range(segments.place_of(offset), len(segments))
        return all(segments[place].transactions.empty for place in places)

    async def aborted_transactions(self, offset: Offset, end_offset: Offset) -> list[AbortedTxn]:
        """The aborted transactions with records in [offset, end_offset), for a read_committed consumer (S13.3)."""
        segments = self.segments.copy()
        relevant = [segments[place] for place in range(segments.place_of(offset), len(segments))]
        if all(segment.transactions.empty for segment in relevant):
            return []

        def collect() -> list[AbortedTxn]:
            found: list[AbortedTxn] = []
            for segment in relevant:
                some, complete = segment.transactions.collect(offset, end_offset)
                found += some
                if complete:
                    break
            return found

        return await self.work.beside(collect)

    # Close

    async def abandon_cleaning(self) -> None:
        """Before segments are taken away; the next cleaning starts over."""
        if self.cleaning is not None:
            await self.cleaning.abandon()

    async def close(self) -> None:
        """Leave the files complete, so that a `clean` open needs no recovery.

        A cut that is under way comes first: until it is done the producers are those of the log before it, and their
        retries would be answered as duplicates of what was cut off.
        """
        async with self.reshaping:
            await self.abandon_cleaning()
            self.segments.active.complete_time_index()
            await self.flush()
            end, producers = self.log_end_offset, self.producers.facts()
            segments, now_ms = list(self.segments), self.clock.monotonic_ms()

            def finish() -> None:
                self.snapshots.write(end, to_entries(producers, now_ms))
                for segment in segments:
                    segment.close()

            await self.work.run(finish)

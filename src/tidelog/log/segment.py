"""One segment: a run of batches in a .log file, with its indexes.

Reading functions take `read`, which brings bytes of the file: on the loop one that raises NotCachedError
rather than wait for the device, on a disk thread one that waits. What they look at only ever grows,
so a disk thread may search a segment while the loop appends to it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from tidelog.config.topic import TopicConfig
from tidelog.errors import NoDescriptorError, StorageError
from tidelog.log import names
from tidelog.log.index import OffsetIndex, TimeIndex, write_index
from tidelog.log.transaction_index import TransactionIndex
from tidelog.ports import Disk
from tidelog.records.header import HEADER_SIZE, LENGTH_END, BatchHeader, read_header
from tidelog.types import NO_TIMESTAMP, Buffer, Offset

Read = Callable[[int, int], Buffer]

MAX_RELATIVE_OFFSET = 2**31 - 1
_RECENT_BATCHES = 128
_SCAN_BYTES = 8192
_SCAN_ALL_BYTES = 1 << 20
_WALK = struct.Struct(">qi11xi")
"""base offset, length, last offset delta: all that is needed to walk from batch to batch."""
_WALK_SIZE = _WALK.size


class NotCachedError(Exception):
    """The answer needs the device: ask again on a disk thread."""


class Segment:
    """Batches from `base_offset` on; `size` bytes of the file are whole batches, always."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: Offset,
        config: TopicConfig,
        created_ms: int,
        *,
        create: bool = False,
        stage: str = "",
    ) -> None:
        self.base_offset = base_offset
        self.stage = stage
        self.created_ms = created_ms
        self.size = 0
        self.sealed = False
        """Nothing more is appended, and its index files are complete."""
        self.index_full = False
        self.first_timestamp = NO_TIMESTAMP
        self._disk = disk
        self._directory = directory
        self._config = config
        self.file = disk.open(self.path(names.LOG), create=create)
        self.transactions = TransactionIndex(disk, self.path(names.TRANSACTION_INDEX))
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp: Offset = base_offset
        self._bytes_since_index = 0
        self._recent: dict[Offset, int] = {}
        self._less_recent: dict[Offset, int] = {}
        """Where batches start by their first offsets: of the last few hundred, in two generations."""
        self._cuts = 0
        """How often it was truncated: what a reader loads of the index files during a cut is out of date."""
        self.cut_positions: list[int] = []
        """Where the loop cut it, in order: bytes above were promised to readers and stand there no more."""

    @classmethod
    def new(
        cls, disk: Disk, directory: str, base_offset: Offset, config: TopicConfig, now_ms: int, *, stage: str = ""
    ) -> Segment:
        """An empty one; leftovers of the same name are cleared away. If it fails, no file of that name is left: the
        segment before may go on, and an empty one among its offsets would end the log there at the next start."""
        segment = cls(disk, directory, base_offset, config, now_ms, create=True, stage=stage)
        try:
            if disk.file_size(segment.file.path):
                segment.file.truncate(0)
            segment.reset_indexes()
            segment.transactions.reset()
        except StorageError:
            segment.close()
            disk.remove(segment.file.path)
            raise
        return segment

    # What it holds

    def path(self, suffix: str) -> str:
        return names.segment_path(self._directory, self.base_offset, suffix) + self.stage

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index, read from its file on first use."""
        index = self._offsets
        return self._load_indexes()[0] if index is None else index

    @property
    def times(self) -> TimeIndex:
        """The time index, read from its file on first use."""
        index = self._times
        return self._load_indexes()[1] if index is None else index

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Missing ones, and ones that cannot belong to this segment, are made anew from the batches."""
        paths = self.path(names.OFFSET_INDEX), self.path(names.TIME_INDEX)
        if not all(self._disk.exists(path) for path in paths):
            return self.rebuild_indexes()
        limit_bytes, cuts = self._config.segment_index_bytes, self._cuts
        offsets = OffsetIndex(paths[0], self.base_offset, limit_bytes, self._disk.read_file(paths[0]))
        times = TimeIndex(paths[1], self.base_offset, limit_bytes, self._disk.read_file(paths[1]))
        if cuts != self._cuts:
            return self.offsets, self.times
        if not (offsets.sane(self.size) and times.sane()):
            return self.rebuild_indexes()
        last = times.last()
        if last is not None and last[0] > self._max_timestamp:
            self._max_timestamp, self._offset_of_max_timestamp = last
        self._offsets, self._times = offsets, times
        return offsets, times

    def rebuild_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """From the batches, which are trusted; for a sealed segment, or one that is just being opened."""
        offsets, times = self.reset_indexes()
        for position, header in self.headers(0, self.file.read_at):
            self.note(header, header.base_offset, position)
        self.complete_time_index()
        self.save(sync=False)()
        return offsets, times

    @property
    def indexes_loaded(self) -> bool:
        return self._offsets is not None and self._times is not None

    @property
    def index_bytes(self) -> int:
        """Of the two indexes, in memory or else on disk."""
        offsets, times = self._offsets, self._times
        if offsets is not None and times is not None:
            return offsets.size_bytes + times.size_bytes
        paths = self.path(names.OFFSET_INDEX), self.path(names.TIME_INDEX)
        return sum(self._disk.file_size(path) for path in paths if self._disk.exists(path))

    @property
    def max_timestamp(self) -> int:
        """The largest record timestamp, or NO_TIMESTAMP. May read the end of the time index, but does not load it."""
        if self._times is None and self._max_timestamp < 0 and self.size:
            self._read_max_timestamp()
        return self._max_timestamp

    def _read_max_timestamp(self) -> None:
        path = self.path(names.TIME_INDEX)
        if not self._disk.exists(path):
            self._load_indexes()
            return
        file = self._disk.open(path)
        try:
            size = TimeIndex.entry.size
            last = TimeIndex(path, self.base_offset, size, file.read_at(max(0, file.size() - size), size))
        finally:
            file.close()
        if last.sane() and len(last):
            self._max_timestamp, self._offset_of_max_timestamp = last[0]

    @property
    def offset_of_max_timestamp(self) -> Offset:
        """The last offset of the first batch that has it."""
        return self._offset_of_max_timestamp if self.max_timestamp >= 0 else self.base_offset

    def largest_timestamp(self) -> int:
        """What retention by time goes by: a segment without timestamps is as old as its file."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 else self._disk.modified_ms(self.file.path)

    # Writing

    def append(self, batches: Sequence[BatchHeader], buffers: Sequence[Buffer], size: int) -> None:
        """Batches that follow each other, in one gathered write. On failure the segment is as it was."""
        position = self.write(buffers, size)
        for header in batches:
            self.note(header, header.base_offset, position)
            position += header.length + LENGTH_END

    def write(self, buffers: Sequence[Buffer], size: int) -> int:
        """Bytes at the end, and where that was; each batch in them is then to be noted."""
        position = self.size
        try:
            self.file.write_at(position, buffers)
        except NoDescriptorError:
            raise
        except StorageError:
            # The torn bytes are past `size` and so invisible; cut them so that no reader of the file meets them.
            self.file.truncate(position)
            raise
        self.size = position + size
        return position

    def note(self, header: BatchHeader, base_offset: Offset, position: int) -> None:
        """Take a batch that stands at `position` into the indexes: at append, and when they are made anew.

        Its base offset comes beside it, because a leader gives the batch another one than its producer did.
        """
        max_timestamp = header.max_timestamp
        last_offset = base_offset + header.last_offset_delta
        if self.first_timestamp < 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = last_offset
        if self._bytes_since_index > self._config.index_interval_bytes:
            full = self.offsets.append(last_offset, position)
            self.index_full = self.times.append(self._max_timestamp, self._offset_of_max_timestamp) or full
            self._bytes_since_index = 0
        self._bytes_since_index += header.length + LENGTH_END
        recent = self._recent
        recent[base_offset] = position
        if len(recent) > _RECENT_BATCHES:
            self._less_recent, self._recent = recent, {}

    def reset_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Forget the indexes, to build them again with `note`. The first `save` replaces their files."""
        limit_bytes = self._config.segment_index_bytes
        self._offsets = OffsetIndex(self.path(names.OFFSET_INDEX), self.base_offset, limit_bytes)
        self._times = TimeIndex(self.path(names.TIME_INDEX), self.base_offset, limit_bytes)
        self._max_timestamp = NO_TIMESTAMP
        self.first_timestamp = NO_TIMESTAMP
        self._bytes_since_index = 0
        self.index_full = False
        self._forget_recent()
        return self._offsets, self._times

    def _forget_recent(self) -> None:
        self._recent, self._less_recent = {}, {}

    def complete_time_index(self) -> None:
        """No more batches will come: the last entry says the largest timestamp of all."""
        if self._max_timestamp >= 0:
            self.times.append(self._max_timestamp, self._offset_of_max_timestamp)

    def save(self, *, sync: bool) -> Callable[[], None]:
        """What a disk thread has to do so that the files hold all that was appended until now."""
        writes = [
            (index.path, *index.changes(sync=sync))
            for index in (self._offsets, self._times)
            if index is not None and not (sync and index.is_synced)
        ]
        file, disk = self.file, self._disk

        def work() -> None:
            if sync:
                file.sync()
                self.transactions.sync()
            for path, position, data in writes:
                write_index(disk, path, position, data, sync=sync)

        return work

    def cut(self, position: int) -> None:
        """The batches from `position` on are no part of it any more. On the loop, before `truncate` takes the bytes."""
        self.size = position
        self.sealed = False
        self.cut_positions.append(position)

    def truncate(self, offset: Offset, position: int) -> None:
        """Drop all batches from `position` on, the first of which holds or follows `offset`."""
        self.file.truncate(position)
        self.size = position
        self._offsets, self._times = self.offsets.truncated(offset), self.times.truncated(offset)
        self.transactions.truncate(offset)
        self._cuts += 1
        self._forget_recent()
        self._max_timestamp, self._offset_of_max_timestamp = self.times.last() or (NO_TIMESTAMP, self.base_offset)
        if position == 0:
            self.first_timestamp = NO_TIMESTAMP
        # The batches since the last entry may have had a larger timestamp: look.
        start = self.offsets[len(self.offsets) - 1][1] if len(self.offsets) else 0
        self._bytes_since_index = position - start
        for _, header in self.headers(start, self.file.read_at):
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._offset_of_max_timestamp = header.max_timestamp, header.last_offset

    # Reading

    def cached(self, position: int, size: int) -> Buffer:
        """The `read` for the loop."""
        data = self.file.read_cached(position, size)
        if data is None:
            raise NotCachedError
        return data

    def find(self, offset: Offset, read: Read) -> tuple[int, Offset, int] | None:
        """(position, base offset, size) of the first batch that ends at or after `offset`; None past the end."""
        position = self._recent.get(offset, -1)
        if position < 0:
            position = self._less_recent.get(offset, -1)
        if position < 0:
            position = self.offsets.position_for(offset)
        return self._walk(position, offset, read)

    def _walk(self, position: int, offset: Offset, read: Read) -> tuple[int, Offset, int] | None:
        end = self.size
        chunk: Buffer = b""
        chunk_start = position
        while position + HEADER_SIZE <= end:
            at = position - chunk_start
            if at + _WALK_SIZE > len(chunk):
                chunk, chunk_start, at = read(position, _SCAN_BYTES), position, 0
                if len(chunk) < _WALK_SIZE:
                    return None  # cut by a truncation under way
            base_offset, length, last_offset_delta = _WALK.unpack_from(chunk, at)
            if base_offset + last_offset_delta >= offset:
                return position, base_offset, length + LENGTH_END
            position += length + LENGTH_END
        return None

    def headers(self, position: int, read: Read) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from a batch's start on."""
        chunk: Buffer = b""
        chunk_start = position
        while position + HEADER_SIZE <= self.size:
            at = position - chunk_start
            if at + HEADER_SIZE > len(chunk):
                chunk, chunk_start, at = read(position, _SCAN_ALL_BYTES), position, 0
            header = read_header(chunk, at)
            yield position, header
            position += header.size_bytes

    def find_end(self) -> Offset:
        """The offset after the last batch: a walk from the last index entry. Waits for the device."""
        offset = self.base_offset
        start = self.offsets[len(self.offsets) - 1][1] if len(self.offsets) else 0
        for _, header in self.headers(start, self.file.read_at):
            offset = header.next_offset
        return offset

    def resume(self) -> None:
        """Make ready to append again to a segment that was closed cleanly: what `note` would know by now."""
        start = self.offsets[len(self.offsets) - 1][1] if len(self.offsets) else 0
        self._bytes_since_index = self.size - start
        self.index_full = self.offsets.full or self.times.full
        for _, header in self.headers(0, self.file.read_at):
            self.first_timestamp = header.max_timestamp
            break

    # Names on disk

    def release_indexes(self) -> None:
        """Give back the memory of a sealed segment's indexes; they are read again when needed."""
        if self.sealed:
            self._offsets = self._times = None
            self._forget_recent()

    def move_to(self, stage: str) -> None:
        """Rename all its files from one stage of their life to the next. On a disk thread."""
        old = {suffix: self.path(suffix) for suffix in names.SEGMENT_SUFFIXES}
        self.stage = stage
        for suffix, path in old.items():
            if self._disk.exists(path):
                self._disk.rename(path, self.path(suffix))
        self.transactions.path = self.path(names.TRANSACTION_INDEX)
        for index, suffix in ((self._offsets, names.OFFSET_INDEX), (self._times, names.TIME_INDEX)):
            if index is not None:
                index.path = self.path(suffix)

    def close(self) -> None:
        self.file.close()
        self.transactions.close()

    def remove(self) -> None:
        """Remove its files for good. On a disk thread."""
        self.close()
        for suffix in names.SEGMENT_SUFFIXES:
            if self._disk.exists(self.path(suffix)):
                self._disk.remove(self.path(suffix))

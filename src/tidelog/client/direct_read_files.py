"""The sealed segments of one partition, read from its directory by a process that is not its broker.

The broker goes on meanwhile: it rolls, compacts, deletes and truncates. So nothing here is taken for granted between
two calls, and what is read is only right once the broker has said so (`direct_read`). What holds by itself:

- A segment's bytes are right while its file is: compaction writes new files and renames, it never writes into one.
- A gap within a file is compaction's. A gap between two files may be one that is just being renamed, so it is not
  read over: who reads is sent to the broker.
- Files are read, not mapped: one that is truncated under the reader ends early, where a mapped one ends the process.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from tidelog.errors import CorruptBatchError, ErrorCode, StorageError, TidelogError
from tidelog.log import names
from tidelog.log.index import OffsetIndex
from tidelog.log.meta import parse_meta_properties, parse_topic_id
from tidelog.records.header import LENGTH_END, BatchHeader, headers
from tidelog.types import BrokerId, Offset, TopicPartition

_PIECE_BYTES = 4 * 1024 * 1024
_LENGTH_AT = LENGTH_END - 4


class CannotReadFilesError(TidelogError):
    """The files of a partition's leader are not to be seen from here; it says why."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class Owner(NamedTuple):
    """Whose files they must be."""

    cluster_id: str
    broker: BrokerId
    topic_id: bytes


class Piece(NamedTuple):
    """Whole batches of one segment. The first holds the offset asked for, or is the next one after it in the file."""

    records: memoryview
    """Good until the next read."""
    batches: list[tuple[int, BatchHeader]]
    segment_end: Offset
    """Where the next segment begins."""


class NotInFiles(NamedTuple):
    """The broker must be asked, until an offset where the files may go on; None if they do not."""

    until: Offset | None


@dataclass
class _Segment:
    """One that is open; `place` is the byte from which to read on."""

    descriptor: int
    end_offset: Offset
    place: int
    next_offset: Offset


class SealedSegments:
    """One directory, held open: a topic that is deleted and made anew has another one."""

    def __init__(self, log_directory: str, partition: TopicPartition, owner: Owner) -> None:
        """CannotReadFilesError unless the directory is there, may be read, and is the owner's."""
        path = os.path.join(log_directory, str(partition))
        self._segment: _Segment | None = None
        self._buffer = bytearray(_PIECE_BYTES)
        try:
            meta_path = os.path.join(log_directory, names.META_PROPERTIES)
            with open(meta_path, "rb") as file:
                meta = parse_meta_properties(file.read(), meta_path)
            if (meta.cluster_id, meta.node_id) != (owner.cluster_id, owner.broker):
                whose = f"broker {meta.node_id} of cluster {meta.cluster_id}"
                _refuse(log_directory, f"it belongs to {whose}, not to broker {owner.broker} of {owner.cluster_id}")
            self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except (OSError, StorageError) as failure:
            _refuse(log_directory, str(failure))
        try:
            if parse_topic_id(self._read_whole(names.PARTITION_METADATA), path) != owner.topic_id:
                _refuse(path, "it belongs to another topic of the same name")
        except (OSError, StorageError) as failure:
            self.close()
            _refuse(path, str(failure))
        except CannotReadFilesError:
            self.close()
            raise

    def close(self) -> None:
        self._leave_segment()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    # Reading

    def read(self, position: Offset, end: Offset) -> Piece | NotInFiles:
        """What comes at `position` and after it, up to the batch that reaches `end`; a few megabytes at most."""
        try:
            if self._segment is None or self._segment.next_offset != position:
                self._leave_segment()
                missing = self._enter_segment(position)
                if missing is not None:
                    return missing
            return self._read_segment(position, end)
        except (OSError, CorruptBatchError):
            # It was renamed between listing and opening, or its index was of another one.
            self._leave_segment()
            return NotInFiles(position + 1)

    def _enter_segment(self, position: Offset) -> NotInFiles | None:
        """Open the one that should hold it."""
        bases = sorted(
            int(name.removesuffix(names.LOG))
            for name in os.listdir(self._directory)
            if name.endswith(names.LOG) and names.base_offset_of(name) is not None
        )
        place = bisect_right(bases, position)
        if place == 0:
            return NotInFiles(position + 1)
        if place == len(bases):
            return NotInFiles(None)
        base, end = bases[place - 1], bases[place]
        descriptor = os.open(names.segment_path("", base, names.LOG), os.O_RDONLY, dir_fd=self._directory)
        self._segment = _Segment(descriptor, end, 0, position)
        if position > base:
            self._segment.place = self._indexed_place(base, position, os.fstat(descriptor).st_size)
        return None

    def _indexed_place(self, base: Offset, position: Offset, size: int) -> int:
        """A byte at or before the batch that holds `position`. Without a good index, the first."""
        name = names.segment_path("", base, names.OFFSET_INDEX)
        try:
            index = OffsetIndex(name, base, 0, self._read_whole(name))
        except FileNotFoundError:
            return 0
        return index.position_for(position) if index.sane(size) else 0

    def _read_segment(self, position: Offset, end: Offset) -> Piece | NotInFiles:
        segment = self._segment
        assert segment is not None
        while True:
            size = os.preadv(segment.descriptor, [self._buffer], segment.place)
            view = memoryview(self._buffer)[:size]
            batches: list[tuple[int, BatchHeader]] = []
            whole = 0
            for at, header in headers(view):
                whole = at + header.size_bytes
                if header.last_offset < position:
                    continue
                batches.append((at, header))
                if header.next_offset >= end:
                    break
            if batches:
                segment.place += whole
                segment.next_offset = batches[-1][1].next_offset
                return Piece(view[batches[0][0] : whole], batches, segment.end_offset)
            if whole:
                segment.place += whole
            elif not self._grow(segment, view):
                self._leave_segment()
                # All of it is read. Where the next one does not follow at once, the broker knows why.
                if position >= segment.end_offset:
                    return self._next_segment(position, end)
                return NotInFiles(segment.end_offset)

    def _next_segment(self, position: Offset, end: Offset) -> Piece | NotInFiles:
        missing = self._enter_segment(position)
        return self._read_segment(position, end) if missing is None else missing

    def _grow(self, segment: _Segment, view: memoryview) -> bool:
        """Room for a batch that is larger than the buffer; False if it is not all in the file, or there is none."""
        needed = LENGTH_END + int.from_bytes(view[_LENGTH_AT:LENGTH_END], "big")
        if needed <= len(self._buffer) or segment.place + needed > os.fstat(segment.descriptor).st_size:
            return False
        self._buffer = bytearray(needed)
        return True

    def _leave_segment(self) -> None:
        if self._segment is not None:
            os.close(self._segment.descriptor)
            self._segment = None

    def _read_whole(self, name: str) -> bytes:
        descriptor = os.open(name, os.O_RDONLY, dir_fd=self._directory)
        with os.fdopen(descriptor, "rb") as file:
            return file.read()


def _refuse(path: str, why: str) -> NoReturn:
    raise CannotReadFilesError(f"{path} cannot be read directly: {why}")

"""The two sparse indexes of a segment, kept in memory exactly as they stand on disk.

A lookup is a binary search over the raw entries, so an index that is read needs no parsing, and
one that is written needs no second copy. The file is written when the segment is flushed, rolled
or closed; after a crash it is made anew from the log, so it is never ahead of the log.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from copy import copy
from typing import Self

from tidelog.ports import Disk
from tidelog.types import Buffer, Offset

_UNKNOWN = -1
_OFFSET_ENTRY = struct.Struct(">ii")


class Index:
    """Entries of one fixed size, appended in order; `written` of their bytes are already in the file."""

    __slots__ = ("_data", "_full_above_bytes", "_synced", "_written", "path")

    entry = struct.Struct("")

    def __init__(self, path: str, limit_bytes: int, data: Buffer = b"") -> None:
        self.path = path
        self._full_above_bytes = limit_bytes - 2 * self.entry.size
        self._data = bytearray(data)
        self._written = len(data)
        self._synced = _UNKNOWN
        """How many bytes the last synced write left in the file."""

    def __len__(self) -> int:
        return len(self._data) // self.entry.size

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    @property
    def full(self) -> bool:
        """No room for two more: the roll that this causes adds a last one."""
        return len(self._data) > self._full_above_bytes

    def key(self, slot: int) -> int:
        """What the entries are ordered by: the entry's first field."""
        return self.entry.unpack_from(self._data, slot * self.entry.size)[0]  # type: ignore[no-any-return]

    def floor(self, key: int) -> int:
        """The slot of the last entry at or below `key`, or -1."""
        return bisect_right(range(len(self)), key, key=self.key) - 1

    def ceiling(self, key: int) -> int:
        """The slot of the first entry at or above `key`, or the number of entries."""
        return bisect_left(range(len(self)), key, key=self.key)

    def first_entries(self, count: int) -> Self:
        """A shorter one. This one stays as it is for whoever is just searching it."""
        shorter = copy(self)
        shorter._data = self._data[: count * self.entry.size]
        shorter._written = min(self._written, len(shorter._data))
        shorter._synced = _UNKNOWN
        return shorter

    @property
    def is_synced(self) -> bool:
        """The device has all of it, or will have when the disk thread has done what it was given."""
        return self._synced == len(self._data)

    def changes(self, *, sync: bool = False) -> tuple[int, bytes]:
        """Where in the file to write what the file does not have yet; taken on the loop, written by a disk thread."""
        position = self._written
        self._written = len(self._data)
        self._synced = self._written if sync else _UNKNOWN
        return position, bytes(memoryview(self._data)[position:])


class OffsetIndex(Index):
    """(last offset of a batch, relative to the segment's base) to the position where that batch starts."""

    __slots__ = ("_base_offset",)

    entry = _OFFSET_ENTRY

    def __init__(self, path: str, base_offset: Offset, limit_bytes: int, data: Buffer = b"") -> None:
        super().__init__(path, limit_bytes, data)
        self._base_offset = base_offset

    def append(self, last_offset: Offset, position: int) -> bool:
        """True if it is full with this entry."""
        data = self._data
        data += _OFFSET_ENTRY.pack(last_offset - self._base_offset, position)
        return len(data) > self._full_above_bytes

    def position_for(self, offset: Offset) -> int:
        """A position at or before the batch that holds `offset`, never past it."""
        slot = self.floor(offset - self._base_offset)
        return self[slot][1] if slot >= 0 else 0

    def __getitem__(self, slot: int) -> tuple[Offset, int]:
        relative, position = self.entry.unpack_from(self._data, slot * self.entry.size)
        return self._base_offset + relative, position

    def truncated(self, offset: Offset) -> OffsetIndex:
        """Without the entries of batches that end at or after `offset`."""
        return self.first_entries(self.ceiling(offset - self._base_offset))

    def sane(self, segment_bytes: int) -> bool:
        """Whether an index found on disk can belong to its segment; if not it is made anew."""
        if len(self._data) % self.entry.size:
            return False
        if not len(self):
            return True
        last_offset, position = self[len(self) - 1]
        return last_offset >= self._base_offset and 0 <= position < max(segment_bytes, 1)


class TimeIndex(Index):
    """(the largest timestamp so far, the last offset of the batch that has it): timestamps only grow."""

    __slots__ = ("_base_offset", "_largest")

    entry = struct.Struct(">qi")

    def __init__(self, path: str, base_offset: Offset, limit_bytes: int, data: Buffer = b"") -> None:
        super().__init__(path, limit_bytes, data)
        self._base_offset = base_offset
        self._largest = self._last_key()

    def _last_key(self) -> int:
        return self.key(len(self) - 1) if len(self) else -1

    def append(self, timestamp: int, offset: Offset) -> bool:
        """True if it is full then. A no-op unless the timestamp is larger than the last: others say nothing new."""
        if timestamp > self._largest:
            self._data += self.entry.pack(timestamp, offset - self._base_offset)
            self._largest = timestamp
        return len(self._data) > self._full_above_bytes

    def __getitem__(self, slot: int) -> tuple[int, Offset]:
        timestamp, relative = self.entry.unpack_from(self._data, slot * self.entry.size)
        return timestamp, self._base_offset + relative

    def last(self) -> tuple[int, Offset] | None:
        return self[len(self) - 1] if len(self) else None

    def offset_before(self, timestamp: int) -> Offset:
        """An offset such that every record before it is older than `timestamp`."""
        slot = self.ceiling(timestamp) - 1
        return self[slot][1] if slot >= 0 else self._base_offset

    def truncated(self, offset: Offset) -> TimeIndex:
        """Without the entries that point at or past `offset`."""
        relative = offset - self._base_offset
        count = bisect_left(range(len(self)), relative, key=lambda slot: self[slot][1] - self._base_offset)
        shorter = self.first_entries(count)
        shorter._largest = shorter._last_key()
        return shorter

    def sane(self) -> bool:
        if len(self._data) % self.entry.size:
            return False
        last = self.last()
        if last is None:
            return True
        rises = len(self) == 1 or last[0] > self.key(0)
        return rises and last[1] >= self._base_offset


def write_index(disk: Disk, path: str, position: int, data: bytes, *, sync: bool) -> None:
    """Bring an index file up to date: all before `position` is there already, anything after is replaced."""
    file = disk.open(path, create=True)
    try:
        if file.size() != position:
            file.truncate(position)
        if data:
            file.write_at(position, [data])
        if sync:
            file.sync()
    finally:
        file.close()

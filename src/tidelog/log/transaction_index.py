"""The .txnindex of a segment: the aborted transactions whose marker stands in that segment (S13.3).

Readers with read_committed are sent the ones that overlap what they read, and skip those records.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import starmap
from operator import attrgetter
from typing import NamedTuple

from tidelog.errors import TidelogError
from tidelog.ports import Disk, File
from tidelog.types import Offset, ProducerId

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size


class AbortedTxn(NamedTuple):
    """A transaction that was taken back: from its first record to its marker, both included."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset
    """Of the log just after the marker: no transaction that aborts later has records below it."""


_LAST_OFFSET = attrgetter("last_offset")


class CorruptIndexError(TidelogError):
    """An index that contradicts its segment: to be made anew from the log."""


def encode_entries(entries: Iterable[AbortedTxn]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode_entries(data: bytes, name: str) -> list[AbortedTxn]:
    """The whole entries; a torn one at the end is left out, its marker will be met again by recovery."""
    fields = list(_ENTRY.iter_unpack(memoryview(data)[: len(data) // ENTRY_SIZE * ENTRY_SIZE]))
    for version, *_ in fields:
        if version != _VERSION:
            raise CorruptIndexError(f"{name} has an entry of version {version}, expected {_VERSION}")
    return list(starmap(AbortedTxn, (entry[1:] for entry in fields)))


class TransactionIndex:
    """Aborted transactions in the order of their markers, in memory and in the file.

    Always: last offsets rise, and the file holds what the list holds. Most segments have no aborted transaction, and
    so no file; it is looked for at the first use and made with the first entry.
    """

    __slots__ = ("_disk", "_file", "_readings", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self._disk = disk
        self._file: File | None = None
        self._readings: list[list[AbortedTxn]] = []
        """The entries are the first reading. The loop and a disk thread may both read, so there can be a second."""

    @property
    def empty(self) -> bool:
        """True if it is known to hold nothing. Never touches the disk: one that was not read yet may hold something."""
        return bool(self._readings) and not self._readings[0]

    @property
    def has_file(self) -> bool:
        """It was written to since it was opened."""
        return self._file is not None

    def entries(self) -> Sequence[AbortedTxn]:
        """All of them, in the order of their markers."""
        return self._loaded()

    def _loaded(self) -> list[AbortedTxn]:
        if not self._readings:
            try:
                entries = decode_entries(self._disk.read_file(self.path), self.path)
            except FileNotFoundError:
                entries = []
            # Only the loop writes, and only into the first reading: whoever comes second takes that one too.
            self._readings.append(entries)
        return self._readings[0]

    def append(self, entry: AbortedTxn) -> None:
        entries = self._loaded()
        if entries and entry.last_offset <= entries[-1].last_offset:
            raise ValueError(f"{self.path}: {entry} does not come after {entries[-1]}")
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        self._file.write_at(len(entries) * ENTRY_SIZE, [encode_entries([entry])])
        entries.append(entry)

    def collect(self, fetch_offset: Offset, upper_bound_offset: Offset) -> tuple[list[AbortedTxn], bool]:
        """Those with records in [fetch_offset, upper_bound_offset), and whether that is all of them.

        If not, the markers of others may stand in later segments: go on there. An entry whose last stable offset has
        reached the upper bound ends the search, since what aborts after it began after it.
        """
        entries = self._loaded()
        found: list[AbortedTxn] = []
        for index in range(bisect_left(entries, fetch_offset, key=_LAST_OFFSET), len(entries)):
            entry = entries[index]
            if entry.first_offset < upper_bound_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound_offset:
                return found, True
        return found, False

    def truncate(self, offset: Offset) -> None:
        """Drop those whose marker stands at or after `offset`."""
        entries = self._loaded()
        kept = bisect_left(entries, offset, key=_LAST_OFFSET)
        if kept == len(entries):
            return
        if self._file is None:
            self._file = self._disk.open(self.path)
        self._file.truncate(kept * ENTRY_SIZE)
        del entries[kept:]

    def reset(self) -> None:
        """Empty it, before it is made anew from the log. What it held need not even be readable."""
        if self._file is None and self._disk.exists(self.path):
            self._file = self._disk.open(self.path)
        if self._file is not None:
            self._file.truncate(0)
        self._readings = [[]]

    def check(self, segment_base_offset: Offset) -> None:
        """CorruptIndexError if the entries cannot be those of a segment that starts there."""
        previous = segment_base_offset - 1
        for entry in self.entries():
            if entry.last_offset <= previous or entry.first_offset > entry.last_offset:
                raise CorruptIndexError(f"{self.path}: {entry} cannot follow offset {previous}")
            previous = entry.last_offset

    def sync(self) -> None:
        """What was appended survives a power loss when this returns; for a disk thread."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

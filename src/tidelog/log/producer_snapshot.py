"""The .snapshot files: what was known of the producers at one offset, so that opening a log need not read all of it.

Kafka's file keeps the last batch of a producer only, and a retry of one before it would be out of order after the log
was opened or cut. Ours keeps the others behind Kafka's entries, and behind those for how long each producer had been
silent. Both stand under the same CRC, where Kafka does not look; without them a file is read as Kafka's.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import NamedTuple

from crc32c import crc32c

from tidelog.errors import TidelogError
from tidelog.log import names
from tidelog.ports import Disk
from tidelog.types import Epoch, Offset, ProducerId

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_FIELDS_OF_KAFKA = 8
_ENTRIES_START = _HEAD.size + _COUNT.size
_EARLIER_MARK = b"tide"
_EARLIER_COUNT = struct.Struct(">B")
_EARLIER = struct.Struct(">iqiq")
_SILENCE_MARK = b"mute"
_SILENCE = struct.Struct(">q")


class CorruptSnapshotError(TidelogError):
    """A snapshot that cannot be used. It is only a shortcut: remove it and take an older one, or none."""


class EarlierBatch(NamedTuple):
    """A batch that a producer wrote before its last one, and may send again."""

    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp: int


class SnapshotEntry(NamedTuple):
    """One producer and its last batch; `last_offset` is -1 if there was none."""

    producer_id: ProducerId
    epoch: Epoch
    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp: int
    coordinator_epoch: Epoch
    txn_first_offset: Offset
    """Where the ongoing transaction starts, or -1."""
    earlier: tuple[EarlierBatch, ...] = ()
    """Of the same epoch, oldest first."""
    silent_ms: int = 0
    """For how long nothing had been heard of the producer when this was written; 0 if that is not known."""


def encode_snapshot(entries: Sequence[SnapshotEntry]) -> bytes:
    body = _COUNT.pack(len(entries)) + b"".join(_ENTRY.pack(*entry[:_FIELDS_OF_KAFKA]) for entry in entries)
    if any(entry.earlier for entry in entries):
        body += _EARLIER_MARK + b"".join(_encode_earlier(entry.earlier) for entry in entries)
    if any(entry.silent_ms for entry in entries):
        body += _SILENCE_MARK + b"".join(_SILENCE.pack(entry.silent_ms) for entry in entries)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def _encode_earlier(earlier: Sequence[EarlierBatch]) -> bytes:
    return _EARLIER_COUNT.pack(len(earlier)) + b"".join(starmap(_EARLIER.pack, earlier))


def decode_snapshot(data: bytes) -> list[SnapshotEntry]:
    if len(data) < _ENTRIES_START:
        raise CorruptSnapshotError(f"{len(data)} bytes are too few for a producer snapshot")
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshotError(f"producer snapshot has version {version}, expected {_VERSION}")
    if crc32c(memoryview(data)[_HEAD.size :]) != crc:
        raise CorruptSnapshotError("producer snapshot fails its CRC")
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    end = _ENTRIES_START + count * _ENTRY.size
    if not _ENTRIES_START <= end <= len(data):
        raise CorruptSnapshotError(f"producer snapshot announces {count} entries, but has {len(data)} bytes")
    entries = list(starmap(SnapshotEntry, _ENTRY.iter_unpack(memoryview(data)[_ENTRIES_START:end])))
    if data.startswith(_EARLIER_MARK, end):
        entries, end = _with_earlier(entries, data, end + len(_EARLIER_MARK))
    if data.startswith(_SILENCE_MARK, end):
        entries, end = _with_silence(entries, data, end + len(_SILENCE_MARK))
    if end != len(data):
        raise CorruptSnapshotError(f"producer snapshot has unknown bytes behind its {len(entries)} entries")
    return entries


def _with_earlier(entries: list[SnapshotEntry], data: bytes, position: int) -> tuple[list[SnapshotEntry], int]:
    whole = []
    try:
        for entry in entries:
            (count,) = _EARLIER_COUNT.unpack_from(data, position)
            position += _EARLIER_COUNT.size
            starts = range(position, position + count * _EARLIER.size, _EARLIER.size)
            earlier = tuple(EarlierBatch(*_EARLIER.unpack_from(data, start)) for start in starts)
            position += count * _EARLIER.size
            whole.append(entry._replace(earlier=earlier))
    except struct.error as short:
        raise CorruptSnapshotError("producer snapshot ends within the batches of a producer") from short
    return whole, position


def _with_silence(entries: list[SnapshotEntry], data: bytes, position: int) -> tuple[list[SnapshotEntry], int]:
    end = position + len(entries) * _SILENCE.size
    if end > len(data):
        raise CorruptSnapshotError("producer snapshot does not tell of all producers how long they were silent")
    silences = _SILENCE.iter_unpack(memoryview(data)[position:end])
    return [entry._replace(silent_ms=silent_ms) for entry, (silent_ms,) in zip(entries, silences, strict=True)], end


def snapshot_name(offset: Offset) -> str:
    """Named by the offset after the last record it has seen."""
    return f"{offset:020d}{names.PRODUCER_SNAPSHOT}"


class ProducerSnapshots:
    """The snapshots in one partition's directory. The directory is listed once, when first asked."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._disk = disk
        self._known: list[Offset] | None = None

    @property
    def offsets(self) -> Sequence[Offset]:
        """Of all snapshots, rising."""
        return self._offsets()

    def path(self, offset: Offset) -> str:
        return os.path.join(self.directory, snapshot_name(offset))

    def write(self, offset: Offset, entries: Sequence[SnapshotEntry]) -> None:
        """Keep what is known at `offset`, on the device when this returns."""
        self._disk.write_file(self.path(offset), encode_snapshot(entries))
        known = self._offsets()
        if offset not in known:
            insort(known, offset)

    def load_latest(self, oldest: Offset, at_most: Offset) -> tuple[Offset, list[SnapshotEntry]] | None:
        """The newest good snapshot not below `oldest` and not above `at_most`; corrupt ones met on the way go.

        `oldest` is where the batches begin that are still there. None: replay from there. A snapshot at this place
        tells of producers whose records are gone and which may still send them again. One below it may lack batches
        that are gone, and would call what follows them out of order.
        """
        known = self._offsets()
        for offset in reversed(known[: bisect_right(known, at_most)]):
            if offset < oldest:
                return None
            try:
                return offset, decode_snapshot(self._disk.read_file(self.path(offset)))
            except (CorruptSnapshotError, FileNotFoundError):
                self.remove(offset)
        return None

    def remove(self, offset: Offset) -> None:
        known = self._offsets()
        if offset in known:
            known.remove(offset)
        if self._disk.exists(self.path(offset)):
            self._disk.remove(self.path(offset))

    def remove_before(self, offset: Offset) -> None:
        """Those of segments that are gone."""
        self._remove_all(known for known in self._offsets() if known < offset)

    def remove_after(self, offset: Offset) -> None:
        """Those that have seen records which a truncation to `offset` takes away."""
        self._remove_all(known for known in self._offsets() if known > offset)

    def remove_strays(self, segment_base_offsets: Iterable[Offset]) -> None:
        """Those that no segment starts at, but for the newest if it is past all segments: a clean close wrote it."""
        bases = frozenset(segment_base_offsets)
        strays = [offset for offset in self._offsets() if offset not in bases]
        if strays and strays[-1] >= max(bases, default=strays[-1]):
            strays.pop()
        self._remove_all(strays)

    def remove_all(self) -> None:
        self._remove_all(self._offsets())

    def _remove_all(self, offsets: Iterable[Offset]) -> None:
        for offset in list(offsets):
            self.remove(offset)

    def _offsets(self) -> list[Offset]:
        if self._known is None:
            found = (names.base_offset_of(name) for name in self._disk.list(self.directory) if _is_snapshot(name))
            self._known = sorted(offset for offset in found if offset is not None)
        return self._known


def _is_snapshot(name: str) -> bool:
    return name.endswith(names.PRODUCER_SNAPSHOT)

"""Finding things in a log's segments: bytes by offset, offsets by time.

Each function works on the loop with what is in the page cache (`cached`, raising NotCachedError),
or on a disk thread with a copy of the segment list.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import TidelogError
from tidelog.log.segment import NotCachedError, Read, Segment
from tidelog.log.segments import Segments
from tidelog.ports import File
from tidelog.records.header import BatchHeader, Codec
from tidelog.records.lookups import TimestampOffset, first_at_or_after, latest_timestamp
from tidelog.types import NO_TIMESTAMP, Buffer, Offset

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
"""What ListOffsets may ask for in place of a time. Without tiered storage all that is earliest is local."""


ANY_SIZE = 1 << 62
"""Of a compressed batch that a lookup may decompress."""


class HeavyLookupError(TidelogError):
    """To find a time, a larger batch has to be decompressed than the caller allows. No client hears of this."""


class Region(NamedTuple):
    """A stretch of a segment's file that begins with a whole batch; `size` 0 if there is nothing to read."""

    segment: Segment
    position: int
    size: int
    base_offset: Offset
    """Of the first batch: at or below the offset that was asked for, or after it where compaction left a gap."""
    cuts: int
    """How often the segment had been cut when this was found."""

    @property
    def file(self) -> File:
        return self.segment.file

    @property
    def is_void(self) -> bool:
        """The segment was cut below the region's end since: what stands there now was never meant (edge case 29).

        A cut shows here before the file changes. So what the loop reads is right if this is False before the read,
        and what another thread reads if it is False after it.
        """
        cut_positions = self.segment.cut_positions
        if len(cut_positions) == self.cuts:
            return False
        end = self.position + self.size
        return any(position < end for position in cut_positions[self.cuts :])

    def read(self) -> bytes:
        """All of it at once, waiting for the device if need be."""
        return self.file.read_at(self.position, self.size)


class Extent(NamedTuple):
    """How far a log reached when a read began: a disk thread must not see what the loop appends meanwhile."""

    log_end_offset: Offset
    active_bytes: int


class FoundTimestamp(NamedTuple):
    timestamp: int
    offset: Offset
    leader_epoch: int


def locate(
    segments: Segments,
    offset: Offset,
    max_bytes: int,
    end_offset: Offset,
    extent: Extent,
    min_one: bool,
    cached: bool,
) -> Region:
    """Where the batches from `offset` up to `end_offset` stand, out of one segment, as much as fits `max_bytes`."""
    if offset >= end_offset:
        return _nothing(segments, offset)
    for place in range(segments.place_of(offset), len(segments)):
        segment = segments[place]
        if segment.base_offset >= end_offset:
            break
        cuts = len(segment.cut_positions)
        read = _reader(segment, cached)
        found = segment.find(offset, read)
        if found is None:
            continue  # compaction left nothing between `offset` and the next segment
        position, base_offset, batch_bytes = found
        segment_end = segments.end_of(place, extent.log_end_offset)
        segment_bytes = segment.size if place + 1 < len(segments) else min(segment.size, extent.active_bytes)
        available = min(segment_bytes, _end_position(segment, segment_end, end_offset, read)) - position
        if available < batch_bytes or (batch_bytes > max_bytes and not min_one):
            break
        return Region(segment, position, min(available, max(max_bytes, batch_bytes)), base_offset, cuts)
    return _nothing(segments, offset)


def _nothing(segments: Segments, offset: Offset) -> Region:
    return Region(segments.active, 0, 0, offset, len(segments.active.cut_positions))


def _end_position(segment: Segment, segment_end: Offset, end_offset: Offset, read: Read) -> int:
    """Where the last batch ends that lies wholly below `end_offset`."""
    if end_offset >= segment_end:
        return segment.size
    found = segment.find(end_offset, read)
    return segment.size if found is None else found[0]


def _reader(segment: Segment, cached: bool) -> Read:
    if not cached:
        return segment.file.read_at
    if not segment.indexes_loaded:
        raise NotCachedError
    return segment.cached


def find_timestamp(
    segments: Segments, timestamp_ms: int, log_start_offset: Offset, most_compressed_bytes: int = ANY_SIZE
) -> FoundTimestamp | None:
    """The first record at or after `timestamp_ms`. On a disk thread."""
    for segment in segments:
        if segment.max_timestamp < timestamp_ms:
            continue
        start = segment.find(max(segment.times.offset_before(timestamp_ms), log_start_offset), segment.file.read_at)
        if start is None:
            continue
        for position, header in segment.headers(start[0], segment.file.read_at):
            if header.max_timestamp < timestamp_ms or header.last_offset < log_start_offset:
                continue
            batch = _batch(segment, position, header, most_compressed_bytes)
            found = first_at_or_after(batch, header, 0, timestamp_ms, log_start_offset)
            if found is not None:
                return _with_epoch(found, header)
    return None


def find_max_timestamp(
    segments: Segments, log_start_offset: Offset, most_compressed_bytes: int = ANY_SIZE
) -> FoundTimestamp | None:
    """The first record that has the largest timestamp of all from the log start on. On a disk thread."""
    visible = [segments[place] for place in range(segments.place_of(log_start_offset), len(segments))]
    candidates = [(*_max_from(segment, log_start_offset, most_compressed_bytes), segment) for segment in visible]
    timestamp, offset, latest = max(candidates, key=lambda candidate: (candidate[0], -candidate[1]))
    start = latest.find(offset, latest.file.read_at) if timestamp >= 0 else None
    if start is None:
        return None
    position, header = next(latest.headers(start[0], latest.file.read_at))
    found = latest_timestamp(_batch(latest, position, header, most_compressed_bytes), header, 0, log_start_offset)
    return None if found is None else _with_epoch(found, header)


def _max_from(segment: Segment, log_start_offset: Offset, most_compressed_bytes: int) -> tuple[int, Offset]:
    """(largest timestamp, an offset in its batch) of what is visible. Only where the log starts inside must it look."""
    if segment.base_offset >= log_start_offset:
        return segment.max_timestamp, segment.offset_of_max_timestamp
    best = (NO_TIMESTAMP, log_start_offset)
    start = segment.find(log_start_offset, segment.file.read_at)
    for position, header in segment.headers(start[0], segment.file.read_at) if start is not None else ():
        if header.base_offset < log_start_offset:
            batch = _batch(segment, position, header, most_compressed_bytes)
            found = latest_timestamp(batch, header, 0, log_start_offset)
            timestamp = NO_TIMESTAMP if found is None else found.timestamp
        else:
            timestamp = header.max_timestamp
        if timestamp > best[0]:
            best = timestamp, header.last_offset
    return best


def _batch(segment: Segment, position: int, header: BatchHeader, most_compressed_bytes: int) -> Buffer:
    if header.size_bytes > most_compressed_bytes and header.codec is not Codec.NONE:
        raise HeavyLookupError(f"a batch of {header.size_bytes} bytes is compressed")
    return segment.file.read_at(position, header.size_bytes)


def _with_epoch(found: TimestampOffset, header: BatchHeader) -> FoundTimestamp:
    return FoundTimestamp(found.timestamp, found.offset, header.partition_leader_epoch)

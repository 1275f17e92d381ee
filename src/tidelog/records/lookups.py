"""Finding one record in a batch by time, for ListOffsets."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.records.batch import open_batch
from tidelog.records.header import BatchHeader
from tidelog.records.kernel import find_latest, find_timestamp
from tidelog.types import Buffer, Offset


class TimestampOffset(NamedTuple):
    """A record's time and place."""

    timestamp: int
    offset: Offset


def first_at_or_after(
    buffer: Buffer, header: BatchHeader, position: int, timestamp_ms: int, from_offset: Offset = 0
) -> TimestampOffset | None:
    """The first record not older than `timestamp_ms`, at or after `from_offset`."""
    if header.max_timestamp < timestamp_ms or header.last_offset < from_offset:
        return None
    found = find_timestamp(open_batch(buffer, header, position), timestamp_ms, from_offset)
    return None if found is None else TimestampOffset(*found)


def latest_timestamp(
    buffer: Buffer, header: BatchHeader, position: int = 0, from_offset: Offset = 0
) -> TimestampOffset | None:
    """The first among the records with the largest timestamp from `from_offset` on; None if there are none."""
    found = find_latest(open_batch(buffer, header, position), from_offset)
    return None if found is None else TimestampOffset(*found)

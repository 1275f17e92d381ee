"""Compaction of one batch: which of its records stay, and the batch that holds them.

The batch stays what it was but for the records that go: base offset, last offset, producer, epoch and codec
are kept, so offsets keep their meaning and a producer's sequence stays known.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.records.batch import open_batch
from tidelog.records.build import BatchFacts, build_from_columns, frame
from tidelog.records.columns import Columns
from tidelog.records.header import CODEC_MASK, DELETE_HORIZON, BatchHeader, read_header
from tidelog.records.offset_map import OffsetMap
from tidelog.types import NO_TIMESTAMP, Buffer

__all__ = ["Kept", "OffsetMap", "compact_batch", "empty_batch", "index_batch", "with_delete_horizon"]


class Kept(NamedTuple):
    """What stays of a batch."""

    batch: Buffer | None
    """None if no record does; a view of the batch as it was if all do."""

    header: BatchHeader
    record_count: int
    tombstones: int


def index_batch(offsets: OffsetMap, buffer: Buffer, header: BatchHeader, position: int = 0) -> bool:
    """Note the offset of each key in the batch. False if the map has no room: then nothing was noted."""
    if header.is_control:
        offsets.skip_to(header.last_offset)
        return True
    return offsets.add(open_batch(buffer, header, position), header.last_offset)


def compact_batch(
    offsets: OffsetMap,
    buffer: Buffer,
    header: BatchHeader,
    position: int = 0,
    *,
    drop_tombstones: bool,
    delete_horizon_ms: int | None = None,
) -> Kept:
    """Keep what the map does not know a later record for, and tombstones unless they are to be dropped.

    Where tombstones stay in a batch that has no delete horizon yet, `delete_horizon_ms` becomes it.
    """
    payload, count, tombstones, max_timestamp = offsets.retain(open_batch(buffer, header, position), drop_tombstones)
    if not count:
        return Kept(None, header, 0, 0)
    batch: Buffer = memoryview(buffer)[position : position + header.size_bytes]
    if payload is not None:
        changed = header._replace(record_count=count, max_timestamp=max_timestamp)
        batch = frame(changed, payload)
        header = read_header(batch)
    if tombstones and delete_horizon_ms is not None and header.delete_horizon_ms is None:
        batch = with_delete_horizon(batch, header, 0, delete_horizon_ms)
        header = read_header(batch)
    return Kept(batch, header, count, tombstones)


def empty_batch(header: BatchHeader) -> memoryview:
    """A batch without records in the place of one that had some: it ends where that did, and names its producer."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return frame(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def with_delete_horizon(buffer: Buffer, header: BatchHeader, position: int, delete_horizon_ms: int) -> memoryview:
    """The same batch with a delete horizon. It takes the base timestamp's place, so every delta is written anew."""
    columns = Columns()
    columns.append(open_batch(buffer, header, position))
    facts = BatchFacts(
        base_offset=header.base_offset,
        codec=header.codec,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        log_append_time_ms=header.max_timestamp if header.uses_log_append_time else None,
        delete_horizon_ms=delete_horizon_ms,
        last_offset_delta=header.last_offset_delta,
    )
    return build_from_columns(columns.finish(), facts, keep_offsets=True)

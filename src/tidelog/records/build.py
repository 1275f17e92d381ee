"""Making whole batches: records or columns in, header, CRC and compressed records out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from tidelog.errors import RecordTooLargeError
from tidelog.records.buffers import ColumnBuffers
from tidelog.records.column_source import ColumnSource
from tidelog.records.compression import compress
from tidelog.records.encoder import RecordWriter
from tidelog.records.header import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LAYOUT,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    Codec,
    seal,
)
from tidelog.records.kernel import Record
from tidelog.types import NO_EPOCH, NO_PRODUCER, NO_SEQUENCE, Buffer, Epoch, Offset, ProducerId

_MAX_LENGTH = 2**31 - 1
MAX_BATCH_BYTES = _MAX_LENGTH + LENGTH_END

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
RecordLike: TypeAlias = (
    Record | tuple[int, Buffer | None, Buffer | None] | tuple[int, Buffer | None, Buffer | None, Headers]
)
"""A Record, or (timestamp, key, value) and maybe headers."""


class BatchFacts(NamedTuple):
    """What a batch says about itself besides its records; the defaults are a plain producer's."""

    base_offset: Offset = 0
    codec: Codec = Codec.NONE
    level: int | None = None
    partition_leader_epoch: Epoch = NO_EPOCH
    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: int = NO_EPOCH
    base_sequence: int = NO_SEQUENCE
    transactional: bool = False
    control: bool = False
    log_append_time_ms: int | None = None
    """The broker's clock instead of the records' own timestamps."""

    delete_horizon_ms: int | None = None
    """When the tombstones in it may go. It takes the base timestamp's place."""

    last_offset_delta: int | None = None
    """Where compaction took the last record: the batch still ends where it did."""

    @property
    def attributes(self) -> int:
        """As the header has them."""
        return (
            self.codec
            | (LOG_APPEND_TIME if self.log_append_time_ms is not None else 0)
            | (TRANSACTIONAL if self.transactional else 0)
            | (CONTROL if self.control else 0)
            | (DELETE_HORIZON if self.delete_horizon_ms is not None else 0)
        )


PLAIN = BatchFacts()


def build_batch(records: Iterable[RecordLike], facts: BatchFacts = PLAIN, **changed: Any) -> memoryview:
    """A batch of these records; `changed` are facts by name. A Record keeps its offset, others count up."""
    facts = facts._replace(**changed)
    writer = RecordWriter(facts.base_offset, facts.delete_horizon_ms)
    for record in records:
        if isinstance(record, Record):
            delta = record.offset - facts.base_offset
            if delta < 0:
                raise ValueError(f"offset {record.offset} lies before its batch's {facts.base_offset}")
            writer.append(record.timestamp, record.key, record.value, record.headers, delta)
        else:
            writer.append(*record)
    return finish_batch(writer, facts)


def build_from_columns(
    columns: ColumnBuffers, facts: BatchFacts = PLAIN, *, keep_offsets: bool = False, **changed: Any
) -> memoryview:
    """One batch of all rows. To cut many rows into batches, hold a ColumnSource and call RecordWriter.append_rows."""
    facts = facts._replace(**changed)
    writer = RecordWriter(facts.base_offset, facts.delete_horizon_ms, HEADER_SIZE + 128 * columns.row_count)
    if writer.append_rows(ColumnSource(columns, keep_offsets), 0, _MAX_LENGTH) < columns.row_count:
        raise RecordTooLargeError(f"{columns.row_count} rows do not fit one batch")
    return finish_batch(writer, facts)


def finish_batch(writer: RecordWriter, facts: BatchFacts) -> memoryview:
    """Header and CRC around what was written: in place if it is not compressed. The writer is done with."""
    last_offset_delta = writer.last_offset_delta if facts.last_offset_delta is None else facts.last_offset_delta
    if last_offset_delta < writer.last_offset_delta:
        raise ValueError(f"the batch ends at delta {last_offset_delta}, before its record {writer.last_offset_delta}")
    header = BatchHeader(
        facts.base_offset,
        0,
        facts.partition_leader_epoch,
        MAGIC,
        0,
        facts.attributes,
        last_offset_delta,
        writer.base_timestamp,
        writer.max_timestamp if facts.log_append_time_ms is None else facts.log_append_time_ms,
        facts.producer_id,
        facts.producer_epoch,
        facts.base_sequence,
        writer.count,
    )
    batch = writer.take()
    if facts.codec is Codec.NONE:
        return _closed(batch, header)
    return frame(header, batch[HEADER_SIZE:], facts.level)


def frame(header: BatchHeader, payload: Buffer, level: int | None = None) -> memoryview:
    """The batch with this header and these records, which are compressed as it says; length and CRC are set anew."""
    return frame_compressed(header, compress(header.codec, payload, level) if header.record_count else b"")


def frame_compressed(header: BatchHeader, records: Buffer) -> memoryview:
    """Like `frame`, with records that are compressed already."""
    batch = bytearray(HEADER_SIZE + len(records))
    batch[HEADER_SIZE:] = records
    return _closed(memoryview(batch), header)


def _closed(batch: memoryview, header: BatchHeader) -> memoryview:
    length = len(batch) - LENGTH_END
    if length > _MAX_LENGTH:
        raise RecordTooLargeError(f"a batch of {len(batch)} bytes is larger than any batch can be")
    LAYOUT.pack_into(batch, 0, *header._replace(length=length))
    seal(batch)
    return batch

"""What a broker checks before it appends a batch, and the few changes it makes to one."""

from __future__ import annotations

from tidelog.errors import CorruptBatchError, InvalidRecordError, InvalidTimestampError, RecordError
from tidelog.records.batch import open_batch
from tidelog.records.build import frame
from tidelog.records.header import CODEC_MASK, HEADER_SIZE, LENGTH_END, BatchHeader, Codec, check_crc, read_header
from tidelog.records.kernel import check_records, count_null_keys, find_invalid
from tidelog.types import Buffer

MAX_RECORD_ERRORS = 10_000
"""How many records a refusal names at most: a small compressed batch may hold millions of them."""

_LAST_CODEC = int(Codec.ZSTD)
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1
_NO_KEY = "Compacted topic cannot accept message without key"


def validate(buffer: Buffer, position: int = 0, *, end: int | None = None) -> BatchHeader:
    """The header of a batch that may be appended: all that can be checked without touching its records.

    `end` is where the bytes meant to hold it end; more bytes may follow the batch (one per partition is the
    caller's rule).
    """
    available = (len(buffer) if end is None else end) - position
    if available < HEADER_SIZE:
        raise CorruptBatchError(f"{available} bytes are too few for a record batch")
    header = read_header(buffer, position)
    size = header.length + LENGTH_END
    if size > available:
        raise CorruptBatchError(f"a batch of {size} bytes was cut to {available}")
    check_crc(header, buffer, position)
    if header.attributes & CODEC_MASK > _LAST_CODEC:
        raise CorruptBatchError(f"a batch names compression {header.attributes & CODEC_MASK}, which is unknown")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise InvalidRecordError(
            f"a batch of {header.record_count} records has a last offset delta of {header.last_offset_delta}"
        )
    if header.producer_id >= 0 and (header.producer_epoch < 0 or (header.base_sequence < 0 and not header.is_control)):
        raise InvalidRecordError(
            f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence {header.base_sequence}"
        )
    return header


def refuse_from_client(header: BatchHeader) -> None:
    """What only brokers may write."""
    if header.is_control:
        raise InvalidRecordError("clients may not write control records")
    if header.base_offset != 0:
        raise InvalidRecordError(f"a client's batch starts at offset {header.base_offset}; it must be 0")


def refuse_records(
    buffer: Buffer, header: BatchHeader, position: int = 0, *, needs_keys: bool, earliest: int, latest: int
) -> None:
    """Raises an error that names each record which lacks a key or whose timestamp is out of range, as Kafka does.

    Reads every record, so it is for batches of which it is known that something is wrong with them.
    """
    total, found = find_invalid(
        open_batch(buffer, header, position),
        needs_keys,
        max(earliest, _MIN_INT64),
        min(latest, _MAX_INT64),
        MAX_RECORD_ERRORS,
    )
    if not total:
        return
    errors = [
        RecordError(index, _NO_KEY)
        if timestamp is None
        else RecordError(
            index,
            f"Timestamp {timestamp} of message with offset {index} is out of range. "
            f"The timestamp should be within [{earliest}, {latest}]",
        )
        for index, timestamp in found
    ]
    if all(timestamp is None for _, timestamp in found):
        raise InvalidRecordError(
            f"{total} of {header.record_count} records have no key; a compacted topic needs one", errors
        )
    raise InvalidTimestampError(
        f"{total} of {header.record_count} records are refused, the first of them because: {errors[0].message}", errors
    )


def require_keys(buffer: Buffer, header: BatchHeader, position: int = 0) -> None:
    """A compacted topic takes no record without a key. Reads every record."""
    if count_null_keys(open_batch(buffer, header, position)):
        refuse_records(buffer, header, position, needs_keys=True, earliest=_MIN_INT64, latest=_MAX_INT64)


def recompress(
    buffer: Buffer, header: BatchHeader, position: int, codec: Codec, level: int | None = None
) -> memoryview:
    """The batch with its records compressed another way, for topics with a compression.type of their own."""
    cursor = open_batch(buffer, header, position)
    check_records(cursor)  # what is malformed must not get a CRC of ours
    return frame(header._replace(attributes=(header.attributes & ~CODEC_MASK) | codec), cursor.payload, level)

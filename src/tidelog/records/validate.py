"""What a broker checks before it appends a batch, and the few changes it makes to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

from tidelog.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordError,
    RecordTooLargeError,
)
from tidelog.records.build import MAX_BATCH_BYTES, frame_compressed
from tidelog.records.compression import DEFAULT_LIMIT_BYTES, ExpandedTooFarError, compress, decompress
from tidelog.records.header import CODEC_MASK, HEADER_SIZE, LENGTH_END, BatchHeader, Codec, check_crc, read_header
from tidelog.records.kernel import Cursor, find_invalid
from tidelog.records.record_walk import walk_records
from tidelog.types import Buffer

MAX_RECORD_ERRORS = 10_000
"""How many records a refusal knows at most: a small compressed batch may hold millions of them."""

_LAST_CODEC = int(Codec.ZSTD)
MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1
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


class Inspected(NamedTuple):
    """The records of a batch that every consumer can read."""

    payload: Buffer
    """Uncompressed."""
    max_timestamp: int
    """Of the records themselves, whatever the header says."""


def inspect_records(
    buffer: Buffer,
    header: BatchHeader,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    needs_keys: bool = False,
    earliest: int = MIN_INT64,
    latest: int = MAX_INT64,
) -> Inspected:
    """Look at every record of the batch at the start of the buffer, once.

    InvalidRecordError unless the payload is exactly `record_count` well-formed records with the offset deltas 0, 1,
    2, ..., and each has a key where `needs_keys` says so, and a timestamp within [earliest, latest] or none (-1).
    ExpandedTooFarError if it decompresses to more than `limit_bytes`.
    """
    try:
        records = memoryview(buffer)[HEADER_SIZE : header.size_bytes]
        payload = decompress(header.codec, records, limit_bytes, strict=True)
    except ExpandedTooFarError:
        raise
    except CorruptBatchError as failure:
        raise InvalidRecordError(str(failure)) from failure
    walk = walk_records(payload, 0, header.record_count, header.base_timestamp, needs_keys, earliest, latest)
    if walk.invalid:
        cursor = Cursor(payload, header.record_count, 0, header.base_timestamp)
        found = find_invalid(cursor, needs_keys, earliest, latest, MAX_RECORD_ERRORS)
        raise _refusal(found, walk.invalid, header.record_count, earliest, latest)
    return Inspected(payload, walk.max_timestamp)


def _refusal(
    found: list[tuple[int, int | None]], total: int, record_count: int, earliest: int, latest: int
) -> InvalidRecordError:
    """An error that names each record which lacks a key or whose timestamp is out of range, as Kafka does."""
    errors = _RecordErrors(found, earliest, latest)
    if all(timestamp is None for _, timestamp in found):
        return InvalidRecordError(f"{total} of {record_count} records have no key; a compacted topic needs one", errors)
    return InvalidTimestampError(
        f"{total} of {record_count} records are refused, the first of them because: {errors[0].message}", errors
    )


class _RecordErrors(Sequence[RecordError]):
    """Each is made when it is asked for: of many batches with many records at fault, only some are told."""

    __slots__ = ("_earliest", "_found", "_latest")

    def __init__(self, found: list[tuple[int, int | None]], earliest: int, latest: int) -> None:
        self._found = found
        self._earliest = earliest
        self._latest = latest

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, which: int) -> RecordError: ...
    @overload
    def __getitem__(self, which: slice) -> _RecordErrors: ...
    def __getitem__(self, which: int | slice) -> RecordError | _RecordErrors:
        if isinstance(which, slice):
            return _RecordErrors(self._found[which], self._earliest, self._latest)
        index, timestamp = self._found[which]
        if timestamp is None:
            return RecordError(index, _NO_KEY)
        return RecordError(
            index,
            f"Timestamp {timestamp} of message with offset {index} is out of range. "
            f"The timestamp should be within [{self._earliest}, {self._latest}]",
        )


def recompress(
    header: BatchHeader,
    payload: Buffer,
    codec: Codec,
    level: int | None = None,
    max_message_bytes: int = MAX_BATCH_BYTES,
) -> memoryview:
    """The batch with its records compressed another way, for topics with a compression.type of their own.

    RecordTooLargeError if that makes it larger than `max_message_bytes`, before the records are copied.
    """
    records = compress(codec, payload, level)
    size = HEADER_SIZE + len(records)
    if size > max_message_bytes:
        kind = "uncompressed" if codec is Codec.NONE else codec.name.lower()
        raise RecordTooLargeError(
            f"with the topic's compression.type = {kind} a batch has {size} bytes, "
            f"above max.message.bytes = {max_message_bytes}"
        )
    return frame_compressed(header._replace(attributes=(header.attributes & ~CODEC_MASK) | codec), records)

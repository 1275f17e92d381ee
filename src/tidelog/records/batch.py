"""Reading whole batches: from the bytes of a fetch answer or a segment to records or columns."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.records.columns import Columns
from tidelog.records.compression import DEFAULT_LIMIT_BYTES, decompress
from tidelog.records.header import CODEC_MASK, HEADER_SIZE, BatchHeader, check_crc, headers
from tidelog.records.kernel import Cursor, Record, read_records
from tidelog.types import Buffer, Offset


def records_payload(
    buffer: Buffer, header: BatchHeader, position: int = 0, *, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Buffer:
    """The bytes of the batch's records, decompressed if need be; else a view of the buffer."""
    records = memoryview(buffer)[position + HEADER_SIZE : position + header.size_bytes]
    if not header.attributes & CODEC_MASK or not header.record_count:
        return records
    return decompress(header.codec, records, limit_bytes)


def open_batch(buffer: Buffer, header: BatchHeader, position: int = 0) -> Cursor:
    """A cursor before the first record of the batch."""
    return Cursor(
        records_payload(buffer, header, position),
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.uses_log_append_time else None,
    )


def decode_batch(buffer: Buffer, header: BatchHeader, position: int = 0) -> list[Record]:
    """The records of one batch, whatever it is."""
    records: list[Record] = []
    read_records(open_batch(buffer, header, position), records)
    return records


def decode(buffer: Buffer, *, from_offset: Offset = 0, control: bool = False, verify_crc: bool = True) -> list[Record]:
    """The records of all whole batches in the buffer; those of control batches only if asked for."""
    records: list[Record] = []
    for position, header in _wanted(buffer, from_offset, control, verify_crc):
        read_records(open_batch(buffer, header, position), records, from_offset)
    return records


def decode_into(
    columns: Columns, buffer: Buffer, *, from_offset: Offset = 0, control: bool = False, verify_crc: bool = True
) -> int:
    """Append the records of all whole batches in the buffer to the columns; how many."""
    before = len(columns)
    for position, header in _wanted(buffer, from_offset, control, verify_crc):
        columns.append(open_batch(buffer, header, position), from_offset)
    return len(columns) - before


def _wanted(buffer: Buffer, from_offset: Offset, control: bool, verify_crc: bool) -> Iterator[tuple[int, BatchHeader]]:
    """A fetch answer starts with the whole batch that holds the offset asked for, so the first may lie before it."""
    view = memoryview(buffer)
    for position, header in headers(view):
        if header.last_offset < from_offset:
            continue
        if verify_crc:
            check_crc(header, view, position)
        if control or not header.is_control:
            yield position, header

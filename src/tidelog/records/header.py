"""The 61-byte header of a record batch (v2): all of it that followers and fetches ever look at.

Read in place: a header is a view of facts about bytes that stay where they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from tidelog.errors import CorruptBatchError, UnsupportedMagicError
from tidelog.types import Buffer, Epoch, Offset, ProducerId

MAGIC = 2
HEADER_SIZE = 61
LENGTH_END = 12
"""base_offset and length come first; `length` counts the bytes after them."""

LAYOUT = struct.Struct(">qiibIhiqqqhii")
CRC_FROM = 21
"""The CRC covers everything after itself, so base offset and leader epoch can be set without touching it."""

_BASE_OFFSET_LENGTH_EPOCH = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40


class Codec(IntEnum):
    """How the records of a batch are compressed; the numbers are the low bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_CODECS = tuple(Codec)


class BatchHeader(NamedTuple):
    """The header fields of one batch, in the order they are written.

    A tuple, because recovery makes a million of them a second.
    """

    base_offset: Offset
    length: int
    partition_leader_epoch: Epoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return LENGTH_END + self.length

    @property
    def last_offset(self) -> Offset:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> Offset:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequences wrap from 2**31 - 1 to 0."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF if self.base_sequence >= 0 else -1

    @property
    def codec(self) -> Codec:
        number = self.attributes & CODEC_MASK
        if number >= len(_CODECS):
            raise CorruptBatchError(f"batch at offset {self.base_offset} names compression {number}, which is unknown")
        return _CODECS[number]

    @property
    def uses_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the tombstones of a compacted batch may go; kept in the base timestamp's place."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. The caller has seen to it that 61 bytes are there."""
    header = tuple.__new__(BatchHeader, LAYOUT.unpack_from(buffer, position))  # half the cost of _make
    if header.magic != MAGIC:
        raise _wrong_magic(header.magic)
    if header.length < HEADER_SIZE - LENGTH_END:
        raise CorruptBatchError(f"batch at offset {header.base_offset} claims a length of {header.length} bytes")
    return header


def _wrong_magic(magic: int) -> Exception:
    if magic in (0, 1):
        return UnsupportedMagicError(f"message format v{magic} is not supported; only record batches (v2) are")
    return CorruptBatchError(f"unknown record batch magic {magic}")


def check_crc(header: BatchHeader, buffer: Buffer, position: int = 0) -> None:
    """CorruptBatchError unless the bytes are those that were written."""
    if crc32c(memoryview(buffer)[position + CRC_FROM : position + header.length + LENGTH_END]) != header.crc:
        raise CorruptBatchError(f"batch at offset {header.base_offset} fails its CRC")


def headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch in the buffer; a torn one at its end is left out."""
    position = 0
    end = len(buffer)
    while position + HEADER_SIZE <= end:
        header = read_header(buffer, position)
        if position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes


def assign(buffer: bytearray | memoryview, position: int, base_offset: Offset, leader_epoch: Epoch) -> None:
    """Give a batch its place in the log: the two fields a leader writes, both outside the CRC."""
    (length,) = struct.unpack_from(">i", buffer, position + 8)
    _BASE_OFFSET_LENGTH_EPOCH.pack_into(buffer, position, base_offset, length, leader_epoch)


def seal(buffer: bytearray | memoryview, position: int = 0) -> int:
    """Write the CRC anew, after a field it covers has changed; the CRC."""
    (length,) = struct.unpack_from(">i", buffer, position + 8)
    crc: int = crc32c(memoryview(buffer)[position + CRC_FROM : position + LENGTH_END + length])
    _CRC.pack_into(buffer, position + CRC_FROM - 4, crc)
    return crc


def set_log_append_time(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Make the broker's clock the timestamp of every record; the records themselves stay as they are."""
    _set_time(buffer, position, LOG_APPEND_TIME, timestamp_ms)


def set_create_time(buffer: bytearray | memoryview, position: int, max_timestamp: int) -> None:
    """Let the records have their own timestamps, of which this is the largest."""
    _set_time(buffer, position, 0, max_timestamp)


def _set_time(buffer: bytearray | memoryview, position: int, flag: int, max_timestamp: int) -> None:
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + CRC_FROM)
    _ATTRIBUTES.pack_into(buffer, position + CRC_FROM, (attributes & ~LOG_APPEND_TIME) | flag)
    _MAX_TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_AT, max_timestamp)
    seal(buffer, position)

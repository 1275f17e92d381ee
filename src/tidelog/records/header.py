"""The 61-byte header of a record batch (v2): all of it that the broker's hot path ever looks at.

Read in place: a header is a view of facts about bytes that stay where they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from crc32c import crc32c

from tidelog.errors import CorruptBatchError, UnsupportedMagicError
from tidelog.types import Buffer, Epoch, Offset, ProducerId

MAGIC = 2
HEADER_SIZE = 61
LENGTH_END = 12
"""base_offset and length come first; `length` counts the bytes after them."""

_LAYOUT = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
_BASE_OFFSET_LENGTH_EPOCH = struct.Struct(">qii")

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40


class Codec(IntEnum):
    """How the records of a batch are compressed; the numbers are the low bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BatchHeader:
    """The header fields of one batch, in the order they are written."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "last_offset_delta",
        "length",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    def __init__(
        self,
        base_offset: Offset,
        length: int,
        partition_leader_epoch: Epoch,
        magic: int,
        crc: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp: int,
        max_timestamp: int,
        producer_id: ProducerId,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
    ) -> None:
        self.base_offset = base_offset
        self.length = length
        self.partition_leader_epoch = partition_leader_epoch
        self.magic = magic
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.record_count = record_count

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
        number = self.attributes & _CODEC_MASK
        if number > Codec.ZSTD:
            raise CorruptBatchError(f"batch at offset {self.base_offset} names compression {number}, which is unknown")
        return Codec(number)

    @property
    def uses_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the tombstones of a compacted batch may go; kept in the base timestamp's place."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
        return f"BatchHeader({fields})"


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. The caller has seen to it that 61 bytes are there."""
    header = BatchHeader(*_LAYOUT.unpack_from(buffer, position))
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
    """The CRC covers everything after itself, so base offset and leader epoch can be set without touching it."""
    if crc32c(memoryview(buffer)[position + _CRC_FROM : position + header.size_bytes]) != header.crc:
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

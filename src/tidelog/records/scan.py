"""Walking raw log bytes: which batches are whole and sound, and what is wrong with the first that is not."""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from tidelog.records.header import CODEC_MASK, CRC_FROM, HEADER_SIZE, LAYOUT, LENGTH_END, MAGIC, BatchHeader, Codec
from tidelog.types import Buffer, Offset

TORN = "torn"
"""The bytes end within a batch: read on from `end`, or, where there are no more, cut there."""

_MAX_BATCH_BYTES = 2**31 - 1
_LEAST_LENGTH = HEADER_SIZE - LENGTH_END
_LAST_CODEC = int(Codec.ZSTD)


class Scan(NamedTuple):
    """What a walk found."""

    batches: list[tuple[int, BatchHeader]]
    """(position, header) of each sound batch."""

    end: int
    """The first byte after them."""

    reason: str | None
    """Why it ended: None at the very end of the bytes, TORN within a batch, else what is wrong with the batch there."""

    needed: int
    """How many bytes from `end` on a torn batch needs; of its header only, if that is cut."""


def scan(
    buffer: Buffer,
    position: int = 0,
    *,
    verify_crc: bool = True,
    max_batch_bytes: int = _MAX_BATCH_BYTES,
    min_offset: Offset | None = None,
) -> Scan:
    """Walk from `position` on. Offsets must rise from batch to batch, the first from `min_offset`. Never raises.

    It holds the GIL, so a chunk should be no more than a few MB: a MB takes about 0.2 ms.
    """
    view = memoryview(buffer)
    end = len(view)
    unpack, make = LAYOUT.unpack_from, tuple.__new__
    batches: list[tuple[int, BatchHeader]] = []
    next_offset = -(2**63) if min_offset is None else min_offset
    while end - position >= HEADER_SIZE:
        header = make(BatchHeader, unpack(view, position))
        base_offset, length, _, magic, crc, attributes, last_offset_delta, _, _, _, _, _, record_count = header
        size = length + LENGTH_END
        if not (
            length >= _LEAST_LENGTH
            and size <= max_batch_bytes
            and magic == MAGIC
            and base_offset >= next_offset
            and last_offset_delta >= 0
            and 0 <= record_count <= last_offset_delta + 1  # fewer where compaction took some
            and attributes & CODEC_MASK <= _LAST_CODEC
        ):
            return Scan(batches, position, _problem(header, next_offset, max_batch_bytes), 0)
        if size > end - position:
            return Scan(batches, position, TORN, size)
        if verify_crc and crc32c(view[position + CRC_FROM : position + size]) != crc:
            return Scan(batches, position, f"the batch at offset {base_offset} fails its CRC", 0)
        batches.append((position, header))
        position += size
        next_offset = base_offset + last_offset_delta + 1
    if position == end:
        return Scan(batches, position, None, 0)
    return Scan(batches, position, TORN, HEADER_SIZE)


def _problem(header: BatchHeader, next_offset: Offset, max_batch_bytes: int) -> str:
    """Which of the conditions on a header does not hold."""
    if not _LEAST_LENGTH <= header.length <= max_batch_bytes - LENGTH_END:
        return f"a batch claims a length of {header.length} bytes"
    if header.magic != MAGIC:
        return f"a batch has magic {header.magic}; only record batches (v2) are supported"
    where = f"the batch at offset {header.base_offset}"
    if header.base_offset < next_offset:
        return f"{where} comes where {next_offset} or later is due"
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        return f"{where} names compression {header.attributes & CODEC_MASK}, which is unknown"
    return f"{where} claims {header.record_count} records up to delta {header.last_offset_delta}"

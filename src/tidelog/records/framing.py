"""The compressed streams that every consumer reads. Decoders read more, but a leader stores nothing else.

lz4 is one standard frame, as Java's Lz4BlockInputStream demands it. The lz4 library also reads several frames one after
the other, frames to be skipped, blocks that depend on each other, and dictionaries. Java's consumer fails on each of
these and librdkafka on most of them, so such a batch would stop the consumers of its partition for ever. Checksums are
left to the library, which decompresses the frame.
"""

from __future__ import annotations

import struct

from tidelog.errors import CorruptBatchError

_MAGIC = 0x184D2204
_START = struct.Struct("<IBB")
"""Magic, flags, block descriptor."""
_BLOCK_SIZE = struct.Struct("<I")
_HEADER_BYTES = _START.size + 1
"""With its checksum."""
_SMALLEST_FRAME = _HEADER_BYTES + _BLOCK_SIZE.size
"""A header and the end mark."""

_FIXED_FLAGS = 0b1110_0011
_WANTED_FLAGS = 0b0110_0000
"""Version 1, independent blocks, no reserved bit, no dictionary."""
_HAS_BLOCK_CHECKSUMS = 0b0001_0000
_HAS_CONTENT_SIZE = 0b0000_1000
_HAS_CONTENT_CHECKSUM = 0b0000_0100
_RESERVED_OF_DESCRIPTOR = 0b1000_1111
_SMALLEST_DESCRIPTOR = 0b0100_0000
"""Blocks of up to 64 KiB. Smaller sizes do not exist."""
_CHECKSUM_BYTES = 4
_CONTENT_SIZE_BYTES = 8

_IS_UNCOMPRESSED = 1 << 31
_EMPTY_BLOCK_BYTES = 1
"""A compressed block of one byte decompresses to nothing."""

_BYTES_OF_BLOCK = 128
_FEW_BLOCKS = 16


def most_blocks(size: int) -> int:
    """How many blocks so many compressed bytes may be divided into.

    Clients write blocks of 32 KiB and more, of which compression leaves at least 250 bytes. Tiny blocks only cost time.
    """
    return _FEW_BLOCKS + size // _BYTES_OF_BLOCK


def check_lz4(view: memoryview) -> None:
    """CorruptBatchError unless these bytes are exactly one frame that every consumer reads."""
    size = len(view)
    if size < _SMALLEST_FRAME:
        raise CorruptBatchError(f"{size} bytes are too few for an lz4 frame")
    magic, flags, descriptor = _START.unpack_from(view)
    if magic != _MAGIC:
        raise CorruptBatchError(f"the magic of an lz4 frame is {magic:#x}; it must be {_MAGIC:#x}")
    if flags & _FIXED_FLAGS != _WANTED_FLAGS:
        raise CorruptBatchError(
            f"an lz4 frame has the flags {flags:#010b}; consumers read version 1 with independent blocks only"
        )
    if descriptor & _RESERVED_OF_DESCRIPTOR or descriptor < _SMALLEST_DESCRIPTOR:
        raise CorruptBatchError(f"an lz4 frame has the block descriptor {descriptor:#010b}, which no consumer knows")
    header_bytes = _HEADER_BYTES + _CONTENT_SIZE_BYTES if flags & _HAS_CONTENT_SIZE else _HEADER_BYTES
    end = _end_of_blocks(view, header_bytes, _CHECKSUM_BYTES if flags & _HAS_BLOCK_CHECKSUMS else 0)
    if flags & _HAS_CONTENT_CHECKSUM:
        end += _CHECKSUM_BYTES
    if end != size:
        raise CorruptBatchError(f"an lz4 frame ends at byte {end} of {size}; it must be all of a batch's records")


def _end_of_blocks(view: memoryview, position: int, checksum_bytes: int) -> int:
    """Where the end mark ends, from where the first block begins."""
    last_position = len(view) - _BLOCK_SIZE.size
    most = most_blocks(len(view))
    for _ in range(most + 1):
        if position > last_position:
            raise CorruptBatchError("an lz4 frame has no end")
        (size,) = _BLOCK_SIZE.unpack_from(view, position)
        position += _BLOCK_SIZE.size
        if size == 0:
            return position
        if size & _IS_UNCOMPRESSED:
            size ^= _IS_UNCOMPRESSED
            is_empty = size == 0
        else:
            is_empty = size == _EMPTY_BLOCK_BYTES
        if is_empty:
            raise CorruptBatchError("an lz4 frame has an empty block, which no client writes and Java does not read")
        position += size + checksum_bytes
    raise CorruptBatchError(f"an lz4 frame of {len(view)} bytes has more than {most} blocks")

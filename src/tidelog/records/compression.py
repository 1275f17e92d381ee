"""Compressing the records of a batch, in the framings that Kafka's clients write and expect.

Snappy comes in two: Java wraps raw blocks in a stream of its own ("xerial"), others write one raw block.
Both are read; Java's is written, because every client reads that. lz4 is the standard frame with independent
blocks, the only kind Java reads.

Always: what comes out of `decompress` is at most `limit_bytes` long, and no memory beyond that is ever touched,
whatever the input claims.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import cramjam

from tidelog.errors import CorruptBatchError
from tidelog.records.header import Codec
from tidelog.records.rooms import room
from tidelog.types import Buffer

DEFAULT_LIMIT_BYTES = 256 * 1024 * 1024
"""What one batch may grow to: far above any sane batch, far below what would take a broker down."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_COMPATIBLE_AT = 12
"""Of the oldest version that can read the stream; magic and version stand before it."""
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_SIZE = struct.Struct(">i")

_FIRST_GUESS_RATIO = 16
_FIRST_GUESS_BYTES = 256 * 1024
_IS_FULL = "failed to write whole buffer"
"""What cramjam says when the room is too small for what comes out."""


class ExpandedTooFarError(CorruptBatchError):
    """Records that may be sound, but decompress to more bytes than the caller takes."""


def compress(codec: Codec, payload: Buffer, level: int | None = None) -> Buffer:
    """The payload as it goes behind a batch header. `level` is the codec's own; None is its usual one."""
    if codec is Codec.NONE:
        return payload
    if codec is Codec.GZIP:
        return memoryview(cramjam.gzip.compress(payload, level))
    if codec is Codec.SNAPPY:
        return _compress_xerial(payload)
    if codec is Codec.LZ4:
        frame = cramjam.lz4.Compressor(level, content_checksum=False, block_linked=False)
        frame.compress(bytes(payload))  # it takes nothing else
        return memoryview(frame.finish())
    return memoryview(cramjam.zstd.compress(payload, level))


def decompress(codec: Codec, data: Buffer, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Buffer:
    """What `compress` was given. The GIL is free meanwhile.

    ExpandedTooFarError if it is more than the limit, CorruptBatchError if `compress` cannot have made this.
    """
    if codec is Codec.NONE:
        return data
    try:
        if codec is Codec.SNAPPY:
            return _decompress_snappy(data, limit_bytes)
        module = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}[codec]
        return _decompress_frame(module.decompress_into, data, limit_bytes)
    except cramjam.DecompressionError as error:
        if str(error) == _IS_FULL:
            raise _too_far(codec, data, limit_bytes) from error
        raise CorruptBatchError(f"records do not decompress as {codec.name.lower()}: {error}") from error


def _too_far(codec: Codec, data: Buffer, limit_bytes: int) -> ExpandedTooFarError:
    return ExpandedTooFarError(
        f"{len(data)} bytes of records decompress as {codec.name.lower()} to more than {limit_bytes} bytes"
    )


def _decompress_frame(into: Callable[[Buffer, Buffer], int], data: Buffer, limit_bytes: int) -> memoryview:
    """Frames need not say how long they become: guess, and where that was too small, take all that is allowed."""
    guess = max(_FIRST_GUESS_BYTES, _FIRST_GUESS_RATIO * len(data))
    if guess < limit_bytes:
        try:
            return _filled(into, data, room(guess))
        except cramjam.DecompressionError as error:
            if str(error) != _IS_FULL:
                raise
    return _filled(into, data, room(limit_bytes))


def _filled(into: Callable[[Buffer, Buffer], int], data: Buffer, target: memoryview) -> memoryview:
    try:
        return target[: into(data, target)]
    except cramjam.DecompressionError:
        del target  # or the traceback keeps all of it for as long as somebody keeps the error
        raise


def _compress_xerial(payload: Buffer) -> bytes:
    view = memoryview(payload)
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += [_BLOCK_SIZE.pack(len(block)), block]
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit_bytes: int) -> memoryview:
    view = memoryview(data)
    blocks = _xerial_blocks(view) if view[:8] == _XERIAL_MAGIC else [view]
    sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    total = sum(sizes)
    if total > limit_bytes:
        raise _too_far(Codec.SNAPPY, data, limit_bytes)
    target = room(total)
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        if cramjam.snappy.decompress_raw_into(block, target[position : position + size]) != size:
            raise CorruptBatchError(f"a snappy block of {len(block)} bytes is not the {size} bytes it claims")
        position += size
    return target


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    if len(view) < len(_XERIAL_HEADER) or _BLOCK_SIZE.unpack_from(view, _XERIAL_COMPATIBLE_AT)[0] < 1:
        raise CorruptBatchError("a snappy stream is of no version that Java's consumer reads")
    blocks = []
    position = len(_XERIAL_HEADER)
    while position < len(view):
        start = position + _BLOCK_SIZE.size
        if start > len(view):
            raise CorruptBatchError("a snappy stream ends within the size of a block")
        (size,) = _BLOCK_SIZE.unpack_from(view, position)
        if not 0 < size <= len(view) - start:
            raise CorruptBatchError(
                f"a snappy stream claims a block of {size} bytes where {len(view) - start} are left"
            )
        blocks.append(view[start : start + size])
        position = start + size
    return blocks

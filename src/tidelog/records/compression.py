"""Compressing the records of a batch, in the framings that Kafka's clients write and expect.

Snappy comes in two: Java wraps raw blocks in a stream of its own ("xerial"), others write one raw block.
Both are read; Java's is written, because every client reads that. lz4 is the standard frame with independent
blocks, the only kind Java reads.

Always: what comes out of `decompress` is at most `limit_bytes` long, and no memory beyond that is ever touched,
whatever the input claims.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam

from tidelog.errors import CorruptBatchError
from tidelog.records.framing import check_lz4, most_blocks
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

_GZIP_WBITS = 31
"""zlib's name for the gzip format with the largest window."""
_GZIP_SMALLEST = 18
"""Header and trailer of a member."""
_GZIP_SIZE = struct.Struct("<I")
"""The last bytes of a member: the size of what it decompresses to."""
_GZIP_PIECE_BYTES = 64 * 1024
_GZIP_PIECES = 16
"""How much zlib gives at a time. Each piece is copied, and so is what is left of the input."""

_DECOMPRESS_INTO = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}
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


def decompress(codec: Codec, data: Buffer, limit_bytes: int = DEFAULT_LIMIT_BYTES, *, strict: bool = False) -> Buffer:
    """What `compress` was given. The GIL is free meanwhile.

    ExpandedTooFarError if it is more than the limit, CorruptBatchError if `compress` cannot have made this.
    `strict` is for what a client has just written: then CorruptBatchError also refuses what some consumer cannot read
    (`framing`), and streams of many tiny blocks, which take long.
    """
    if codec is Codec.NONE:
        return data
    try:
        if codec is Codec.SNAPPY:
            return _decompress_snappy(data, limit_bytes, strict)
        if codec is Codec.GZIP and strict:
            return _decompress_member(memoryview(data), limit_bytes)
        if codec is Codec.LZ4 and strict:
            check_lz4(memoryview(data))
        return _decompress_frame(_DECOMPRESS_INTO[codec], data, limit_bytes)
    except (cramjam.DecompressionError, zlib.error) as error:
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


def _decompress_member(view: memoryview, limit_bytes: int) -> memoryview:
    """One member of gzip and nothing else: librdkafka drops all behind the first without a word.

    zlib stops where the member ends. It is also never slow: cramjam's decoder takes 3 µs for an empty block of 10 bits.
    """
    if len(view) < _GZIP_SMALLEST:
        raise CorruptBatchError(f"{len(view)} bytes are too few for gzip")
    (size,) = _GZIP_SIZE.unpack_from(view, len(view) - _GZIP_SIZE.size)
    target, filled = room(min(size, limit_bytes)), 0
    stream, source = zlib.decompressobj(_GZIP_WBITS), view
    piece_bytes = max(_GZIP_PIECE_BYTES, len(target) // _GZIP_PIECES)
    while source and not stream.eof:
        piece = stream.decompress(source, piece_bytes)
        if len(piece) > len(target) - filled:
            if size > limit_bytes:
                raise _too_far(Codec.GZIP, view, limit_bytes)
            raise CorruptBatchError(f"records decompress as gzip to more than the {size} bytes that they claim")
        target[filled : filled + len(piece)] = piece
        filled += len(piece)
        source = memoryview(stream.unconsumed_tail)
    if stream.unused_data:
        raise CorruptBatchError("records are more than one member of gzip; librdkafka reads only the first")
    if not stream.eof or filled != size:
        raise CorruptBatchError("records do not decompress as gzip: they end too early")
    return target


def _compress_xerial(payload: Buffer) -> bytes:
    view = memoryview(payload)
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += [_BLOCK_SIZE.pack(len(block)), block]
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit_bytes: int, strict: bool) -> memoryview:
    view = memoryview(data)
    blocks = _xerial_blocks(view, most_blocks(len(view)) if strict else len(view)) if _is_xerial(view) else [view]
    sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    if strict and 0 in sizes:
        raise CorruptBatchError("a snappy stream has an empty block, which no client writes")
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


def _is_xerial(view: memoryview) -> bool:
    return view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC


def _xerial_blocks(view: memoryview, most: int) -> list[memoryview]:
    if len(view) < len(_XERIAL_HEADER) or _BLOCK_SIZE.unpack_from(view, _XERIAL_COMPATIBLE_AT)[0] < 1:
        raise CorruptBatchError("a snappy stream is of no version that Java's consumer reads")
    blocks: list[memoryview] = []
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
        if len(blocks) == most:
            raise CorruptBatchError(f"a snappy stream of {len(view)} bytes has more than {most} blocks")
        blocks.append(view[start : start + size])
        position = start + size
    return blocks

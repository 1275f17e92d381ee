"""The codecs: the framings of all clients, and inputs that lie about themselves."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import cramjam
import pytest

from tidelog.errors import CorruptBatchError
from tidelog.records.compression import compress, decompress
from tidelog.records.header import Codec

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
compressing = pytest.mark.parametrize("codec", COMPRESSING)

TEXT = b"".join(b"%08d %d," % (n, n * n) for n in range(20_000))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("payload", [b"x", TEXT, bytes(3_000_000)], ids=["one byte", "text", "zeros"])
def test_what_goes_in_comes_out(codec: Codec, payload: bytes) -> None:
    squeezed = compress(codec, memoryview(payload))
    assert decompress(codec, squeezed) == payload
    assert decompress(codec, memoryview(bytes(squeezed)), len(payload)) == payload


@compressing
@pytest.mark.parametrize("level", [1, 4])
def test_a_level_is_taken(codec: Codec, level: int) -> None:
    assert decompress(codec, compress(codec, TEXT, level)) == TEXT


@compressing
def test_the_limit_holds(codec: Codec) -> None:
    with pytest.raises(CorruptBatchError):
        decompress(codec, compress(codec, TEXT), len(TEXT) - 1)


@compressing
def test_a_bomb_does_not_go_off(codec: Codec) -> None:
    """A hundred megabytes of zeros in a few kilobytes: the limit stops it, and little was allocated by then."""
    bomb = bytes(compress(codec, bytes(100_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError):
            decompress(codec, bomb, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()


@compressing
def test_garbage_and_cut_streams_are_one_clean_error(codec: Codec) -> None:
    squeezed = bytes(compress(codec, TEXT))
    nothing = [] if codec is Codec.SNAPPY else [b"", b"\x00"]  # for raw snappy that is nothing, compressed
    for bad in (*nothing, b"garbage, certainly", squeezed[:-5], squeezed[: len(squeezed) // 2]):
        with pytest.raises(CorruptBatchError):
            decompress(codec, bad)


def test_java_snappy_is_a_stream_of_blocks() -> None:
    squeezed = bytes(compress(Codec.SNAPPY, TEXT))
    assert squeezed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    position, parts = 16, []
    while position < len(squeezed):
        (size,) = struct.unpack_from(">i", squeezed, position)
        parts.append(bytes(cramjam.snappy.decompress_raw(squeezed[position + 4 : position + 4 + size])))
        position += 4 + size
    assert b"".join(parts) == TEXT
    assert max(map(len, parts)) <= 32 * 1024


def test_raw_snappy_is_read_too() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(struct.pack(">i", -1), id="negative block"),
        pytest.param(struct.pack(">i", 0), id="empty block"),
        pytest.param(struct.pack(">i", 1000) + b"short", id="block past the end"),
        pytest.param(b"\x00\x00", id="cut size"),
        pytest.param(struct.pack(">i", 5) + b"\xff\xff\xff\xff\x0f", id="a block that claims four gigabytes"),
        pytest.param(struct.pack(">i", 2) + b"\x64\x00", id="a block shorter than it claims"),
    ],
)
def test_malformed_java_snappy(stream: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        decompress(Codec.SNAPPY, b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + stream)


def test_java_snappy_of_a_version_that_java_refuses() -> None:
    squeezed = bytearray(compress(Codec.SNAPPY, TEXT))
    squeezed[12:16] = struct.pack(">i", 0)
    for bad in (bytes(squeezed), bytes(squeezed[:8]), bytes(squeezed[:15])):
        with pytest.raises(CorruptBatchError):
            decompress(Codec.SNAPPY, bad)


def test_lz4_is_the_frame_java_reads() -> None:
    """Version 1 with independent blocks (Java refuses linked ones), and the right checksum of the frame's header."""
    squeezed = bytes(compress(Codec.LZ4, TEXT))
    assert squeezed[:4] == b"\x04\x22\x4d\x18"
    assert squeezed[4] & 0b1110_0000 == 0b0110_0000


def test_lz4_in_linked_blocks_is_read() -> None:
    assert decompress(Codec.LZ4, bytes(cramjam.lz4.compress(TEXT))) == TEXT


def test_gzip_of_others_is_read() -> None:
    assert decompress(Codec.GZIP, gzip.compress(TEXT)) == TEXT

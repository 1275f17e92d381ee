"""Compressed streams that a leader takes from a client, and those that some consumer could not read."""

from __future__ import annotations

import contextlib
import gzip
import struct
import time
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
from aiokafka import codec as aiokafka_codec
from kafka import codec as kafka_python_codec

from tidelog.errors import CorruptBatchError
from tidelog.records.compression import ExpandedTooFarError, compress, decompress
from tidelog.records.header import Codec

TEXT = b"".join(b"%08d %d," % (n, n * n) for n in range(20_000))
HALF = len(TEXT) // 2
SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"abcd"
END_MARK = bytes(4)
HEADER_BYTES = 7
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
SMALL = 64 * 1024


def lz4_frame(payload: bytes = TEXT, *, block_linked: bool = False, store_size: bool = False, **options: bool) -> bytes:
    return bytes(lz4.frame.compress(payload, block_linked=block_linked, store_size=store_size, **options))


def with_byte(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


FRAME = lz4_frame()
TINY_BLOCKS = b"".join(struct.pack("<I", 1 << 31 | 4) + TEXT[at : at + 4] for at in range(0, SMALL // 2, 4))
EMPTY_BLOCK = struct.pack("<I", 1) + b"\0"
EMPTY_RAW_BLOCK = struct.pack("<I", 1 << 31)

UNREADABLE = {
    "nothing": b"",
    "only magic": FRAME[:4],
    "two frames": lz4_frame(TEXT[:HALF]) + lz4_frame(TEXT[HALF:]),
    "an empty frame behind": FRAME + lz4_frame(b""),
    "a frame to be skipped behind": FRAME + SKIPPABLE,
    "a frame to be skipped before": SKIPPABLE + FRAME,
    "bytes behind": FRAME + b"x",
    "cut": FRAME[:-4],
    "cut in the end mark": FRAME[:-1],
    "linked blocks": lz4_frame(block_linked=True),
    "another version": with_byte(FRAME, 4, FRAME[4] ^ 0b1100_0000),
    "a reserved flag": with_byte(FRAME, 4, FRAME[4] | 0b10),
    "a dictionary": with_byte(FRAME, 4, FRAME[4] | 0b01),
    "blocks of 16 KiB": with_byte(FRAME, 5, 3 << 4),
    "a reserved bit of the block descriptor": with_byte(FRAME, 5, FRAME[5] | 1),
    "an empty block first": FRAME[:HEADER_BYTES] + EMPTY_BLOCK + FRAME[HEADER_BYTES:],
    "an empty block last": FRAME[: -len(END_MARK)] + EMPTY_BLOCK + END_MARK,
    "an empty uncompressed block, which ends the frame for Java": (
        FRAME[:HEADER_BYTES] + EMPTY_RAW_BLOCK + FRAME[HEADER_BYTES:]
    ),
    "tiny blocks": FRAME[:HEADER_BYTES] + TINY_BLOCKS + END_MARK,
}


@pytest.mark.parametrize("frame", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_lz4_frame_that_some_consumer_cannot_read_is_refused(frame: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        decompress(Codec.LZ4, frame, strict=True)


@pytest.mark.parametrize("name", ["two frames", "a frame to be skipped before", "linked blocks", "an empty block last"])
def test_what_is_stored_already_is_read_all_the_same(name: str) -> None:
    assert decompress(Codec.LZ4, UNREADABLE[name]) == TEXT


@pytest.mark.parametrize("payload", [b"x", TEXT, bytes(5_000_000)], ids=["one byte", "text", "zeros"])
@pytest.mark.parametrize(
    "write",
    [
        lz4_frame,
        lambda payload: lz4_frame(payload, content_checksum=True),
        lambda payload: lz4_frame(payload, block_checksum=True),
        lambda payload: lz4_frame(payload, store_size=True),
        lambda payload: lz4_frame(payload, store_size=True, block_checksum=True, content_checksum=True),
        lambda payload: lz4_frame(payload, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
        aiokafka_codec.lz4_encode,
        kafka_python_codec.lz4_encode,
        lambda payload: compress(Codec.LZ4, payload),
    ],
    ids=["plain", "content sum", "block sums", "size", "all flags", "large blocks", "aiokafka", "kafka-python", "ours"],
)
def test_every_frame_that_clients_write_is_taken(write: Callable[[bytes], bytes], payload: bytes) -> None:
    assert decompress(Codec.LZ4, bytes(write(payload)), strict=True) == payload


# gzip


@pytest.mark.parametrize("payload", [b"x", TEXT, bytes(5_000_000)], ids=["one byte", "text", "zeros"])
def test_one_member_of_gzip_is_taken(payload: bytes) -> None:
    for data in (gzip.compress(payload), bytes(compress(Codec.GZIP, payload)), kafka_python_codec.gzip_encode(payload)):
        assert decompress(Codec.GZIP, data, strict=True) == payload
        assert decompress(Codec.GZIP, data, len(payload), strict=True) == payload
        if len(payload) > 1:
            with pytest.raises(ExpandedTooFarError):
                decompress(Codec.GZIP, data, len(payload) - 1, strict=True)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(gzip.compress(TEXT[:HALF]) + gzip.compress(TEXT[HALF:]), id="two members"),
        pytest.param(gzip.compress(b"") + gzip.compress(TEXT), id="an empty one first"),
        pytest.param(gzip.compress(TEXT) + gzip.compress(b""), id="an empty one last"),
        pytest.param(gzip.compress(TEXT) + bytes(8), id="zeros behind"),
        pytest.param(gzip.compress(TEXT) + b"garbage", id="bytes behind"),
        pytest.param(gzip.compress(TEXT)[:-4], id="cut"),
        pytest.param(gzip.compress(TEXT)[:-8], id="no trailer"),
        pytest.param(gzip.compress(TEXT)[:-4] + struct.pack("<I", len(TEXT) - 1), id="a size too small"),
        pytest.param(gzip.compress(TEXT)[:-4] + struct.pack("<I", 2**32 - 1), id="a size too large"),
        pytest.param(zlib.compress(TEXT), id="zlib"),
        pytest.param(b"\x1f\x8b\x08", id="only magic"),
    ],
)
def test_other_gzip_is_refused_and_not_as_too_large(data: bytes) -> None:
    """A producer splits what is too large and sends it again, for ever."""
    with pytest.raises(CorruptBatchError) as refused:
        decompress(Codec.GZIP, data, 1_000_000, strict=True)
    assert not isinstance(refused.value, ExpandedTooFarError)


def test_two_members_of_gzip_that_are_stored_already_are_read() -> None:
    assert decompress(Codec.GZIP, gzip.compress(TEXT[:HALF]) + gzip.compress(TEXT[HALF:])) == TEXT


def _empty_fixed_blocks(size: int) -> bytes:
    """A member of about so many bytes: empty deflate blocks of ten bits each, then one byte."""
    count = size * 8 // 10
    bits = sum(0b0000000_01_0 << (10 * number) for number in range(4)).to_bytes(5, "little") * (count // 4)
    last = b"\x01" + struct.pack("<HH", 1, 0xFFFE) + b"x"
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + bits + last + struct.pack("<II", zlib.crc32(b"x"), 1)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_empty_fixed_blocks(512 * 1024), id="empty blocks"),
        pytest.param(gzip.compress(b"") * 30_000, id="empty members"),
        pytest.param(gzip.compress(b"x") + gzip.compress(b"") * 30_000, id="empty members behind a full one"),
    ],
)
def test_no_gzip_takes_long_for_its_size(data: bytes) -> None:
    """Some decoders take two microseconds for each of these bytes."""
    began = time.thread_time()
    with contextlib.suppress(CorruptBatchError):
        assert decompress(Codec.GZIP, data, SMALL, strict=True) == b"x"
    assert time.thread_time() - began < 0.15


# Java's snappy


def block(payload: bytes) -> bytes:
    squeezed = bytes(cramjam.snappy.compress_raw(payload))
    return struct.pack(">i", len(squeezed)) + squeezed


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param(block(b"") * (SMALL // 5) + block(TEXT), id="many empty blocks"),
        pytest.param(block(b"") + block(TEXT), id="an empty block first"),
        pytest.param(block(TEXT) + block(b""), id="an empty block last"),
        pytest.param(b"".join(block(TEXT[at : at + 4]) for at in range(0, len(TEXT), 4)), id="tiny blocks"),
    ],
)
def test_snappy_in_blocks_that_no_client_writes_is_refused(blocks: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        decompress(Codec.SNAPPY, XERIAL + blocks, strict=True)
    assert decompress(Codec.SNAPPY, XERIAL + blocks) == TEXT


@pytest.mark.parametrize("payload", [b"x", TEXT, bytes(5_000_000)], ids=["one byte", "text", "zeros"])
def test_snappy_of_clients_is_taken(payload: bytes) -> None:
    for data in (
        compress(Codec.SNAPPY, payload),
        cramjam.snappy.compress_raw(payload),
        aiokafka_codec.snappy_encode(payload),
        kafka_python_codec.snappy_encode(payload),
    ):
        assert decompress(Codec.SNAPPY, bytes(data), strict=True) == payload

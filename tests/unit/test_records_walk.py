"""What a leader finds out about the records of a client's batch: which batches it takes, and why it refuses others."""

from __future__ import annotations

from typing import Any

import cramjam
import pytest

from tests.kits.logkit import batch_around
from tests.kits.records_lives import both_lives
from tidelog.errors import ErrorCode, InvalidRecordError, InvalidTimestampError
from tidelog.records.build import build_batch
from tidelog.records.compression import ExpandedTooFarError, compress
from tidelog.records.header import Codec, read_header
from tidelog.records.kernel import LONG_BYTES

LEAST, MOST = -(2**63), 2**63 - 1


def varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def record(
    offset_delta: int = 0,
    *,
    timestamp_delta: int = 0,
    key: bytes = varint(-1),
    value: bytes = varint(1) + b"v",
    headers: bytes = varint(0),
    attributes: int = 0,
    length: int | None = None,
    more: bytes = b"",
) -> bytes:
    """One record; key, value and headers are bytes with their sizes, so that these can be wrong."""
    body = bytes([attributes]) + varint(timestamp_delta) + varint(offset_delta) + key + value + headers + more
    return varint(len(body) if length is None else length) + body


def walk(life: Any, payload: bytes, count: int, base_timestamp: int = 0, **bounds: Any) -> Any:
    bounds = {"needs_keys": False, "earliest": LEAST, "latest": MOST, **bounds}
    return life.record_walk.walk_records(b"before" + payload, 6, count, base_timestamp, *bounds.values())


GOOD = record()
TAKEN = [
    pytest.param(GOOD, 1, id="plain"),
    pytest.param(record(value=varint(-1)), 1, id="nothing at all"),
    pytest.param(record(key=varint(0), value=varint(0)), 1, id="empty is not null"),
    pytest.param(record(attributes=0xFF), 1, id="attributes are not looked at"),
    pytest.param(record(headers=varint(1) + varint(1) + b"h" + varint(-1)), 1, id="a header without a value"),
    pytest.param(record(headers=varint(2) + varint(0) + varint(0) + varint(0) + varint(0)), 1, id="empty headers"),
    pytest.param(b"".join(record(n) for n in range(200)), 200, id="deltas of one and two bytes"),
    pytest.param(b"".join(record(n) for n in range(20_000)), 20_000, id="deltas of three bytes"),
    pytest.param(record(value=varint(9000) + bytes(9000)), 1, id="lengths of three bytes"),
    pytest.param(record(timestamp_delta=2**63 - 1), 1, id="the largest timestamp"),
    pytest.param(record(key=b"\x81\x80\x80\x80\x00"), 1, id="a null in five bytes"),
]


@pytest.mark.parametrize(("payload", "count"), TAKEN)
@both_lives
def test_good_records_are_taken(life: Any, payload: bytes, count: int) -> None:
    walk(life, payload, count)


REFUSED = [
    pytest.param(b"", 1, 0, id="no bytes"),
    pytest.param(b"", 2**31 - 1, 0, id="no bytes for two thousand million records"),
    pytest.param(GOOD, 2, 1, id="one record less than said"),
    pytest.param(GOOD + record(1), 1, None, id="one record more than said"),
    pytest.param(GOOD + b"\0", 1, None, id="a byte behind the last"),
    pytest.param(GOOD[:-1], 1, 0, id="cut"),
    pytest.param(b"\xff" * 50, 1, 0, id="garbage"),
    pytest.param(bytes(50), 1, 0, id="zeros"),
    pytest.param(record(length=0), 1, 0, id="no length"),
    pytest.param(record(length=-5), 1, 0, id="negative length"),
    pytest.param(record(length=len(GOOD)), 1, 0, id="length beyond the end"),
    pytest.param(record(length=len(GOOD) - 2) + record(1), 2, 0, id="length below what is in it"),
    pytest.param(record(more=b"\0"), 1, 0, id="length above what is in it"),
    pytest.param(record(1), 1, 0, id="begins with offset 1"),
    pytest.param(GOOD + GOOD, 2, 1, id="the same offset twice"),
    pytest.param(GOOD + record(2), 2, 1, id="a gap between offsets"),
    pytest.param(GOOD + record(-1), 2, 1, id="a negative offset"),
    pytest.param(record(key=varint(-2)), 1, 0, id="a key below null"),
    pytest.param(record(key=varint(100) + b"k"), 1, 0, id="a key beyond its record"),
    pytest.param(record(key=varint(2**31 - 1)), 1, 0, id="a huge key"),
    pytest.param(record(value=varint(-2)), 1, 0, id="a value below null"),
    pytest.param(record(value=varint(3) + b"v") + record(1), 2, 0, id="a value that reaches into the next record"),
    pytest.param(record(value=b""), 1, 0, id="no value"),
    pytest.param(record(headers=b""), 1, 0, id="no header count"),
    pytest.param(record(headers=varint(-1)), 1, 0, id="negative header count"),
    pytest.param(record(headers=varint(2**31 - 1)), 1, 0, id="hostile header count"),
    pytest.param(record(headers=varint(1)), 1, 0, id="headers that are not there"),
    pytest.param(record(headers=varint(1) + varint(-1) + varint(-1)), 1, 0, id="a header without a key"),
    pytest.param(record(headers=varint(1) + varint(0) + varint(-2)), 1, 0, id="a header value below null"),
    pytest.param(record(headers=varint(1) + varint(9) + b"h" + varint(0)), 1, 0, id="a header key beyond its record"),
    pytest.param(record(timestamp_delta=1), 1, 0, id="a timestamp beyond 64 bits"),
    pytest.param(record(key=b"\x81\x80\x80\x80\x80\x00"), 1, 0, id="a key size in six bytes, which Java refuses"),
    pytest.param(b"\x80" * 4 + b"\x01" + bytes(100), 1, 0, id="a length of five bytes beyond the end"),
    pytest.param(b"\x0e\0" + b"\xff" * 10 + b"\0\0\0\0", 1, 0, id="a timestamp delta of eleven bytes"),
    pytest.param(bytes([2, 0]), 1, 0, id="attributes alone"),
]


@pytest.mark.parametrize(("payload", "count", "index"), REFUSED)
@both_lives
def test_bad_records_are_refused(life: Any, payload: bytes, count: int, index: int | None) -> None:
    with pytest.raises(InvalidRecordError) as refused:
        walk(life, payload, count, base_timestamp=2**63 - 1)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.value.record_errors] == ([] if index is None else [index])


@both_lives
def test_timestamps_that_leave_64_bits_below(life: Any) -> None:
    walk(life, record(timestamp_delta=-1), 1, base_timestamp=LEAST + 1)
    with pytest.raises(InvalidRecordError):
        walk(life, record(timestamp_delta=-1), 1, base_timestamp=LEAST)


@both_lives
def test_what_the_walk_tells(life: Any) -> None:
    keyed = varint(1) + b"k"
    payload = record(0, timestamp_delta=7) + record(1, timestamp_delta=9, key=keyed) + record(2, timestamp_delta=-3)
    told = walk(life, payload, 3, 100)
    assert (told.null_keys, told.invalid, told.max_timestamp) == (2, 0, 109)
    assert walk(life, payload, 3, 100, needs_keys=True).invalid == 2
    assert walk(life, payload, 3, 100, earliest=100, latest=108).invalid == 2
    assert walk(life, payload, 3, 100, needs_keys=True, latest=108).invalid == 3
    assert walk(life, payload, 3, -101).max_timestamp == -1, "no timestamp is below 'there is none'"
    assert walk(life, record(), 1, -1, earliest=0).invalid == 0, "a record without a timestamp is never out of time"


@both_lives
def test_a_long_payload_is_walked_like_a_short_one(life: Any) -> None:
    count = 25
    size = LONG_BYTES // count + 100
    payload = b"".join(record(n, value=varint(size) + bytes(size)) for n in range(count))
    assert len(payload) > LONG_BYTES
    assert walk(life, payload, count).null_keys == count
    with pytest.raises(InvalidRecordError, match="record 24 of 25"):
        walk(life, payload[:-1], count)


# Whole batches, compressed


@pytest.mark.parametrize("codec", list(Codec))
@both_lives
def test_a_batch_is_inspected_whatever_its_codec(life: Any, codec: Codec) -> None:
    batch = build_batch([(5, b"k", b"v" * 100), (9, b"k", None), (7, b"", b"")], codec=codec)
    inspected = life.validate.inspect_records(batch, read_header(batch), needs_keys=True)
    assert inspected.max_timestamp == 9
    assert bytes(inspected.payload) == bytes(build_batch([(5, b"k", b"v" * 100), (9, b"k", None), (7, b"", b"")])[61:])
    with pytest.raises(InvalidTimestampError, match="2 of 3"):
        life.validate.inspect_records(batch, read_header(batch), latest=5)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@both_lives
def test_what_does_not_decompress_is_an_invalid_record_and_no_corrupt_message(life: Any, codec: Codec) -> None:
    """Its CRC is right, so the client sent what it meant to send: to try again would not help."""
    squeezed = bytes(compress(codec, GOOD))
    for bad in (b"", b"garbage, certainly", squeezed[:-3], squeezed + b"\xff\xff\xff\xff", bytes(20)):
        batch = batch_around(bad, 1, codec)
        with pytest.raises(InvalidRecordError) as refused:
            life.validate.inspect_records(batch, read_header(batch))
        assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@both_lives
def test_a_bomb_is_told_from_bytes_that_are_no_good(life: Any, codec: Codec) -> None:
    """By what cramjam says of a room that is full: if another release says it otherwise, this fails."""
    count = 400_000
    batch = batch_around(bytes(compress(codec, bytes([12, 0, 0, 0, 1, 1, 0]) * count)), count, codec)
    for limit_bytes in (1000, 100_000, 7 * count - 1):
        with pytest.raises(ExpandedTooFarError):
            life.validate.inspect_records(batch, read_header(batch), limit_bytes=limit_bytes)
    with pytest.raises(InvalidRecordError, match="record 1 of 400000 in a batch has the offset delta 0"):
        life.validate.inspect_records(batch, read_header(batch), limit_bytes=7 * count)


@both_lives
def test_two_frames_of_zstd_are_one_payload(life: Any) -> None:
    squeezed = bytes(cramjam.zstd.compress(GOOD)) + bytes(cramjam.zstd.compress(record(1)))
    batch = batch_around(squeezed, 2, Codec.ZSTD)
    assert bytes(life.validate.inspect_records(batch, read_header(batch)).payload) == GOOD + record(1)


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20, 5 << 20])
@both_lives
def test_a_room_is_so_many_bytes_to_write_to(life: Any, size: int) -> None:
    room = life.rooms.room(size)
    room[:] = b"x" * size
    assert bytes(room) == b"x" * size
    assert len(room[size // 2 :]) == size - size // 2

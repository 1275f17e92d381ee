"""Whole batches: built, read, checked before an append, changed by a broker, searched by time."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.kits.records_lives import both_lives, rows_of
from tidelog.errors import CorruptBatchError, InvalidRecordError, TidelogError, UnsupportedMagicError
from tidelog.records.build import build_batch
from tidelog.records.header import Codec, assign, check_crc, headers, read_header, seal, set_log_append_time

codecs = pytest.mark.parametrize("codec", list(Codec))
RECORDS = [(100, b"a", b"1"), (300, b"b", None), (200, None, b"3", (("h", b"v"),)), (300, b"a", b"4")]
ROWS = [
    (50, 100, b"a", b"1", ()),
    (51, 300, b"b", None, ()),
    (52, 200, None, b"3", (("h", b"v"),)),
    (53, 300, b"a", b"4", ()),
]


def _rows(records: list[Any]) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


@codecs
@both_lives
def test_a_batch_and_its_header(life: Any, codec: Codec) -> None:
    batch = life.build.build_batch(
        RECORDS,
        base_offset=50,
        codec=codec,
        partition_leader_epoch=7,
        producer_id=9,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        transactional=True,
    )
    header = life.validate.validate(batch)
    assert (header.base_offset, header.last_offset, header.next_offset, header.record_count) == (50, 53, 54, 4)
    assert (header.base_timestamp, header.max_timestamp) == (100, 300)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 2**31 - 2)
    assert header.last_sequence == 1, "sequences wrap"
    assert (header.partition_leader_epoch, header.codec, header.size_bytes) == (7, codec, len(batch))
    assert header.is_transactional
    assert not header.is_control
    assert not header.uses_log_append_time
    assert _rows(life.batch.decode(batch)) == ROWS


@both_lives
def test_several_batches_from_an_offset(life: Any) -> None:
    marker = life.control.build_marker(life.control.EndTxnMarker(life.control.ControlType.COMMIT, 4), 9, 0, 5)
    assign(marker, 0, 54, 0)
    batches = [
        life.build.build_batch(RECORDS, base_offset=50, codec=Codec.LZ4),
        marker,
        life.build.build_batch([(1, b"z", b"z")], base_offset=60),
    ]
    buffer = b"".join(batches) + bytes(batches[0])[:70]
    assert [header.base_offset for _, header in headers(buffer)] == [50, 54, 60], "a torn batch is left out"
    assert [r.offset for r in life.batch.decode(buffer)] == [50, 51, 52, 53, 60]
    assert [r.offset for r in life.batch.decode(buffer, control=True)] == [50, 51, 52, 53, 54, 60]
    assert [r.offset for r in life.batch.decode(buffer, from_offset=53)] == [53, 60]
    columns = life.columns.Columns()
    assert life.batch.decode_into(columns, buffer, from_offset=52) == 3
    assert rows_of(columns.finish()) == [*ROWS[2:], (60, 1, b"z", b"z", ())]


@both_lives
def test_a_crc_that_fails_stops_the_reader(life: Any) -> None:
    batch = bytearray(life.build.build_batch(RECORDS))
    batch[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        life.batch.decode(batch)
    assert life.batch.decode(life.build.build_batch(RECORDS)) != []


@both_lives
def test_records_keep_gaps_and_time_may_go_back(life: Any) -> None:
    record = life.kernel.Record
    kept = [record(12, 500, b"k", b"v"), record(17, 100, b"l", b"w")]
    batch = life.build.build_batch(kept, base_offset=10, last_offset_delta=9)
    header = read_header(batch)
    assert (header.last_offset, header.record_count, header.base_timestamp, header.max_timestamp) == (19, 2, 500, 500)
    assert life.batch.decode(batch) == kept
    with pytest.raises(ValueError, match="before its record"):
        life.build.build_batch(kept, base_offset=10, last_offset_delta=6)
    with pytest.raises(ValueError, match="lies before"):
        life.build.build_batch(kept, base_offset=13)


@both_lives
def test_a_batch_of_nothing(life: Any) -> None:
    header = read_header(life.build.build_batch([], codec=Codec.GZIP, last_offset_delta=3))
    assert (header.record_count, header.size_bytes, header.last_offset_delta) == (0, 61, 3)
    assert life.batch.decode(life.build.build_batch([], codec=Codec.GZIP)) == []


@codecs
@both_lives
def test_log_append_time(life: Any, codec: Codec) -> None:
    batch = life.build.build_batch(RECORDS, codec=codec)
    set_log_append_time(batch, 0, 999)
    header = life.validate.validate(batch)
    assert header.uses_log_append_time
    assert (header.max_timestamp, header.codec) == (999, codec)
    assert {r.timestamp for r in life.batch.decode(batch)} == {999}
    assert life.lookups.first_at_or_after(batch, header, 0, 999) == (999, 0)
    assert life.lookups.latest_timestamp(batch, header) == (999, 0)
    assert bytes(life.build.build_batch(RECORDS, codec=codec, log_append_time_ms=999)) == bytes(batch)


@pytest.mark.parametrize("target", list(Codec))
@codecs
@both_lives
def test_recompressing_keeps_all_else(life: Any, codec: Codec, target: Codec) -> None:
    batch = life.build.build_batch(
        RECORDS, base_offset=50, codec=codec, producer_id=3, producer_epoch=1, base_sequence=8
    )
    header = read_header(batch)
    again = life.validate.recompress(header, life.validate.inspect_records(batch, header).payload, target)
    before, after = read_header(batch), life.validate.validate(again)
    assert after.codec is target
    assert before._replace(length=0, crc=0, attributes=0) == after._replace(length=0, crc=0, attributes=0)
    assert _rows(life.batch.decode(again)) == ROWS


def _broken(batch: memoryview, layout: str, place: int, number: int, *, sealed: bool = True) -> bytearray:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, place, number)
    if sealed:
        seal(changed)
    return changed


@both_lives
def test_what_may_not_be_appended(life: Any) -> None:
    batch = life.build.build_batch(RECORDS)
    refused: list[tuple[bytes | bytearray, type[TidelogError]]] = [
        (b"", CorruptBatchError),
        (bytes(batch)[:60], CorruptBatchError),
        (bytes(batch)[:-1], CorruptBatchError),
        (_broken(batch, ">b", 16, 0, sealed=False), UnsupportedMagicError),
        (_broken(batch, ">b", 16, 1, sealed=False), UnsupportedMagicError),
        (_broken(batch, ">b", 16, 3, sealed=False), CorruptBatchError),
        (_broken(batch, ">i", 8, 10, sealed=False), CorruptBatchError),
        (_broken(batch, ">I", 17, 1234, sealed=False), CorruptBatchError),
        (_broken(batch, ">h", 21, 7), CorruptBatchError),
        (_broken(batch, ">i", 23, 4), InvalidRecordError),
        (_broken(batch, ">i", 57, 5), InvalidRecordError),
        (_broken(batch, ">q", 43, 12), InvalidRecordError),
        (life.build.build_batch([]), InvalidRecordError),
    ]
    for bad, error in refused:
        with pytest.raises(error):
            life.validate.validate(bad)
    life.validate.validate(batch)
    assert life.validate.validate(bytes(3) + bytes(batch) + b"more", 3, end=3 + len(batch)).record_count == 4


@both_lives
def test_old_formats_are_refused_with_a_clear_text(life: Any) -> None:
    for magic in (0, 1):
        old = bytes(16) + bytes([magic]) + bytes(60)
        with pytest.raises(UnsupportedMagicError, match=f"v{magic}.*only record batches"):
            life.validate.validate(old)


@both_lives
def test_clients_write_no_control_records(life: Any) -> None:
    life.validate.refuse_from_client(read_header(life.build.build_batch(RECORDS)))
    for batch in (life.build.build_batch(RECORDS, control=True), life.build.build_batch(RECORDS, base_offset=1)):
        with pytest.raises(InvalidRecordError):
            life.validate.refuse_from_client(read_header(batch))


@codecs
@both_lives
def test_a_compacted_topic_needs_keys(life: Any, codec: Codec) -> None:
    keyed = life.build.build_batch([(1, b"", None), (1, b"k", b"v")], codec=codec)
    life.validate.inspect_records(keyed, read_header(keyed), needs_keys=True)
    batch = life.build.build_batch(RECORDS, codec=codec)
    with pytest.raises(InvalidRecordError, match="1 of 4"):
        life.validate.inspect_records(batch, read_header(batch), needs_keys=True)


@both_lives
def test_what_decompresses_to_something_else_is_corrupt(life: Any) -> None:
    batch = life.build.build_batch(RECORDS, codec=Codec.ZSTD)
    for change in (_broken(batch, ">i", 57, 3), _broken(batch, ">i", 57, 5), _broken(batch, ">h", 21, Codec.GZIP)):
        with pytest.raises(CorruptBatchError):
            life.batch.decode(change)
        with pytest.raises(InvalidRecordError):
            life.validate.inspect_records(change, read_header(change))


@codecs
@both_lives
def test_finding_by_time(life: Any, codec: Codec) -> None:
    batch = life.build.build_batch(RECORDS, base_offset=50, codec=codec)
    header = read_header(batch)

    def find(timestamp: int, from_offset: int = 0) -> Any:
        return life.lookups.first_at_or_after(batch, header, 0, timestamp, from_offset)

    assert find(0) == (100, 50)
    assert find(100) == (100, 50)
    assert find(101) == (300, 51)
    assert find(200, 52) == (200, 52)
    assert find(300, 52) == (300, 53)
    assert find(301) is None
    assert find(0, 54) is None
    assert life.lookups.latest_timestamp(batch, header) == (300, 51), "the first of the largest"


MARKERS = [("ABORT", 0), ("COMMIT", 1)]


@pytest.mark.parametrize(("name", "number"), MARKERS)
@both_lives
def test_transaction_markers(life: Any, name: str, number: int) -> None:
    control = life.control
    marker = control.EndTxnMarker(control.ControlType[name], 17)
    batch = control.build_marker(marker, 5, 3, 1234, base_offset=9, partition_leader_epoch=2)
    header = life.validate.validate(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.max_timestamp) == (5, 3, -1, 1234)
    assert control.read_marker(batch, header) == marker
    assert control.control_type(b"pad" + bytes(batch), header, 3) is control.ControlType[name]
    (record,) = life.batch.decode(batch, control=True)
    assert (record.key, record.value) == (struct.pack(">hh", 0, number), struct.pack(">hi", 0, 17))


@both_lives
def test_other_control_batches_are_recognised(life: Any) -> None:
    control = life.control
    for number, kind in ((2, control.ControlType.LEADER_CHANGE), (99, control.ControlType.UNKNOWN)):
        batch = life.build.build_batch([(1, struct.pack(">hh", 0, number), b"whatever")], control=True)
        assert control.control_type(batch, read_header(batch)) is kind
        assert control.read_marker(batch, read_header(batch)) is None
    empty = life.build.build_batch([], control=True)
    assert control.read_marker(empty, read_header(empty)) is None
    for key, value in ((None, b""), (b"\0\0\0", b""), (b"\0\0\0\1", b"\0\0"), (b"\xff\xff\0\1", b"\0" * 6)):
        bad = life.build.build_batch([(1, key, value)], control=True)
        with pytest.raises(CorruptBatchError):
            control.read_marker(bad, read_header(bad))


def test_place_in_the_log_is_outside_the_crc() -> None:
    batch = build_batch(RECORDS)
    assign(batch, 0, 1234, 56)
    header = read_header(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (1234, 56)
    check_crc(header, batch)


@codecs
@both_lives
def test_a_batch_in_two(life: Any, codec: Codec) -> None:
    records = [*RECORDS, (7, b"k", b"x" * 200), (8, None, b"y" * 150), (9, None, None)]
    batch = life.build.build_batch(records, codec=codec, producer_id=9, producer_epoch=2, base_sequence=5)
    first, second, uncompressed_bytes = life.splitting.split_batch(batch, read_header(batch))
    assert uncompressed_bytes == len(life.build.build_batch(records))
    halves = [_rows(life.batch.decode(half)) for half in (first, second)]
    assert [row[1:] for half in halves for row in half] == [row[1:] for row in _rows(life.batch.decode(batch))]
    for half, rows in zip((first, second), halves, strict=True):
        header = life.validate.validate(half)
        assert [row[0] for row in rows] == list(range(header.record_count))
        assert (header.codec, header.base_offset, header.producer_id) == (codec, 0, -1)


@both_lives
def test_a_half_has_a_record_even_if_it_is_most_of_the_batch(life: Any) -> None:
    for sizes in ([500, 1], [1, 500], [1, 1, 500, 1], [0, 0]):
        batch = life.build.build_batch([(0, None, b"x" * size) for size in sizes])
        first, second, _ = life.splitting.split_batch(batch, read_header(batch))
        assert read_header(first).record_count
        assert read_header(first).record_count + read_header(second).record_count == len(sizes)
    alone = life.build.build_batch([(0, None, b"x")])
    with pytest.raises(ValueError, match="a batch of 1 records cannot be split"):
        life.splitting.split_batch(alone, read_header(alone))

"""Single records: what they look like in bytes, and what happens when the bytes are wrong."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tests.kits.records_lives import both_lives, rows_of
from tidelog.errors import CorruptBatchError
from tidelog.records.header import read_header

# By hand: length 13, attributes, timestamp delta -1, offset delta 2, key "k", empty value, a header "h1".
BY_HAND = bytes([26, 0, 1, 4, 2, ord("k"), 0, 2, 4, ord("h"), ord("1"), 4, 8, 9])

SHAPES = [
    pytest.param((0, b"k", b"v", ()), id="plain"),
    pytest.param((0, None, b"v", ()), id="null key"),
    pytest.param((0, b"", b"v", ()), id="empty key is not null"),
    pytest.param((0, b"k", None, ()), id="tombstone"),
    pytest.param((0, b"k", b"", ()), id="empty value is not null"),
    pytest.param((0, None, None, ()), id="nothing at all"),
    pytest.param((-1, b"k", b"v", ()), id="no timestamp"),
    pytest.param((2**63 - 1, b"k", b"v", ()), id="largest timestamp"),
    pytest.param((0, b"k", b"v", (("h", None), ("h", b""), ("", b"x"), ("grün☃", b"\xff"))), id="headers"),
    pytest.param((0, b"k", b"v" * 63, ()), id="length of one byte"),
    pytest.param((0, b"k", b"v" * 64, ()), id="length of two bytes"),
    pytest.param((0, b"k" * 8192, b"v" * 8191, ()), id="length of three bytes"),
    pytest.param((0, b"k", b"v" * 1_000_000, ()), id="a megabyte"),
    pytest.param((0, b"k", b"v", tuple((f"h{n}", bytes(n)) for n in range(100))), id="many headers"),
]


def _read(life: Any, payload: bytes, count: int, base_offset: int = 0, base_timestamp: int = 0) -> list[Any]:
    records: list[Any] = []
    life.kernel.read_records(life.kernel.Cursor(payload, count, base_offset, base_timestamp), records)
    return records


def _fields(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, record.headers


@both_lives
def test_a_record_by_hand(life: Any) -> None:
    assert [_fields(r) for r in _read(life, BY_HAND, 1, 100, 50)] == [(102, 49, b"k", b"", (("h1", b"\x08\x09"),))]


@pytest.mark.parametrize("shape", SHAPES)
@both_lives
def test_every_shape_comes_back(life: Any, shape: tuple[Any, ...]) -> None:
    timestamp, key, value, headers = shape
    writer = life.encoder.RecordWriter(base_timestamp=0)
    sizes = [writer.append(timestamp, key, value, headers), writer.append(5, b"next", b"one")]
    payload = bytes(writer.take()[61:])
    assert sum(sizes) == len(payload)
    assert [_fields(r) for r in _read(life, payload, 2)] == [
        (0, timestamp, key, value, headers),
        (1, 5, b"next", b"one", ()),
    ]
    columns = life.columns.Columns()
    assert columns.append(life.kernel.Cursor(payload, 2, 0, 0)) == 2
    held = columns.finish()
    assert rows_of(held) == [(0, timestamp, key, value, headers), (1, 5, b"next", b"one", ())]
    again = life.encoder.RecordWriter(base_timestamp=0)
    assert again.append_rows(life.column_source.ColumnSource(held), 0, 2**31 - 1) == 2
    assert bytes(again.take()[61:]) == payload
    assert (again.max_timestamp, again.last_offset_delta, again.count) == (max(timestamp, 5), 1, 2)


# The smallest record is 12, 0, 0, 0, 1, 1, 0: a length of 6, no deltas, null key, null value, no headers.
MALFORMED = [
    pytest.param(b"", 1, id="no bytes"),
    pytest.param(bytes([12, 0, 0, 0, 1, 1, 0]), 0, id="records where none should be"),
    pytest.param(bytes([12, 0, 0, 0, 1, 1, 0]), 2, id="fewer than claimed"),
    pytest.param(bytes([12, 0, 0, 0, 1, 1, 0] * 2), 1, id="more than claimed"),
    pytest.param(bytes([12, 0, 0, 0, 1, 1, 0, 0]), 1, id="trailing byte"),
    pytest.param(bytes([14, 0, 0, 0, 1, 1, 0, 0]), 1, id="length covers a byte too many"),
    pytest.param(bytes([10, 0, 0, 0, 1, 1, 0]), 1, id="length a byte short"),
    pytest.param(bytes([127, 0, 0, 0, 1, 1, 0]), 1, id="negative length"),
    pytest.param(bytes([0, 0, 0, 0, 1, 1, 0]), 1, id="length of nothing"),
    pytest.param(bytes([100, 0, 0, 0, 1, 1, 0]), 1, id="length past the end"),
    pytest.param(bytes([12, 0, 0, 1, 1, 1, 0]), 1, id="negative offset delta"),
    pytest.param(bytes([20, 0, 0, 254, 255, 255, 255, 31, 1, 1, 0]), 1, id="offset delta above 31 bits"),
    pytest.param(bytes([12, 0, 0, 0, 3, 1, 0]), 1, id="key size -2"),
    pytest.param(bytes([12, 0, 0, 0, 4, 1, 0]), 1, id="key past its record"),
    pytest.param(bytes([12, 0, 0, 0, 1, 3, 0]), 1, id="value size -2"),
    pytest.param(bytes([12, 0, 0, 0, 1, 8, 0]), 1, id="value past its record"),
    pytest.param(bytes([12, 0, 0, 0, 1, 1, 1]), 1, id="header count -1"),
    pytest.param(bytes([12, 0, 0, 0, 1, 1, 2]), 1, id="a header that is not there"),
    pytest.param(bytes([22, 0, 0, 0, 1, 1, 254, 255, 255, 255, 15, 0]), 1, id="two billion headers"),
    pytest.param(bytes([16, 0, 0, 0, 1, 1, 2, 1, 1]), 1, id="header key null"),
    pytest.param(bytes([16, 0, 0, 0, 1, 1, 2, 0, 3]), 1, id="header value size -2"),
    pytest.param(bytes([16, 0, 0, 0, 1, 1, 2, 20, 1]), 1, id="header key past the end"),
    pytest.param(bytes([255] * 12), 1, id="varint without end"),
    pytest.param(bytes([40, 0] + [255] * 9 + [2, 0, 1, 1, 0, 0, 0, 0, 0, 0]), 1, id="varint of more than 64 bits"),
    pytest.param(bytes([12, 0, 0, 0, 1, 1, 128]), 1, id="varint cut off"),
    pytest.param(bytes([12, 0, 0, 0, 1, 1, 0]), -1, id="negative count"),
    pytest.param(bytes([12, 0, 0, 0, 1, 1, 0]), 2**31 - 1, id="hostile count"),
]


@pytest.mark.parametrize(("payload", "count"), MALFORMED)
@both_lives
def test_malformed_payloads_are_one_clean_error(life: Any, payload: bytes, count: int) -> None:
    kernel = life.kernel

    def cursor() -> Any:
        return kernel.Cursor(payload, count, 0, 0)

    records: list[Any] = ["before"]
    with pytest.raises(CorruptBatchError):
        kernel.read_records(cursor(), records)
    assert records == ["before"]
    columns = life.columns.Columns()
    with pytest.raises(CorruptBatchError):
        columns.append(cursor())
    assert len(columns) == 0
    with pytest.raises(CorruptBatchError):
        kernel.check_records(cursor())
    with pytest.raises(CorruptBatchError):
        kernel.find_invalid(cursor(), True, 0, 0, 9)
    with pytest.raises(CorruptBatchError):
        _read_all_by(kernel, cursor(), 1)
    with pytest.raises(CorruptBatchError):
        kernel.find_latest(cursor())
    with pytest.raises(CorruptBatchError):
        life.offset_map.OffsetMap(2400, bytes(16)).add(cursor(), 9)
    with pytest.raises(CorruptBatchError):
        life.offset_map.OffsetMap(2400, bytes(16)).retain(cursor(), False)


@both_lives
def test_sums_that_leave_64_bits_are_malformed(life: Any) -> None:
    payload = bytes([12, 0, 2, 2, 1, 1, 0])
    assert _read(life, payload, 1, 2**63 - 2, 2**63 - 2)[0].offset == 2**63 - 1
    with pytest.raises(CorruptBatchError):
        _read(life, payload, 1, 2**63 - 1, 0)
    with pytest.raises(CorruptBatchError):
        _read(life, payload, 1, 0, 2**63 - 1)


@both_lives
def test_a_payload_without_records(life: Any) -> None:
    assert _read(life, b"", 0) == []
    columns = life.columns.Columns()
    assert columns.append(life.kernel.Cursor(b"", 0, 0, 0)) == 0
    assert rows_of(columns.finish()) == []
    assert life.kernel.find_latest(life.kernel.Cursor(b"", 0, 0, 0)) is None


@both_lives
def test_append_time_replaces_every_timestamp(life: Any) -> None:
    payload = bytes([12, 0, 2, 0, 1, 1, 0])
    records: list[Any] = []
    life.kernel.read_records(life.kernel.Cursor(payload, 1, 0, 10, 99), records)
    assert records[0].timestamp == 99


@both_lives
def test_header_keys_that_are_not_utf8_are_mended(life: Any) -> None:
    payload = bytes([18, 0, 0, 0, 1, 1, 2, 2, 0xFF, 1])
    assert _read(life, payload, 1)[0].headers == (("�", None),)
    columns = life.columns.Columns()
    columns.append(life.kernel.Cursor(payload, 1, 0, 0))
    assert rows_of(columns.finish()) == [(0, 0, None, None, (("�", None),))]


@both_lives
def test_a_record_is_a_value(life: Any) -> None:
    record = life.kernel.Record(1, 2, b"k", None, (("h", b"v"),))
    assert record == life.kernel.Record(1, 2, b"k", None, (("h", b"v"),))
    assert record != life.kernel.Record(1, 2, b"k", b"", (("h", b"v"),))
    assert len({record, life.kernel.Record(1, 2, b"k", None, (("h", b"v"),))}) == 1
    assert "offset=1" in repr(record)
    if not life.plain:
        assert pickle.loads(pickle.dumps(record)) == record


@both_lives
def test_a_writer_refuses_what_cannot_come_next(life: Any) -> None:
    writer = life.encoder.RecordWriter(base_timestamp=-5)
    writer.append(0, b"", b"", (), 7)
    assert writer.last_offset_delta == 7
    for timestamp, delta in ((0, 7), (0, 2**31), (2**63 - 1, 8)):
        with pytest.raises(ValueError, match="cannot come next"):
            writer.append(timestamp, b"", b"", (), delta)
    with pytest.raises(TypeError):
        writer.append(0, 5, b"")
    with pytest.raises(TypeError):
        writer.append(0, b"", "text")
    assert writer.append(0, bytearray(b"k"), memoryview(b"v")) == 9
    assert writer.count == 2


@both_lives
def test_rows_are_cut_into_batches_by_size(life: Any) -> None:
    writer = life.encoder.RecordWriter()
    for n in range(100):
        writer.append(n, b"k", bytes(100))
    columns = life.columns.Columns()
    columns.append(life.kernel.Cursor(writer.take()[61:], 100, 0, 0))
    source = life.column_source.ColumnSource(columns.finish())
    row, cuts = 0, []
    while row < source.count:
        piece = life.encoder.RecordWriter()
        row = piece.append_rows(source, row, 1000)
        assert piece.size_bytes <= 1000
        cuts.append(row)
    assert cuts[-1] == 100
    assert len(cuts) in range(12, 16)
    alone = life.encoder.RecordWriter()
    assert alone.append_rows(source, 0, 10) == 1, "a batch takes one record, however large"


def _read_all_by(kernel: Any, cursor: Any, count: int) -> list[list[Any]]:
    """In portions of so many records."""
    portions: list[list[Any]] = []
    has_more = True
    while has_more:
        portion: list[Any] = []
        has_more = kernel.read_some(cursor, portion, count)
        portions.append(portion)
    return portions


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
@both_lives
def test_records_are_read_a_few_at_a_time(life: Any, count: int) -> None:
    batch = life.build.build_batch([(number, b"k%d" % number, None) for number in range(7)], base_offset=0)
    header = read_header(batch)
    cursor = life.batch.open_batch(batch, header)
    life.kernel.check_records(cursor)
    portions = _read_all_by(life.kernel, cursor, count)
    assert all(len(portion) <= count for portion in portions)
    assert [record for portion in portions for record in portion] == life.batch.decode_batch(batch, header)


@both_lives
def test_invalid_records_are_found(life: Any) -> None:
    rows = [(5, b"k", None), (4, None, b"v"), (-1, b"k", None), (10, b"k", None), (11, None, None), (11, b"", None)]
    batch = life.build.build_batch(rows)

    def found(needs_keys: bool, earliest: int, latest: int, most: int = 9) -> Any:
        cursor = life.batch.open_batch(batch, read_header(batch))
        return life.kernel.find_invalid(cursor, needs_keys, earliest, latest, most)

    least, most = -(2**63), 2**63 - 1
    assert found(False, least, most) == []
    assert found(True, least, most) == [(1, None), (4, None)]
    assert found(False, 5, 10) == [(1, 4), (4, 11), (5, 11)]
    assert found(True, 5, 10) == [(1, None), (4, None), (5, 11)]
    assert found(True, 5, 10, 1) == [(1, None)]

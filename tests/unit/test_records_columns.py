"""Columns: buffers that Arrow wraps, memory that is used again, and slices on the way back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.kits.records_lives import both_lives, rows_of
from tidelog.errors import CorruptBatchError
from tidelog.records.arrow import from_arrow, to_arrow
from tidelog.records.buffers import BinaryBuffers

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


def _batch(life: Any, start: int, count: int) -> memoryview:
    """Every third key and every fifth value null; every fourth record has headers."""
    records = [
        (
            1000 + n,
            None if n % 3 == 0 else b"k%d" % n,
            None if n % 5 == 0 else b"v%d" % n * (n % 7),
            [("n", b"%d" % n), ("null", None)] if n % 4 == 0 else [],
        )
        for n in range(start, start + count)
    ]
    batch: memoryview = life.build.build_batch(records, base_offset=start)
    return batch


def _expected(life: Any, *batches: memoryview) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for batch in batches for r in life.batch.decode(batch)]


@both_lives
def test_arrow_sees_what_was_appended(life: Any) -> None:
    batches = [_batch(life, start, 37) for start in range(0, 370, 37)]
    columns = life.columns.Columns()
    for batch in batches:
        assert life.batch.decode_into(columns, batch) == 37
    assert len(columns) == 370
    expected = _expected(life, *batches)
    assert columns.size_bytes == sum(
        len(key or b"") + len(value or b"") + sum(len(k) + len(v or b"") for k, v in headers)
        for _, _, key, value, headers in expected
    )
    held = columns.finish()
    assert to_arrow(held).schema == SCHEMA
    assert rows_of(held) == expected
    assert to_arrow(held).column("key").null_count == sum(row[2] is None for row in expected)


@both_lives
def test_columns_without_nulls_have_no_bitmap(life: Any) -> None:
    columns = life.columns.Columns()
    life.batch.decode_into(columns, life.build.build_batch([(1, b"k", b"v")] * 20))
    held = columns.finish()
    assert held.keys.validity is None
    assert held.values.null_count == 0
    assert held.headers.header_count == 0


@both_lives
def test_a_malformed_batch_leaves_no_trace(life: Any) -> None:
    batch = _batch(life, 0, 30)
    cut = bytes(batch[61:-1])
    columns = life.columns.Columns()
    life.batch.decode_into(columns, batch)
    with pytest.raises(CorruptBatchError):
        columns.append(life.kernel.Cursor(cut, 30, 500, 0))
    other = _batch(life, 31, 30)
    life.batch.decode_into(columns, other)
    assert rows_of(columns.finish()) == _expected(life, batch, other)


@both_lives
def test_what_was_handed_over_stays_while_it_is_held(life: Any) -> None:
    columns = life.columns.Columns()
    held, expected = [], []
    for start in range(0, 600, 100):
        batch = _batch(life, start, 100)
        life.batch.decode_into(columns, batch)
        table = to_arrow(columns.finish())
        if start % 200 == 0:
            held.append(table)
            expected.append([row[0] for row in _expected(life, batch)])
    assert [table.column("offset").to_pylist() for table in held] == expected
    assert all(table.validate(full=True) is None for table in held)


@both_lives
@pytest.mark.parametrize(("start", "length"), [(0, 100), (1, 99), (8, 8), (13, 50), (99, 1), (40, 0)])
def test_slices_are_written_from_where_they_begin(life: Any, start: int, length: int) -> None:
    columns = life.columns.Columns()
    batch = _batch(life, 0, 100)
    life.batch.decode_into(columns, batch)
    piece = to_arrow(columns.finish()).slice(start, length)
    written = life.build.build_from_columns(from_arrow(piece), keep_offsets=True)
    assert _expected(life, written) == _expected(life, batch)[start : start + length]


@both_lives
def test_arrow_from_elsewhere(life: Any) -> None:
    table = pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([5, 6, 7], pa.int64()),
            "key": pa.nulls(3),
            "value": pa.array(["a", None, "ccc"], pa.large_string()),
            "headers": pa.array(
                [[{"key": "x", "value": b"1"}], None, [{"key": "y", "value": None}, {"key": "z", "value": b""}]],
                SCHEMA.field("headers").type,
            ),
        }
    )
    batch = life.build.build_from_columns(from_arrow(table))
    assert _expected(life, batch) == [
        (0, 5, None, b"a", (("x", b"1"),)),
        (1, 6, None, None, ()),
        (2, 7, None, b"ccc", (("y", None), ("z", b""))),
    ]
    tail = life.build.build_from_columns(from_arrow(table.slice(2)))
    assert _expected(life, tail) == [(0, 7, None, b"ccc", (("y", None), ("z", b"")))]


def test_arrow_that_cannot_be_records_is_refused() -> None:
    numbers = pa.array([1, 2], pa.int64())
    with pytest.raises(ValueError, match="binary or string"):
        from_arrow(pa.RecordBatch.from_pydict({"timestamp": numbers, "key": numbers, "value": numbers}))
    nulls = pa.array([1, None], pa.int64())
    with pytest.raises(ValueError, match="must not be null"):
        from_arrow(pa.RecordBatch.from_pydict({"timestamp": nulls, "key": pa.nulls(2), "value": pa.nulls(2)}))


@both_lives
def test_columns_that_contradict_themselves_are_refused(life: Any) -> None:
    columns = life.columns.Columns()
    life.batch.decode_into(columns, _batch(life, 0, 16))
    good = columns.finish()
    assert life.encoder.RecordWriter().append_rows(life.column_source.ColumnSource(good), 0, 10_000) == 16
    too_small = [
        good._replace(row_count=1000),
        good._replace(timestamps=b""),
        good._replace(number_start=1),
        good._replace(keys=good.keys._replace(offsets=bytes(8))),
        good._replace(keys=good.keys._replace(start=-1)),
        good._replace(keys=good.keys._replace(validity=b"\xff")),
        good._replace(headers=good.headers._replace(ends=bytes(8))),
        good._replace(headers=good.headers._replace(header_count=10_000)),
    ]
    for columns_given in too_small:
        with pytest.raises(ValueError, match="rows"):
            life.column_source.ColumnSource(columns_given)
    backwards = (good.row_count + 1) * b"\x00\x00\x00\x7f"
    negative = (good.row_count + 1) * b"\xff"
    wrong = [
        good._replace(values=BinaryBuffers(backwards, b"", None, 0)),
        good._replace(values=BinaryBuffers(negative * 4, b"", None, 0)),
        good._replace(values=good.values._replace(data=b"")),
        good._replace(headers=good.headers._replace(ends=b"\xff" * 68)),
        good._replace(headers=good.headers._replace(ends=b"\x00\x00\x00\x7f" * 17)),
        good._replace(headers=good.headers._replace(keys=good.headers.keys._replace(data=b""))),
    ]
    for columns_given in wrong:
        with pytest.raises(ValueError, match="cannot be written"):
            life.encoder.RecordWriter().append_rows(life.column_source.ColumnSource(columns_given), 0, 10_000)

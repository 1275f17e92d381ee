"""Between columns and Arrow: the same buffers, wrapped. Needs pyarrow, which only those who use it import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.records.buffers import BinaryBuffers, ColumnBuffers, HeaderBuffers
from tidelog.types import Buffer

if TYPE_CHECKING:
    import pyarrow as pa


def to_arrow(columns: ColumnBuffers) -> pa.RecordBatch:
    """offset, timestamp (ms), key, value and headers as one Arrow record batch, without a copy."""
    import pyarrow as pa

    assert columns.offsets is not None
    count = columns.row_count
    offsets = pa.Array.from_buffers(pa.int64(), count, [None, _wrapped(columns.offsets)], 0, columns.number_start)
    timestamps = pa.Array.from_buffers(
        pa.timestamp("ms", "UTC"), count, [None, _wrapped(columns.timestamps)], 0, columns.number_start
    )
    arrays = [offsets, timestamps, _binary(columns.keys, count), _binary(columns.values, count)]
    names = ["offset", "timestamp", "key", "value"]
    if columns.headers is not None:
        arrays.append(_headers(columns.headers, count))
        names.append("headers")
    return pa.RecordBatch.from_arrays(arrays, names)


def from_arrow(batch: pa.RecordBatch) -> ColumnBuffers:
    """The buffers of an Arrow record batch with columns named as `to_arrow` names them; slices keep their place.

    Numbers are 64 bits; a timestamp in ms or a plain integer. Null headers are none.
    """
    timestamps = batch.column("timestamp")
    has_offsets = "offset" in batch.schema.names
    offsets = batch.column("offset") if has_offsets else None
    if timestamps.null_count or (offsets is not None and (offsets.null_count or offsets.offset != timestamps.offset)):
        raise ValueError("timestamps and offsets must not be null, and must be slices of the same rows")
    return ColumnBuffers(
        batch.num_rows,
        None if offsets is None else _view(offsets.buffers()[1]),
        _view(timestamps.buffers()[1]),
        _from_binary(batch.column("key")),
        _from_binary(batch.column("value")),
        _from_headers(batch.column("headers")) if "headers" in batch.schema.names else None,
        timestamps.offset,
    )


def _wrapped(buffer: Buffer | None) -> pa.Buffer | None:
    import pyarrow as pa

    return None if buffer is None else pa.py_buffer(buffer)


def _view(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer)


def _binary(column: BinaryBuffers, count: int, *, text: bool = False) -> pa.Array[Any]:
    import pyarrow as pa

    kind: pa.DataType = pa.large_binary() if column.large else pa.binary()
    if text:
        kind = pa.large_string() if column.large else pa.string()
    buffers = [_wrapped(column.validity), _wrapped(column.offsets), _wrapped(column.data)]
    return pa.Array.from_buffers(kind, count, buffers, column.null_count, column.start)


def _headers(headers: HeaderBuffers, count: int) -> pa.Array[Any]:
    import pyarrow as pa

    keys = _binary(headers.keys, headers.header_count, text=True)
    values = _binary(headers.values, headers.header_count)
    pairs = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    buffers = [None, _wrapped(headers.ends)]
    return pa.Array.from_buffers(pa.list_(pairs.type), count, buffers, 0, headers.start, [pairs])


def _from_binary(column: pa.Array[Any]) -> BinaryBuffers:
    import pyarrow as pa

    if pa.types.is_null(column.type):
        column = column.cast(pa.binary())
    large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    if not large and not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        raise ValueError(f"a key or value column must be binary or string, not {column.type}")
    validity, offsets, data = column.buffers()
    bits = None if validity is None else _view(validity)
    return BinaryBuffers(_view(offsets), _view(data), bits, column.null_count, column.offset, large)


def _from_headers(column: pa.Array[Any]) -> HeaderBuffers | None:
    """A list that is null may still span children; those are cut out, so that null means none."""
    import pyarrow as pa

    if pa.types.is_null(column.type):
        return None
    if column.null_count:
        column = column.fill_null([])
    assert isinstance(column, pa.ListArray)
    pairs = column.values
    assert isinstance(pairs, pa.StructArray)
    fields = dict(zip((field.name for field in pairs.type), pairs.flatten(), strict=True))
    return HeaderBuffers(
        _view(column.buffers()[1]),
        len(pairs),
        _from_binary(fields["key"]),
        _from_binary(fields["value"]),
        column.offset,
    )

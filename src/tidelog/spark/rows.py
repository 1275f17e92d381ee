"""Columns as Spark's Kafka connector gives them: decoded records, and where they came from, as one Arrow batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.records.arrow import to_arrow
from tidelog.records.buffers import ColumnBuffers
from tidelog.types import TopicPartition

_HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("timestampType", pa.int32()),
]

_DDL = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


def arrow_schema(include_headers: bool) -> pa.Schema:
    return pa.schema([*_COLUMNS, ("headers", _HEADERS)] if include_headers else _COLUMNS)


def ddl(include_headers: bool) -> str:
    """The same for Spark."""
    return f"{_DDL}, headers array<struct<key: string, value: binary>>" if include_headers else _DDL


class RowMaker:
    """Makes the batches of one partition. Columns that always say the same are made once, and cut to size."""

    def __init__(self, partition: TopicPartition, include_headers: bool) -> None:
        self._schema = arrow_schema(include_headers)
        self._partition = partition
        self._include_headers = include_headers
        self._topics: pa.Array[Any] = pa.array([], pa.string())
        self._numbers: pa.Array[Any] = pa.array([], pa.int32())

    def rows(self, columns: ColumnBuffers, timestamp_types: pa.Array[Any]) -> pa.RecordBatch:
        """Everything but the constant columns and the timestamps stays where it was decoded."""
        count = columns.row_count
        decoded = to_arrow(columns if self._include_headers else columns._replace(headers=None))
        if count > len(self._topics):
            self._topics = pa.repeat(pa.scalar(self._partition.topic), count)
            self._numbers = pa.repeat(pa.scalar(self._partition.partition, pa.int32()), count)
        arrays = [
            decoded.column("key"),
            decoded.column("value"),
            self._topics.slice(0, count),
            self._numbers.slice(0, count),
            decoded.column("offset"),
            decoded.column("timestamp").cast(pa.timestamp("us", "UTC")),
            timestamp_types,
        ]
        if self._include_headers:
            headers = decoded.column("headers")
            none = pc.equal(pc.list_value_length(headers), pa.scalar(0))
            arrays.append(pc.if_else(none, pa.scalar(None, headers.type), headers).cast(_HEADERS))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

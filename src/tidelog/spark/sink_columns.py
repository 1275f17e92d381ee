"""What a sink takes: key, value, topic, partition, timestamp and headers, from whatever rows a query gives. Pure.

Like Spark's Kafka connector: `value` must be there, `topic` unless an option names one, other columns are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.spark.errors import OptionError

_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_MS = pa.timestamp("ms", "UTC")


def check_columns(columns: Iterable[tuple[str, str]], topic: str | None) -> None:
    """Names and types as Spark's simpleString has them. OptionError names the column that is missing or wrong."""
    found = dict(columns)
    if "value" not in found:
        raise OptionError("value", f"the sink needs a column of this name; there are {', '.join(found) or 'none'}")
    if topic is None and "topic" not in found:
        raise OptionError("topic", "it must be given where the rows have no column of this name")
    for name, kinds in _TYPES.items():
        kind = found.get(name)
        if kind is not None and kind not in kinds:
            raise OptionError(name, f"the column of this name must be {' or '.join(kinds)}, not {kind}")


def records_of(batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """key, value, timestamp in ms and maybe headers, as the encoder takes them; rows without a time have this one."""
    names = batch.schema.names
    count = batch.num_rows
    now: pa.Array[Any] = pa.repeat(pa.scalar(now_ms, pa.int64()), count)
    if "timestamp" in names:
        given = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(_MS, safe=False).cast(pa.int64())
        timestamps: pa.Array[Any] = pc.coalesce(given, now) if given.null_count else given
    else:
        timestamps = now
    columns: dict[str, pa.Array[Any]] = {
        "key": batch.column("key") if "key" in names else pa.nulls(count, pa.binary()),
        "value": batch.column("value"),
        "timestamp": timestamps,
    }
    if "headers" in names:
        columns["headers"] = batch.column("headers")
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def by_topic(batch: pa.RecordBatch, topic: str | None) -> list[tuple[str, pa.RecordBatch]]:
    """The option's topic goes before the column, as in Spark's connector. Rows keep their order within a topic."""
    if topic is not None:
        return [(topic, batch)]
    column = batch.column("topic")
    if column.null_count:
        raise OptionError("topic", "the column of this name has a null; the option would name a topic for all rows")
    names = [str(name) for name in pc.unique(column).to_pylist()]
    if len(names) == 1:
        return [(names[0], batch)]
    return [(name, batch.filter(pc.equal(column, pa.scalar(name)))) for name in names]

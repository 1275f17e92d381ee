"""Writing: which partition a row goes to, what its columns become, batch and streaming."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kits.sparkkit import Topics, rows_of
from tidelog.client.partitioner import partition_of_key

pytestmark = pytest.mark.jvm

Read = Callable[..., Any]
HEADERS = "array<struct<key: string, value: binary>>"


def _write(topics: Topics, frame: Any, **options: str) -> None:
    writer = frame.write.format("tidelog").option("kafka.bootstrap.servers", topics.servers)
    writer.options(**options).mode("append").save()


def test_keys_go_where_all_clients_put_them(spark: Any, topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 3)
    _write(topics, spark.range(1000).selectExpr("cast(id as string) key", "concat('v', id) value"), topic=name)
    rows = rows_of(batch(subscribe=name), "key", "value", "partition", "timestampType")
    expected = [(key, b"v" + key, partition_of_key(key, 3), 0) for key in sorted(b"%d" % n for n in range(1000))]
    assert rows == expected


def test_all_columns(spark: Any, topics: Topics, name: str, batch: Read) -> None:
    other = f"{name}-other"
    topics.create(name, 3)
    topics.create(other, 1)
    rows = [
        (name, b"a", b"1", 2, "2024-05-06 07:08:09.123456", [("h", b"x"), ("n", None)]),
        (name, None, b"2", 0, None, None),
        (other, b"c", None, None, "1970-01-01 00:00:00", []),
        (name, b"d", b"4", None, None, None),
    ]
    schema = f"topic string, key binary, value binary, partition int, at string, headers {HEADERS}"
    frame = spark.createDataFrame(rows, schema).selectExpr("*", "cast(at as timestamp) timestamp").drop("at")
    _write(topics, frame)
    found = batch(subscribe=f"{name},{other}", includeHeaders="true")
    assert rows_of(found.where("value is not null"), "value", "topic", "key", "partition") == [
        (b"1", name, b"a", 2),
        (b"2", name, None, 0),
        (b"4", name, b"d", partition_of_key(b"d", 3)),
    ]
    assert rows_of(found.where("value is null"), "topic", "key", "partition") == [(other, b"c", 0)]
    times = {row[0]: row[1] for row in found.selectExpr("cast(key as string)", "cast(timestamp as string)").collect()}
    assert times["a"] == "2024-05-06 07:08:09.123"
    assert times["c"] == "1970-01-01 00:00:00"
    assert times["d"] > "2024"
    headers = {row["key"] and bytes(row["key"]): row["headers"] for row in found.collect()}
    assert [(one["key"], one["value"] and bytes(one["value"])) for one in headers[b"a"]] == [("h", b"x"), ("n", None)]
    assert headers[b"c"] is headers[None] is None


def test_rows_without_keys_and_compression(spark: Any, topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 2)
    frame = spark.range(20_000, numPartitions=2).selectExpr("repeat(cast(id as string), 20) value")
    _write(topics, frame, topic=name, **{"kafka.compression.type": "zstd", "kafka.batch.size": "16384"})
    found = batch(subscribe=name)
    assert found.selectExpr("count(distinct value)", "count(*)", "count(key)").collect()[0][:] == (20_000, 20_000, 0)


def test_from_stream_to_stream(
    spark: Any, topics: Topics, name: str, stream: Read, batch: Read, tmp_path: Path
) -> None:
    copy = f"{name}-copy"
    topics.create(name, 2)
    topics.create(copy, 2)
    topics.fill(name, {0: 40, 1: 25})
    frame = stream(subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="30")

    def run() -> None:
        writer = frame.select("key", "value", "partition", "timestamp").writeStream.format("tidelog")
        options = {"kafka.bootstrap.servers": topics.servers, "checkpointLocation": str(tmp_path / "c"), "topic": copy}
        query = writer.options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    columns = ("partition", "offset", "key", "value", "timestamp")
    run()
    assert rows_of(batch(subscribe=copy), *columns) == rows_of(batch(subscribe=name), *columns)
    topics.fill(name, {1: 5}, start=25)
    run()
    assert rows_of(batch(subscribe=copy), *columns) == rows_of(batch(subscribe=name), *columns)


def test_what_a_sink_refuses(spark: Any, topics: Topics, name: str) -> None:
    topics.create(name, 2)
    frame = spark.range(3)
    cases: list[tuple[str, str, dict[str, str]]] = [
        ("value", "id", {"topic": name}),
        ("value", "id value", {"topic": name}),
        ("key", "id key, 'v' value", {"topic": name}),
        ("topic", "'v' value", {}),
        ("topic", "'v' value", {"topic": f"{name}-missing"}),
        ("topic", "'v' value, cast(null as string) topic", {}),
        ("partition", "'v' value, 2 partition", {"topic": name}),
        ("partition", "'v' value, -1 partition", {"topic": name}),
        ("kafka.acks", "'v' value", {"topic": name, "kafka.acks": "two"}),
        ("kafka.key.serializer", "'v' value", {"topic": name, "kafka.key.serializer": "x"}),
    ]
    for option, columns, options in cases:
        with pytest.raises(Exception, match=f"option '{option}'"):
            _write(topics, frame.selectExpr(*columns.split(", ")), **options)
    with pytest.raises(Exception, match="option 'mode'"):
        frame.selectExpr("'v' value").write.format("tidelog").option("topic", name).mode("overwrite").save()

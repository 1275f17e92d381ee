"""Batch reads: rows and columns as Spark's Kafka connector has them, all forms of where to begin and end, filters."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.kits.sparkkit import BASE_MS, Topics, rows_of
from tidelog.records.header import Codec

pytestmark = pytest.mark.jvm

Read = Callable[..., Any]


@pytest.fixture
def reading(directly: dict[str, str]) -> dict[str, str]:
    return directly


def _offsets(frame: Any) -> list[tuple[Any, ...]]:
    return rows_of(frame, "partition", "offset")


def _all(partition: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(start, end)]


def test_rows_are_those_of_sparks_kafka_connector(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 1)
    topics.produce(name, 0, [(BASE_MS, b"k", b"v"), (BASE_MS + 1, None, b"\xff\x00"), (BASE_MS + 2, b"", None)])
    frame = batch(subscribe=name)
    kinds = [(field.name, field.dataType.simpleString(), field.nullable) for field in frame.schema.fields]
    assert kinds == [
        ("key", "binary", True),
        ("value", "binary", True),
        ("topic", "string", True),
        ("partition", "int", True),
        ("offset", "bigint", True),
        ("timestamp", "timestamp", True),
        ("timestampType", "int", True),
    ]
    assert rows_of(frame, "offset", "key", "value", "topic", "partition", "timestampType") == [
        (0, b"k", b"v", name, 0, 0),
        (1, None, b"\xff\x00", name, 0, 0),
        (2, b"", None, name, 0, 0),
    ]
    first = frame.where("offset = 0").selectExpr("cast(timestamp as string)").collect()
    assert first[0][0] == datetime.fromtimestamp(BASE_MS / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def test_headers_are_null_where_there_are_none(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 1)
    topics.produce(name, 0, [(BASE_MS, b"a", b"1", [("x", b"1"), ("y", None), ("x", b"")]), (BASE_MS, b"b", b"2")])
    frame = batch(subscribe=name, includeHeaders="true")
    assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    headers = {bytes(row["key"]): row["headers"] for row in frame.collect()}
    assert [(one["key"], one["value"] and bytes(one["value"])) for one in headers[b"a"]] == [
        ("x", b"1"),
        ("y", None),
        ("x", b""),
    ]
    assert headers[b"b"] is None


def test_log_append_time_and_compression(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 1, message_timestamp_type="LogAppendTime")
    for codec in Codec:
        topics.produce(name, 0, [(5, b"k%d" % codec, b"v" * 1000)] * 3, codec)
    rows = batch(subscribe=name).selectExpr("timestampType", "year(timestamp) > 2020", "length(value)").collect()
    assert {tuple(row) for row in rows} == {(1, True, 1000)}
    assert len(rows) == 3 * len(Codec)


def test_what_is_read(topics: Topics, name: str, batch: Read) -> None:
    for suffix in ("a", "b", "c"):
        topics.create(f"{name}-{suffix}", 2)
        topics.fill(f"{name}-{suffix}", {0: 2, 1: 3})
    several = rows_of(batch(subscribe=f"{name}-a, {name}-b"), "topic")
    assert several == [(f"{name}-a",)] * 5 + [(f"{name}-b",)] * 5
    assert len(rows_of(batch(subscribePattern=f"{name}-[ac]"), "topic")) == 10
    assert rows_of(batch(assign=json.dumps({f"{name}-c": [1]})), "topic", "partition") == [(f"{name}-c", 1)] * 3
    assert rows_of(batch(subscribePattern=f"{name}-none"), "topic") == []


def _forms(name: str) -> list[tuple[dict[str, str], list[tuple[int, int]]]]:
    """Ten records in partition 0 and four in 1, a second apart."""
    at = {f"{n}": BASE_MS + n * 1000 for n in range(11)}
    return [
        ({}, _all(0, 0, 10) + _all(1, 0, 4)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, _all(0, 0, 10) + _all(1, 0, 4)),
        ({"startingOffsets": json.dumps({name: {"0": 8, "1": -2}})}, _all(0, 8, 10) + _all(1, 0, 4)),
        ({"endingOffsets": json.dumps({name: {"0": 2, "1": -1}})}, _all(0, 0, 2) + _all(1, 0, 4)),
        ({"startingTimestamp": str(at["2"] - 1)}, _all(0, 2, 10) + _all(1, 2, 4)),
        ({"endingTimestamp": str(at["3"])}, _all(0, 0, 3) + _all(1, 0, 3)),
        ({"endingTimestamp": str(at["10"])}, _all(0, 0, 10) + _all(1, 0, 4)),
        (
            {"startingOffsetsByTimestamp": json.dumps({name: {"0": at["9"], "1": at["3"]}})},
            _all(0, 9, 10) + _all(1, 3, 4),
        ),
        ({"endingOffsetsByTimestamp": json.dumps({name: {"0": at["1"], "1": at["1"]}})}, [(0, 0), (1, 0)]),
        (
            {"startingTimestamp": str(at["5"]), "startingOffsetsByTimestampStrategy": "latest"},
            _all(0, 5, 10),
        ),
    ]


def test_where_a_batch_begins_and_ends(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 2)
    topics.fill(name, {0: 10, 1: 4})
    for options, expected in _forms(name):
        assert _offsets(batch(subscribe=name, **options)) == expected, options


def test_tasks_are_split_within_batches_of_records(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 2)
    topics.fill(name, {0: 100, 1: 5})
    frame = batch(subscribe=name, minPartitions="7")
    assert _offsets(frame) == _all(0, 0, 100) + _all(1, 0, 5)
    assert frame.rdd.getNumPartitions() == 7
    assert batch(subscribe=name, maxRecordsPerPartition="30").rdd.getNumPartitions() == 5


def test_filters_are_pushed_down(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 3)
    topics.fill(name, {0: 50, 1: 50, 2: 50})
    frame = batch(subscribe=name)
    at_40 = datetime.fromtimestamp(BASE_MS / 1000 + 40, UTC).strftime("%Y-%m-%d %H:%M:%S")
    cases = [
        ("partition = 1", _all(1, 0, 50), 1, 0),
        ("partition in (0, 2) and offset >= 48", _all(0, 48, 50) + _all(2, 48, 50), 2, 0),
        ("partition > 0 and offset < 3 and offset > 1", [(1, 2), (2, 2)], 2, 0),
        (f"topic = '{name}' and partition <= 0 and offset = 7", [(0, 7)], 1, 0),
        ("topic = 'other'", [], 1, 0),
        (f"timestamp >= '{at_40}' and partition = 2", _all(2, 40, 50), 1, 1),
        (f"timestamp < '{at_40}' and partition = 2", _all(2, 0, 40), 1, 1),
        ("partition <> 1 and offset = 1", [(0, 1), (2, 1)], 3, 1),
    ]
    for condition, expected, tasks, filters in cases:
        found = frame.where(condition)
        assert _offsets(found) == expected, condition
        assert found.rdd.getNumPartitions() == tasks, condition
        plan = found._jdf.queryExecution().executedPlan().toString()
        assert plan.count(" Filter ") == filters, plan


def test_a_batch_begins_where_the_log_does(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 1)
    topics.fill(name, {0: 10})
    topics.delete_before(name, 0, 4)
    assert _offsets(batch(subscribe=name, startingOffsets="earliest")) == _all(0, 4, 10)
    ranges = json.dumps({name: {"0": 6}})
    assert _offsets(batch(subscribe=name, startingOffsets=ranges, maxRecordsPerPartition="1")) == _all(0, 6, 10)


def test_an_empty_topic_has_no_rows(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 3)
    assert batch(subscribe=name).count() == 0

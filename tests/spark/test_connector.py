"""Spark's own Kafka connector beside ours, on the same topics: the same rows, the same micro-batches, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peers import spark_connector
from tests.kits.sparkkit import BASE_MS, Topics, rows_of
from tidelog.records.header import Codec
from tidelog.spark.offsets import from_json
from tidelog.types import TopicPartition

pytestmark = pytest.mark.jvm

FORMATS = ("kafka", "tidelog")


@pytest.fixture(autouse=True)
def _connector() -> None:
    assert spark_connector.jars()


def _read(spark: Any, topics: Topics, form: str, **options: str) -> Any:
    return spark.read.format(form).option("kafka.bootstrap.servers", topics.servers).options(**options).load()


def _fill_all_kinds(topics: Topics, name: str) -> None:
    """Nulls, headers, all compressions, times out of order."""
    topics.create(name, 3)
    for number, codec in enumerate(Codec):
        records = [
            (BASE_MS - n * 7, None if n % 3 == 0 else b"k%d" % n, None if n % 5 == 0 else b"v" * n, headers)
            for n, headers in enumerate([[], [("a", b"1")], [("a", None), ("ä", b"")]] * 4)
        ]
        topics.produce(name, number % 2, records, codec)


def _comparable(rows: list[Any]) -> list[str]:
    return sorted(repr(row.asDict(recursive=True)) for row in rows)


def test_the_same_rows(spark: Any, topics: Topics, name: str) -> None:
    _fill_all_kinds(topics, name)
    time = str(BASE_MS - 30)
    cases: list[dict[str, str]] = [
        {},
        {"includeHeaders": "true"},
        {"startingOffsets": json.dumps({name: {"0": 5, "1": -2, "2": -2}}), "minPartitions": "9"},
        {"endingOffsets": json.dumps({name: {"0": 30, "1": -1, "2": 0}}), "maxRecordsPerPartition": "4"},
        {"startingTimestamp": time, "startingOffsetsByTimestampStrategy": "latest"},
        {"endingTimestamp": str(BASE_MS + 1)},
    ]
    for options in cases:
        kafka, ours = (_read(spark, topics, form, subscribe=name, **options) for form in FORMATS)
        assert ours.schema.jsonValue() == kafka.schema.jsonValue()
        rows = _comparable(ours.collect())
        assert rows == _comparable(kafka.collect()), options
        assert rows


def test_the_same_micro_batches(spark: Any, topics: Topics, name: str, tmp_path: Path) -> None:
    topics.create(name, 3)
    topics.fill(name, {0: 100, 1: 31, 2: 1})
    offsets: dict[str, list[Any]] = {}
    for form in FORMATS:
        options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "17"}
        reader = spark.readStream.format(form).option("kafka.bootstrap.servers", topics.servers).options(**options)
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / form))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        logged = sorted((tmp_path / form / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        offsets[form] = [from_json(json.loads(path.read_text().splitlines()[-1])) for path in logged]
    assert offsets["tidelog"] == offsets["kafka"]
    assert offsets["tidelog"][-1] == {
        TopicPartition(name, 0): 100,
        TopicPartition(name, 1): 31,
        TopicPartition(name, 2): 1,
    }


def test_a_checkpoint_goes_from_one_to_the_other_and_back(
    spark: Any, topics: Topics, name: str, tmp_path: Path
) -> None:
    """Ours begins it once, and the connector the other time. Nothing is read twice, and nothing is left out."""
    for number, order in enumerate((FORMATS * 2, FORMATS[::-1] * 2)):
        topic = topics.create(f"{name}-{number}", 1)
        read: list[int] = []
        for turn, form in enumerate(order):
            topics.fill(topic, {0: 10}, start=10 * turn)
            options = {"kafka.bootstrap.servers": topics.servers, "subscribe": topic, "startingOffsets": "earliest"}
            writer = spark.readStream.format(form).options(**options).load().writeStream
            writer = writer.foreachBatch(lambda rows, _, read=read: read.extend(row.offset for row in rows.collect()))
            writer = writer.option("checkpointLocation", str(tmp_path / topic)).trigger(availableNow=True)
            assert writer.start().awaitTermination(120)
            assert sorted(read) == list(range(10 * turn + 10)), (form, order)


def test_the_connector_writes_and_we_read(spark: Any, topics: Topics, name: str) -> None:
    for suffix in FORMATS:
        topics.create(f"{name}-{suffix}", 4)
    frame = spark.range(500).selectExpr("if(id % 9 = 0, null, cast(id as string)) key", "concat('v', id) value")
    frame = frame.where("key is not null")
    for form in FORMATS:
        writer = frame.write.format(form).option("kafka.bootstrap.servers", topics.servers)
        writer.option("topic", f"{name}-{form}").mode("append").save()
    kafka, ours = (
        rows_of(_read(spark, topics, "tidelog", subscribe=f"{name}-{form}"), "partition", "key", "value")
        for form in FORMATS
    )
    assert ours == kafka
    assert len(ours) == 444


def test_the_connector_streams_to_and_from_tidelog(spark: Any, topics: Topics, name: str, tmp_path: Path) -> None:
    topics.create(name, 2)
    topics.create(f"{name}-copy", 2)
    topics.fill(name, {0: 40, 1: 20})
    options = {"kafka.bootstrap.servers": topics.servers, "subscribe": name, "startingOffsets": "earliest"}
    frame = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger="25").load()
    writer = frame.select("key", "value", "partition").writeStream.format("kafka")
    sink = {"kafka.bootstrap.servers": topics.servers, "topic": f"{name}-copy", "checkpointLocation": str(tmp_path)}
    assert writer.options(**sink).trigger(availableNow=True).start().awaitTermination(120)
    columns = ("partition", "key", "value")
    copied = rows_of(_read(spark, topics, "tidelog", subscribe=f"{name}-copy"), *columns)
    assert copied == rows_of(_read(spark, topics, "kafka", subscribe=name), *columns)
    assert len(copied) == 60

"""What a task writes: rows dealt out to partitions, columns made into records, and failures that are told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.kits.clientkit import P0, P1, sabotage, simulate
from tests.kits.fake_broker import FakeCluster
from tidelog.client.batching import BatchingSettings
from tidelog.client.cluster import Cluster
from tidelog.client.column_batching import ColumnBatcher
from tidelog.client.errors import BrokerError
from tidelog.client.partitioner import partition_of_key
from tidelog.client.produce import Producer
from tidelog.errors import ErrorCode
from tidelog.ports import Clock
from tidelog.records.batch import decode
from tidelog.records.kernel import Record
from tidelog.spark.errors import OptionError
from tidelog.spark.sink_columns import by_topic, check_columns, records_of
from tidelog.spark.writing import RowWriter, Written
from tidelog.types import TopicPartition
from tidelog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

PRODUCE = 0
NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class _Clock(Clock):
    def wall_ms(self) -> int:
        return NOW_MS

    def monotonic_ns(self) -> int:
        return 0


def _records(fake: FakeCluster, partition: TopicPartition) -> list[Record]:
    return [record for batch in fake.logs[partition] for record in decode(batch)]


def _rows(**columns: pa.Array[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


async def _write(
    cluster: Cluster, *batches: pa.RecordBatch, batch_size: int = 200, topic: str | None = "orders"
) -> int:
    producer = Producer(cluster)
    batcher = ColumnBatcher(producer, BatchingSettings(batch_size=batch_size, buffer_memory=1000))
    writer = RowWriter(cluster, batcher, topic, _Clock())
    try:
        for batch in batches:
            await writer.write(batch)
        written: Written = await writer.finish()
    finally:
        producer.close()
    return written.record_count


def test_rows_keep_their_order_within_a_partition() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        keys = [b"k%d" % (n % 13) for n in range(300)]
        texts = [b"%d" % n for n in range(300)]
        batches = [
            _rows(key=pa.array(keys[at : at + 100]), value=pa.array(texts[at : at + 100])) for at in range(0, 300, 100)
        ]
        assert await _write(cluster, *batches) == 300
        for partition in (P0, P1):
            expected = [n for n in range(300) if partition_of_key(keys[n], 2) == partition.partition]
            assert [int(record.value or b"") for record in _records(fake, partition)] == expected
            assert len(fake.logs[partition]) > 5

    simulate(story)


def test_a_column_goes_before_the_key_and_rows_without_both_stay_together() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        given = pa.array([1, None, 0, None], pa.int32())
        keys = pa.array([b"a", b"b", None, None], pa.binary())
        await _write(cluster, _rows(partition=given, key=keys, value=pa.array([b"0", b"1", b"2", b"3"])))
        where = {record.value: at.partition for at in (P0, P1) for record in _records(fake, at)}
        assert (where[b"0"], where[b"1"], where[b"2"]) == (1, partition_of_key(b"b", 2), 0)
        await _write(cluster, *[_rows(value=pa.array([b"%d" % n] * 10)) for n in range(4, 8)], batch_size=10_000)
        bunches = [[record.value for record in _records(fake, at)][-20:] for at in (P0, P1)]
        assert [len(set(bunch)) for bunch in bunches] == [2, 2]

    simulate(story)


def test_columns_become_records() -> None:
    headers = pa.array([[("h", b"x"), ("n", None)], None, []], HEADERS)
    times = pa.array([1_500_999, None, -1], pa.timestamp("us", "UTC"))

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        numbers = pa.array([0, 0, 0], pa.int32())
        values = pa.array(["a", None, ""], pa.string())
        await _write(cluster, _rows(value=values, timestamp=times, headers=headers, partition=numbers, other=numbers))
        records = _records(fake, P0)
        assert [record.value for record in records] == [b"a", None, b""]
        assert [record.headers for record in records] == [(("h", b"x"), ("n", None)), (), ()]
        assert [record.timestamp for record in records] == [1500, NOW_MS, 0]

    simulate(story)


def test_written_once_whatever_happens() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        batches = [_rows(key=pa.array([b"%d" % n for n in range(at, at + 50)])) for at in range(0, 1000, 50)]
        await _write(cluster, *[batch.append_column("value", batch.column("key")) for batch in batches])
        found = [int(record.value or b"") for at in (P0, P1) for record in _records(fake, at)]
        assert sorted(found) == list(range(1000))

    simulate(story, brokers=2, saboteur=sabotage)


def _refuse(request: Any, codes: Sequence[ErrorCode] = (ErrorCode.INVALID_RECORD,) * 2) -> ProduceResponse:
    """With the code of each partition."""
    topic = request.topic_data[0]
    parts = [PartitionProduceResponse(index=one.index, error_code=codes[one.index]) for one in topic.partition_data]
    answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=parts)
    return ProduceResponse(responses=[answer])


def test_a_batch_that_is_refused_fails_the_task() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [_refuse]
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            await _write(cluster, _rows(value=pa.array([b"x" * 90] * 20)))

    simulate(story)


def test_rows_that_no_others_follow_leave_when_they_have_lingered() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        batcher = ColumnBatcher(producer, BatchingSettings(linger_ms=100))
        writer = RowWriter(cluster, batcher, "orders", _Clock())
        await writer.write(_rows(value=pa.array([b"x", b"y"]), partition=pa.array([0, 0], pa.int32())))
        await asyncio.sleep(0.09)
        assert not fake.logs[P0]
        await asyncio.sleep(0.1)
        assert len(_records(fake, P0)) == 2
        assert await writer.finish() == Written(2)
        producer.close()

    simulate(story)


@pytest.mark.parametrize("buffer_memory", [100, 10_000])
def test_a_failure_is_told_at_once_although_others_are_on_their_way(buffer_memory: int) -> None:
    """Partition 0 refuses; nobody leads partition 1, and its batch is tried until delivery.timeout.ms."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.leaders[P1] = -1
        fake.brokers[1].script[PRODUCE] = [
            lambda request: _refuse(request, [ErrorCode.INVALID_RECORD, ErrorCode.NOT_LEADER_OR_FOLLOWER])
        ]
        producer = Producer(cluster)
        batcher = ColumnBatcher(producer, BatchingSettings(batch_size=100, buffer_memory=buffer_memory))
        writer = RowWriter(cluster, batcher, "orders", _Clock())

        async def write() -> None:
            numbers = pa.array([0, 1], pa.int32())
            await writer.write(_rows(value=pa.array([b"y" * 60, b"z" * 60]), partition=numbers))
            await writer.finish()

        began = asyncio.get_running_loop().time()
        with pytest.raises(BrokerError, match="orders-0: INVALID_RECORD"):
            await write()
        assert asyncio.get_running_loop().time() - began < 1
        assert producer.outstanding_bytes
        producer.close()

    simulate(story)


def test_what_is_wrong_is_named() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        values = pa.array([b"x", b"y"])
        for option, topic, more in [
            ("partition", "orders", {"partition": pa.array([0, 2], pa.int32())}),
            ("partition", "orders", {"partition": pa.array([-1, None], pa.int32())}),
            ("topic", "missing", {}),
            ("topic", None, {"topic": pa.array(["orders", None], pa.string())}),
        ]:
            with pytest.raises(OptionError, match=f"option '{option}'"):
                await _write(cluster, _rows(value=values, **more), topic=topic)

    simulate(story)


@pytest.mark.parametrize(
    ("option", "columns", "topic"),
    [
        ("value", [("key", "string")], "t"),
        ("value", [("value", "int")], "t"),
        ("key", [("key", "bigint"), ("value", "binary")], "t"),
        ("topic", [("value", "binary")], None),
        ("topic", [("value", "binary"), ("topic", "int")], None),
        ("partition", [("value", "binary"), ("partition", "bigint")], "t"),
        ("timestamp", [("value", "binary"), ("timestamp", "string")], "t"),
        ("headers", [("value", "binary"), ("headers", "map<string,binary>")], "t"),
    ],
)
def test_columns_that_a_sink_refuses(option: str, columns: list[tuple[str, str]], topic: str | None) -> None:
    with pytest.raises(OptionError) as refusal:
        check_columns(columns, topic)
    assert refusal.value.option == option


def test_columns_that_a_sink_takes() -> None:
    headers = "array<struct<key:string,value:binary>>"
    check_columns([("value", "string"), ("more", "int")], "t")
    check_columns([("key", "binary"), ("value", "binary"), ("topic", "string"), ("headers", headers)], None)
    check_columns([("value", "string"), ("partition", "int"), ("timestamp", "timestamp")], "t")


def test_rows_by_topic() -> None:
    batch = _rows(topic=pa.array(["b", "a", "b"]), value=pa.array(["1", "2", "3"]))
    split = [(topic, rows.column("value").to_pylist()) for topic, rows in by_topic(batch, None)]
    assert split == [("b", ["1", "3"]), ("a", ["2"])]
    assert by_topic(batch, "c") == [("c", batch)]
    assert records_of(batch, 5).column("timestamp").to_pylist() == [5, 5, 5]

"""Small batches that are large inside, and batches that no consumer could read, against a broker process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from confluent_kafka import Consumer, TopicPartition

from tests.kits.logkit import batch, batch_around
from tests.kits.processkit import DEADLINE_S, BrokerProcess, broker_process
from tidelog.errors import ErrorCode
from tidelog.net.calling import Connection
from tidelog.records.build import build_batch
from tidelog.records.compression import compress
from tidelog.records.header import Codec
from tidelog.wire.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

FRAMES = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]
LARGE = 40_000_000
"""What the large batches that are taken hold: below tidelog.batch.max.uncompressed.bytes."""
MOST_GROWTH_MB = 250.0
"""One room at a time, what zstd keeps of it, two lookups, and some slack. All at once would be gigabytes."""
MOST_LOOP_S = 0.05
"""Of the loop's own processor time for one batch."""


def loop_seconds(broker: BrokerProcess) -> float:
    """Processor time of the thread that runs the loop. Unlike a wait it does not depend on other processes."""
    fields = Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(broker: BrokerProcess) -> float:
    for line in Path(f"/proc/{broker.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the broker is gone")


async def create_topic(connection: Connection, name: str, partitions: int, **configs: str) -> None:
    settings = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
    answer = await connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 7)
    assert answer.topics[0].error_code == 0, answer.topics[0]


def request(topic: str, batches: Mapping[int, bytes]) -> ProduceRequest:
    parts = [PartitionProduceData(index=index, records=data) for index, data in batches.items()]
    return ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=parts)])


async def produce(connection: Connection, topic: str, batches: Mapping[int, bytes]) -> list[ErrorCode]:
    answer = await connection.call(request(topic, batches), 9)
    return [ErrorCode(part.error_code) for part in answer.responses[0].partition_responses]


async def find(connection: Connection, topic: str, timestamp: int) -> Any:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    asked = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    return (await connection.call(asked, 7)).topics[0].partitions[0]


def now_ms() -> int:
    return int(time.time() * 1000)


def one_record(size: int, codec: Codec) -> bytes:
    return bytes(build_batch([(now_ms(), b"k", bytes(size))], codec=codec))


def read_all(broker: BrokerProcess, topic: str, partition: int, count: int) -> list[int]:
    """The sizes of the values that librdkafka reads."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "group.id": "nobody commits",
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    sizes: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(sizes) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            sizes.append(len(message.value() or b""))
    consumer.close()
    return sizes


@pytest.mark.parametrize("policy", ["delete", pytest.param("compact", marks=pytest.mark.long)])
def test_bombs_are_refused_within_a_bound_of_memory_and_of_the_loops_time(tmp_path: Path, policy: str) -> None:
    async def story(broker: BrokerProcess) -> None:
        connection = await Connection.open("127.0.0.1", broker.port, client_id="bombs")
        await create_topic(connection, "t", 4, cleanup_policy=policy)
        for codec in FRAMES:
            bomb = one_record(100_000_000, codec)
            assert len(bomb) < 1_000_000
            spent_s = loop_seconds(broker)
            assert await produce(connection, "t", dict.fromkeys(range(4), bomb)) == [ErrorCode.MESSAGE_TOO_LARGE] * 4
            assert loop_seconds(broker) - spent_s < 4 * MOST_LOOP_S
            count = 8_000_000  # records that all claim the first offset
            same = batch_around(bytes(compress(codec, bytes([14, 0, 0, 0, 2, ord("k"), 1, 0]) * count)), count, codec)
            assert await produce(connection, "t", {0: same}) in (
                [ErrorCode.INVALID_RECORD],
                [ErrorCode.MESSAGE_TOO_LARGE],
            )
        assert await produce(connection, "t", {1: bytes(build_batch([(now_ms(), b"k", b"good")]))}) == [ErrorCode.NONE]
        connection.close()

    with broker_process(tmp_path) as broker:
        before_mb = broker.rss_mb
        uvloop.run(story(broker))
        assert peak_mb(broker) - before_mb < MOST_GROWTH_MB
        assert read_all(broker, "t", 1, 1) == [4]
        assert not broker.lines("Traceback")


def test_a_topic_that_stores_uncompressed_does_not_make_small_requests_large(tmp_path: Path) -> None:
    """Each batch of 70 kB would become one of 60 MB. It is refused when its size is known, not when it is appended."""

    async def story(broker: BrokerProcess) -> None:
        connection = await Connection.open("127.0.0.1", broker.port, client_id="bombs")
        await create_topic(connection, "u", 8, compression_type="uncompressed")
        records = [(now_ms(), b"k", os.urandom(66_000)), (now_ms(), b"k", bytes(60_000_000))]
        data = bytes(build_batch(records, codec=Codec.ZSTD))
        assert len(data) < 100_000
        for _ in range(2):
            assert await produce(connection, "u", dict.fromkeys(range(8), data)) == [ErrorCode.MESSAGE_TOO_LARGE] * 8
        connection.close()

    with broker_process(tmp_path) as broker:
        before_mb = broker.rss_mb
        uvloop.run(story(broker))
        assert peak_mb(broker) - before_mb < MOST_GROWTH_MB
        assert not broker.lines("Traceback")


def test_large_batches_of_many_clients_are_checked_one_at_a_time_and_hold_nobody_up(tmp_path: Path) -> None:
    async def story(broker: BrokerProcess) -> None:
        probe = await Connection.open("127.0.0.1", broker.port, client_id="probe")
        await create_topic(probe, "large", 8)
        await create_topic(probe, "probe", 1)
        clients = [await Connection.open("127.0.0.1", broker.port, client_id="large") for _ in range(4)]
        data = one_record(LARGE, Codec.ZSTD)
        spent_s = loop_seconds(broker)
        futures = [
            client.send(request("large", {2 * number: data, 2 * number + 1: data}), 9)
            for number, client in enumerate(clients)
        ]
        answered = 0
        while not all(future.done() for future in futures):
            assert await produce(probe, "probe", {0: batch()}) == [ErrorCode.NONE]
            answered += 1
        for future in futures:
            assert [part.error_code for part in (await future).responses[0].partition_responses] == [0, 0]
        assert answered > 8, "others are served while the large batches are checked"
        assert loop_seconds(broker) - spent_s < 8 * MOST_LOOP_S + 0.002 * answered
        for timestamp in (0, -3):
            spent_s = loop_seconds(broker)
            found = await asyncio.gather(*(find(client, "large", timestamp) for client in clients))
            assert [(one.error_code, one.offset) for one in found] == [(0, 0)] * 4
            assert loop_seconds(broker) - spent_s < MOST_LOOP_S
        for connection in (probe, *clients):
            connection.close()

    with broker_process(tmp_path, tidelog_batch_max_expansion_ratio="100000") as broker:
        before_mb = broker.rss_mb
        uvloop.run(story(broker))
        assert peak_mb(broker) - before_mb < MOST_GROWTH_MB
        assert read_all(broker, "large", 0, 1) == [LARGE]
        assert not broker.lines("Traceback")


def test_what_no_consumer_could_read_is_not_stored(tmp_path: Path) -> None:
    async def story(broker: BrokerProcess) -> None:
        connection = await Connection.open("127.0.0.1", broker.port, client_id="poison")
        await create_topic(connection, "t", 1)
        for data in (batch_around(b"\xff" * 50, 1), batch_around(b"", 1), batch_around(b"\0" * 8, 1, Codec.GZIP)):
            assert await produce(connection, "t", {0: data}) == [ErrorCode.INVALID_RECORD]
        assert await produce(connection, "t", {0: batch([b"a", b"bb"])}) == [ErrorCode.NONE]
        empty = batch_around(b"", 2**31 - 1)
        assert len(empty) == 61
        sent = [connection.send(request("t", {0: empty}), 9) for _ in range(200)]
        codes = {(await answer).responses[0].partition_responses[0].error_code for answer in sent}
        assert codes == {ErrorCode.INVALID_RECORD}
        assert await produce(connection, "t", {0: batch([b"ccc"])}) == [ErrorCode.NONE]
        connection.close()

    with broker_process(tmp_path) as broker:
        uvloop.run(story(broker))
        assert read_all(broker, "t", 0, 3) == [1, 2, 3]
        assert len(list((tmp_path / "data" / "t-0").glob("*.log"))) == 1
        assert not broker.lines("Traceback")

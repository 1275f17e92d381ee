"""Kafka 3.9.1, started on a log directory that tidelog wrote, serves the same records and goes on from there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka_directory import last_producer_states, leader_epochs, register_topics
from tidelog_directory import BASE_TIMESTAMP, LOG_START_OF_TRIMMED, TOPICS, Written, facts_of, write_directory

from peers.clients import consume
from peers.kafka import ZooKeeperBroker
from peers.zookeeper import ZooKeeper
from tidelog.types import TopicPartition


@dataclass
class Scene:
    """Two directories with the same records, for a cluster in which their topics are registered."""

    directories: dict[str, Path]
    written: Written
    settings: dict[str, str | int]


@pytest.fixture(scope="module")
def scene(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A first Kafka makes the topics in ZooKeeper and stops; tidelog writes under their ids."""
    scratch = tmp_path_factory.mktemp("opens-tidelog")
    cluster = register_topics(zookeeper, "/opens-tidelog", scratch / "registrar", TOPICS, topic_config)
    directories = {"closed": scratch / "closed", "crashed": scratch / "crashed"}
    written = asyncio.run(write_directory(directories["closed"], cluster, directories["crashed"]))
    return Scene(directories, written, {**cluster.settings, "log.cleaner.enable": "false"})


def topic_config(topic: str) -> dict[str, str | int]:
    return {"retention.ms": -1, "cleanup.policy": "compact" if topic == "compacted" else "delete"}


@pytest.mark.parametrize("state", ["closed", "crashed"])
def test_kafka_serves_what_tidelog_wrote(state: str, scene: Scene, zookeeper: ZooKeeper, tmp_path: Path) -> None:
    log_dir = scene.directories[state]
    with ZooKeeperBroker(tmp_path / "broker", zookeeper, log_dir=log_dir, settings=scene.settings) as broker:
        for partition in scene.written.records:
            check_records(broker.bootstrap, partition, scene.written)
        check_times(broker.bootstrap, scene.written)
        for partition, end_offset in scene.written.end_offsets.items():
            assert produce_one(broker.bootstrap, partition) == end_offset
    recovered = "Recovering unflushed segment" in broker.output()
    assert recovered == (state == "crashed")
    complaints = [line for line in broker.output().splitlines() if " ERROR " in line or "orrupt" in line]
    assert not complaints
    check_state(log_dir, scene.written, broker.version)


def check_records(bootstrap: str, partition: TopicPartition, written: Written) -> None:
    topic, number = partition
    assert consume(bootstrap, topic, number) == written.records[partition]
    assert consume(bootstrap, topic, number, isolation="read_committed") == written.committed(partition)
    if topic == "trimmed":
        assert consume(bootstrap, topic, number)[0].offset == LOG_START_OF_TRIMMED


def check_times(bootstrap: str, written: Written) -> None:
    """Kafka finds offsets by time through our time indexes."""
    records = written.records[TopicPartition("plain", 0)]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "times"})
    for timestamp in range(BASE_TIMESTAMP - 5, BASE_TIMESTAMP + 600, 7):
        expected = min((record.offset for record in records if record.timestamp >= timestamp), default=-1)
        found = consumer.offsets_for_times([ConfluentPartition("plain", 0, timestamp)], timeout=30)
        assert found[0].offset == expected
    consumer.close()


def produce_one(bootstrap: str, partition: TopicPartition) -> int | None:
    offsets: list[int | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    topic, number = partition
    producer.produce(
        topic, b"more", b"key", number, on_delivery=lambda error, message: offsets.append(message.offset())
    )
    assert producer.flush(30) == 0
    return offsets[0]


def check_state(log_dir: Path, written: Written, version: str) -> None:
    """What Kafka knew of epochs and producers, as it wrote it down when it stopped."""
    partitions = [log_dir / str(partition) for partition in written.records]
    states = last_producer_states(version, partitions)
    for partition, entries in written.producers.items():
        assert states[str(partition)] == facts_of(entries)
    assert leader_epochs(log_dir / "plain-0") == [(0, 0), (1, 120), (2, 180)]

"""tidelog opens log directories that Kafka 3.9.1 left, by a clean stop and by kill -9, and finds the same in them."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from kafka_directory import (
    ProducerFacts,
    aborted_transactions,
    last_producer_states,
    leader_epochs,
    raise_leader_epochs,
)
from tidelog_directory import BASE_TIMESTAMP, facts_of, read_directory

from peers.clients import JavaProducer, Record, consume, create_topic, run_java_producers, send_step
from peers.kafka import ZooKeeperBroker
from peers.zookeeper import ZooKeeper

TOPICS = {"plain": 2, "transactions": 1, "trimmed": 1, "compacted": 1}
CHROOT = "/opens-kafka"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass
class Left:
    """A directory as Kafka left it, and what Kafka said was in it."""

    directory: Path
    records: dict[str, list[Record]]
    producers: dict[str, list[ProducerFacts]]
    version: str


@pytest.fixture(scope="module")
def left(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Left]:
    scratch = tmp_path_factory.mktemp("opens-kafka")
    settings: dict[str, str | int] = {
        "zookeeper.connect": f"{zookeeper.connect}{CHROOT}",
        "log.cleaner.backoff.ms": 100,
    }
    broker = ZooKeeperBroker(scratch / "broker", zookeeper, settings=settings)
    with broker:
        fill(broker)
    broker.settings["log.cleaner.enable"] = "false"  # from here on nothing changes that nobody writes
    with broker:
        records = read_by_kafka(broker)
    closed = Left(copy(broker, scratch / "closed"), records, {}, broker.version)
    raise_leader_epochs(zookeeper, CHROOT, TOPICS)
    broker.start()
    leave_work_unfinished(broker)
    records = read_by_kafka(broker)
    broker.kill()
    crashed = Left(copy(broker, scratch / "crashed"), records, {}, broker.version)
    with broker:  # Kafka recovers by itself, and writes down what it found
        pass
    for found, written_by in ((closed, closed.directory), (crashed, broker.log_dir)):
        found.producers = last_producer_states(broker.version, [written_by / name for name in found.records])
    return {"closed": closed, "crashed": crashed}


def copy(broker: ZooKeeperBroker, target: Path) -> Path:
    shutil.copytree(broker.log_dir, target)
    return target


def fill(broker: ZooKeeperBroker) -> None:
    for topic, count in TOPICS.items():
        config: dict[str, str | int] = {"retention.ms": -1, "segment.bytes": 2500, "index.interval.bytes": 150}
        if topic == "compacted":
            config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
        create_topic(broker.bootstrap, topic, partitions=count, config=config)
    steps = [step for n in range(8) for step in round_of_sends(n)]
    producers = [JavaProducer({"compression.type": codec}, steps) for codec in CODECS]
    in_transactions: list[dict[str, object]] = [{"do": "init"}]
    for n in range(16):
        outcome = "abort" if n % 3 == 2 else "commit"
        sends = [send_step("transactions", record) for record in some_records(n)]
        in_transactions += [{"do": "begin"}, *sends, {"do": "flush"}, {"do": outcome}]
    producers.append(JavaProducer({"transactional.id": "t"}, in_transactions))
    run_java_producers(broker.version, broker.bootstrap, *producers)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([ConfluentPartition("trimmed", 0, 41)]).values():
        future.result()
    broker.wait_for_line(r"cleaned log compacted-0")


def round_of_sends(n: int) -> list[dict[str, object]]:
    records = some_records(n)
    sends = [send_step("plain", record, partition) for record in records for partition in range(TOPICS["plain"])]
    sends += [send_step("trimmed", record) for record in records]
    sends += [send_step("compacted", record) for record in records if record.key is not None]
    return [*sends, {"do": "flush"}]


def some_records(n: int) -> list[Record]:
    at = BASE_TIMESTAMP + 10 * n
    return [
        Record(b"key %d" % (n % 3), b"value %d " % n * n, at, (("n", b"%d" % n), ("none", None))),
        Record(None, b"x" * (5 * n), at + 2),
        Record(b"again", b"" if n % 2 else None, at + 1),
    ]


def leave_work_unfinished(broker: ZooKeeperBroker) -> None:
    """More batches of an idempotent producer, and a transaction that nobody ends."""
    steps = [step for n in range(4) for step in round_of_sends(n)]
    run_java_producers(broker.version, broker.bootstrap, JavaProducer({"compression.type": "lz4"}, steps))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "never-ended", "log_level": 0})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("transactions", b"open", b"k", 0)
    assert producer.flush(30) == 0


def read_by_kafka(broker: ZooKeeperBroker) -> dict[str, list[Record]]:
    return {
        f"{topic}-{partition}": consume(broker.bootstrap, topic, partition)
        for topic, count in TOPICS.items()
        for partition in range(count)
    }


@pytest.mark.parametrize("state", ["closed", "crashed"])
def test_tidelog_finds_what_kafka_left(state: str, left: dict[str, Left], tmp_path: Path) -> None:
    kafka = left[state]
    working_copy = shutil.copytree(kafka.directory, tmp_path / "copy")
    found, was_clean = asyncio.run(read_directory(working_copy))
    assert was_clean == (state == "closed")
    for name, records in kafka.records.items():
        log = found[name]
        assert log.records == records, name
        assert log.epochs == leader_epochs(kafka.directory / name), name
        assert facts_of(log.producers) == kafka.producers[name], name
    assert found["trimmed-0"].log_start_offset == 41
    assert found["transactions-0"].aborted == aborted_transactions(kafka.version, kafka.directory / "transactions-0")
    assert len(found["transactions-0"].aborted) == 5


def test_kafka_left_something_worth_reading(left: dict[str, Left]) -> None:
    """Several segments, gaps after compaction, an open transaction: otherwise the comparison says little."""
    closed, crashed = left["closed"], left["crashed"]
    assert all(len(list((closed.directory / name).glob("*.log"))) > 1 for name in ("plain-0", "trimmed-0"))
    offsets = [record.offset for record in closed.records["compacted-0"]]
    assert offsets != list(range(offsets[0], offsets[-1] + 1))
    assert [epoch for epoch, _ in leader_epochs(crashed.directory / "plain-0")] == [0, 2]
    assert any(facts[3] is not None for facts in crashed.producers["transactions-0"])

"""Kafka's log cleaner and ours, set on the same log, leave the same batches and records."""

from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka_directory import Cluster, register_topics
from tidelog_directory import BASE_TIMESTAMP, Author, make_topics, open_directory

from peers import home
from peers.clients import Record
from peers.dump import DumpedBatch, DumpedRecord, dump_segments
from peers.kafka import ZooKeeperBroker
from peers.zookeeper import ZooKeeper
from tidelog.log.cleaner import clean, plan_cleaning
from tidelog.log.log import Log
from tidelog.records.control import ControlType
from tidelog.records.header import Codec

ONCE, OFTEN = "compacted", "compacted-often"
"""The second was cleaned twice before: a marker outlives its records by one cleaning, and goes in the next."""
TOPICS = {ONCE: 1, OFTEN: 1}


def topic_config(topic: str) -> dict[str, str | int]:
    return {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0,
        "segment.bytes": 3000,
        "index.interval.bytes": 150,
        "delete.retention.ms": 0 if topic == OFTEN else 86_400_000,
    }


class Cleaned(NamedTuple):
    """What is left: batches without what depends on the time and place of the cleaning, and records."""

    batches: list[DumpedBatch]
    records: list[DumpedRecord]


def write_history(author: Author, log: Log, sequences: dict[int, int], seed: int) -> None:
    """Keys that return, tombstones, silent producers, committed and aborted transactions, in all codecs.

    `sequences` are the producers' next ones: a history may follow another.
    """
    chance = random.Random(seed)
    for n in range(150):
        count = chance.randrange(1, 6)
        producer_id = chance.choice([-1, 10, 11, 12, 20, 21])
        records = [
            Record(
                b"k%d" % chance.randrange(30),
                None if chance.random() < 0.15 else b"value %d " % n * chance.randrange(8),
                BASE_TIMESTAMP + 100 * n + chance.randrange(50),
                (("n", b"%d" % n),) if chance.random() < 0.3 else (),
            )
            for _ in range(count)
        ]
        if producer_id < 0:
            author.append(log, records, Codec(n % 5))
            continue
        facts = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequences.get(producer_id, 0)}
        sequences[producer_id] = facts["base_sequence"] + count
        author.append(log, records, Codec(n % 5), transactional=producer_id >= 20, **facts)
        if producer_id >= 20:
            author.end_transaction(log, ControlType.ABORT if chance.random() < 0.4 else ControlType.COMMIT, producer_id)
    for n in range(12):  # what comes last stays in the active segment and is not cleaned
        author.append(log, [Record(b"tail %d" % n, b"x" * 400, BASE_TIMESTAMP + 20_000)])


async def write_all(path: Path, cluster: Cluster) -> None:
    async with open_directory(path) as directory:
        await make_topics(directory, cluster, TOPICS)
        author = Author(directory)
        for topic in TOPICS:
            log, sequences = author.log(topic), dict[int, int]()
            write_history(author, log, sequences, seed=7)
            for seed in (8, 9) if topic == OFTEN else ():
                await clean_once(log)
                write_history(author, log, sequences, seed)
            log.high_watermark = log.log_end_offset


async def clean_once(log: Log) -> None:
    """All but the active segment: what is not synced yet would be left alone."""
    await log.flush()
    log.high_watermark = log.log_end_offset
    plan = await plan_cleaning(log, 0)
    assert await clean(log, plan, random.Random(1), buffer_bytes=1 << 20) is not None


async def clean_with_tidelog(path: Path) -> None:
    async with open_directory(path) as directory:
        for log in directory.logs.values():
            await clean_once(log)


def clean_with_kafka(broker: ZooKeeperBroker) -> None:
    with broker:
        for topic in TOPICS:
            broker.wait_for_line(rf"cleaned log {topic}-0")


def _comparable(batch: DumpedBatch) -> DumpedBatch:
    """Bytes may differ in a batch that was written anew: Kafka lets its time start with the first record that stays."""
    is_whole = batch.count == batch.last_offset - batch.base_offset + 1 and batch.delete_horizon_ms is None
    horizon = None if batch.delete_horizon_ms is None else 0
    size, crc = (batch.size, batch.crc) if is_whole else (0, 0)
    return replace(batch, position=0, delete_horizon_ms=horizon, size=size, crc=crc)


def left_in(path: Path, topic: str) -> Cleaned:
    files = sorted((path / f"{topic}-0").glob("*.log"))
    dumped = dump_segments(home.KAFKA_ZOOKEEPER, files)
    batches, records = [], []
    for file in files:
        for batch in dumped[file].batches:
            batches.append(_comparable(batch))
        records += dumped[file].records
    return Cleaned(batches, records)


@pytest.fixture(scope="module")
def directories(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same log three times: as it was, cleaned by tidelog, cleaned by Kafka."""
    scratch = tmp_path_factory.mktemp("compaction")
    found = {name: scratch / name for name in ("before", "tidelog", "kafka")}
    cluster = register_topics(zookeeper, "/compaction", scratch / "registrar", TOPICS, topic_config)
    asyncio.run(write_all(found["before"], cluster))
    for name in ("tidelog", "kafka"):
        shutil.copytree(found["before"], found[name])
    asyncio.run(clean_with_tidelog(found["tidelog"]))
    settings = {**cluster.settings, "log.cleaner.backoff.ms": 100}
    clean_with_kafka(ZooKeeperBroker(scratch / "broker", zookeeper, log_dir=found["kafka"], settings=settings))
    return found


@pytest.mark.parametrize("topic", [ONCE, OFTEN])
def test_the_same_stays(topic: str, directories: dict[str, Path]) -> None:
    """The same records, in the same batches, with equal bytes where all of a batch stays."""
    ours, kafkas = left_in(directories["tidelog"], topic), left_in(directories["kafka"], topic)
    assert ours.records == kafkas.records
    assert ours.batches == kafkas.batches


def test_there_was_something_to_clean(directories: dict[str, Path]) -> None:
    once, before = left_in(directories["kafka"], ONCE), left_in(directories["before"], ONCE)
    assert len(once.records) < len(before.records) / 2
    assert any(batch.count == 0 for batch in once.batches)
    assert any(batch.delete_horizon_ms is not None for batch in once.batches)
    assert any(batch.is_control for batch in once.batches)


def test_there_was_something_of_age(directories: dict[str, Path]) -> None:
    """Tombstones and markers that earlier cleanings had kept and the last did not."""
    often, before = left_in(directories["kafka"], OFTEN), left_in(directories["before"], OFTEN)
    stays = {record.offset for record in often.records}
    gone = [record for record in before.records if record.offset not in stays]
    assert any(record.value_size < 0 for record in gone)
    assert any(record.marker for record in gone)

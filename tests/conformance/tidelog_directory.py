"""Log directories that tidelog writes and reads, with the records that must come out of them."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kafka_directory import Cluster

from peers.clients import Record
from tidelog.config.topic import TopicConfig, default_topic
from tidelog.host.machine import RealPorts
from tidelog.log.cleaner import clean, plan_cleaning
from tidelog.log.directory import LogDirectory
from tidelog.log.log import Log
from tidelog.log.meta import MetaProperties, write_meta_properties
from tidelog.log.names import RECOVERY_POINTS
from tidelog.log.producer_snapshot import SnapshotEntry
from tidelog.log.producers import AppendOrigin
from tidelog.log.trimming import advance_log_start, delete_expired
from tidelog.records.batch import decode
from tidelog.records.build import build_batch
from tidelog.records.control import ControlType, EndTxnMarker, build_marker
from tidelog.records.header import Codec, headers
from tidelog.types import TopicPartition

TOPICS: Mapping[str, int] = {"plain": 2, "idempotent": 1, "transactions": 1, "trimmed": 1, "compacted": 1}
"""Names and numbers of partitions."""
BASE_TIMESTAMP = time.time_ns() // 1_000_000 - 3_600_000
"""An hour ago: Kafka forgets producers that have been silent for a day."""
LOG_START_OF_TRIMMED = 73


@dataclass
class Written:
    """What is in a directory: records by partition, and the offsets that an aborted transaction wrote."""

    records: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    aborted: dict[TopicPartition, set[int]] = field(default_factory=dict)
    producers: dict[TopicPartition, list[SnapshotEntry]] = field(default_factory=dict)
    end_offsets: dict[TopicPartition, int] = field(default_factory=dict)

    def committed(self, partition: TopicPartition) -> list[Record]:
        """What a read_committed consumer gets."""
        gone = self.aborted.get(partition, set())
        return [record for record in self.records[partition] if record.offset not in gone]


def config_of(topic: str) -> TopicConfig:
    """Small segments and dense indexes, so that little data has many of both; nothing expires."""
    return default_topic(
        segment_bytes=3000,
        index_interval_bytes=150,
        retention_ms=-1,
        file_delete_delay_ms=0,
        cleanup_policy=("compact",) if topic.startswith("compacted") else ("delete",),
        delete_retention_ms=0 if topic == "compacted-often" else 86_400_000,
        producer_id_expiration_ms=2**62,
    )


class Author:
    """Writes known records into the logs of a directory and remembers what it wrote."""

    def __init__(self, directory: LogDirectory) -> None:
        self.written = Written()
        self._directory = directory

    def log(self, topic: str, partition: int = 0) -> Log:
        return self._directory.logs[TopicPartition(topic, partition)]

    def append(self, log: Log, records: list[Record], codec: Codec = Codec.NONE, **facts: Any) -> list[Record]:
        tuples = [(r.timestamp, r.key, r.value, r.headers) for r in records]
        appended = log.append_as_leader(build_batch(tuples, codec=codec, **facts), log.epochs.latest_epoch)
        placed = [replace(record, offset=appended.base_offset + n) for n, record in enumerate(records)]
        self.written.records.setdefault(log.partition, []).extend(placed)
        return placed

    def end_transaction(self, log: Log, kind: ControlType, producer_id: int) -> None:
        marker = build_marker(EndTxnMarker(kind, 5), producer_id, 0, BASE_TIMESTAMP + 9000)
        log.append_as_leader(marker, log.epochs.latest_epoch, origin=AppendOrigin.COORDINATOR)

    async def write_all(self) -> None:
        for partition in range(TOPICS["plain"]):
            await self._write_plain(self.log("plain", partition))
        self._write_idempotent(self.log("idempotent"))
        self._write_transactions(self.log("transactions"))
        await self._write_trimmed(self.log("trimmed"))
        await self._write_compacted(self.log("compacted"))
        for name, log in self._directory.logs.items():
            log.high_watermark = log.log_end_offset
            self.written.producers[name] = log.producers.snapshot()
            self.written.end_offsets[name] = log.log_end_offset

    async def _write_plain(self, log: Log) -> None:
        for n in range(60):
            if n == 40:
                log.begin_epoch(1)
            self.append(log, _some_records(n), Codec(n % 5))

    def _write_idempotent(self, log: Log) -> None:
        for n in range(30):
            producer_id, sequence = 1000 + n % 3, n // 3 * 2
            records = _some_records(n)[:2]
            self.append(log, records, Codec(n % 5), producer_id=producer_id, producer_epoch=2, base_sequence=sequence)

    def _write_transactions(self, log: Log) -> None:
        for n in range(24):
            producer_id, is_aborted = 2000 + n % 2, n % 4 == 3
            placed = self.append(
                log,
                _some_records(n),
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=n // 2 * 3,
                transactional=True,
            )
            if is_aborted:
                self.written.aborted.setdefault(log.partition, set()).update(record.offset for record in placed)
            self.append(log, [Record(b"between", b"no transaction", BASE_TIMESTAMP)])
            self.end_transaction(log, ControlType.ABORT if is_aborted else ControlType.COMMIT, producer_id)

    async def _write_trimmed(self, log: Log) -> None:
        for n in range(40):
            self.append(log, _some_records(n))
        log.high_watermark = log.log_end_offset
        advance_log_start(log, LOG_START_OF_TRIMMED)
        assert await delete_expired(log) > 0
        kept = [record for record in self.written.records[log.partition] if record.offset >= LOG_START_OF_TRIMMED]
        self.written.records[log.partition] = kept

    async def _write_compacted(self, log: Log) -> None:
        for n in range(60):
            records = [replace(record, key=b"k%d" % ((n * 3 + i) % 17)) for i, record in enumerate(_some_records(n))]
            if n % 7 == 6:
                records[1] = replace(records[1], value=None)
            self.append(log, records, Codec(n % 5), producer_id=3000, producer_epoch=0, base_sequence=n * 3)
        log.high_watermark = log.log_end_offset
        plan = await plan_cleaning(log, 0)
        assert await clean(log, plan, random.Random(1), buffer_bytes=1 << 20) is not None
        self.written.records[log.partition] = _latest(self.written.records[log.partition], plan.end_offset)


def _some_records(n: int) -> list[Record]:
    at = BASE_TIMESTAMP + 10 * n
    return [
        Record(b"key %d" % n, b"value %d " % n * (n % 20), at, (("n", b"%d" % n), ("none", None))),
        Record(None, b"x" * (3 * n), at + 2),
        Record(b"", b"", at + 1),
    ]


def _latest(records: list[Record], dirty_end: int) -> list[Record]:
    """What compaction of all below `dirty_end` leaves: the last of each key, and young tombstones too."""
    last = {record.key: record.offset for record in records if record.offset < dirty_end}
    return [record for record in records if record.offset >= dirty_end or last[record.key] == record.offset]


@asynccontextmanager
async def open_directory(path: Path) -> AsyncIterator[LogDirectory]:
    """Closed at the end, as a broker does that is asked to stop."""
    ports = RealPorts()
    try:
        directory = await LogDirectory.open(ports.disk, ports.clock, ports.random, os.fspath(path), config_of)
        yield directory
        await directory.close()
    finally:
        ports.close()


async def make_topics(directory: LogDirectory, cluster: Cluster, topics: Mapping[str, int]) -> None:
    """Empty partitions under the ids that Kafka gave their topics, in a directory of that cluster's broker 1."""
    for topic, count in topics.items():
        for number in range(count):
            log = await directory.create(TopicPartition(topic, number), cluster.topic_ids[topic])
            log.begin_epoch(0)
            write_meta_properties(log.disk, directory.path, MetaProperties(cluster.cluster_id, 1))


async def write_directory(path: Path, cluster: Cluster, crashed_copy: Path | None = None) -> Written:
    """Write all topics and close. `crashed_copy` is what a crash just before that leaves, with no recovery point."""
    async with open_directory(path) as directory:
        await make_topics(directory, cluster, TOPICS)
        author = Author(directory)
        await author.write_all()
        if crashed_copy is not None:
            await directory.checkpoint()
            for log in directory.logs.values():
                await log.work.run(lambda: None)  # waits for what is under way: a copy is not taken at one instant
            shutil.copytree(path, crashed_copy)
            (crashed_copy / RECOVERY_POINTS).unlink()
    return author.written


@dataclass(frozen=True)
class ReadLog:
    """What tidelog makes of one partition of a directory."""

    records: list[Record]
    log_start_offset: int
    log_end_offset: int
    epochs: list[tuple[int, ...]]
    producers: list[SnapshotEntry]
    aborted: list[tuple[int, ...]]


async def read_directory(path: Path) -> tuple[dict[str, ReadLog], bool]:
    """Open, read everything and close; whether the directory had been closed properly comes second."""
    async with open_directory(path) as directory:
        found = {str(partition): await _read_log(log) for partition, log in directory.logs.items()}
    return found, directory.was_clean


async def _read_log(log: Log) -> ReadLog:
    records: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        region = await log.read(offset, 4096)
        if region.size == 0:
            break
        data = region.read()
        for record in decode(data, from_offset=offset):
            headers_of = tuple(record.headers)
            records.append(Record(record.key, record.value, record.timestamp, headers_of, record.offset))
        offset = max(header.next_offset for _, header in headers(data))
    aborted = await log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    return ReadLog(
        records=records,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        epochs=[tuple(entry) for entry in log.epochs.entries],
        producers=log.producers.snapshot(),
        aborted=[tuple(entry) for entry in aborted],
    )


def facts_of(entries: Iterable[SnapshotEntry]) -> list[tuple[int | None, ...]]:
    """The part of producer states that DumpLogSegments prints too, in an order that both sides share."""
    facts = []
    for e in entries:
        open_since = e.txn_first_offset if e.txn_first_offset >= 0 else None
        facts.append((e.producer_id, e.epoch, e.coordinator_epoch, open_since, e.last_sequence, e.last_offset))
    return sorted(facts, key=repr)

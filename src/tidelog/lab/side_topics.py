"""Topics beside the one that matters, from which records go: by DeleteRecords, by retention, and by compaction.

Each has a writer of its own, and a check of its own when all is quiet.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tidelog.client.admin import Admin
from tidelog.client.cluster import Cluster
from tidelog.client.committed import visible_records
from tidelog.client.errors import BrokerError
from tidelog.client.fetch import Fetcher
from tidelog.client.offsets import EARLIEST, LATEST, list_offsets
from tidelog.client.produce import Producer
from tidelog.errors import ErrorCode, TidelogError
from tidelog.lab.client_rules import DeletedUpToThere, LastOfEachKeyStays, RetentionKeepsEnough
from tidelog.lab.cluster import COMPACTED, LabCluster
from tidelog.lab.rules import Rule
from tidelog.lab.workload import connected
from tidelog.records.build import BatchFacts, build_batch
from tidelog.records.kernel import Record
from tidelog.types import Offset, TopicPartition

SHORTENED, RETAINED = "shortened", "retained"
_DELIVERY_MS = 240_000
_REST_S = 0.2
_KEYS = 4
_IN_A_BATCH = (1, 1, 3, 5)
_MOST_IN_A_BATCH = max(_IN_A_BATCH)
_SEGMENT_BYTES = 500
_RETENTION_BYTES = 6 * _SEGMENT_BYTES


class SideTopic:
    """A topic of one partition, with a writer that goes on until it is over."""

    partition: ClassVar[TopicPartition]
    rule: ClassVar[type[Rule]]
    configs: ClassVar[dict[str, str]] = {}

    def __init__(self, cluster: LabCluster[Any], chance: random.Random, over: asyncio.Event) -> None:
        self.name = self.partition.topic
        self._cluster = cluster
        self._chance = chance
        self._over = over
        self._number = 0

    async def run(self) -> None:
        while not self._over.is_set():
            try:
                async with await connected(self._cluster, self.name, topic=None) as client:
                    await self._make(client)
                    await self._write(client)
            except TidelogError:
                await asyncio.sleep(_REST_S)

    async def _make(self, client: Cluster) -> None:
        configs = {"min.insync.replicas": "2", "segment.bytes": str(_SEGMENT_BYTES), **self.configs}
        try:
            await Admin(client).create_topic(self.name, partitions=1, replication_factor=3, configs=configs)
        except BrokerError as failure:
            if failure.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def _write(self, client: Cluster) -> None:
        producer = Producer(client, delivery_timeout_ms=_DELIVERY_MS)
        try:
            while not self._over.is_set():
                self._number += 1
                await self._write_one(client, producer, self._number)
                await asyncio.sleep(self._chance.uniform(0, 2 * _REST_S))
        finally:
            producer.close()

    async def _write_one(self, client: Cluster, producer: Producer, number: int) -> None:
        raise NotImplementedError

    async def check(self) -> None:
        """Nothing goes wrong any more: what a consumer reads is what has to be there."""
        raise NotImplementedError

    async def all_records(self) -> tuple[Offset, list[Record]]:
        """The log start, and what a consumer reads from there to the end."""
        while True:
            try:
                async with await connected(self._cluster, self.name, topic=self.name) as client:
                    return await self._read(client)
            except TidelogError:
                await asyncio.sleep(_REST_S)

    async def _read(self, client: Cluster) -> tuple[Offset, list[Record]]:
        start = (await list_offsets(client, {self.partition: EARLIEST}))[self.partition].offset
        end = (await list_offsets(client, {self.partition: LATEST}))[self.partition].offset
        fetcher, position, found = Fetcher(client, {self.partition: start}), start, list[Record]()
        try:
            while position < end:
                for fetched in await fetcher.next():
                    found += visible_records(fetched.records, fetched.aborted, fetched.fetch_offset)
                    position = fetched.next_offset
        finally:
            fetcher.close()
        return start, found


class CompactedTopic(SideTopic):
    """Few keys, each written again and again."""

    partition = TopicPartition(COMPACTED, 0)
    rule = LastOfEachKeyStays
    configs: ClassVar[dict[str, str]] = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}

    def __init__(self, cluster: LabCluster[Any], chance: random.Random, over: asyncio.Event) -> None:
        super().__init__(cluster, chance, over)
        self._acknowledged: dict[bytes, int] = {}

    async def _write_one(self, client: Cluster, producer: Producer, number: int) -> None:
        key = f"k{number % _KEYS}".encode()
        await producer.send(self.partition, _batch(key, number))
        self._acknowledged[key] = number

    async def check(self) -> None:
        _, records = await self.all_records()
        last = {record.key: int(record.value or b"-1") for record in records}
        for key, number in self._acknowledged.items():
            if last.get(key, -1) < number:
                self.rule().broken(f"{number} was acknowledged for {key!r}; the last one there is {last.get(key)}")


class ShortenedTopic(SideTopic):
    """Its start is cut off now and then."""

    partition = TopicPartition(SHORTENED, 0)
    rule = DeletedUpToThere

    def __init__(self, cluster: LabCluster[Any], chance: random.Random, over: asyncio.Event) -> None:
        super().__init__(cluster, chance, over)
        self._acknowledged: dict[Offset, int] = {}
        self._asked: Offset = 0
        """Up to here records may be gone: some deletion asked for it."""
        self._cut: Offset = 0
        """Up to here they are gone: a deletion was acknowledged."""

    async def _write_one(self, client: Cluster, producer: Producer, number: int) -> None:
        """Several records in a batch, so that a log may start within one."""
        numbers = range(number * _MOST_IN_A_BATCH, number * _MOST_IN_A_BATCH + self._chance.choice(_IN_A_BATCH))
        produced = await producer.send(self.partition, _batch(None, *numbers))
        if produced.base_offset >= 0:
            self._acknowledged |= {produced.base_offset + place: one for place, one in enumerate(numbers)}
        if self._chance.random() < 0.2:
            await self._cut_start(client, produced.base_offset + len(numbers) - 1)

    async def _cut_start(self, client: Cluster, end: Offset) -> None:
        offset = self._chance.randrange(self._asked, max(end, self._asked) + 1)
        self._asked = offset
        try:
            done = await Admin(client).delete_records({self.partition: offset})
        except TidelogError:
            return
        self._cut = max(self._cut, done[self.partition])

    async def check(self) -> None:
        start, records = await self.all_records()
        if not self._cut <= start <= self._asked:
            self.rule().broken(
                f"the log starts at {start}; deletions were acknowledged up to {self._cut}, asked for {self._asked}"
            )
        _check_from(start, records, self._acknowledged, self.rule())


class RetainedTopic(SideTopic):
    """Its oldest segments go by themselves, because it may have so many bytes only."""

    partition = TopicPartition(RETAINED, 0)
    rule = RetentionKeepsEnough
    configs: ClassVar[dict[str, str]] = {"retention.bytes": str(_RETENTION_BYTES)}

    def __init__(self, cluster: LabCluster[Any], chance: random.Random, over: asyncio.Event) -> None:
        super().__init__(cluster, chance, over)
        self._acknowledged: dict[Offset, int] = {}

    async def _write_one(self, client: Cluster, producer: Producer, number: int) -> None:
        produced = await producer.send(self.partition, _batch(None, number))
        self._acknowledged[produced.base_offset] = number

    async def check(self) -> None:
        """Bytes that an election took from the end counted until then, so half of what was to stay is enough."""
        start, records = await self.all_records()
        _check_from(start, records, self._acknowledged, self.rule())
        kept_bytes = sum(len(_batch(None, int(record.value or b"0"))) for record in records)
        if start and kept_bytes < _RETENTION_BYTES // 2:
            self.rule().broken(
                f"the log starts at {start} and has {kept_bytes} bytes; retention.bytes is {_RETENTION_BYTES}"
            )


def _check_from(start: Offset, records: Sequence[Record], acknowledged: Mapping[Offset, int], rule: Rule) -> None:
    """Every acknowledged record from the log start on is there. An offset of -1 was not told by the broker."""
    found = {record.offset: record.value for record in records}
    for offset, number in acknowledged.items():
        if offset >= max(start, 0) and found.get(offset) != str(number).encode():
            rule.broken(f"{number}, acknowledged at {offset}, is not there; the log starts at {start}")


def _batch(key: bytes | None, *numbers: int) -> memoryview:
    return memoryview(bytearray(build_batch([(-1, key, str(number).encode()) for number in numbers], BatchFacts())))

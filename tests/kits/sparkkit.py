"""Topics of a broker process, made and filled from a test that has no event loop, and Spark's way to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from tests.kits.processkit import BrokerProcess
from tidelog.client.admin import Admin
from tidelog.client.cluster import Cluster
from tidelog.client.group_lag import group_lags
from tidelog.client.groups import describe_group
from tidelog.client.offsets import start_and_end
from tidelog.client.produce import Producer
from tidelog.host.clock import system_random
from tidelog.records.build import RecordLike, build_batch
from tidelog.records.header import Codec
from tidelog.types import TopicPartition

T = TypeVar("T")

BASE_MS = 1_700_000_000_000


class Topics:
    """What a test does to the broker besides Spark."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._configs = {"retention.ms": "-1"}  # the records of tests are years old
        self._batch_records: int | None = None

    def in_small_segments(self) -> None:
        """From now on most of what `fill` writes is sealed at once: a few records in a batch, a batch or two in a
        segment."""
        self._configs["segment.bytes"] = "250"
        self._batch_records = 3

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._broker.port}"

    def run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        async def main() -> T:
            async with await Cluster.open([("127.0.0.1", self._broker.port)], random=system_random()) as cluster:
                return await work(cluster)

        return asyncio.run(main())

    def create(self, name: str, partitions: int = 2, **configs: str) -> str:
        settings = {**self._configs, **{key.replace("_", "."): value for key, value in configs.items()}}

        async def work(cluster: Cluster) -> None:
            await Admin(cluster).create_topic(name, partitions=partitions, configs=settings)
            await cluster.topic(name)

        self.run(work)
        return name

    def delete(self, name: str) -> None:
        self.run(lambda cluster: Admin(cluster).delete_topic(name))

    def add_partitions(self, name: str, count: int) -> None:
        self.run(lambda cluster: Admin(cluster).create_partitions(name, count))

    def delete_before(self, name: str, partition: int, offset: int) -> None:
        self.run(lambda cluster: Admin(cluster).delete_records({TopicPartition(name, partition): offset}))

    def produce(self, name: str, partition: int, records: Iterable[RecordLike], codec: Codec = Codec.NONE) -> None:
        """As one batch."""
        batch = build_batch(records, codec=codec)

        async def work(cluster: Cluster) -> None:
            await cluster.topic(name)
            producer = Producer(cluster)
            await producer.send(TopicPartition(name, partition), batch)
            producer.close()

        self.run(work)

    def fill(self, name: str, counts: Mapping[int, int], start: int = 0) -> None:
        """So many records in each partition: key k{n}, value v{n}, a second apart from BASE_MS on."""
        for partition, count in counts.items():
            end = start + count
            for first in range(start, end, self._batch_records or count or 1):
                numbers = range(first, min(end, first + (self._batch_records or count)))
                self.produce(name, partition, [(BASE_MS + n * 1000, b"k%d" % n, b"v%d" % n) for n in numbers])

    def ends(self, name: str) -> dict[int, int]:
        async def work(cluster: Cluster) -> dict[int, int]:
            topic = await cluster.topic(name, fresh=True)
            found = await start_and_end(cluster, [TopicPartition(name, number) for number in topic.partitions])
            return {partition.partition: end for partition, (_, end) in found.items()}

        return self.run(work)

    def lag(self, group: str) -> dict[TopicPartition, int | None]:
        async def work(cluster: Cluster) -> dict[TopicPartition, int | None]:
            lags = await group_lags(cluster, await describe_group(cluster, group))
            return {one.partition: one.lag for one in lags}

        return self.run(work)


def rows_of(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Collected and sorted, bytes as bytes."""
    return sorted(
        tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
        for row in frame.select(*columns).collect()
    )

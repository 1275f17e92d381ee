"""What clients do while a cluster is put to the test: real clients, each on a host of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from tidelog.client.admin import Admin
from tidelog.client.cluster import Cluster
from tidelog.client.committed import visible_records
from tidelog.client.errors import BrokerError
from tidelog.client.fetch import Fetcher
from tidelog.client.leadership import alter_reassignments, wait_until_reassigned
from tidelog.client.produce import Producer
from tidelog.errors import ErrorCode, TidelogError
from tidelog.lab.broker import PORT
from tidelog.lab.checkers import Acknowledged
from tidelog.lab.cluster import TOPIC, LabCluster
from tidelog.lab.witness import Witness
from tidelog.net.calling import Connection
from tidelog.records.batch import decode
from tidelog.records.build import BatchFacts, build_batch
from tidelog.types import Offset, TopicPartition
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

_DELIVERY_MS = 240_000
_REASSIGNED_MS = 20_000
_REST_S = 0.1
_PRODUCE_BY_NAME = 12
_FETCH_BY_NAME = 12

AnyCluster = LabCluster[Any]


def one_record(value: bytes, timestamp_ms: int) -> memoryview:
    return memoryview(bytearray(build_batch([(timestamp_ms, None, value)], BatchFacts())))


class Writer:
    """An idempotent producer of numbered records to some partitions, until all are acknowledged."""

    def __init__(
        self,
        cluster: AnyCluster,
        witness: Witness,
        name: str,
        partitions: Iterable[int],
        count: int,
        longest_rest_s: float = 0.2,
    ) -> None:
        self.name = name
        self._longest_rest_s = longest_rest_s
        self._cluster = cluster
        self._witness = witness
        self._partitions = [TopicPartition(TOPIC, index) for index in partitions]
        self._count = count
        self._host = cluster.world.host(name)

    async def run(self) -> None:
        async with await connected(self._cluster, self.name) as client:
            producer = Producer(client, delivery_timeout_ms=_DELIVERY_MS)
            await asyncio.gather(*(self._fill(producer, partition) for partition in self._partitions))
            producer.close()

    async def _fill(self, producer: Producer, partition: TopicPartition) -> None:
        chance = self._cluster.world.chance_for(f"writer {self.name} {partition}")
        number = 0
        while number < self._count:
            numbers = range(number, min(number + chance.randrange(1, 6), self._count))
            await asyncio.gather(*(self._write(producer, partition, one) for one in numbers))
            number = numbers.stop
            await asyncio.sleep(chance.uniform(0, self._longest_rest_s))

    async def _write(self, producer: Producer, partition: TopicPartition, number: int) -> None:
        value = f"{self.name} {number}".encode()
        produced = await producer.send(partition, one_record(value, self._host.clock.wall_ms()))
        self._witness.acknowledged(Acknowledged(self.name, number, partition, produced.base_offset, value))


class Reader:
    """A consumer that reads committed records from the start on, for as long as it lives, and forgets nothing."""

    def __init__(self, cluster: AnyCluster, witness: Witness, name: str, partitions: Iterable[int]) -> None:
        self.name = name
        self.positions: dict[TopicPartition, Offset] = {TopicPartition(TOPIC, index): 0 for index in partitions}
        self._cluster = cluster
        self._witness = witness

    async def run(self) -> None:
        while True:
            async with await connected(self._cluster, self.name) as client:
                fetcher = Fetcher(client, self.positions)
                try:
                    await self._read(fetcher)
                except BrokerError as failure:
                    self._failed(failure)
                except TidelogError:
                    await asyncio.sleep(_REST_S)
                finally:
                    fetcher.close()

    def has_read(self, partition: TopicPartition, end: Offset) -> bool:
        return self.positions[partition] >= end

    async def _read(self, fetcher: Fetcher) -> None:
        while True:
            for fetched in await fetcher.next():
                for record in visible_records(fetched.records, fetched.aborted, fetched.fetch_offset):
                    self._witness.consumed(self.name, fetched.partition, record)
                self.positions[fetched.partition] = fetched.next_offset

    def _failed(self, failure: BrokerError) -> None:
        """Nothing is ever removed from these logs, so a position outside of one is a loss."""
        if failure.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            for partition, position in self.positions.items():
                if str(partition) in str(failure):
                    self._witness.vanished(self.name, partition, position)


async def careless_writes(cluster: AnyCluster, partitions: Sequence[int], chance: random.Random) -> None:
    """Records with acks=1, each once, to whoever leads or thinks it does: an election may drop them, replicas part."""
    number = 0
    while True:
        await asyncio.sleep(chance.uniform(0, 0.3))
        index, broker = chance.choice(partitions), chance.choice(sorted(cluster.brokers))
        try:
            connection = await Connection.open(f"b{broker}", PORT, client_id="careless", connect_timeout_ms=300)
        except TidelogError:
            continue
        for _ in range(chance.randrange(1, 4)):
            number += 1
            data = PartitionProduceData(index=index, records=one_record(f"careless {number}".encode(), -1))
            request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])])
            connection.send(request, _PRODUCE_BY_NAME).add_done_callback(lambda answer: answer.exception())
        await asyncio.sleep(0.05)
        connection.close()


async def stray_reads(cluster: AnyCluster, witness: Witness, partitions: Sequence[int], chance: random.Random) -> None:
    """A consumer without manners: it asks whoever may lead or think it does, and says nothing of terms."""
    while True:
        await asyncio.sleep(chance.uniform(0, 0.3))
        index, broker = chance.choice(partitions), chance.choice(sorted(cluster.brokers))
        wanted = FetchPartition(partition=index, fetch_offset=chance.randrange(40), partition_max_bytes=1 << 20)
        request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=[wanted])])
        try:
            connection = await Connection.open(f"b{broker}", PORT, client_id="strays", connect_timeout_ms=300)
            try:
                answer = await connection.call(request, _FETCH_BY_NAME, timeout_ms=1_000)
            finally:
                connection.close()
        except TidelogError:
            continue
        for record in decode(answer.responses[0].partitions[0].records or b""):
            witness.consumed("strays", TopicPartition(TOPIC, index), record)


# What an operator does, until it is over


async def come_and_go(cluster: AnyCluster, chance: random.Random, over: asyncio.Event) -> None:
    """Topics are made, written to and deleted beside the one that matters."""
    number = 0

    async def one_topic(client: Cluster) -> None:
        name = f"passing-{number % 3}"
        admin = Admin(client)
        await admin.create_topic(name, partitions=2, replication_factor=3)
        producer = Producer(client, delivery_timeout_ms=2_000)
        try:
            for index in range(2):
                await producer.send(TopicPartition(name, index), one_record(b"passing", -1))
        finally:
            producer.close()
            await asyncio.sleep(chance.uniform(0, 2))
            await admin.delete_topic(name)

    while not over.is_set():
        number += 1
        await _try(cluster, "topics", one_topic)
        await asyncio.sleep(chance.uniform(0, 2))


async def move_about(
    cluster: AnyCluster, partitions: Sequence[int], chance: random.Random, over: asyncio.Event
) -> None:
    """Partitions are given other replicas, or another preferred one, and each move is waited for a while."""
    while not over.is_set():
        await asyncio.sleep(chance.uniform(0.5, 4))
        target = chance.sample(sorted(cluster.brokers), 3)
        partition = TopicPartition(TOPIC, chance.choice(partitions))

        async def move(client: Cluster, partition: TopicPartition = partition, target: list[int] = target) -> None:
            results = await alter_reassignments(client, {partition: target})
            if results[partition] is None:
                await wait_until_reassigned(client, {partition: target}, timeout_ms=_REASSIGNED_MS)

        await _try(cluster, "moves", move)


async def _try(cluster: AnyCluster, host: str, work: Callable[[Cluster], Awaitable[None]]) -> None:
    """Under faults it may well fail; then that was it."""
    try:
        async with await connected(cluster, host, topic=None) as client:
            await work(client)
    except TidelogError:
        await asyncio.sleep(_REST_S)


async def connected(cluster: AnyCluster, host: str, topic: str | None = TOPIC) -> Cluster:
    """A client that knows the topic, however long that takes."""
    while True:
        try:
            client = await cluster.connect(host)
        except TidelogError:
            await asyncio.sleep(_REST_S)
            continue
        try:
            if topic is not None:
                await client.topic(topic)
            return client
        except TidelogError:
            client.close()
            await asyncio.sleep(_REST_S)

"""What clients do while a cluster is put to the test: real clients, each on a host of its own."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.committed import visible_records
from tidelog.client.errors import BrokerError
from tidelog.client.fetch import Fetcher
from tidelog.client.produce import Producer
from tidelog.errors import ErrorCode, TidelogError
from tidelog.lab.broker import PORT
from tidelog.lab.cluster import TOPIC, LabCluster
from tidelog.lab.read_back import read_back
from tidelog.lab.rules import Acknowledged, ReadOn
from tidelog.lab.witness import Witness
from tidelog.net.calling import Connection
from tidelog.records.batch import decode
from tidelog.records.build import BatchFacts, build_batch
from tidelog.types import BrokerId, Offset, TopicPartition
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
)
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

_DELIVERY_MS = 240_000
_REST_S = 0.1
_PRODUCE_BY_NAME = 12
_FETCH_BY_NAME = 12
_READ_BACK_SHARE = 0.1
"""Of the acknowledged records, this many are read at once from their leader."""

AnyCluster = LabCluster[Any]


def one_record(value: bytes, timestamp_ms: int) -> memoryview:
    return memoryview(bytearray(build_batch([(timestamp_ms, None, value)], BatchFacts())))


class Writer:
    """An idempotent producer of numbered records to some partitions, until all are acknowledged.

    `filling`: how many bytes a record may have at least. A brief one takes a new producer for every few records. After
    `lasts_s` it begins no more records. `done` is set when it has nothing left to write.
    """

    def __init__(
        self,
        cluster: AnyCluster,
        witness: Witness,
        name: str,
        partitions: Iterable[int],
        count: int,
        longest_rest_s: float = 0.2,
        filling: Sequence[int] = (0,),
        *,
        is_brief: bool = False,
        lasts_s: float = math.inf,
    ) -> None:
        self.name = name
        self._lasts_s = lasts_s
        self._begun_s: float | None = None
        """When it began its first life."""
        self._filling = filling
        self._is_brief = is_brief
        self._longest_rest_s = longest_rest_s
        self._cluster = cluster
        self._witness = witness
        self._partitions = [TopicPartition(TOPIC, index) for index in partitions]
        self._count = count
        self._host = cluster.world.host(name)
        self._sent = dict.fromkeys(self._partitions, 0)
        """How many records of each partition were sent, over all lives of this writer."""
        self._chances = {one: cluster.world.chance_for(f"writer {name} {one}") for one in self._partitions}
        self.done = asyncio.Event()

    async def run(self) -> None:
        """From the first record that no earlier life of it has sent. What was under way then may be there or not."""
        self._witness.gave_up(self.name)
        if self._begun_s is None:
            self._begun_s = asyncio.get_running_loop().time()
        async with await connected(self._cluster, self.name) as client:
            lasting = Producer(client, delivery_timeout_ms=_DELIVERY_MS)
            await asyncio.gather(*(self._fill(client, lasting, partition) for partition in self._partitions))
            lasting.close()
        self.done.set()

    async def _fill(self, client: Cluster, lasting: Producer, partition: TopicPartition) -> None:
        chance = self._chances[partition]
        while self._sent[partition] < self._count and not self._is_over():
            first = self._sent[partition]
            numbers = range(first, min(first + chance.randrange(1, 6), self._count))
            self._sent[partition] = numbers.stop
            producer = Producer(client, delivery_timeout_ms=_DELIVERY_MS) if self._is_brief else lasting
            await asyncio.gather(*(self._write(producer, partition, number) for number in numbers))
            if self._is_brief:
                producer.close()
            await asyncio.sleep(chance.uniform(0, self._longest_rest_s))

    def _is_over(self) -> bool:
        assert self._begun_s is not None
        return asyncio.get_running_loop().time() - self._begun_s > self._lasts_s

    async def _write(self, producer: Producer, partition: TopicPartition, number: int) -> None:
        value = f"{self.name} {number}".encode().ljust(self._chances[partition].choice(self._filling))
        self._witness.sent(self.name, partition, number)
        produced = await producer.send(partition, one_record(value, self._host.clock.wall_ms()))
        record = Acknowledged(self.name, number, partition, produced.base_offset, value)
        self._witness.acknowledged(record)
        if record.offset >= 0 and self._chances[partition].random() < _READ_BACK_SHARE:
            await read_back(self._cluster, self._witness, record)


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
                records = list(visible_records(fetched.records, fetched.aborted, fetched.fetch_offset))
                position = self.positions[fetched.partition]
                self._witness.read_on(ReadOn(self.name, fetched.partition, position, fetched.next_offset, records))
                self.positions[fetched.partition] = fetched.next_offset

    def _failed(self, failure: BrokerError) -> None:
        """Nothing is ever removed from these logs, so a position outside of one is a loss. If that may be, go back."""
        if failure.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            for partition, position in self.positions.items():
                if str(partition) in str(failure):
                    self._witness.vanished(self.name, partition, position)
                    self.positions[partition] = 0


async def careless_writes(
    cluster: AnyCluster, partitions: Sequence[int], chance: random.Random, longest_rest_s: float = 0.3
) -> None:
    """Records with acks=1, each once, to whoever leads or thinks it does: an election may drop them, replicas part."""
    number = 0
    while True:
        await asyncio.sleep(chance.uniform(0, longest_rest_s))
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


async def stray_reads(
    cluster: AnyCluster,
    witness: Witness,
    partitions: Sequence[int],
    chance: random.Random,
    longest_rest_s: float = 0.3,
) -> None:
    """A consumer without manners: it asks whoever may lead or think it does, and says nothing of terms."""
    while True:
        await asyncio.sleep(chance.uniform(0, longest_rest_s))
        index, broker = chance.choice(partitions), chance.choice(sorted(cluster.brokers))
        partition = TopicPartition(TOPIC, index)
        data = await _ask(broker, "strays", partition, chance.randrange(40))
        for record in decode((None if data is None else data.records) or b""):
            witness.consumed("strays", partition, record)


async def _ask(
    broker: BrokerId, client_id: str, partition: TopicPartition, offset: Offset
) -> FetchResponsePartitionData | None:
    """One fetch at one broker. None if there is no answer."""
    wanted = FetchPartition(partition=partition.partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=partition.topic, partitions=[wanted])])
    try:
        connection = await Connection.open(f"b{broker}", PORT, client_id=client_id, connect_timeout_ms=300)
        try:
            answer: FetchResponse = await connection.call(request, _FETCH_BY_NAME, timeout_ms=1_000)
        finally:
            connection.close()
    except TidelogError:
        return None
    return answer.responses[0].partitions[0]


async def last_reads(
    cluster: AnyCluster,
    witness: Witness,
    partitions: Sequence[int],
    chance: random.Random,
    longest_rest_s: float = 0.3,
) -> None:
    """A consumer of the last record that was read or acknowledged, at any broker: it must not be told out of range."""
    while True:
        await asyncio.sleep(chance.uniform(0, longest_rest_s))
        partition = TopicPartition(TOPIC, chance.choice(partitions))
        offset = witness.committed_up_to.get(partition, 0) - 1
        if offset < 0:
            continue
        data = await _ask(chance.choice(sorted(cluster.brokers)), "last", partition, offset)
        if data is not None and data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            witness.vanished("last", partition, offset)


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

"""What the table of Spark reads: the same batches of records, byte for byte, in a topic of each broker."""

from __future__ import annotations

import asyncio
import random

from bench.broker_servers import Server
from tidelog.client.admin import Admin
from tidelog.client.cluster import Cluster
from tidelog.client.produce import Producer
from tidelog.host.clock import system_random
from tidelog.records.build import build_batch
from tidelog.types import TopicPartition

TOPIC = "mixed"
PARTITIONS = 6
SMALL_BYTES, LARGE_BYTES = 100, 1000
LARGE_EVERY = 8
BATCH_RECORDS = 80
"""About 16 kB, which is batch.size of Kafka's producer."""
SEGMENT_BYTES = 16 * 1024 * 1024
MINUTES = 60
"""So many windows of a minute are in the timestamps."""

_BASE_MS = 1_700_000_040_000
_UNDER_WAY = 64


def fill(server: Server, records: int) -> int:
    """The sum of the lengths of all values; `records` is rounded down to whole batches in each partition."""
    batches = _batches()
    count = rounded(records) // BATCH_RECORDS
    asyncio.run(_produce(server, batches, count))
    return sum(batches[number % MINUTES][1] for number in range(count))


def rounded(records: int) -> int:
    share = PARTITIONS * BATCH_RECORDS
    return records // share * share


def _batches() -> list[tuple[bytes, int]]:
    """A batch for each minute, and how many bytes of values it has."""
    chance = random.Random(7)
    made: list[tuple[bytes, int]] = []
    for minute in range(MINUTES):
        sizes = [LARGE_BYTES if number % LARGE_EVERY == 0 else SMALL_BYTES for number in range(BATCH_RECORDS)]
        first_ms = _BASE_MS + minute * 60_000
        step_ms = 60_000 // BATCH_RECORDS
        records = [(first_ms + number * step_ms, None, chance.randbytes(size)) for number, size in enumerate(sizes)]
        made.append((bytes(build_batch(records)), sum(sizes)))
    return made


async def _produce(server: Server, batches: list[tuple[bytes, int]], count: int) -> None:
    async with await Cluster.open([("127.0.0.1", server.port)], random=system_random()) as cluster:
        configs = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
        await Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS, configs=configs)
        await cluster.topic(TOPIC)
        producer = Producer(cluster)
        room = asyncio.Semaphore(_UNDER_WAY)

        async def send(number: int) -> None:
            async with room:
                partition = TopicPartition(TOPIC, number % PARTITIONS)
                await producer.send(partition, memoryview(bytearray(batches[number % MINUTES][0])))

        for first in range(0, count, 10 * _UNDER_WAY):
            await asyncio.gather(*(send(number) for number in range(first, min(count, first + 10 * _UNDER_WAY))))
        producer.close()

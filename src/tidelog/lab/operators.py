"""What operators do to a cluster while it is put to the test: topics, moves, elections, settings; until it is over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tidelog.client.admin import Admin, Resource, ResourceType
from tidelog.client.cluster import Cluster
from tidelog.client.leadership import Election, alter_reassignments, elect_leaders, wait_until_reassigned
from tidelog.client.produce import Producer
from tidelog.errors import TidelogError
from tidelog.lab.cluster import TOPIC, LabCluster
from tidelog.lab.workload import connected, one_record
from tidelog.types import TopicPartition

_REASSIGNED_MS = 20_000
_REST_S = 0.1
_SETTINGS = (
    ("flush.messages", "1"),
    ("flush.ms", "20"),
    ("segment.bytes", "2000"),
    ("segment.ms", "3000"),
    ("index.interval.bytes", "100"),
    ("retention.ms", "-1"),
)
"""Harmless ones: whatever they are, all rules hold."""
PASSING = ("passing-0", "passing-1")

AnyCluster = LabCluster[Any]


async def come_and_go(cluster: AnyCluster, chance: random.Random, over: asyncio.Event) -> None:
    """Topics are made, written to and deleted beside the one that matters, some of them made anew at once."""

    async def one_topic(client: Cluster) -> None:
        name = chance.choice(PASSING)
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
        await _try(cluster, "topics", one_topic)
        await asyncio.sleep(chance.choice((0.0, chance.uniform(0, 2))))


async def make_passing_topics(cluster: AnyCluster) -> None:
    """All of them anew, each with a record, however often that has to be tried."""
    for name in PASSING:
        is_made = False
        while not is_made:
            try:
                async with await connected(cluster, "topics", topic=None) as client:
                    await _make_anew(client, name)
                is_made = True
            except TidelogError:
                await asyncio.sleep(_REST_S)


async def _make_anew(client: Cluster, name: str) -> None:
    admin, producer = Admin(client), Producer(client, delivery_timeout_ms=_REASSIGNED_MS)
    try:
        if name in await client.all_topics():
            await admin.delete_topic(name)
        await admin.create_topic(name, partitions=2, replication_factor=3)
        for index in range(2):
            await producer.send(TopicPartition(name, index), one_record(b"anew", -1))
    finally:
        producer.close()


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


async def elect_preferred(
    cluster: AnyCluster, partitions: Sequence[int], chance: random.Random, over: asyncio.Event
) -> None:
    """Leadership is handed back to the first replica of the list, which may have led before or not."""
    while not over.is_set():
        await asyncio.sleep(chance.uniform(0.5, 4))
        await elect_the_preferred(cluster, TopicPartition(TOPIC, chance.choice(partitions)))


async def elect_the_preferred(cluster: AnyCluster, partition: TopicPartition) -> None:
    async def elect(client: Cluster) -> None:
        await elect_leaders(client, Election.PREFERRED, [partition])

    await _try(cluster, "elections", elect)


async def change_settings(cluster: AnyCluster, chance: random.Random, over: asyncio.Event) -> None:
    """Of the topic that matters: one at a time is set, or goes back to what it was."""
    topic = Resource(ResourceType.TOPIC, TOPIC)
    while not over.is_set():
        await asyncio.sleep(chance.uniform(0.2, 3))
        name, value = chance.choice(_SETTINGS)
        is_set = chance.random() < 0.6

        async def change(client: Cluster, name: str = name, value: str = value, is_set: bool = is_set) -> None:
            changed, deleted = ({name: value}, ()) if is_set else ({}, (name,))
            await Admin(client).alter_configs(topic, changed=changed, deleted=deleted)

        await _try(cluster, "settings", change)


async def _try(cluster: AnyCluster, host: str, work: Callable[[Cluster], Awaitable[None]]) -> None:
    """Under faults it may well fail; then that was it."""
    try:
        async with await connected(cluster, host, topic=None) as client:
            await work(client)
    except TidelogError:
        await asyncio.sleep(_REST_S)

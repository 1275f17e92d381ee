"""A client on a simulated network with fake brokers: what the tests of tidelog.client share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.kits.fake_broker import FakeBroker, FakeCluster
from tidelog.client.cluster import Cluster
from tidelog.lab.world import World
from tidelog.records.batch import decode
from tidelog.records.build import build_batch
from tidelog.types import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)

Story = Callable[[Cluster, FakeCluster], Coroutine[Any, Any, None]]
Saboteur = Callable[[World, FakeCluster], Coroutine[Any, Any, None]]


def simulate(story: Story, *, brokers: int = 1, seed: int = 1, saboteur: Saboteur | None = None) -> FakeCluster:
    """Brokers 1..n on hosts of their own, broker 1 leading orders-0 and orders-1; the story is a client's."""
    fake = FakeCluster()
    fake.leaders = {P0: 1, P1: 1}
    with World(seed) as world:

        async def serve(broker: FakeBroker) -> None:
            await broker.serve(9092)
            await asyncio.get_running_loop().create_future()

        async def call() -> None:
            host = world.host("client")
            async with await Cluster.open([("b1", 9092)], random=host.random) as cluster:
                await cluster.topic("orders")
                await story(cluster, fake)

        async def main() -> None:
            for number in range(1, brokers + 1):
                world.host(f"b{number}").start(serve(FakeBroker(fake, number, f"b{number}")))
            await asyncio.sleep(0.1)
            client = world.host("client").start(call())
            trouble = None if saboteur is None else asyncio.ensure_future(saboteur(world, fake))
            await client
            if trouble is not None:
                trouble.cancel()

        world.run(main())
    return fake


def values(count: int, start: int = 0) -> memoryview:
    """A batch of numbers as text."""
    return build_batch([(1, None, b"%d" % number) for number in range(start, start + count)])


def written(fake: FakeCluster, partition: TopicPartition) -> list[int]:
    return [int(record.value or b"") for batch in fake.logs[partition] for record in decode(batch)]


async def sabotage(world: World, fake: FakeCluster) -> None:
    """Connections of brokers 1 and 2 are torn, links cut, and leaders moved, at random and for ever."""
    chance = world.chance_for("sabotage")
    while True:
        await asyncio.sleep(chance.uniform(0, 0.4))
        broker = f"b{chance.randrange(1, 3)}"
        match chance.randrange(0, 3):
            case 0:
                world.network.reset("client", broker)
            case 1:
                world.network.cut("client", broker)
                await asyncio.sleep(chance.uniform(0, 0.5))
                world.network.heal("client", broker, reset=chance.random() < 0.5)
            case 2:
                partition = chance.choice([P0, P1])
                fake.leaders[partition] = 3 - fake.leaders[partition]
                fake.leader_epochs[partition] += 1

"""Three brokers, lost answers, dying leaders and little time: what is given up makes nothing be written twice."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tidelog.client.errors import BrokerError, DeadlineError
from tidelog.client.produce import Produced, Producer
from tidelog.records.build import build_batch
from tidelog.types import TopicPartition

COUNT = 60


@pytest.mark.parametrize("seed", range(1, 7))
def test_each_record_is_written_at_most_once_and_in_order(seed: int) -> None:
    async def story(cluster: ClusterKit) -> None:
        async with await cluster.connect() as client:
            await client.topic("t")
            producer = Producer(client, delivery_timeout_ms=1500)
            chance = cluster.world.chance_for("pauses")
            is_over = asyncio.Event()
            trouble = asyncio.ensure_future(_trouble(cluster, is_over))
            futures = []
            for number in range(COUNT):
                batch = build_batch([(1, None, b"%d" % number)])
                futures.append(producer.send(TopicPartition("t", 0), batch))
                await asyncio.sleep(chance.random() * 0.6)
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            is_over.set()
            await trouble
            producer.close()
        await cluster.all_in_sync()
        written = [int(value or b"") for value in cluster.values(cluster.leader())]
        assert written == sorted(set(written))
        acknowledged = {number for number, outcome in enumerate(outcomes) if isinstance(outcome, Produced)}
        assert acknowledged <= set(written)
        assert all(isinstance(outcome, Produced | DeadlineError | BrokerError) for outcome in outcomes)
        assert len(acknowledged) < COUNT, "nothing was given up, so nothing was tried"

    run(story, seed=seed)


async def _trouble(cluster: ClusterKit, is_over: asyncio.Event) -> None:
    """Answers of the leader do not arrive for up to three seconds; then its connections end, or it dies."""
    chance, network = cluster.world.chance_for("trouble"), cluster.world.network
    while not is_over.is_set():
        await asyncio.sleep(chance.uniform(0.5, 2))
        old = cluster.leader()
        network.cut(f"b{old}", "client", one_way=True)
        await asyncio.sleep(chance.uniform(0.5, 3))
        if chance.random() < 0.3:
            cluster[old].kill()
            await cluster.leads(but=old)
            await cluster[old].start()
        network.heal(f"b{old}", "client", reset=True)

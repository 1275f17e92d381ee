"""Three brokers and a topic with a small max.message.bytes: batches are split while leaders die, nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tidelog.client.batching import Batcher, BatchingSettings
from tidelog.client.errors import BrokerError
from tidelog.client.produce import Producer
from tidelog.records.build import build_batch
from tidelog.records.header import Codec
from tidelog.types import TopicPartition

COUNT = 60


@pytest.mark.parametrize("seed", range(1, 7))
def test_each_record_is_written_once_and_in_order_while_leaders_die(seed: int) -> None:
    async def story(cluster: ClusterKit) -> None:
        async with await cluster.connect() as client:
            await client.topic("t")
            producer = Producer(client)
            chance = cluster.world.chance_for("sizes")
            futures, expected = [], []
            for number in range(COUNT):
                count = chance.choice([1, 2, 20, 60])
                values = [b"%d.%d" % (number, place) + b" " * chance.randrange(0, 100) for place in range(count)]
                expected += values
                batch = build_batch([(1, None, value) for value in values])
                futures.append(producer.send(TopicPartition("t", 0), batch))
                if number % 20 == 10:
                    await _replace_leader(cluster)
                await asyncio.sleep(chance.random() * 0.05)
            offsets = [(await future)[1::2] for future in futures]
            producer.close()
        await cluster.all_in_sync()
        assert cluster.values(cluster.leader()) == expected
        assert [first for first, _ in offsets][1:] == [last + 1 for _, last in offsets][:-1]

    run(story, seed=seed, message_max_bytes="1000")


def test_one_record_that_decompresses_too_far_does_not_make_later_batches_tiny() -> None:
    async def story(cluster: ClusterKit) -> None:
        async with await cluster.connect() as client:
            await client.topic("t")
            producer = Producer(client)
            batcher = Batcher(client, producer, "t", BatchingSettings(compression=Codec.ZSTD))
            zeros = await batcher.add(1, None, bytes(5_000_000), partition=0)
            await batcher.flush()
            with pytest.raises(BrokerError, match=r"of 245 bytes; .* see .* tidelog.batch.max.expansion.ratio"):
                await zeros
            chance = cluster.world.chance_for("values")
            futures = [await batcher.add(1, None, chance.randbytes(600), partition=0) for _ in range(1000)]
            await batcher.flush()
            assert len({(await future).base_offset for future in futures}) <= 4
            producer.close()

    run(story)


async def _replace_leader(cluster: ClusterKit) -> None:
    old = cluster.leader()
    cluster[old].kill()
    await cluster.leads(but=old)
    await cluster[old].start()

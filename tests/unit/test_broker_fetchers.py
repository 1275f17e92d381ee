"""Which fetcher copies a partition (S1.5)."""

from __future__ import annotations

import asyncio

from tests.kits.brokerkit import Kit, run
from tidelog.broker.fetcher_settings import FetcherSettings
from tidelog.broker.fetchers import Fetchers, fetcher_id
from tidelog.config.broker import BrokerConfig
from tidelog.net.calling import Connection
from tidelog.types import TopicPartition

PARTITIONS = 8


async def _never(_: int) -> Connection:
    await asyncio.Event().wait()
    raise AssertionError("it waits for ever")


def test_each_partition_of_a_leader_has_one_of_its_fetchers() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", PARTITIONS)
        settings = FetcherSettings.of(BrokerConfig.defaults())
        fetchers = Fetchers(1, lambda: 5, _never, lambda: settings, lambda: 3, lambda size: None)
        for index in range(PARTITIONS):
            partition = kit.partition(index=index)
            partition.follow()
            fetchers.follow(partition, leader=2 + index % 2, epoch=3)
            assert fetchers.is_following(partition, 2 + index % 2)
        assert sorted(fetchers._fetchers) == [(leader, number) for leader in (2, 3) for number in range(3)]
        for (leader, number), fetcher in fetchers._fetchers.items():
            for name in fetcher._copying:
                assert (2 + name.partition % 2, fetcher_id(name, 3)) == (leader, number)
        copied = [name for fetcher in fetchers._fetchers.values() for name in fetcher._copying]
        assert sorted(copied) == [TopicPartition("t", index) for index in range(PARTITIONS)]
        await fetchers.stop()

    run(story)

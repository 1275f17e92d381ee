"""All fetchers of a broker: one for each leader and share of the partitions (S1.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog.broker.copying import Connect
from tidelog.broker.fetcher import Fetcher
from tidelog.broker.fetcher_settings import FetcherSettings
from tidelog.broker.partition import Partition
from tidelog.types import BrokerId, Epoch, TopicPartition, java_hash


class Fetchers:
    """A partition is with one fetcher at a time, that of its leader."""

    def __init__(
        self,
        own: BrokerId,
        broker_epoch: Callable[[], Epoch],
        connect: Connect,
        settings: Callable[[], FetcherSettings],
        count: Callable[[], int],
        copied: Callable[[int], None],
    ) -> None:
        self._own = own
        self._broker_epoch = broker_epoch
        self._connect = connect
        self._settings = settings
        self._count = count
        self._copied = copied
        """Told how many bytes were copied."""
        self._fetchers: dict[tuple[BrokerId, int], Fetcher] = {}
        self._of: dict[TopicPartition, Fetcher] = {}

    def follow(self, partition: Partition, leader: BrokerId, epoch: Epoch) -> None:
        """Copy it from this leader. It was taken from any other before."""
        key = (leader, fetcher_id(partition.name, self._count()))
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = Fetcher(
                leader, self._own, self._broker_epoch, self._connect, self._settings(), self._copied
            )
        self._of[partition.name] = fetcher
        fetcher.add(partition, epoch)

    def is_following(self, partition: Partition, leader: BrokerId) -> bool:
        fetcher = self._of.get(partition.name)
        return fetcher is not None and fetcher.leader == leader

    def is_asking(self, name: TopicPartition) -> bool:
        """Its leader has been asked for more of it, and has not answered."""
        fetcher = self._of.get(name)
        return fetcher is not None and fetcher.is_asking(name)

    def broker_epoch_changed(self) -> None:
        """This broker is registered again; until now its fetchers waited (edge case 32)."""
        for fetcher in self._fetchers.values():
            fetcher.broker_epoch_changed()

    async def release(self, partition: Partition) -> None:
        """When this returns nobody copies it any more."""
        fetcher = self._of.pop(partition.name, None)
        if fetcher is None:
            return
        await fetcher.remove(partition)
        if fetcher.is_idle:
            for key in [key for key, one in self._fetchers.items() if one is fetcher]:
                del self._fetchers[key]
            await fetcher.stop()

    async def stop(self) -> None:
        fetchers = list(self._fetchers.values())
        self._fetchers.clear()
        self._of.clear()
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))


def fetcher_id(partition: TopicPartition, count: int) -> int:
    """Which of a leader's fetchers a partition belongs to."""
    return abs(31 * java_hash(partition.topic) + partition.partition) % count

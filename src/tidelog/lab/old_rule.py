"""Truncation as it was before leader epochs, for stories that show why it had to go (S5). It exists only in the lab.

A follower cuts its log to its own high watermark when it begins to follow, and asks nobody where its log parts from the
leader's. What is past the leader's end is cut by the rule that brokers still have (S1.5).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidelog.broker.copying import Copying
from tidelog.broker.fetcher import Fetcher
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.log.trimming import truncate_to
from tidelog.types import NO_EPOCH
from tidelog.wire.messages.controller import LeaderAndIsrPartitionState
from tidelog.wire.messages.fetch import FetchPartition


@contextlib.contextmanager
def truncation_by_high_watermark() -> Iterator[None]:
    """Every broker of this process has the old rule until the end of the block."""
    follow, position = Replicas._follow, Fetcher._position

    async def cut_and_follow(
        self: Replicas, partition: Partition, state: LeaderAndIsrPartitionState, is_new_term: bool
    ) -> None:
        if is_new_term:
            partition.pause()
            await self._fetchers.release(partition)
            await truncate_to(partition.log, partition.log.high_watermark)
        await follow(self, partition, state, is_new_term)

    def position_without_epoch(self: Fetcher, one: Copying) -> FetchPartition:
        wanted = position(self, one)
        wanted.last_fetched_epoch = NO_EPOCH
        return wanted

    setattr(Replicas, "_follow", cut_and_follow)  # noqa: B010
    setattr(Fetcher, "_position", position_without_epoch)  # noqa: B010
    try:
        yield
    finally:
        setattr(Replicas, "_follow", follow)  # noqa: B010
        setattr(Fetcher, "_position", position)  # noqa: B010

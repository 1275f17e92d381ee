"""All groups that this broker coordinates, and who coordinates the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelog.broker.group.bounds import GroupBounds
from tidelog.broker.group.log_ends import LogEnds
from tidelog.broker.group.shard import GroupShard
from tidelog.broker.group.story import GroupStory
from tidelog.broker.pacing import FIRST, SLICE
from tidelog.broker.partition import Partition, RequestError
from tidelog.broker.said import Said
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC
from tidelog.errors import ErrorCode
from tidelog.groups import GroupConfig, LargeCommit, Usage, partition_of
from tidelog.wire.messages.group_offsets import OffsetCommitRequest

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


_log = logging.getLogger(__name__)

_FIRST_REST_S, _LONGEST_REST_S = 0.01, 0.25
"""Tombstones that are on their way are soon in the log, but what it has refused may be refused for a while."""


class GroupCoordinator:
    """A shard for each partition of __consumer_offsets that is led here."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.shards: dict[int, GroupShard] = {}
        self.story = GroupStory()
        self.usage = Usage(story=self.story)
        """What the groups of all shards keep."""
        self.log_ends = LogEnds(broker)
        self.load_failures = broker.metrics.counter(
            "tidelog_group_shard_load_failures_total",
            "Times that the groups of a partition of __consumer_offsets could not be loaded.",
        )
        self.bad_records = broker.metrics.counter(
            "tidelog_group_shard_bad_records_total",
            "Records of __consumer_offsets that could not be read and were passed over.",
        )
        self._said = Said()
        self._clock = broker.clock
        self._epoch_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        self._retention: asyncio.Task[None] | None = None
        self._forgetting: asyncio.Task[None] | None = None
        """Has groups forget what they committed for deleted topics."""
        self._deletions_seen: dict[int, list[Collection[str]]] = {}
        """Of those who want to know of deletions just now."""
        self.bounds = GroupBounds(broker, self.usage, self.shards, self.now_ms)
        self.large_commits = asyncio.Lock()
        """Held while a commit of very many partitions is read: that takes memory, so it is one at a time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 that never go back: sessions must not end because somebody set the clock."""
        return self._epoch_ms + self._clock.monotonic_ms()

    # Which partitions

    def start(self) -> None:
        self._retention = asyncio.create_task(self._expire_offsets())

    def role_changed(self, partition: Partition) -> None:
        """A replica began to lead, or ceased to. In a further term of this broker what is loaded is still right."""
        if partition.name.topic != GROUP_OFFSETS_TOPIC:
            return
        index = partition.name.partition
        if not partition.leads:
            shard = self.shards.pop(index, None)
            if shard is not None:
                shard.unload()
        elif index not in self.shards:
            self.shards[index] = GroupShard(self._broker, partition, self.now_ms)

    def topics_deleted(self, topics: Mapping[str, bytes]) -> None:
        """Topics of these names and ids. A few groups forget their offsets now, the others in slices."""
        for seen in self._deletions_seen.values():
            seen.append(topics)
        for shard in self.shards.values():
            shard.topics_deleted(topics)
        self._forget_deleted(FIRST)
        self.forget_deleted_topics()

    def forget_deleted_topics(self) -> None:
        """Begin to forget what is left to be forgotten, if that is not under way."""
        if self._has_deleted_topics and (self._forgetting is None or self._forgetting.done()):
            self._forgetting = asyncio.create_task(self._forget_deleted_in_slices())

    @contextmanager
    def deletions_seen(self) -> Iterator[list[Collection[str]]]:
        """The topics of each deletion that comes within the context."""
        seen: list[Collection[str]] = []
        self._deletions_seen[id(seen)] = seen
        try:
            yield seen
        finally:
            del self._deletions_seen[id(seen)]

    @property
    def _has_deleted_topics(self) -> bool:
        return any(shard.has_deleted_topics for shard in self.shards.values())

    async def _forget_deleted_in_slices(self) -> None:
        """Not behind the requests of clients: until it is done, the next coordinator may not know of the deletion."""
        rest_s = _FIRST_REST_S
        while self._has_deleted_topics:
            await self._broker.lane.turn(is_broker=True)
            if self._forget_deleted(SLICE):
                rest_s = _FIRST_REST_S
            else:
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, _LONGEST_REST_S)

    def _forget_deleted(self, most: int) -> int:
        """How much was looked at."""
        left = most
        for shard in list(self.shards.values()):
            if left > 0 and shard.has_deleted_topics:
                try:
                    left -= shard.forget_deleted(left)
                except Exception as failure:  # a fault with one group: the others go on, and so does the caller
                    if self._said.is_news(repr(failure)):
                        _log.exception("what was committed for deleted topics cannot be forgotten; it is tried again")
        return most - left

    async def _expire_offsets(self) -> None:
        """All groups are looked at in slices: many of them may end at the same check."""
        while True:
            await asyncio.sleep(self._broker.config["offsets.retention.check.interval.ms"] / 1000)
            try:
                await self._check_offsets()
            except Exception:  # a fault with one group: without this task no offset of this broker expires any more
                _log.exception("old offsets cannot be forgotten; it is tried again")

    async def _check_offsets(self) -> None:
        for shard in self.shards.values():
            shard.begin_expiry()
        while any(shard.has_expiry for shard in self.shards.values()):
            await self._broker.lane.turn()
            self._expire_some(SLICE)
        self.story.tell_expired()

    def _expire_some(self, most: int) -> None:
        for shard in list(self.shards.values()):
            if most > 0 and shard.has_expiry:
                try:
                    most -= shard.expire_offsets(most)
                except Exception as failure:  # a fault with one group: the others go on
                    if self._said.is_news(repr(failure)):
                        _log.exception("old offsets of a group cannot be forgotten; it is tried at the next check")

    # Finding

    def index_of(self, group_id: str) -> int:
        """The partition that holds a group. Until the topic exists, the one that will."""
        topic = self._broker.metadata.topic(GROUP_OFFSETS_TOPIC)
        count: int = self._broker.config["offsets.topic.num.partitions"] if topic is None else len(topic.partitions)
        return partition_of(group_id, count)

    def shard_of(self, group_id: str) -> GroupShard:
        """RequestError if this broker does not coordinate the group, or not yet.

        As in Kafka: while its partition is being loaded, COORDINATOR_LOAD_IN_PROGRESS; if that failed, and until the
        next try succeeds, NOT_COORDINATOR.
        """
        shard = self.shards.get(self.index_of(group_id))
        if shard is None or shard.has_failed or not self._broker.is_current:
            raise RequestError(ErrorCode.NOT_COORDINATOR)
        if not shard.is_active:
            raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def large_commit(self, request: OffsetCommitRequest) -> LargeCommit:
        """A commit of very many partitions, to be read."""
        try:
            commits = self.shard_of(request.group_id).groups.commits_of(request.group_id)
        except RequestError:
            commits = None  # who writes it will say so
        return LargeCommit(request, GroupConfig.of(self._broker.config), self.usage, commits, self.now_ms())

    async def close(self) -> None:
        for task in (self._retention, self._forgetting):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(shard.close() for shard in self.shards.values()))

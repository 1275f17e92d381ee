"""How far a group is behind: what it has committed beside the ends of the logs, and who reads what (S9.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.group_offsets import committed_offsets
from tidelog.client.groups import GroupDescription, GroupMember
from tidelog.client.leaders import by_topic
from tidelog.client.offsets import LATEST, Isolation, list_offsets
from tidelog.types import Offset, TopicPartition


class PartitionLag(NamedTuple):
    """One partition of a group. No committed offset is None, and so is the end of a log that has no leader."""

    partition: TopicPartition
    current: Offset | None
    log_end: Offset | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        """Unknown, which is not 0, if one of the two offsets is. Below 0 if the log was cut or made anew."""
        return None if self.current is None or self.log_end is None else self.log_end - self.current


async def group_lags(
    cluster: Cluster, group: GroupDescription, *, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> list[PartitionLag]:
    """Of all partitions that the group has committed or its members hold. A log ends where such a reader's does."""
    committed = {partition: one.offset for partition, one in (await committed_offsets(cluster, group.group)).items()}
    ends = await _log_ends(cluster, [lag.partition for lag in lags(group, committed, {})], isolation)
    return lags(group, committed, ends)


def lags(
    group: GroupDescription, committed: Mapping[TopicPartition, Offset], ends: Mapping[TopicPartition, Offset]
) -> list[PartitionLag]:
    """The same of what is known, sorted by partition. Pure."""
    members = {partition: member for member in group.members for partition in member.assignment}
    return [
        PartitionLag(partition, committed.get(partition), ends.get(partition), members.get(partition))
        for partition in sorted({**members, **committed})
    ]


async def _log_ends(
    cluster: Cluster, partitions: Sequence[TopicPartition], isolation: Isolation
) -> dict[TopicPartition, Offset]:
    """Of those that exist and have a leader: a group may have committed what is gone."""
    await cluster.retrying(lambda: cluster.refresh_once(by_topic(partitions)), "metadata", topics=None)
    led = [partition for partition in partitions if cluster.metadata.leader(partition) is not None]
    found = await list_offsets(cluster, dict.fromkeys(led, LATEST), isolation=isolation)
    return {partition: one.offset for partition, one in found.items()}

"""Resetting what a group has committed (S9.3): what the plan needs is asked of the cluster.

Where the ways lead is `reset_plan`; a plan is carried out by `group_offsets.commit_offsets`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError
from tidelog.client.group_offsets import Committed, committed_offsets
from tidelog.client.groups import describe_groups
from tidelog.client.leadership import partitions_of
from tidelog.client.offsets import NO_OFFSET, Isolation, list_offsets, start_and_end
from tidelog.client.reset_plan import Chosen, Log, Planned, Reset, Way, plan
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition


async def chosen_partitions(
    cluster: Cluster, chosen: Iterable[Chosen] | None, committed: Committed
) -> list[TopicPartition]:
    """Those named, which must exist, or those the group has committed; sorted."""
    if chosen is None:
        return sorted(committed)
    found: dict[TopicPartition, None] = {}
    for topic, numbers in chosen:
        found |= dict.fromkeys(await partitions_of(cluster, topic, numbers))
    return sorted(found)


async def plan_reset(
    cluster: Cluster,
    group: str,
    reset: Reset,
    chosen: Iterable[Chosen] | None,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, Planned]:
    """What the reset would do to these partitions, or to all that the group has committed.

    BrokerError with NON_EMPTY_GROUP while the group has members: they would go on from where they are, and commit.
    """
    described = (await describe_groups(cluster, [group]))[group]
    if described.is_active:
        members = f"it is {described.state} with {len(described.members)} members; stop them first"
        raise BrokerError(ErrorCode.NON_EMPTY_GROUP, f"group {group}", members)
    committed = await committed_offsets(cluster, group)
    partitions = await chosen_partitions(cluster, chosen, committed)
    for topic in dict.fromkeys(partition.topic for partition in partitions):
        await cluster.topic(topic, led=False)
    bounds = await start_and_end(cluster, partitions, isolation=isolation)
    logs = {partition: Log(start, end) for partition, (start, end) in bounds.items()}
    if reset.way in (Way.TIME, Way.DURATION):
        times = dict.fromkeys(partitions, reset.number)
        found = await list_offsets(cluster, times, isolation=isolation)
        logs = {
            partition: log if found[partition].offset == NO_OFFSET else log._replace(at_time=found[partition].offset)
            for partition, log in logs.items()
        }
    return plan(reset, {partition: one.offset for partition, one in committed.items()}, logs)

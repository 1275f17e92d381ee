"""Requests about groups: each goes to the broker that coordinates its group, which is found first and may move.

The coordinator of a group is the leader of its partition of __consumer_offsets. If it cannot be reached, the error
names that partition, for it is what a user has to bring back: once the partitions are known (`learn_group_partitions`).
A member does not ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from tidelog.client.call_each import call_each
from tidelog.client.cluster import GROUP, Cluster
from tidelog.client.errors import BrokerError, CoordinatorError, check
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC
from tidelog.errors import ErrorCode, TidelogError
from tidelog.groups.records import partition_of
from tidelog.types import BrokerId, TopicPartition
from tidelog.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.schema import Message
from tidelog.wire.versions import Versions

T = TypeVar("T")

_FIND_COORDINATOR = Versions(4, 6)
"""Several groups in one request came with 4."""


async def find_coordinators_once(cluster: Cluster, groups: Sequence[str]) -> dict[str, BrokerId]:
    """By group, all in one question, not tried again. Each is a broker that metadata knows."""
    request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=list(groups))
    response: FindCoordinatorResponse = await cluster.call(request, versions=_FIND_COORDINATOR)
    found: dict[str, BrokerId] = {}
    for one in response.coordinators:
        if one.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            raise await _without_coordinator(cluster, one.key, one.error_message)
        check(one.error_code, f"coordinator of group {one.key}", one.error_message)
        found[one.key] = one.node_id
    if any(broker not in cluster.metadata.brokers for broker in found.values()):
        await cluster.refresh_once()
    for group in groups:
        if found.get(group) not in cluster.metadata.brokers:
            about = f"coordinator of group {group}"
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, about, "it is not among the live brokers")
    return found


async def _without_coordinator(cluster: Cluster, group: str, message: str | None) -> BrokerError:
    """Why, with the name of the partition if that is known and has no leader."""
    for partition in _partitions_of(cluster, [group]):
        if partition in await offline_partitions(cluster):
            message = f"{partition} is offline: it has no leader"
    return BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"coordinator of group {group}", message)


async def learn_group_partitions(cluster: Cluster) -> None:
    """So that errors can name them. If that fails, the call that follows fails as well, and says why."""
    if GROUP_OFFSETS_TOPIC not in cluster.metadata.topics:
        with suppress(TidelogError):
            await cluster.refresh_once([GROUP_OFFSETS_TOPIC])


async def offline_partitions(cluster: Cluster) -> list[TopicPartition]:
    """Those of __consumer_offsets that have no leader, by metadata that is learnt now."""
    await cluster.refresh_once([GROUP_OFFSETS_TOPIC])
    return [partition for partition in _group_partitions(cluster) if cluster.metadata.leader(partition) is None]


def led_partitions(cluster: Cluster, broker: BrokerId) -> list[TopicPartition]:
    """Those of __consumer_offsets that a broker leads, by metadata as it is known."""
    return [partition for partition in _group_partitions(cluster) if cluster.metadata.leader(partition) == broker]


def _group_partitions(cluster: Cluster) -> list[TopicPartition]:
    topic = cluster.metadata.topics.get(GROUP_OFFSETS_TOPIC)
    return [] if topic is None else [TopicPartition(topic.name, number) for number in topic.partitions]


def _partitions_of(cluster: Cluster, groups: Iterable[str]) -> list[TopicPartition]:
    """The partitions of __consumer_offsets that keep these groups; empty if they are not known."""
    count = len(_group_partitions(cluster))
    numbers = sorted({partition_of(group, count) for group in groups}) if count else []
    return [TopicPartition(GROUP_OFFSETS_TOPIC, number) for number in numbers]


async def find_coordinators(cluster: Cluster, groups: Iterable[str]) -> dict[str, BrokerId]:
    """By group, tried again until all are found."""
    asked = list(dict.fromkeys(groups))
    if not asked:
        return {}
    return await cluster.retrying(lambda: find_coordinators_once(cluster, asked), "finding coordinators")


async def call_coordinators(
    cluster: Cluster,
    groups: Iterable[str],
    build: Callable[[Sequence[str]], Message],
    read: Callable[[Any], Iterable[tuple[str, int, T]]],
    about: str,
    *,
    versions: Versions | None = None,
) -> dict[str, T]:
    """One result per group, in the order asked for; see `call_each`."""
    asked = list(dict.fromkeys(groups))
    if not asked:
        return {}
    return await call_each(
        cluster,
        asked,
        partial(find_coordinators_once, cluster),
        build,
        read,
        about,
        lambda group: f"{about} {group}",
        unreached=lambda failure, lost: CoordinatorError(failure, _partitions_of(cluster, lost)),
        versions=versions,
    )

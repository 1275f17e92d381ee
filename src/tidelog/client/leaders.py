"""Requests about many partitions, each answered by its leader; and partitions as requests group them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from tidelog.client.call_each import call_each
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError
from tidelog.errors import ErrorCode
from tidelog.types import BrokerId, TopicPartition
from tidelog.wire.schema import Message
from tidelog.wire.versions import Versions

T = TypeVar("T")


async def call_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    build: Callable[[Sequence[TopicPartition]], Message],
    read: Callable[[Any], Iterable[tuple[TopicPartition, int, T]]],
    about: str,
    *,
    versions: Versions | None = None,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, T]:
    """One answer per partition, in the order asked for. With a timeout of 0 nothing is tried again.

    `build` makes the request for some partitions, `read` yields (partition, error code, result) of its response.
    """
    asked = list(partitions)

    def about_one(partition: TopicPartition) -> str:
        return f"{about} of {partition}"

    async def leaders(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, BrokerId]:
        found: dict[TopicPartition, BrokerId] = {}
        for partition in partitions:
            leader = cluster.metadata.leader(partition)
            if leader is None:
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, about_one(partition), "its leader is not known")
            found[partition] = leader
        return found

    return await call_each(
        cluster,
        asked,
        leaders,
        build,
        read,
        about,
        about_one,
        versions=versions,
        topics=by_topic(asked),
        timeout_ms=timeout_ms,
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of each topic, as requests group them."""
    grouped: dict[str, list[int]] = {}
    for topic, number in partitions:
        grouped.setdefault(topic, []).append(number)
    return grouped

"""Requests about many partitions: split by leader, and those that failed tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError
from tidelog.errors import ErrorCode, TidelogError, error_code
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
    results: dict[TopicPartition, T] = {}
    topics = list(dict.fromkeys(partition.topic for partition in asked))

    async def ask(leader: BrokerId, of_leader: list[TopicPartition]) -> list[TidelogError]:
        failures: list[TidelogError] = []
        try:
            response = await cluster.call(build(of_leader), to=leader, versions=versions)
        except TidelogError as failure:
            return [failure]
        for partition, code, result in read(response):
            if code:
                failures.append(BrokerError(error_code(code), f"{about} of {partition}"))
            else:
                results[partition] = result
        return failures

    async def attempt() -> None:
        by_leader = _by_leader(cluster, [partition for partition in asked if partition not in results], about)
        rounds = await asyncio.gather(*(ask(leader, of_leader) for leader, of_leader in by_leader.items()))
        failures = [failure for failures in rounds for failure in failures]
        # What cannot be mended by trying again is told first.
        failures.sort(key=lambda failure: failure.code.retriable)
        if failures:
            raise failures[0]
        missing = next((partition for partition in asked if partition not in results), None)
        if missing is not None:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{about} of {missing}", "the answer lacks it")

    await cluster.retrying(attempt, about, topics=topics, timeout_ms=timeout_ms)
    return {partition: results[partition] for partition in asked}


def _by_leader(
    cluster: Cluster, partitions: Iterable[TopicPartition], about: str
) -> dict[BrokerId, list[TopicPartition]]:
    by_leader: dict[BrokerId, list[TopicPartition]] = {}
    for partition in partitions:
        leader = cluster.metadata.leader(partition)
        if leader is None:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{about} of {partition}", "its leader is not known")
        by_leader.setdefault(leader, []).append(partition)
    return by_leader


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of each topic, as requests group them."""
    grouped: dict[str, list[int]] = {}
    for topic, number in partitions:
        grouped.setdefault(topic, []).append(number)
    return grouped

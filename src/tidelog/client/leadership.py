"""Who leads and who holds partitions, changed by hand: elections and reassignments, carried out by the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError, DeadlineError, check, seconds
from tidelog.client.leaders import by_topic
from tidelog.client.waits import OwnWaits
from tidelog.errors import ErrorCode, error_code
from tidelog.types import BrokerId, TopicPartition
from tidelog.wire.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.versions import Versions

_ELECT_LEADERS = Versions(1, 2)
_ALTER_REASSIGNMENTS = Versions(0, 1)
_POLL_S = 0.1


class Election(IntEnum):
    """PREFERRED: the first replica, if it is in sync. UNCLEAN: where there is no leader, any living replica."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectionResult(NamedTuple):
    """NONE if a leader was elected; ELECTION_NOT_NEEDED is no failure."""

    code: ErrorCode
    message: str | None

    @property
    def failed(self) -> bool:
        return self.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


class Reassignment(NamedTuple):
    """A partition on its way: all replicas it has now, those that come and those that go."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]

    @property
    def target(self) -> tuple[BrokerId, ...]:
        return tuple(broker for broker in self.replicas if broker not in self.removing)


async def partitions_of(cluster: Cluster, topic: str, numbers: Iterable[int] = ()) -> list[TopicPartition]:
    """Those with these numbers, or all of the topic. BrokerError if one of them does not exist."""
    known = (await cluster.topic(topic, led=False, fresh=True)).partitions
    asked = list(dict.fromkeys(numbers)) or list(known)
    missing = next((number for number in asked if number not in known), None)
    if missing is not None:
        has = f"it has 0 to {len(known) - 1}"
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}", f"no partition {missing}; {has}")
    return [TopicPartition(topic, number) for number in asked]


async def elect_leaders(
    cluster: Cluster, election: Election, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, ElectionResult]:
    """None is all partitions, of which those that need no election may be left out of the answer."""
    asked = None if partitions is None else by_topic(partitions)
    request = ElectLeadersRequest(
        election_type=election,
        topic_partitions=None
        if asked is None
        else [ElectLeadersRequestTopicPartitions(topic=topic, partitions=numbers) for topic, numbers in asked.items()],
        timeout_ms=cluster.settings.request_timeout_ms,
    )

    async def attempt() -> dict[TopicPartition, ElectionResult]:
        response: ElectLeadersResponse = await cluster.call_controller(request, versions=_ELECT_LEADERS)
        check(response.error_code, "electing leaders")
        return {
            TopicPartition(topic.topic, one.partition_id): ElectionResult(error_code(one.error_code), one.error_message)
            for topic in response.replica_election_results
            for one in topic.partition_result
        }

    return await cluster.retrying(attempt, "electing leaders")


async def alter_reassignments(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[BrokerId] | None]
) -> dict[TopicPartition, BrokerError | None]:
    """Begin to move partitions to these replicas, the first of them preferred; None ends a move and goes back.

    What became of each: None if it has begun, else why it has not.
    """
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=cluster.settings.request_timeout_ms,
        topics=[
            ReassignableTopic(
                name=topic,
                partitions=[_reassignable(number, targets[TopicPartition(topic, number)]) for number in numbers],
            )
            for topic, numbers in by_topic(targets).items()
        ],
    )

    async def attempt() -> dict[TopicPartition, BrokerError | None]:
        response: AlterPartitionReassignmentsResponse = await cluster.call_controller(
            request, versions=_ALTER_REASSIGNMENTS
        )
        check(response.error_code, "reassigning partitions", response.error_message)
        results: dict[TopicPartition, BrokerError | None] = {}
        for topic in response.responses:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                failure = BrokerError(one.error_code, f"partition {partition}", one.error_message)
                results[partition] = failure if one.error_code else None
        return results

    return await cluster.retrying(attempt, "reassigning partitions")


def _reassignable(number: int, target: Sequence[BrokerId] | None) -> ReassignablePartition:
    return ReassignablePartition(partition_index=number, replicas=None if target is None else list(target))


async def list_reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """Those that are under way, of all partitions or of these."""
    asked = None if partitions is None else by_topic(partitions)
    request = ListPartitionReassignmentsRequest(
        timeout_ms=cluster.settings.request_timeout_ms,
        topics=None
        if asked is None
        else [
            ListPartitionReassignmentsTopics(name=topic, partition_indexes=numbers) for topic, numbers in asked.items()
        ],
    )

    async def attempt() -> dict[TopicPartition, Reassignment]:
        response: ListPartitionReassignmentsResponse = await cluster.call_controller(request)
        check(response.error_code, "the list of reassignments", response.error_message)
        return {
            TopicPartition(topic.name, one.partition_index): Reassignment(
                tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
            )
            for topic in response.topics
            for one in topic.partitions
        }

    return await cluster.retrying(attempt, "the list of reassignments")


async def wait_until_reassigned(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[BrokerId]], *, timeout_ms: float
) -> None:
    """Until none of them is under way and metadata shows the targets; DeadlineError says what is still missing."""
    missing = list(targets)
    waits, began_s = OwnWaits(cluster.waits), asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while missing := await _missing(cluster, targets):
                told = ", ".join(_still_missing(cluster, partition, targets[partition]) for partition in missing)
                waits.failed("reassigned", "reassigning partitions", f"not done yet: {told}", began_s)
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        told = ", ".join(_still_missing(cluster, partition, targets[partition]) for partition in missing)
        raise DeadlineError(f"reassigning partitions: not done after {seconds(timeout_ms)}: {told}") from None
    finally:
        waits.clear()


def _still_missing(cluster: Cluster, partition: TopicPartition, target: Sequence[BrokerId]) -> str:
    """The partition, and which of the brokers that are to hold it are not in sync."""
    known = cluster.metadata.partition(partition)
    behind = [broker for broker in target if known is None or broker not in known.isr]
    return f"{partition} (not in sync: {', '.join(map(str, behind))})" if behind else str(partition)


async def _missing(cluster: Cluster, targets: Mapping[TopicPartition, Sequence[BrokerId]]) -> list[TopicPartition]:
    moving = await list_reassignments(cluster, targets)
    await cluster.retrying(lambda: cluster.refresh_once(by_topic(targets)), "metadata", topics=None)
    return [
        partition
        for partition, target in targets.items()
        if partition in moving or not _has_replicas(cluster, partition, target)
    ]


def _has_replicas(cluster: Cluster, partition: TopicPartition, target: Sequence[BrokerId]) -> bool:
    known = cluster.metadata.partition(partition)
    return known is not None and known.replicas == tuple(target)

"""What a group has committed: read, written from outside or as a member, and removed (S9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.coordinators import call_coordinators
from tidelog.client.errors import BrokerError, check
from tidelog.client.leaders import by_topic
from tidelog.client.offsets import NO_OFFSET
from tidelog.errors import ErrorCode
from tidelog.groups.assignors import NO_GENERATION
from tidelog.types import NO_EPOCH, Epoch, Offset, TopicPartition
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidelog.wire.versions import Versions

OFFSET_COMMIT = Versions(5, 9)
"""Version 10 names topics by their ids; below 5 the client says how long an offset is kept."""
_OFFSET_FETCH = Versions(8, 9)
"""Several groups in one request came with 8; version 10 names topics by their ids."""


class CommittedOffset(NamedTuple):
    """Where the group goes on in a partition: the last processed offset + 1."""

    offset: Offset
    leader_epoch: Epoch = NO_EPOCH
    metadata: str = ""


Committed = dict[TopicPartition, CommittedOffset]
"""Partitions without a committed offset are not in it: that is not the same as 0."""

Offsets = Mapping[TopicPartition, Offset | CommittedOffset]
Deleted = dict[TopicPartition, BrokerError | None]


class Committer(NamedTuple):
    """As whom a commit is made; by default as nobody, which a group with members refuses."""

    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None


OUTSIDER = Committer()


async def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
) -> Committed:
    """Of these partitions or of all, sorted. `require_stable` waits for transactions that are about to commit."""
    asked = None if partitions is None else by_topic(dict.fromkeys(partitions))
    topics = None
    if asked is not None:
        topics = [OffsetFetchRequestTopics(name=name, partition_indexes=numbers) for name, numbers in asked.items()]

    def build(groups: Sequence[str]) -> OffsetFetchRequest:
        wanted = [OffsetFetchRequestGroup(group_id=one, topics=topics) for one in groups]
        return OffsetFetchRequest(groups=wanted, require_stable=require_stable)

    found = await call_coordinators(
        cluster, [group], build, _read_committed, "offsets of group", versions=_OFFSET_FETCH
    )
    return found[group]


def _read_committed(response: OffsetFetchResponse) -> Iterator[tuple[str, int, Committed]]:
    for one in response.groups:
        code, committed = one.error_code, {}
        for topic in one.topics:
            for found in topic.partitions:
                code = code or found.error_code
                if found.committed_offset != NO_OFFSET:
                    committed[TopicPartition(topic.name, found.partition_index)] = CommittedOffset(
                        found.committed_offset, found.committed_leader_epoch, found.metadata or ""
                    )
        yield one.group_id, code, dict(sorted(committed.items()))


def commit_request(group: str, offsets: Offsets, committer: Committer = OUTSIDER) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=committer.generation,
        member_id=committer.member_id,
        group_instance_id=committer.instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[_committed(number, offsets[TopicPartition(topic, number)]) for number in numbers],
            )
            for topic, numbers in by_topic(offsets).items()
        ],
    )


def _committed(number: int, offset: Offset | CommittedOffset) -> OffsetCommitRequestPartition:
    whole = offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset)
    return OffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=whole.offset,
        committed_leader_epoch=whole.leader_epoch,
        committed_metadata=whole.metadata,
    )


def check_commit(response: OffsetCommitResponse, group: str) -> None:
    """BrokerError for the first partition that was not committed."""
    for topic in response.topics:
        for one in topic.partitions:
            check(one.error_code, f"commit of {TopicPartition(topic.name, one.partition_index)} by group {group}")


async def commit_offsets(cluster: Cluster, group: str, offsets: Offsets) -> None:
    """From outside. BrokerError, with UNKNOWN_MEMBER_ID, while the group has members."""

    def read(response: OffsetCommitResponse) -> Iterator[tuple[str, int, None]]:
        codes = [one.error_code for topic in response.topics for one in topic.partitions]
        yield group, next((code for code in codes if code), ErrorCode.NONE), None

    request = commit_request(group, offsets)
    await call_coordinators(cluster, [group], lambda _: request, read, "commit by group", versions=OFFSET_COMMIT)


async def delete_offsets(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> Deleted:
    """What became of each: None if its offset is gone, else why it is not (GROUP_SUBSCRIBED_TO_TOPIC)."""
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
            )
            for topic, numbers in by_topic(dict.fromkeys(partitions)).items()
        ],
    )

    def read(response: OffsetDeleteResponse) -> Iterator[tuple[str, int, Deleted]]:
        results: Deleted = {}
        for topic in response.topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                about = f"offset of {partition} of group {group}"
                results[partition] = BrokerError(one.error_code, about) if one.error_code else None
        yield group, response.error_code, results

    return (await call_coordinators(cluster, [group], lambda _: request, read, "offsets of group"))[group]

"""Answers that say no, in the form that each request and version has for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tidelog.errors import ErrorCode
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tidelog.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.wire.schema import Message

NO_OFFSET = -1


def join_error(error: int, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id)


def sync_error(error: int) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error)


def leave_response(members: list[MemberResponse], version: int) -> LeaveGroupResponse:
    """Below v3 there is one member and one error."""
    if version >= 3:
        return LeaveGroupResponse(members=members)
    return LeaveGroupResponse(error_code=members[0].error_code)


def commit_error(request: OffsetCommitRequest, error: int) -> OffsetCommitResponse:
    """The error for every partition: the response has no other place for it."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# OffsetFetch: before v8 it asks for one group, and is answered in another form


def fetched_groups(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequestGroup]:
    """The groups that are asked for, in the form of v8 and later."""
    if version >= 8:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def fetch_error(group: OffsetFetchRequestGroup, error: int, version: int) -> OffsetFetchResponseGroup:
    """v1 has a place for errors only in partitions."""
    if version >= 2:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    topics = [
        OffsetFetchResponseTopics(
            name=topic.name,
            partitions=[missing_offset(partition, error) for partition in topic.partition_indexes],
        )
        for topic in group.topics or ()
    ]
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def missing_offset(partition: int, error: int = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=NO_OFFSET, metadata="", error_code=error
    )


def fetch_response(groups: list[OffsetFetchResponseGroup], version: int) -> OffsetFetchResponse:
    """The answers for all groups of a request, as its version has them."""
    if version >= 8:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


# Refusing a whole request


def described_error(group_ids: Iterable[str], error: int) -> list[DescribeGroupsResponseDescribedGroup]:
    return [DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=error) for group_id in group_ids]


def deleted_error(group_ids: Iterable[str], error: int) -> list[DeletableGroupResult]:
    return [DeletableGroupResult(group_id=group_id, error_code=error) for group_id in group_ids]


def _refuse_heartbeat(_request: HeartbeatRequest, error: int, _version: int) -> HeartbeatResponse:
    """While the group is loaded nothing can be said of the member, and it need not be troubled."""
    is_loading = error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else error)


def _refuse_fetch(request: OffsetFetchRequest, error: int, version: int) -> OffsetFetchResponse:
    groups = [fetch_error(group, error, version) for group in fetched_groups(request, version)]
    return fetch_response(groups, version)


_REFUSALS: dict[type[Message], Callable[[Any, int, int], Message]] = {
    JoinGroupRequest: lambda request, error, version: join_error(error, request.member_id),
    SyncGroupRequest: lambda request, error, version: sync_error(error),
    HeartbeatRequest: _refuse_heartbeat,
    LeaveGroupRequest: lambda request, error, version: LeaveGroupResponse(error_code=error),
    OffsetCommitRequest: lambda request, error, version: commit_error(request, error),
    OffsetFetchRequest: _refuse_fetch,
    OffsetDeleteRequest: lambda request, error, version: OffsetDeleteResponse(error_code=error),
    DescribeGroupsRequest: lambda request, error, version: DescribeGroupsResponse(
        groups=described_error(request.groups, error)
    ),
    ListGroupsRequest: lambda request, error, version: ListGroupsResponse(error_code=error),
    DeleteGroupsRequest: lambda request, error, version: DeleteGroupsResponse(
        results=deleted_error(request.groups_names, error)
    ),
}


def refuse(request: Message, error: int, version: int) -> Message:
    """The answer to a request of any kind that this broker cannot serve: not the coordinator, or still loading."""
    return _REFUSALS[type(request)](request, error, version)

"""Fake brokers that coordinate groups of one member, on a simulated network; mishaps are scripted by API key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.kits.fake_broker import FakeBroker, FakeCluster
from tidelog.client.cluster import Cluster
from tidelog.client.consumer_protocol import decode_assignment
from tidelog.errors import ErrorCode
from tidelog.lab.world import World
from tidelog.types import TopicPartition
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tidelog.wire.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.wire.messages.metadata import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.schema import Message

COMMIT, FETCH_OFFSETS, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST = 8, 9, 10, 11, 12, 13, 14, 15, 16


class FakeGroups(FakeCluster):
    """What the coordinators know. A group is where `coordinators` says, else at broker 1."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinators: dict[str, int] = {}
        self.generation = 0
        self.members = 0
        self.committed: dict[TopicPartition, int] = {}

    def coordinator(self, group: str) -> int:
        return self.coordinators.get(group, 1)


class FakeGroupBroker(FakeBroker):
    """Whoever joins leads, in a new generation. Who is not the coordinator says so."""

    def __init__(self, cluster: FakeGroups, broker_id: int, host: str) -> None:
        super().__init__(cluster, broker_id, host)
        self.groups = cluster

    def _answer(self, request: Message) -> Message | None:
        if isinstance(request, FindCoordinatorRequest):
            found = [(group, self.groups.coordinator(group)) for group in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=[Coordinator(key=key, node_id=node) for key, node in found])
        if isinstance(request, ListGroupsRequest):
            mine = [group for group, broker in self.groups.coordinators.items() if broker == self.id]
            return ListGroupsResponse(groups=[ListedGroup(group_id=group, group_state="Empty") for group in mine])
        if isinstance(request, DescribeGroupsRequest):
            return DescribeGroupsResponse(groups=[self._described(group) for group in request.groups])
        if isinstance(request, JoinGroupRequest):
            return self._joined(request)
        if isinstance(request, SyncGroupRequest):
            (one,) = [one for one in request.assignments if one.member_id == request.member_id]
            return SyncGroupResponse(assignment=one.assignment, protocol_name=request.protocol_name)
        if isinstance(request, HeartbeatRequest):
            is_current = request.generation_id == self.groups.generation
            return HeartbeatResponse(error_code=ErrorCode.NONE if is_current else ErrorCode.ILLEGAL_GENERATION)
        if isinstance(request, LeaveGroupRequest):
            return LeaveGroupResponse()
        if isinstance(request, OffsetCommitRequest):
            return self._commit(request)
        if isinstance(request, OffsetFetchRequest):
            return self._fetch_offsets(request)
        return super()._answer(request)

    def _described(self, group: str) -> DescribeGroupsResponseDescribedGroup:
        code = ErrorCode.NONE if self.groups.coordinator(group) == self.id else ErrorCode.NOT_COORDINATOR
        return DescribeGroupsResponseDescribedGroup(error_code=code, group_id=group, group_state="Empty")

    def _joined(self, request: JoinGroupRequest) -> JoinGroupResponse:
        if self.groups.coordinator(request.group_id) != self.id:
            return JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
        member = request.member_id
        if not member:
            self.groups.members += 1
            member = f"member-{self.groups.members}"
            if request.group_instance_id is None:
                return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member)
        self.groups.generation += 1
        protocol = request.protocols[0]
        return JoinGroupResponse(
            generation_id=self.groups.generation,
            protocol_name=protocol.name,
            leader=member,
            member_id=member,
            members=[JoinGroupResponseMember(member_id=member, metadata=protocol.metadata)],
        )

    def _commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        code = ErrorCode.NONE
        if self.groups.coordinator(request.group_id) != self.id:
            code = ErrorCode.NOT_COORDINATOR
        elif request.generation_id_or_member_epoch not in (-1, self.groups.generation):
            code = ErrorCode.ILLEGAL_GENERATION
        return committed(request, code, self.groups)

    def _fetch_offsets(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        (group,) = request.groups
        asked = [
            TopicPartition(topic.name, number) for topic in group.topics or () for number in topic.partition_indexes
        ]
        topics = [
            OffsetFetchResponseTopics(
                name=partition.topic,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=partition.partition, committed_offset=self.groups.committed.get(partition, -1)
                    )
                ],
            )
            for partition in (self.groups.committed if group.topics is None else asked)
        ]
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)])


def committed(request: OffsetCommitRequest, code: ErrorCode, groups: FakeGroups | None = None) -> OffsetCommitResponse:
    """The answer to a commit; one that went well is noted."""
    topics = []
    for topic in request.topics:
        partitions = []
        for one in topic.partitions:
            partitions.append(OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code))
            if groups is not None and not code:
                groups.committed[TopicPartition(topic.name, one.partition_index)] = one.committed_offset
        topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    return OffsetCommitResponse(topics=topics)


def shares_of(request: SyncGroupRequest) -> dict[str, list[str]]:
    """What a leader dealt out."""
    return {one.member_id: [str(p) for p in decode_assignment(one.assignment)] for one in request.assignments}


Story = Callable[[Cluster, FakeGroups], Coroutine[Any, Any, None]]


def simulate_groups(story: Story, *, brokers: int = 1, seed: int = 1) -> FakeGroups:
    """Brokers 1..n on hosts of their own, broker 1 leading orders-0 to orders-2; the story is a client's."""
    fake = FakeGroups()
    fake.leaders = {TopicPartition("orders", number): 1 for number in range(3)}
    with World(seed) as world:

        async def serve(broker: FakeBroker) -> None:
            await broker.serve(9092)
            await asyncio.get_running_loop().create_future()

        async def call() -> None:
            host = world.host("client")
            async with await Cluster.open([("b1", 9092)], random=host.random) as cluster:
                await story(cluster, fake)

        async def main() -> None:
            for number in range(1, brokers + 1):
                world.host(f"b{number}").start(serve(FakeGroupBroker(fake, number, f"b{number}")))
            await asyncio.sleep(0.1)
            await world.host("client").start(call())

        world.run(main())
    return fake

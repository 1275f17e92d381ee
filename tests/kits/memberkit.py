"""Members of consumer groups, request by request, for tests of the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidelog.errors import ErrorCode
from tidelog.lab.broker import LabBroker, eventually
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidelog.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidelog.wire.messages.metadata import FindCoordinatorRequest
from tidelog.wire.stored import encode_versioned

JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH, FIND = 9, 5, 4, 5, 9, 9, 6
GROUP = "g"


def subscription(*topics: str) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


async def coordinator_of(kit: LabBroker, group: str = GROUP) -> int:
    """The broker that coordinates the group, once there is one that has loaded it."""
    found = -1

    async def ask() -> None:
        nonlocal found
        answer = await kit.call(FindCoordinatorRequest(coordinator_keys=[group]), FIND)
        found = answer.coordinators[0].node_id

    await ask()
    while found < 0:
        await ask()
    return found


async def ready(kit: LabBroker, group: str = GROUP) -> None:
    """This broker, alone, coordinates the group."""
    await coordinator_of(kit, group)
    await eventually(lambda: kit.broker.groups.shards[kit.broker.groups.index_of(group)].is_active)


def stable_generation(members: list[MemberKit]) -> set[int]:
    """The generations of which they have shares; one, and not -1, if they all live in the same one."""
    return {member.synced for member in members}


class MemberKit:
    """One member, with a connection of its own; it does what it is told and nothing by itself."""

    def __init__(self, kit: LabBroker, name: str = "m", group: str = GROUP, instance_id: str | None = None) -> None:
        self.kit = kit
        self.group = group
        self.name = name
        self.instance_id = instance_id
        self.id = ""
        self.generation = -1
        self.synced = -1
        """The generation of which it has a share."""
        self.is_leader = False
        self.members: list[str] = []

    async def call(self, request: Any, version: int) -> Any:
        connection = await self.kit.connect()
        try:
            return await connection.call(request, version, timeout_ms=120_000)
        finally:
            connection.close()

    async def join_once(self, *, session_ms: int = 10_000, rebalance_ms: int = 20_000) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=self.id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
        )
        answer: JoinGroupResponse = await self.call(request, JOIN)
        if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.id = answer.member_id
        if answer.error_code == ErrorCode.NONE:
            self.generation = answer.generation_id
            self.is_leader = answer.leader == self.id
            self.members = [member.member_id for member in answer.members]
        return answer

    async def join(self, **timeouts: int) -> ErrorCode:
        answer = await self.join_once(**timeouts)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = await self.join_once(**timeouts)
        return ErrorCode(answer.error_code)

    async def live(self, until: Callable[[], bool]) -> None:
        """Joins, syncs and sends heartbeats, as a consumer does, until all is as it should be."""
        while True:
            assert await self.join() is ErrorCode.NONE
            code, share = await self.sync()
            if code is not ErrorCode.NONE:
                continue
            assert share == self.id.encode()
            self.synced = self.generation
            while await self.heartbeat() is ErrorCode.NONE:
                if until():
                    return
                await asyncio.sleep(0.05)

    async def sync(self) -> tuple[ErrorCode, bytes]:
        """The leader gives each member its own id as its share, so that each can see that it got its own."""
        shares = [SyncGroupRequestAssignment(member_id=one, assignment=one.encode()) for one in self.members]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=shares if self.is_leader else [],
        )
        answer = await self.call(request, SYNC)
        return ErrorCode(answer.error_code), answer.assignment

    async def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
        )
        return ErrorCode((await self.call(request, HEARTBEAT)).error_code)

    async def leave(self) -> ErrorCode:
        identity = MemberIdentity(member_id=self.id, group_instance_id=self.instance_id)
        answer = await self.call(LeaveGroupRequest(group_id=self.group, members=[identity]), LEAVE)
        return ErrorCode(answer.error_code or answer.members[0].error_code)

    async def commit(self, offset: int, topic: str = "t", index: int = 0) -> ErrorCode:
        answer = await self.call(commit_request(self.group, {(topic, index): offset}, self.id, self.generation), COMMIT)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def committed(self, topic: str = "t", index: int = 0) -> int | ErrorCode:
        wanted = [OffsetFetchRequestTopics(name=topic, partition_indexes=[index])]
        answer = await self.call(
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.group, topics=wanted)]), FETCH
        )
        (group,) = answer.groups
        if group.error_code:
            return ErrorCode(group.error_code)
        offset: int = group.topics[0].partitions[0].committed_offset
        return offset


def commit_request(
    group: str, offsets: dict[tuple[str, int], int], member_id: str = "", generation: int = -1
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, index), offset in offsets.items():
        topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name))
        topic.partitions.append(OffsetCommitRequestPartition(partition_index=index, committed_offset=offset))
    return OffsetCommitRequest(
        group_id=group,
        member_id=member_id,
        generation_id_or_member_epoch=generation,
        topics=list(topics.values()),
    )

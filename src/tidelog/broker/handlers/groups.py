"""JoinGroup, Heartbeat, LeaveGroup, SyncGroup (11 to 14), DescribeGroups (15), ListGroups (16), DeleteGroups (42).

The rules are in tidelog.groups; here requests find their shard, and answers the way back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from tidelog.broker.dispatch import Later
from tidelog.broker.group.replies import Gathered, Reply, in_slices, is_large
from tidelog.broker.pacing import Pace, cost_of_id
from tidelog.broker.partition import RequestError
from tidelog.errors import ErrorCode
from tidelog.groups import MAX_CLIENT_ID, MAX_GROUP_ID, Client, Effect, Groups, refuse
from tidelog.net.channel import Call
from tidelog.wire import Message
from tidelog.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from tidelog.wording import counted, listed, shown

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


_log = logging.getLogger(__name__)

_COST_OF_DELETION = 10
"""Elements of a slice that the deletion of one group takes, beside what was committed in it."""

Ask: TypeAlias = Callable[[Groups, int, Reply], list[Effect]]
"""What a request asks of the groups of its shard, at a time and with a ticket."""


def ask_group(broker: Broker, request: Any, call: Call, ask: Ask) -> Message | Later:
    """The answer of the shard that holds the request's group, or why this broker has none to give."""
    try:
        shard = broker.groups.shard_of(request.group_id)
    except RequestError as failure:
        return refuse(request, failure.code, call.version)
    reply = Reply(call.connection, broker.lane)
    shard.perform(ask(shard.groups, broker.groups.now_ms(), reply))
    return reply.result


def join_group(broker: Broker, request: JoinGroupRequest, call: Call) -> Message | Later | Awaitable[Message]:
    """A leader that has not heard the answer gets it again at once. If it is large, later requests of the connection
    wait for it. They do not wait for a join that is parked until all members have come."""
    client = Client((call.client_id or "")[:MAX_CLIENT_ID], f"/{call.client_host}")
    suffix = str(UUID(bytes=broker.random.randbytes(16), version=4))
    answer = ask_group(
        broker,
        request,
        call,
        lambda groups, now_ms, reply: groups.join(request, call.version, client, suffix, now_ms, reply),
    )
    broker.groups.bounds.drop_oldest_ids()
    return in_slices(broker.lane, answer) if is_large(answer) else answer


def sync_group(broker: Broker, request: SyncGroupRequest, call: Call) -> Message | Later:
    return ask_group(
        broker, request, call, lambda groups, now_ms, reply: groups.sync(request, call.version, now_ms, reply)
    )


def heartbeat(broker: Broker, request: HeartbeatRequest, call: Call) -> Message | Later:
    return ask_group(broker, request, call, lambda groups, now_ms, reply: groups.heartbeat(request, now_ms, reply))


def leave_group(broker: Broker, request: LeaveGroupRequest, call: Call) -> Message | Later:
    return ask_group(
        broker, request, call, lambda groups, now_ms, reply: groups.leave(request, call.version, now_ms, reply)
    )


async def describe_groups(broker: Broker, request: DescribeGroupsRequest, call: Call) -> DescribeGroupsResponse:
    """Each group once, however often it is named. A group is described in one go, so its members belong together."""
    pace = Pace(broker.lane)
    groups: dict[str, DescribeGroupsResponseDescribedGroup] = {}
    for group_id in request.groups:
        await pace.spend(cost_of_id(group_id))
        if group_id not in groups:
            groups[group_id] = described = _described(broker, group_id, call.version)
            await pace.spend(len(described.members))
    return DescribeGroupsResponse(groups=list(groups.values()))


def _described(broker: Broker, group_id: str, version: int) -> DescribeGroupsResponseDescribedGroup:
    """No group has a longer id than MAX_GROUP_ID. Such an id is cut in the answer, see `coordinators`."""
    if len(group_id) > MAX_GROUP_ID:
        cut = group_id[:MAX_GROUP_ID]
        return DescribeGroupsResponseDescribedGroup(group_id=cut, error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        return broker.groups.shard_of(group_id).groups.describe(group_id, version)
    except RequestError as failure:
        return DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=failure.code)


async def list_groups(broker: Broker, request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
    """Those of this broker; while some of them are being loaded it says so, and names the others.

    A partition that failed to load has no coordinator here, so its groups are left out without an error, as in Kafka:
    one partition that cannot be read must not hide the groups of all others.
    """
    pace = Pace(broker.lane)
    shards = list(broker.groups.shards.values())
    is_loading = any(not shard.is_active and not shard.has_failed for shard in shards)
    found: list[ListedGroup] = []
    for shard in shards:
        ids = shard.groups.ids() if shard.is_active else []
        async for part in pace.slices(ids):
            found += shard.groups.list_groups(request.states_filter, request.types_filter, part)
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE
    return ListGroupsResponse(error_code=code, groups=found)


async def delete_groups(broker: Broker, request: DeleteGroupsRequest, call: Call) -> Message:
    """Each group is deleted, or not, by itself; once, however often it is named, as in Kafka."""
    pace = Pace(broker.lane)
    once: dict[str, None] = {}
    for group_id in request.groups_names:
        await pace.spend(cost_of_id(group_id))
        once[group_id] = None
    names = list(once)
    _log.info("%s asked to delete %s: %s", call.sender, counted(len(names), "group"), listed(names, shown))
    gathered: Gathered[DeletableGroupResult] = Gathered(
        len(names), lambda results: DeleteGroupsResponse(results=results)
    )
    for group_id, ticket in zip(names, gathered.tickets, strict=True):
        await pace.spend(_COST_OF_DELETION + cost_of_id(group_id))
        if len(group_id) > MAX_GROUP_ID:
            cut = group_id[:MAX_GROUP_ID]
            ticket.give(DeletableGroupResult(group_id=cut, error_code=ErrorCode.INVALID_GROUP_ID))
            continue
        try:
            shard = broker.groups.shard_of(group_id)
        except RequestError as failure:
            ticket.give(DeletableGroupResult(group_id=group_id, error_code=failure.code))
        else:
            shard.perform(shard.groups.delete_group(group_id, broker.groups.now_ms(), ticket))
    return await gathered.wait()

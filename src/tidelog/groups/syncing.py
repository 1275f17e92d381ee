"""SyncGroup v0-5 and Heartbeat v0-4: the assignment of a generation, and the lives of its members.

SyncGroup v3 and Heartbeat v3 added static members; SyncGroup v5 names the protocol that the member takes for granted.
"""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.groups.answers import sync_error
from tidelog.groups.effects import Ticket, Turn
from tidelog.groups.group import Group
from tidelog.groups.member import Member
from tidelog.groups.rebalance import begin, keep_alive, store, withdraw_assignments
from tidelog.groups.records import answered_error
from tidelog.groups.states import GroupState
from tidelog.groups.usage import MEMBERS_MAX_BYTES
from tidelog.wire.messages.groups import HeartbeatRequest, SyncGroupRequest, SyncGroupResponse


def sync(turn: Turn, group: Group, request: SyncGroupRequest, ticket: Ticket) -> None:
    """Followers wait for the leader's assignment; that is given out when it is stored."""
    error = _sync_error(group, request)
    if error:
        turn.answer(ticket, sync_error(error))
        return
    member = group.members[request.member_id]
    assignments = {given.member_id: given.assignment for given in request.assignments}
    is_decided = group.state is GroupState.STABLE or member.id != group.leader or group.storing
    if not is_decided and not _has_memory(turn, group, assignments):
        turn.answer(ticket, sync_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    group.unsynced.pop(member.id, None)
    if not group.unsynced:
        turn.timers.cancel(group.sync_timer)
    if group.state is GroupState.STABLE:
        turn.answer(ticket, assigned(group, member))
        return
    if member.sync_ticket is not None:
        turn.answer(member.sync_ticket, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    member.sync_ticket = ticket
    if not is_decided:
        _store(turn, group, assignments)


def _sync_error(group: Group, request: SyncGroupRequest) -> ErrorCode:
    error = group.error_of(request.member_id, request.group_instance_id)
    if error:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if not _agree(request.protocol_type, group.protocol_type) or not _agree(request.protocol_name, group.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _agree(mine: str | None, yours: str | None) -> bool:
    return mine is None or yours is None or mine == yours


def _has_memory(turn: Turn, group: Group, assignments: dict[str, bytes]) -> bool:
    """Whether the broker has room for what these assignments take more than those before. If not, the leader joins
    again, and by then sessions that ended may have made room."""
    added = sum(
        len(assignments.get(member_id, b"")) - len(member.assignment) for member_id, member in group.members.items()
    )
    usage = group.usage
    if added <= 0 or usage.member_bytes + added <= turn.config.broker_members_max_bytes:
        return True
    usage.refuse(MEMBERS_MAX_BYTES)
    return False


def _store(turn: Turn, group: Group, assignments: dict[str, bytes]) -> None:
    generation = group.generation
    group.storing = True

    def settled(turn: Turn, error: int) -> None:
        if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
            return  # Others came or went in the meantime; all have been told to join again.
        if error:
            withdraw_assignments(turn, group, answered_error(error))
            begin(turn, group)
            return
        group.move_to(GroupState.STABLE, turn.now_ms)
        group.usage.story.became_stable(group, turn.now_ms)
        for member in group.members.values():
            group.assign(member, assignments.get(member.id, b""))
            if member.sync_ticket is not None:
                ticket, member.sync_ticket = member.sync_ticket, None
                turn.answer(ticket, assigned(group, member))
                keep_alive(turn, member)

    store(turn, group, assignments, settled)


def assigned(group: Group, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


def heartbeat(turn: Turn, group: Group, request: HeartbeatRequest) -> ErrorCode:
    """By this a member shows that it lives, and learns that it has to join again (S8.4)."""
    error = group.error_of(request.member_id, request.group_instance_id)
    if error:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    keep_alive(turn, group.members[request.member_id])
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE

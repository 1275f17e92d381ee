"""SyncGroup v0-5 and Heartbeat v0-4: the assignment of a generation, and the lives of its members.

SyncGroup v3 and Heartbeat v3 added static members; SyncGroup v5 names the protocol that the member takes for granted.
"""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.groups.answers import sync_error
from tidelog.groups.effects import Ticket, Turn
from tidelog.groups.group import Group
from tidelog.groups.member import Member
from tidelog.groups.rebalance import begin, keep_alive, withdraw_assignments
from tidelog.groups.records import answered_error, group_record
from tidelog.groups.states import GroupState
from tidelog.wire.messages.groups import HeartbeatRequest, SyncGroupRequest, SyncGroupResponse


def sync(turn: Turn, group: Group, request: SyncGroupRequest, ticket: Ticket) -> None:
    """Followers wait for the leader's assignment; that is given out when it is stored."""
    error = _sync_error(group, request)
    if error:
        turn.answer(ticket, sync_error(error))
        return
    member = group.members[request.member_id]
    group.unsynced.pop(member.id, None)
    if not group.unsynced:
        turn.timers.cancel(group.sync_timer)
    if group.state is GroupState.STABLE:
        turn.answer(ticket, assigned(group, member))
        return
    if member.sync_ticket is not None:
        turn.answer(member.sync_ticket, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    member.sync_ticket = ticket
    if member.id == group.leader and not group.storing:
        _store(turn, group, {given.member_id: given.assignment for given in request.assignments})


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
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.sync_ticket is not None:
                ticket, member.sync_ticket = member.sync_ticket, None
                turn.answer(ticket, assigned(group, member))
                keep_alive(turn, member)

    turn.write([group_record(group.id, group.stored(assignments))], settled)


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

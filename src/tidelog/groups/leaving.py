"""LeaveGroup v0-5: members that go, one by itself, or many at the word of an administrator (v3, KIP-345)."""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.groups.answers import leave_response
from tidelog.groups.effects import Ticket, Turn
from tidelog.groups.group import Group
from tidelog.groups.rebalance import complete_if_all_joined, drop, rebalance
from tidelog.groups.records import answered_error
from tidelog.wire.messages.groups import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse


def leave(turn: Turn, group: Group | None, request: LeaveGroupRequest, version: int, ticket: Ticket) -> None:
    """If the last member goes, that is stored before it is answered."""
    leaving = request.members if version >= 3 else [MemberIdentity(member_id=request.member_id)]
    count = 0 if group is None else len(group.members)
    answers = []
    for identity in leaving:
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _leave_one(turn, group, identity)
        answers.append(
            MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error)
        )
    if group is not None:
        if len(group.members) < count:
            rebalance(turn, group)
        else:
            complete_if_all_joined(turn, group)
    turn.answer_when_written(
        ticket,
        leave_response(answers, version),
        lambda error: LeaveGroupResponse(error_code=answered_error(error)),
    )


def _leave_one(turn: Turn, group: Group, identity: MemberIdentity) -> ErrorCode:
    """Without a member id, a static member is meant, whatever its id is now."""
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if not member_id:
        if instance_id is None or instance_id not in group.static:
            return ErrorCode.UNKNOWN_MEMBER_ID
        drop(turn, group, group.members[group.static[instance_id]], "left")
        return ErrorCode.NONE
    pending = group.take_pending(member_id)
    if pending is not None:
        turn.timers.cancel(pending)
        return ErrorCode.NONE
    error = group.error_of(member_id, instance_id)
    if not error:
        drop(turn, group, group.members[member_id], "left")
    return error

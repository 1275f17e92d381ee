"""JoinGroup v0-9: who may join, and as whom.

v1 added the rebalance timeout; v4 a member id that has to be asked for first (KIP-394); v5 static members (KIP-345);
v7 the protocol type in the answer; v8 the reason; v9 a leader that need not assign anew.
"""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.groups.answers import join_error
from tidelog.groups.effects import Turn
from tidelog.groups.group import Group
from tidelog.groups.member import NEW_MEMBER_BYTES, Join, Member
from tidelog.groups.rebalance import complete_if_all_joined, drop, joined, rebalance
from tidelog.groups.returning import come_back
from tidelog.groups.states import GroupState
from tidelog.groups.timers import Timer, TimerKind
from tidelog.groups.usage import MEMBERS_MAX_BYTES

MEMBER_ID_REQUIRED_SINCE = 4


def join(turn: Turn, group: Group, asked: Join) -> None:
    """The answer comes at once, or when the rebalance is complete that this leads to."""
    request = asked.request
    member_id = request.member_id or group.static.get(request.group_instance_id or "", "")
    member = group.members.get(member_id)
    if not _has_room(turn, group, member):
        if member is not None:
            drop(turn, group, member, "found no room (group.max.size)")
        _refuse(turn, asked, ErrorCode.GROUP_MAX_SIZE_REACHED)
        complete_if_all_joined(turn, group)
    elif not group.supports(request.protocol_type, asked.terms.protocols):
        _refuse(turn, asked, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
    elif request.member_id:
        _join_known(turn, group, asked)
    elif request.group_instance_id is not None:
        known_id = group.static.get(request.group_instance_id)
        if known_id is None:
            _join_new(turn, group, asked, asked.new_id)
        elif _has_memory(turn, group, asked, group.members[known_id]):
            come_back(turn, group, asked, group.members[known_id])
    elif asked.version >= MEMBER_ID_REQUIRED_SINCE:
        _hand_out_id(turn, group, asked)
    else:
        _join_new(turn, group, asked, asked.new_id)


def _refuse(turn: Turn, asked: Join, error: int, member_id: str = "") -> None:
    turn.answer(asked.ticket, join_error(error, member_id))


def _has_room(turn: Turn, group: Group, member: Member | None) -> bool:
    """While members join again, those who have done so count: the last ones may find the group full."""
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.join_ticket is not None) or group.joining < turn.config.max_size
    return member is not None or len(group.members) < turn.config.max_size


def _has_memory(turn: Turn, group: Group, asked: Join, member: Member | None = None) -> bool:
    """Whether the broker has room for what a new member brings, or for what a known one brings more than before.

    If not, the client is told to come again: members whose sessions end make room.
    """
    new_bytes = asked.terms.size_bytes
    added = new_bytes + NEW_MEMBER_BYTES if member is None else new_bytes - member.terms.size_bytes
    usage = group.usage
    if added <= 0 or usage.member_bytes + added <= turn.config.broker_members_max_bytes:
        return True
    usage.refuse(MEMBERS_MAX_BYTES)
    _refuse(turn, asked, ErrorCode.COORDINATOR_NOT_AVAILABLE, asked.request.member_id)
    return False


def _hand_out_id(turn: Turn, group: Group, asked: Join) -> None:
    """It is to come again with this id: an answer that is lost leaves no member behind, only an id that expires.

    If too many ids of the group are pending, the oldest makes room. It is no member: who comes with it hears
    UNKNOWN_MEMBER_ID and asks for another. A refusal of the new one instead would let a client that has left keep all
    others out. group.max.size does not count ids, as in Kafka.
    """
    config = turn.config
    if len(group.pending) >= config.group_pending_members_max:
        oldest = group.take_pending(next(iter(group.pending)))
        assert oldest is not None
        turn.timers.cancel(oldest)
        group.usage.evicted_ids += 1
    timer = Timer(TimerKind.PENDING, group, asked.new_id)
    group.hand_out(asked.new_id, timer)
    turn.timers.set(timer, turn.now_ms + min(asked.terms.session_timeout_ms, config.pending_member_timeout_ms))
    _refuse(turn, asked, ErrorCode.MEMBER_ID_REQUIRED, asked.new_id)


def _join_new(turn: Turn, group: Group, asked: Join, member_id: str) -> None:
    request = asked.request
    if not _has_memory(turn, group, asked):
        return
    pending = group.pending.get(member_id)
    if pending is not None:
        turn.timers.cancel(pending)
    session = Timer(TimerKind.SESSION, group, member_id)
    member = Member(member_id, request.group_instance_id, asked.client, asked.terms, session)
    member.is_new = True
    member.heard_ms = turn.now_ms
    group.add(member, request.protocol_type)
    group.wait_for_join(member, asked.ticket)
    turn.timers.set(session, turn.now_ms + turn.config.new_member_join_timeout_ms)
    group.has_new_member = True
    group.usage.story.member_joined(group, member, "joined")
    rebalance(turn, group)


def _join_known(turn: Turn, group: Group, asked: Join) -> None:
    request = asked.request
    if request.member_id in group.pending:
        if request.group_instance_id is not None:
            # Ids of static members are never pending: somebody mixes them up.
            _refuse(turn, asked, ErrorCode.UNKNOWN_SERVER_ERROR, request.member_id)
        else:
            _join_new(turn, group, asked, request.member_id)
        return
    error = group.error_of(request.member_id, request.group_instance_id)
    if error:
        _refuse(turn, asked, error, request.member_id)
        return
    member = group.members[request.member_id]
    if group.state is not GroupState.PREPARING_REBALANCE and _is_up_to_date(group, member, asked):
        turn.answer(asked.ticket, joined(group, member))
        return
    if not _has_memory(turn, group, asked, member):
        return
    _supersede_join(turn, group, member)
    member.heard_ms = turn.now_ms
    group.update(member, asked.terms)
    group.wait_for_join(member, asked.ticket)
    if group.can_rebalance:
        group.usage.story.member_joined(group, member, "joined again, with other metadata or as the leader")
    rebalance(turn, group)


def _is_up_to_date(group: Group, member: Member, asked: Join) -> bool:
    """It only did not hear the last answer. But a leader of a Stable group asks for a rebalance by joining again."""
    if group.state is GroupState.STABLE and group.leader == member.id:
        return False
    return asked.terms.agrees_with(member.terms)


def _supersede_join(turn: Turn, group: Group, member: Member) -> None:
    """It asks again while it waits: only the last request is answered in earnest."""
    ticket = group.take_join_ticket(member)
    if ticket is not None:
        turn.answer(ticket, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.id))

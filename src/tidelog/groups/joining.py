"""JoinGroup v0-9: who may join, and as whom.

v1 added the rebalance timeout; v4 a member id that has to be asked for first (KIP-394); v5 static members (KIP-345);
v7 the protocol type in the answer; v8 the reason; v9 a leader that need not assign anew.
"""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.groups.answers import join_error, sync_error
from tidelog.groups.effects import Ticket, Turn
from tidelog.groups.group import Group
from tidelog.groups.member import Client, Identity, Member, Terms
from tidelog.groups.rebalance import begin, complete_if_all_joined, drop, joined, keep_alive, rebalance
from tidelog.groups.records import answered_error, group_record
from tidelog.groups.states import GroupState
from tidelog.groups.timers import Timer, TimerKind
from tidelog.wire.messages.groups import JoinGroupRequest, JoinGroupResponse

MEMBER_ID_REQUIRED_SINCE = 4
SKIP_ASSIGNMENT_SINCE = 9


class Join:
    """One JoinGroup request."""

    def __init__(
        self, request: JoinGroupRequest, version: int, client: Client, member_id_suffix: str, ticket: Ticket
    ) -> None:
        self.request = request
        self.version = version
        self.client = client
        self.new_id = f"{request.group_instance_id or client.id}-{member_id_suffix}"
        self.ticket = ticket
        self.terms = Terms.of(request, version)

    def refuse(self, turn: Turn, error: int, member_id: str = "") -> None:
        turn.answer(self.ticket, join_error(error, member_id))


def join(turn: Turn, group: Group, asked: Join) -> None:
    """The answer comes at once, or when the rebalance is complete that this leads to."""
    request = asked.request
    member_id = request.member_id or group.static.get(request.group_instance_id or "", "")
    member = group.members.get(member_id)
    if not _has_room(turn, group, member):
        if member is not None:
            drop(turn, group, member)
        asked.refuse(turn, ErrorCode.GROUP_MAX_SIZE_REACHED)
        complete_if_all_joined(turn, group)
    elif not group.supports(request.protocol_type, asked.terms.protocols):
        asked.refuse(turn, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
    elif request.member_id:
        _join_known(turn, group, asked)
    elif request.group_instance_id is not None:
        known_id = group.static.get(request.group_instance_id)
        if known_id is None:
            _join_new(turn, group, asked, asked.new_id)
        else:
            _return_static(turn, group, asked, group.members[known_id])
    elif asked.version >= MEMBER_ID_REQUIRED_SINCE:
        _hand_out_id(turn, group, asked)
    else:
        _join_new(turn, group, asked, asked.new_id)


def _has_room(turn: Turn, group: Group, member: Member | None) -> bool:
    """While members join again, those who have done so count: the last ones may find the group full."""
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.join_ticket is not None) or group.joining < turn.config.max_size
    return member is not None or len(group.members) < turn.config.max_size


def _hand_out_id(turn: Turn, group: Group, asked: Join) -> None:
    """It is to come again with this id: an answer that is lost leaves no member behind, only an id that expires."""
    timer = Timer(TimerKind.PENDING, group, asked.new_id)
    group.pending[asked.new_id] = timer
    turn.timers.set(timer, turn.now_ms + asked.terms.session_timeout_ms)
    asked.refuse(turn, ErrorCode.MEMBER_ID_REQUIRED, asked.new_id)


def _join_new(turn: Turn, group: Group, asked: Join, member_id: str) -> None:
    request = asked.request
    pending = group.pending.get(member_id)
    if pending is not None:
        turn.timers.cancel(pending)
    session = Timer(TimerKind.SESSION, group, member_id)
    member = Member(member_id, request.group_instance_id, asked.client, asked.terms, session)
    member.is_new = True
    group.add(member, request.protocol_type)
    group.wait_for_join(member, asked.ticket)
    turn.timers.set(session, turn.now_ms + turn.config.new_member_join_timeout_ms)
    group.has_new_member = True
    rebalance(turn, group)


def _join_known(turn: Turn, group: Group, asked: Join) -> None:
    request = asked.request
    if request.member_id in group.pending:
        if request.group_instance_id is not None:
            # Ids of static members are never pending: somebody mixes them up.
            asked.refuse(turn, ErrorCode.UNKNOWN_SERVER_ERROR, request.member_id)
        else:
            _join_new(turn, group, asked, request.member_id)
        return
    error = group.error_of(request.member_id, request.group_instance_id)
    if error:
        asked.refuse(turn, error, request.member_id)
        return
    member = group.members[request.member_id]
    if group.state is not GroupState.PREPARING_REBALANCE and _is_up_to_date(group, member, asked):
        turn.answer(asked.ticket, joined(group, member))
        return
    _supersede_join(turn, group, member)
    group.update(member, asked.terms)
    group.wait_for_join(member, asked.ticket)
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


# Static members that come back


def _return_static(turn: Turn, group: Group, asked: Join, member: Member) -> None:
    """It comes without an id, so it was started again: it gets a new one, and whoever has the old one is fenced."""
    old_leader = group.leader
    if member.stored_as is None or member.stored_as.generation != group.generation:
        member.stored_as = Identity(group.generation, member.id, member.terms)
    _fence(turn, group, member)
    group.rename(member, asked.new_id)
    group.update(member, asked.terms)
    group.wait_for_join(member, asked.ticket)
    member.is_new = False
    keep_alive(turn, member)
    if group.state is GroupState.STABLE and group.elected_protocol() == group.protocol:
        _keep_place(turn, group, asked, member, old_leader or "")
    elif group.state is GroupState.PREPARING_REBALANCE:
        complete_if_all_joined(turn, group)
    else:
        # The leader assigns to the old id just now, or the protocol changes.
        begin(turn, group)


def _fence(turn: Turn, group: Group, member: Member) -> None:
    turn.timers.cancel(member.session)
    ticket = group.take_join_ticket(member)
    if ticket is not None:
        turn.answer(ticket, join_error(ErrorCode.FENCED_INSTANCE_ID, member.id))
    ticket, member.sync_ticket = member.sync_ticket, None
    if ticket is not None:
        turn.answer(ticket, sync_error(ErrorCode.FENCED_INSTANCE_ID))


def _keep_place(turn: Turn, group: Group, asked: Join, member: Member, old_leader: str) -> None:
    """No rebalance, but the new id is stored first, or a fail-over would fence it (edge case 26)."""
    new = Identity(group.generation, member.id, member.terms)
    assignments = {other.id: other.assignment for other in group.members.values()}

    def settled(turn: Turn, error: int) -> None:
        is_current = group.state is GroupState.STABLE and group.generation == new.generation
        if not is_current or member.id not in group.members:
            return  # A rebalance has begun with it, or it is gone: either way it was, or will be, answered there.
        if member.id != new.member_id:
            # It has come back once more, and the write for that is behind this one.
            member.stored_as = member.stored_as if error else new
            return
        ticket = group.take_join_ticket(member)
        if ticket is not None:
            refusal = join_error(answered_error(error)) if error else None
            turn.answer(ticket, refusal or _kept(group, member, asked.version, old_leader))
        if error != ErrorCode.REQUEST_TIMED_OUT:
            if error:
                _restore(turn, group, member)
            member.stored_as = None
        keep_alive(turn, member)

    turn.write([group_record(group.id, group.stored(assignments))], settled)


def _restore(turn: Turn, group: Group, member: Member) -> None:
    """The new id could not be stored, so the one that is counts."""
    assert member.stored_as is not None
    turn.timers.cancel(member.session)
    group.update(member, member.stored_as.terms)
    group.rename(member, member.stored_as.member_id)


def _kept(group: Group, member: Member, version: int, old_leader: str) -> JoinGroupResponse:
    """A leader is not to assign again: from v9 it is told so, before it is told that its old id leads."""
    response = joined(group, member)
    if version >= SKIP_ASSIGNMENT_SINCE:
        response.skip_assignment = group.leader == member.id
    else:
        response.leader = old_leader
        response.members = []
    return response

"""Static members that come back (KIP-345): to their place, under a new id, if all goes well without a rebalance."""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.groups.answers import join_error, sync_error
from tidelog.groups.effects import Turn
from tidelog.groups.group import Group
from tidelog.groups.member import Identity, Join, Member
from tidelog.groups.rebalance import begin, complete_if_all_joined, joined, keep_alive, store
from tidelog.groups.records import answered_error
from tidelog.groups.states import GroupState
from tidelog.wire.messages.groups import JoinGroupResponse

SKIP_ASSIGNMENT_SINCE = 9


def come_back(turn: Turn, group: Group, asked: Join, member: Member) -> None:
    """It comes without an id, so it was started again: it gets a new one, and whoever has the old one is fenced."""
    old_leader = group.leader
    if member.stored_as is None:
        member.stored_as = Identity(member.id, member.terms)
    _fence(turn, group, member)
    group.rename(member, asked.new_id)
    group.update(member, asked.terms)
    group.wait_for_join(member, asked.ticket)
    member.is_new = False
    keep_alive(turn, member)
    if group.state is GroupState.STABLE and group.elected_protocol() == group.protocol:
        group.usage.story.member_returned(group, member)
        _keep_place(turn, group, asked, member, old_leader or "")
        return
    group.usage.story.member_joined(group, member, "came back as a static member")
    if group.state is GroupState.PREPARING_REBALANCE:
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
    new_id, generation = member.id, group.generation
    stored = [(group.members[each], Identity(each, group.members[each].terms)) for each in group.static.values()]
    group.returning += 1

    def settled(turn: Turn, error: int) -> None:
        if group.state is not GroupState.STABLE or group.generation != generation:
            return  # A rebalance has begun with it: it was, or will be, answered there, and is stored after that.
        if member.id == new_id:
            ticket = group.take_join_ticket(member)
            if ticket is not None:
                refusal = join_error(answered_error(error)) if error else None
                turn.answer(ticket, refusal or _kept(group, member, asked.version, old_leader))
                keep_alive(turn, member)
        if error != ErrorCode.REQUEST_TIMED_OUT:
            _settle(turn, group, [] if error else stored)

    store(turn, group, {each.id: each.assignment for each in group.members.values()}, settled)


def _settle(turn: Turn, group: Group, stored: list[tuple[Member, Identity]]) -> None:
    """When no write is under way any more, the ids that are stored count; those that could not be are taken back.

    Each write holds all members: an id whose own write failed may be stored with that of another one.
    """
    for member, identity in stored:
        if member.stored_as is not None:
            member.stored_as = identity
    group.returning -= 1
    if group.returning:
        return
    for member in [group.members[member_id] for member_id in group.static.values()]:
        last, member.stored_as = member.stored_as, None
        if last is not None and last.member_id != member.id:
            turn.timers.cancel(member.session)
            group.update(member, last.terms)
            group.rename(member, last.member_id)
            keep_alive(turn, member)


def _kept(group: Group, member: Member, version: int, old_leader: str) -> JoinGroupResponse:
    """A leader is not to assign again: from v9 it is told so, before it is told that its old id leads."""
    response = joined(group, member)
    if version >= SKIP_ASSIGNMENT_SINCE:
        response.skip_assignment = group.leader == member.id
    else:
        response.leader = old_leader
        response.members = []
    return response

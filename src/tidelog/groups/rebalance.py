"""Rebalances: how one begins, when all have joined, who is dropped for not taking part (S8.2, S8.4).

A rebalance goes on while members join; it is complete when all have, or at the end of the longest rebalance timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tidelog.errors import ErrorCode
from tidelog.groups.answers import join_error, sync_error
from tidelog.groups.effects import Answers, Ticket, Turn
from tidelog.groups.group import Group
from tidelog.groups.lengths import MAX_RECORD_BYTES
from tidelog.groups.member import Member
from tidelog.groups.records import group_record
from tidelog.groups.states import GroupState
from tidelog.wire.messages.groups import JoinGroupResponse


def rebalance(turn: Turn, group: Group) -> None:
    """Something changed: begin a rebalance, or see whether the one under way is complete with it."""
    if group.can_rebalance:
        begin(turn, group)
    else:
        complete_if_all_joined(turn, group)


def begin(turn: Turn, group: Group) -> None:
    if group.state is GroupState.COMPLETING_REBALANCE:
        withdraw_assignments(turn, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.unsynced.clear()
    turn.timers.cancel(group.sync_timer)
    group.move_to(GroupState.PREPARING_REBALANCE, turn.now_ms)
    group.usage.story.rebalance_began(group, turn.now_ms)
    if group.is_initial:
        delay_ms = turn.config.initial_rebalance_delay_ms
        group.has_new_member = False
        group.initial_end_ms = turn.now_ms + max(group.rebalance_timeout_ms, delay_ms)
        turn.timers.set(group.join_timer, turn.now_ms + delay_ms)
    elif group.have_all_joined:
        complete(turn, group)
    else:
        turn.timers.set(group.join_timer, turn.now_ms + group.rebalance_timeout_ms)


def complete_if_all_joined(turn: Turn, group: Group) -> None:
    """A new group waits for its time instead: those who come together should not rebalance one by one."""
    if group.state is GroupState.PREPARING_REBALANCE and not group.is_initial and group.have_all_joined:
        complete(turn, group)


def join_time_over(turn: Turn, group: Group) -> None:
    """The delay of a new group is extended as long as members come, up to their rebalance timeout."""
    if group.is_initial and group.has_new_member and turn.now_ms < group.initial_end_ms:
        group.has_new_member = False
        delay_ms = turn.config.initial_rebalance_delay_ms
        turn.timers.set(group.join_timer, min(turn.now_ms + delay_ms, group.initial_end_ms))
    else:
        complete(turn, group)


def complete(turn: Turn, group: Group) -> None:
    """A new generation of those who joined. Static members are members even if they did not: they are expected back."""
    turn.timers.cancel(group.join_timer)
    missing = [m for m in group.members.values() if m.join_ticket is None and m.instance_id is None]
    for member in reversed(missing):  # the leader is mostly the first, and if it goes last, only one takes its place
        drop(turn, group, member, "did not join again in time")
    if group.members and not group.elect_joined_leader():
        # Only static members are left, and none of them joined: wait until one does or their sessions end.
        turn.timers.set(group.join_timer, turn.now_ms + group.rebalance_timeout_ms)
        return
    group.begin_generation(turn.now_ms)
    group.usage.story.generation_began(group, turn.now_ms)
    if group.state is GroupState.EMPTY:
        # If this fails, the log still has the last generation, whose members would time out after a fail-over.
        turn.write([group_record(group.id, group.stored({}))], lambda turn, error: None)
        return
    followers: deque[tuple[Ticket, str]] = deque()
    for member in group.members.values():
        ticket = group.take_join_ticket(member)
        if ticket is not None and member.id == group.leader:
            turn.answer(ticket, joined(group, member))
        elif ticket is not None:
            followers.append((ticket, member.id))
        member.is_new = False
        group.unsynced[member.id] = None
        keep_alive(turn, member)
    if followers:
        turn.effects.append(Answers(followers, _followed(group)))
    turn.timers.set(group.sync_timer, turn.now_ms + group.rebalance_timeout_ms)


def _followed(group: Group) -> Callable[[str], JoinGroupResponse]:
    """Makes the answers to the followers of this generation, also when the next one has begun."""
    generation, leader = group.generation, group.leader or ""
    protocol_type, protocol = group.protocol_type, group.protocol
    return lambda member_id: JoinGroupResponse(
        generation_id=generation,
        protocol_type=protocol_type,
        protocol_name=protocol,
        leader=leader,
        member_id=member_id,
    )


def joined(group: Group, member: Member) -> JoinGroupResponse:
    """The answer to a join that is part of the current generation."""
    assert group.leader is not None
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader,
        member_id=member.id,
        members=group.metadata() if group.leader == member.id else [],
    )


def withdraw_assignments(turn: Turn, group: Group, error: int) -> None:
    """There will be none in this generation, and those who wait for theirs hear why."""
    for member in group.members.values():
        group.assign(member, b"")
        if member.sync_ticket is not None:
            ticket, member.sync_ticket = member.sync_ticket, None
            turn.answer(ticket, sync_error(error))
            keep_alive(turn, member)


def sync_time_over(turn: Turn, group: Group) -> None:
    """Who has not asked for its assignment by now is not there (KAFKA-13491). Of these one is dropped now. The sessions
    of the others are over: there may be thousands of them, and timers are served some at a time."""
    if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.unsynced:
        return
    first, *others = group.unsynced
    for member_id in others:
        turn.timers.set(group.members[member_id].session, turn.now_ms)
    drop(turn, group, group.members[first], "did not ask for its assignment in time")
    begin(turn, group)


def store(turn: Turn, group: Group, assignments: dict[str, bytes], settled: Callable[[Turn, int], None]) -> None:
    """Write a group that has members. If its record is much larger than the log takes, it is refused here: to make such
    a record takes long."""
    if group.stored_bytes(assignments) > MAX_RECORD_BYTES:
        settled(turn, ErrorCode.MESSAGE_TOO_LARGE)
    else:
        turn.write([group_record(group.id, group.stored(assignments))], settled)


# Members


def keep_alive(turn: Turn, member: Member) -> None:
    member.heard_ms = turn.now_ms
    turn.timers.set(member.session, turn.now_ms + member.terms.session_timeout_ms)


def drop(turn: Turn, group: Group, member: Member, why: str) -> None:
    """Out of the group. If it waits for something, it hears that it has to come as a new member."""
    turn.timers.cancel(member.session)
    ticket = group.take_join_ticket(member)
    if ticket is not None:
        turn.answer(ticket, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
    ticket, member.sync_ticket = member.sync_ticket, None
    if ticket is not None:
        turn.answer(ticket, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove(member)
    group.usage.story.member_gone(group, member, why)


def session_over(turn: Turn, group: Group, member_id: str) -> None:
    """A member was not heard of for its session timeout; a new one waited too long for a rebalance."""
    member = group.members.get(member_id)
    if member is None or member.may_be_silent:
        return
    drop(turn, group, member, f"was silent for its session timeout of {member.terms.session_timeout_ms} ms")
    rebalance(turn, group)


def drop_silent(turn: Turn, group: Group, since_ms: int, is_gone: Callable[[Ticket], bool]) -> int:
    """Drops the members that were not heard of since then, and returns how many they are. A member that waits for an
    answer is silent only if the answer cannot be delivered."""
    silent = [
        member
        for member in group.members.values()
        if member.heard_ms <= since_ms
        and all(ticket is None or is_gone(ticket) for ticket in (member.join_ticket, member.sync_ticket))
    ]
    for member in silent:
        drop(turn, group, member, "was silent, and others needed its room")
    if silent:
        rebalance(turn, group)
    return len(silent)


def pending_over(turn: Turn, group: Group, member_id: str) -> None:
    """An id that nobody came back with holds up nobody any more."""
    if group.take_pending(member_id) is not None:
        complete_if_all_joined(turn, group)

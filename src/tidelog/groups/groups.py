"""All groups of one partition of __consumer_offsets: requests, timers, and the log they are loaded from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import starmap

from tidelog.errors import ErrorCode
from tidelog.groups import offsets, retention
from tidelog.groups.answers import commit_error, join_error, sync_error
from tidelog.groups.commits import Commit, Commits
from tidelog.groups.config import GroupConfig
from tidelog.groups.effects import Answer, Effect, Record, Ticket, Turn
from tidelog.groups.forgetting import Forgetting
from tidelog.groups.group import Group
from tidelog.groups.joining import join
from tidelog.groups.large_commits import LargeCommit
from tidelog.groups.leaving import leave
from tidelog.groups.lengths import MAX_GROUP_ID, refusal_of
from tidelog.groups.listing import described, listed
from tidelog.groups.member import Client, Join
from tidelog.groups.rebalance import (
    begin,
    drop_silent,
    join_time_over,
    keep_alive,
    pending_over,
    session_over,
    sync_time_over,
)
from tidelog.groups.records import (
    NO_BAD_RECORDS,
    BadRecords,
    Stored,
    answered_error,
    group_record,
    read_good_records,
    read_record,
)
from tidelog.groups.states import GroupState
from tidelog.groups.subscriptions import Subscriptions
from tidelog.groups.syncing import heartbeat, sync
from tidelog.groups.timers import Timer, TimerKind, Timers
from tidelog.groups.usage import GROUPS_MAX, Usage
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequestGroup,
)
from tidelog.wire.messages.group_records import GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from tidelog.wire.messages.groups import (
    DeletableGroupResult,
    DescribeGroupsResponseDescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    SyncGroupRequest,
)

_MOST_DUE = 500
"""Timers that are served in one call: that the session of a member is over takes some microseconds."""


class Groups:
    """The coordinator of the groups of one partition, while this broker leads it.

    First `replay` what the log holds, then `loaded`; `unload` when another broker leads. In between: a method for each
    request, and `expire` when `deadline_ms` has come. See the package for how effects are carried out.
    """

    def __init__(self, config: GroupConfig, usage: Usage | None = None) -> None:
        self.config = config
        """May be replaced by another at any time."""
        self.usage = Usage() if usage is None else usage
        """What these groups keep, and those of the broker's other partitions."""
        self._groups: dict[str, Group] = {}
        self._timers = Timers()
        self.forgetting = Forgetting(self._groups, self._turn, self._end)

    # Membership

    def join(
        self,
        request: JoinGroupRequest,
        version: int,
        client: Client,
        member_id_suffix: str,
        now_ms: int,
        ticket: Ticket,
    ) -> list[Effect]:
        """Answers a JoinGroupResponse. The suffix, a new UUID, makes the id unique if this is a new member."""
        turn = self._turn(now_ms)
        group = self._groups.get(request.group_id)
        config = self.config
        if not request.group_id:
            error = ErrorCode.INVALID_GROUP_ID
        elif not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        elif group is None and request.member_id:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        elif too_long := refusal_of(request):
            error = too_long
        elif group is None and not self._has_room():
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            if group is None:
                group = self._create(request.group_id, now_ms)
            join(turn, group, Join(request, version, client, member_id_suffix, ticket))
            self._forget_if_never_used(group)
            return turn.effects
        turn.answer(ticket, join_error(error, request.member_id))
        return turn.effects

    def sync(self, request: SyncGroupRequest, version: int, now_ms: int, ticket: Ticket) -> list[Effect]:
        """Answers a SyncGroupResponse."""
        turn = self._turn(now_ms)
        group = self._groups.get(request.group_id)
        if version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            turn.answer(ticket, sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif group is None:
            turn.answer(ticket, sync_error(_unknown_member(request.group_id)))
        else:
            sync(turn, group, request, ticket)
        return turn.effects

    def heartbeat(self, request: HeartbeatRequest, now_ms: int, ticket: Ticket) -> list[Effect]:
        """Answers a HeartbeatResponse."""
        group = self._groups.get(request.group_id)
        if group is None:
            error = _unknown_member(request.group_id)
        else:
            error = heartbeat(self._turn(now_ms), group, request)
        return [Answer(ticket, HeartbeatResponse(error_code=error))]

    def leave(self, request: LeaveGroupRequest, version: int, now_ms: int, ticket: Ticket) -> list[Effect]:
        """Answers a LeaveGroupResponse."""
        turn = self._turn(now_ms)
        if not request.group_id:
            turn.answer(ticket, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        else:
            group = self._groups.get(request.group_id)
            leave(turn, group, request, version, ticket)
            if group is not None:
                self._forget_if_never_used(group)
        return turn.effects

    # Offsets

    def commit_offsets(self, request: OffsetCommitRequest, version: int, now_ms: int, ticket: Ticket) -> list[Effect]:
        """Answers an OffsetCommitResponse. The caller has left out topics and partitions that do not exist."""
        turn = self._turn(now_ms)
        group = self._group_to_commit_to(request, version, now_ms)
        if isinstance(group, ErrorCode):
            turn.answer(ticket, commit_error(request, group))
        else:
            used = group
            self.forgetting.catch_up(used)
            offsets.commit(turn, used, request, ticket, lambda: self._forget_if_never_used(used))
        return turn.effects

    def commit_large(self, large: LargeCommit, version: int, now_ms: int, ticket: Ticket) -> list[Effect]:
        """Answers an OffsetCommitResponse to a commit of very many partitions, all of which were read."""
        turn = self._turn(now_ms)
        group = self._group_to_commit_to(large.request, version, now_ms)
        if isinstance(group, ErrorCode):
            turn.answer(ticket, large.response(group))
        else:
            used = group
            self.forgetting.catch_up(used)
            large.store(turn, used, ticket, lambda: self._forget_if_never_used(used))
        return turn.effects

    def _group_to_commit_to(self, request: OffsetCommitRequest, version: int, now_ms: int) -> Group | ErrorCode:
        """The error if the commit is not allowed."""
        group = self._groups.get(request.group_id)
        if group is not None:
            return offsets.commit_refusal(group, request) or group
        if request.generation_id_or_member_epoch < 0:
            # A consumer that is in no group, or an administrator: the group exists from now on.
            return self._refusal_of_new(request.group_id) or self._create(request.group_id, now_ms)
        return ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION

    def fetch_offsets(
        self, asked: OffsetFetchRequestGroup, version: int, now_ms: int, ticket: Ticket, *, require_stable: bool
    ) -> list[Effect]:
        """Answers an OffsetFetchResponseGroup: one request may ask for groups of several partitions.

        `answers.fetched_groups` and `answers.fetch_response` are the way from a request and to its response.
        """
        turn = self._turn(now_ms)
        group = self._groups.get(asked.group_id)
        self.forgetting.catch_up(group)
        offsets.fetch(turn, group, asked, version, ticket, require_stable=require_stable)
        return turn.effects

    def snapshot_offsets(
        self, group_id: str, topics: Iterable[str] | None, now_ms: int, ticket: Ticket, *, require_stable: bool
    ) -> list[Effect]:
        """Answers a Snapshot of what the group has committed for these topics, or for all; or an ErrorCode."""
        turn = self._turn(now_ms)
        group = self._groups.get(group_id)
        self.forgetting.catch_up(group)
        offsets.snapshot(turn, group, topics, ticket, require_stable=require_stable)
        return turn.effects

    def commits_of(self, group_id: str) -> Commits | None:
        """None if the group is not there."""
        group = self._groups.get(group_id)
        return None if group is None else group.commits

    def subscriptions(self, group_id: str, topics: Iterable[str]) -> Subscriptions:
        """Which of these topics the group reads, to be found out."""
        return Subscriptions(lambda: self._groups.get(group_id), topics)

    def delete_offsets(
        self, request: OffsetDeleteRequest, reads: Subscriptions, now_ms: int, ticket: Ticket
    ) -> list[Effect]:
        """Answers an OffsetDeleteResponse. `reads` is complete, and was asked for the topics of the request."""
        assert reads.is_complete
        turn = self._turn(now_ms)
        group = self._groups.get(request.group_id)
        error = offsets.delete_refusal(group) if request.group_id else ErrorCode.INVALID_GROUP_ID
        if group is None or error:
            turn.answer(ticket, OffsetDeleteResponse(error_code=error))
        else:
            offsets.delete(turn, group, request, reads, ticket)
        return turn.effects

    # Administration

    def describe(self, group_id: str, version: int) -> DescribeGroupsResponseDescribedGroup:
        return described(group_id, self._groups.get(group_id), version)

    def all(self) -> list[Group]:
        return list(self._groups.values())

    @property
    def count(self) -> int:
        return len(self._groups)

    def ids(self) -> list[str]:
        return list(self._groups)

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = (), ids: Iterable[str] | None = None
    ) -> list[ListedGroup]:
        """All groups, or those of the ids that are still there."""
        among = self._groups if ids is None else (group_id for group_id in ids if group_id in self._groups)
        return listed((self._groups[group_id] for group_id in among), states, types)

    def states(self) -> Counter[GroupState]:
        """How many groups are in each state."""
        return Counter(group.state for group in self._groups.values())

    def delete_group(self, group_id: str, now_ms: int, ticket: Ticket) -> list[Effect]:
        """Answers a DeletableGroupResult. Only a group without members can be deleted."""
        turn = self._turn(now_ms)
        group = self._groups.get(group_id)
        if group is None:
            turn.answer(ticket, DeletableGroupResult(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND))
        elif group.state is not GroupState.EMPTY:
            turn.answer(ticket, DeletableGroupResult(group_id=group_id, error_code=ErrorCode.NON_EMPTY_GROUP))
        else:
            self._end(turn, group, retention.all_of(group))
            turn.answer_when_written(
                ticket,
                DeletableGroupResult(group_id=group_id),
                lambda error: DeletableGroupResult(group_id=group_id, error_code=answered_error(error)),
            )
        return turn.effects

    # Time

    def deadline_ms(self) -> int | None:
        """When `expire` has something to do; it may be called at any other time too."""
        return self._timers.next_ms()

    def expire(self, now_ms: int) -> list[Effect]:
        """What is due: sessions, rebalances, ids that nobody used. If that is very much, the next call does the rest:
        until then `deadline_ms` does not move."""
        turn = self._turn(now_ms)
        for _ in range(_MOST_DUE):
            timer = self._timers.pop_due(now_ms)
            if timer is None:
                break
            group = timer.group
            if group.state is GroupState.DEAD:
                continue
            if timer.kind is TimerKind.SESSION:
                session_over(turn, group, timer.member_id)
            elif timer.kind is TimerKind.PENDING:
                pending_over(turn, group, timer.member_id)
                self._forget_if_never_used(group)
            elif timer.kind is TimerKind.JOIN:
                join_time_over(turn, group)
            else:
                sync_time_over(turn, group)
        return turn.effects

    def holds(self, group: Group) -> bool:
        return self._groups.get(group.id) is group

    def drop_id(self, pending: Timer, now_ms: int) -> list[Effect]:
        """A pending id of one of these groups makes room for newer ones of the broker."""
        turn = self._turn(now_ms)
        self._timers.cancel(pending)
        pending_over(turn, pending.group, pending.member_id)
        self._forget_if_never_used(pending.group)
        self.usage.evicted_ids += 1
        return turn.effects

    def drop_silent(
        self, since_ms: int, is_gone: Callable[[Ticket], bool], most: int, now_ms: int
    ) -> tuple[list[Effect], int]:
        """Members that were not heard of since then make room, whatever their session timeout is. Groups are looked at
        until so many members are gone; how many they are comes with the effects. `is_gone` says of a ticket that its
        answer cannot be delivered."""
        turn, dropped = self._turn(now_ms), 0
        for group in self._groups.values():
            if dropped >= most:
                break
            dropped += drop_silent(turn, group, since_ms, is_gone)
        return turn.effects, dropped

    # The log

    def replay(self, records: Sequence[Record]) -> BadRecords:
        """Records of the partition, in their order; may be called many times before `loaded`.

        Of several with the same key only the last is looked at, as if the others had been compacted away: most of what
        such a log holds are offsets that were committed anew soon after. A record that no coordinator can have written
        changes nothing; how many such records there were is the answer.
        """
        last: dict[bytes, bytes | None] = {}
        for key, value in records:
            last.pop(key, None)
            last[key] = value
        bad = NO_BAD_RECORDS
        try:
            found = list(starmap(read_record, last.items()))
        except Exception:  # one of them is bad, and may hide a good one with the same key
            found, bad = read_good_records(records)
        for stored in found:
            if stored is not None:
                self._apply(stored)
        return bad

    def _apply(self, stored: Stored) -> None:
        groups, group_id, value = self._groups, stored[0].group, stored[1]
        group = groups.get(group_id)
        if group is None:
            if value is None:
                return
            group = groups[group_id] = Group(group_id, None, self.usage)
        if isinstance(stored[0], OffsetCommitKey):
            offset_key, offset_value = stored
            group.commits.put(offset_key.topic, offset_key.partition, offset_value)
        elif stored[1] is None:
            self._bury(group)
        else:
            group.load(stored[1])

    def loaded(self, now_ms: int) -> list[Effect]:
        """From now on members have to be heard of. A group that is larger than is allowed now has to rebalance."""
        turn = self._turn(now_ms)
        for group in self._groups.values():
            for member in group.members.values():
                keep_alive(turn, member)
            if len(group.members) > self.config.max_size:
                begin(turn, group)
        return turn.effects

    def unload(self, now_ms: int) -> list[Effect]:
        """Another broker coordinates these groups: whoever waits is sent there. Writes under way are still settled."""
        turn = self._turn(now_ms)
        for group in self._groups.values():
            for member in group.members.values():
                ticket = group.take_join_ticket(member)
                if ticket is not None:
                    turn.answer(ticket, join_error(ErrorCode.NOT_COORDINATOR, member.id))
                ticket, member.sync_ticket = member.sync_ticket, None
                if ticket is not None:
                    turn.answer(ticket, sync_error(ErrorCode.NOT_COORDINATOR))
            group.move_to(GroupState.DEAD, now_ms)
        self.discard()
        return turn.effects

    def by_topic(self) -> Iterator[tuple[str, Collection[OffsetCommitValue]]]:
        """What each group has committed for each topic."""
        for group in self._groups.values():
            for name, values in group.commits.by_topic.items():
                yield name, values.values()

    def discard(self) -> None:
        """They are kept here no more, and nothing of them counts."""
        for group in self._groups.values():
            group.usage.story.moved(group)
            group.release()
        self._groups.clear()
        self._timers = Timers()
        self.forgetting = Forgetting(self._groups, self._turn, self._end)

    # Groups come and go

    def _turn(self, now_ms: int) -> Turn:
        return Turn(self.config, self._timers, now_ms)

    def _has_room(self) -> bool:
        return self.usage.has_room(self.usage.groups, self.config.broker_groups_max, GROUPS_MAX)

    def _refusal_of_new(self, group_id: str) -> ErrorCode:
        if len(group_id) > MAX_GROUP_ID:
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE if self._has_room() else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _create(self, group_id: str, now_ms: int) -> Group:
        group = self._groups[group_id] = Group(group_id, now_ms, self.usage)
        self.forgetting.created(group)
        return group

    def _end(self, turn: Turn, group: Group, going: list[Commit]) -> None:
        """Tombstones for all there is of an empty group; it is gone when they are stored, if nobody came until then."""
        generation = group.generation

        def settled(turn: Turn, error: int) -> None:
            if not error and group.state is GroupState.EMPTY and group.generation == generation:
                group.usage.story.ended(group)
                self._bury(group)

        offsets.write_commits(turn, group, going, settled, also=[group_record(group.id, None)])

    def _bury(self, group: Group) -> None:
        """What the tombstone of a group means. If something was committed after it, that is a group of its own.

        Ids that were given out are void with it; who comes with one has to ask again.
        """
        if group.commits:
            group.load(_NOTHING)
        elif self._groups.pop(group.id, None) is not None:
            for timer in group.pending.values():
                self._timers.cancel(timer)
            group.release()
            group.move_to(GroupState.DEAD, group.state_ms or 0)

    def _forget_if_never_used(self, group: Group) -> None:
        """It was made for a request that came to nothing: there is nothing of it in the log."""
        if group.is_void and group.protocol_type is None and group.generation == 0:
            self._bury(group)


_NOTHING = GroupMetadataValue(protocol=None, leader=None)


def _unknown_member(group_id: str) -> ErrorCode:
    """Of a group that is not there nobody is a member."""
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID

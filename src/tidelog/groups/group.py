"""One group: its members, what they agreed on, and its state."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.errors import ErrorCode
from tidelog.groups.commits import Commits
from tidelog.groups.effects import Ticket
from tidelog.groups.member import Client, Member, Terms
from tidelog.groups.states import TRANSITIONS, GroupState
from tidelog.groups.timers import Timer, TimerKind
from tidelog.groups.usage import Usage
from tidelog.types import NO_TIMESTAMP
from tidelog.wire.messages.group_records import GroupMetadataValue
from tidelog.wire.messages.groups import JoinGroupResponseMember

CONSUMER = "consumer"
"""The protocol type of consumers: their metadata says which topics they read."""
_LAST_GENERATION = (1 << 31) - 1


class Group:
    """Always: with members there is a leader, and it is one of them; `generation` never falls, unless it begins anew
    after the last number; a member that waits for a join is counted in `joining`.
    """

    __slots__ = (
        "_supporters",
        "commits",
        "deletions_seen",
        "generation",
        "has_new_member",
        "id",
        "initial_end_ms",
        "is_initial",
        "join_timer",
        "joining",
        "leader",
        "members",
        "pending",
        "protocol",
        "protocol_type",
        "returning",
        "state",
        "state_ms",
        "static",
        "storing",
        "sync_timer",
        "unsynced",
        "usage",
    )

    def __init__(self, group_id: str, now_ms: int | None, usage: Usage) -> None:
        self.id = group_id
        self.state = GroupState.EMPTY
        self.state_ms = now_ms
        """Since when; None if an old record does not tell."""
        self.generation = 0
        self.protocol_type: str | None = None
        """None: a simple group, which has only ever committed."""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """The member id of each group.instance.id."""
        self.usage = usage
        usage.groups += 1
        self.pending: dict[str, Timer] = {}
        """Ids that were given out and not yet used (KIP-394). They are no members."""
        self.joining = 0
        """How many members wait for the answer to a join."""
        self.unsynced: dict[str, None] = {}
        """Members of this generation that have not asked for their assignment."""
        self.storing = False
        """The leader's assignment for this generation is on its way into the log."""
        self.returning = 0
        """How many writes are under way for static members that came back in this generation."""
        self.is_initial = False
        """The rebalance under way began in an empty group, so it waits for more members to come."""
        self.has_new_member = False
        self.initial_end_ms = 0
        self.commits = Commits(usage)
        self.deletions_seen = 0
        """Offsets of topics that were deleted up to this deletion are forgotten, or being so (`deletions`)."""
        self.join_timer = Timer(TimerKind.JOIN, self)
        self.sync_timer = Timer(TimerKind.SYNC, self)
        self._supporters: dict[str, int] = {}

    # State

    def move_to(self, state: GroupState, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"group {self.id} cannot go from {self.state} to {state}"
        self.is_initial = self.state is GroupState.EMPTY and state is GroupState.PREPARING_REBALANCE
        self.state = state
        self.state_ms = now_ms

    def begin_generation(self, now_ms: int) -> None:
        """Those who are members now are its members. After the last number that fits the protocol it begins anew."""
        self.generation = self.generation + 1 if self.generation < _LAST_GENERATION else 1
        self.protocol = self.elected_protocol() if self.members else None
        self.unsynced.clear()
        self.storing = False
        self.returning = 0
        for member_id in self.static.values():
            self.members[member_id].stored_as = None
        self.move_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)

    @property
    def can_rebalance(self) -> bool:
        return GroupState.PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def have_all_joined(self) -> bool:
        return self.joining == len(self.members) and not self.pending

    @property
    def is_void(self) -> bool:
        """Nothing would be lost with it."""
        return self.state is GroupState.EMPTY and not self.pending and not self.commits

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks for; never nothing, or a group that has to wait would try again at once."""
        return max([1, *(member.terms.rebalance_timeout_ms for member in self.members.values())])

    # Members

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        assert protocol_type == self.protocol_type
        if member.instance_id is not None:
            assert member.instance_id not in self.static
            self.static[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        self._count_supporters(member.terms, 1)
        self._count_bytes(member)
        self.take_pending(member.id)

    def hand_out(self, member_id: str, timer: Timer) -> None:
        """The id is pending from now on."""
        self.pending[member_id] = timer
        self.usage.pending[timer] = None

    def take_pending(self, member_id: str) -> Timer | None:
        """The id is pending no more: somebody came with it, or its time is over."""
        timer = self.pending.pop(member_id, None)
        if timer is not None:
            self.usage.pending.pop(timer, None)
        return timer

    def release(self) -> None:
        """The group is kept here no more, and counts for nothing."""
        self.usage.groups -= 1
        for timer in self.pending.values():
            self.usage.pending.pop(timer, None)
        self.pending.clear()
        self._uncount_members()
        self.commits.release()
        self.usage = Usage()

    def remove(self, member: Member) -> None:
        """Its tickets are taken before. If it led, the longest member leads from now on."""
        assert member.join_ticket is None
        assert member.sync_ticket is None
        del self.members[member.id]
        self.unsynced.pop(member.id, None)
        self._count_supporters(member.terms, -1)
        self.usage.member_bytes -= member.counted_bytes
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def update(self, member: Member, terms: Terms) -> None:
        self._count_supporters(member.terms, -1)
        member.agree(terms)
        self._count_supporters(terms, 1)
        self._count_bytes(member)

    def assign(self, member: Member, assignment: bytes) -> None:
        self.usage.member_bytes += len(assignment) - len(member.assignment)
        member.counted_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def rename(self, member: Member, new_id: str) -> None:
        """A static member has come back under another id; its place, its share and its lead stay its own."""
        assert member.instance_id is not None
        del self.members[member.id]
        self.unsynced.pop(member.id, None)
        if self.leader == member.id:
            self.leader = new_id
        member.id = new_id
        member.session = Timer(TimerKind.SESSION, self, new_id)
        self.members[new_id] = member
        self.static[member.instance_id] = new_id
        self._count_bytes(member)

    def _count_bytes(self, member: Member) -> None:
        size_bytes = member.size_bytes
        self.usage.member_bytes += size_bytes - member.counted_bytes
        member.counted_bytes = size_bytes

    def _uncount_members(self) -> None:
        for member in self.members.values():
            self.usage.member_bytes -= member.counted_bytes
            member.counted_bytes = 0

    def wait_for_join(self, member: Member, ticket: Ticket) -> None:
        assert member.join_ticket is None
        member.join_ticket = ticket
        self.joining += 1

    def take_join_ticket(self, member: Member) -> Ticket:
        """None if it does not wait."""
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            self.joining -= 1
        return ticket

    def error_of(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether a request may speak for a member."""
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def elect_joined_leader(self) -> bool:
        """The leader stays if it joined; else the first one that did leads. False if nobody joined."""
        if self.leader is not None and self.members[self.leader].join_ticket is not None:
            return True
        for member in self.members.values():
            if member.join_ticket is not None:
                self.leader = member.id
                return True
        return False

    # Protocols

    def supports(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether somebody who can do these may join."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._supporters.get(protocol, 0) == count for protocol in protocols
        )

    def elected_protocol(self) -> str:
        """Each member votes for the first of its protocols that all can do; most votes win."""
        count = len(self.members)
        choices = [name for name, supporters in self._supporters.items() if supporters == count]
        if len(choices) == 1:
            return choices[0]
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name in member.terms.protocols if self._supporters[name] == count)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def _count_supporters(self, terms: Terms, change: int) -> None:
        """Protocols that no member supports any more are forgotten: clients choose their names."""
        for protocol in terms.protocols:
            count = self._supporters.get(protocol, 0) + change
            if count:
                self._supporters[protocol] = count
            else:
                del self._supporters[protocol]

    def metadata(self) -> list[JoinGroupResponseMember]:
        """What the leader is told to assign by."""
        assert self.protocol is not None
        return [member.told(self.protocol) for member in self.members.values()]

    # The record

    def stored(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        """The group as it goes into the log. Who is not assigned anything has an empty assignment."""
        members = []
        if self.members:
            assert self.protocol is not None
            members = [
                member.stored(self.protocol, assignments.get(member_id, b""))
                for member_id, member in self.members.items()
            ]
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=NO_TIMESTAMP if self.state_ms is None else self.state_ms,
            members=members,
        )

    def stored_bytes(self, assignments: dict[str, bytes]) -> int:
        """About how large that record is: what clients can make long of it."""
        assert self.protocol is not None
        protocol = self.protocol
        return sum(
            len(member.terms.protocols[protocol]) + len(assignments.get(member_id, b""))
            for member_id, member in self.members.items()
        )

    def load(self, value: GroupMetadataValue) -> None:
        """Becomes what the record says, whatever it was; what it committed stays. Without members it is Empty."""
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        self.state_ms = None if value.current_state_timestamp == NO_TIMESTAMP else value.current_state_timestamp
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = (value.protocol or "") if value.members else value.protocol
        self.leader = value.leader
        self._uncount_members()
        self.members = {}
        self.static = {}
        self._supporters = {}
        for stored in value.members:
            rebalance_timeout = stored.rebalance_timeout if stored.rebalance_timeout >= 0 else stored.session_timeout
            terms = Terms(stored.session_timeout, rebalance_timeout, {self.protocol or "": stored.subscription})
            client = Client(stored.client_id, stored.client_host)
            session = Timer(TimerKind.SESSION, self, stored.member_id)
            member = Member(stored.member_id, stored.group_instance_id, client, terms, session)
            member.assignment = stored.assignment
            self.add(member, value.protocol_type)
        if self.leader not in self.members:
            self.leader = next(iter(self.members), None)

"""A coordinator under random joins, syncs, leaves, commits, time, failing writes and fail-overs; what always holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.kits.groupkit import Coordinator, group_config, subscription
from tidelog.errors import ErrorCode
from tidelog.groups import GroupConfig, Groups, GroupState
from tidelog.groups.group import Group
from tidelog.groups.timers import NEVER
from tidelog.wire.messages.groups import JoinGroupResponse, SyncGroupResponse

PROTOCOLS = (
    {"range": subscription("orders")},
    {"range": subscription("refunds")},
    {"roundrobin": subscription("orders"), "range": subscription("orders")},
)
ERRORS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
CONFIG = group_config(max_size=4, offsets_retention_ms=100_000, group_pending_members_max=3)
TIGHT = replace(CONFIG, broker_members_max_bytes=6_000)
"""About four members have room, in all groups together."""


class Known(NamedTuple):
    """What a client has been told of itself."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int

    def owner(self) -> str:
        return self.instance_id or self.member_id


groups = st.sampled_from(["red", "red", "red", "blue"])
rarely = st.integers(0, 7).map(lambda n: n == 0)
instances = st.sampled_from([None, None, "a", "b"])
protocols = st.sampled_from(PROTOCOLS)
picks = st.integers(0, 1_000)


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.c = Coordinator(CONFIG, hold=True)
        self.asked: set[int] = set()
        self.joins: dict[int, tuple[str, str | None]] = {}
        self.syncs: dict[int, Known] = {}
        self.known: list[Known] = []
        self.generations: dict[Group, int] = {}

    # What clients do

    @rule(group_id=groups, instance_id=instances, offer=protocols, version=st.sampled_from([0, 3, 5, 9]))
    def join_new(self, group_id: str, instance_id: str | None, offer: dict[str, bytes], version: int) -> None:
        instance_id = instance_id if version >= 5 else None
        ticket = self.c.join(group_id=group_id, instance_id=instance_id, protocols=offer, version=version)
        self.joins[ticket] = (group_id, instance_id)
        self.learn(ticket)

    @precondition(lambda self: self.known)
    @rule(pick=picks, offer=protocols, version=st.sampled_from([5, 8, 9]))
    def join_again(self, pick: int, offer: dict[str, bytes], version: int) -> None:
        who = self.pick(pick)
        ticket = self.c.join(
            who.member_id, group_id=who.group_id, instance_id=who.instance_id, protocols=offer, version=version
        )
        self.joins[ticket] = (who.group_id, who.instance_id)
        self.learn(ticket)

    @precondition(lambda self: any(known.instance_id for known in self.known))
    @rule(pick=picks, version=st.sampled_from([8, 9]))
    def come_back(self, pick: int, version: int) -> None:
        """A static member is started again, and has forgotten its id."""
        static = [known for known in self.known if known.instance_id]
        who = static[pick % len(static)]
        self.join_new(who.group_id, who.instance_id, PROTOCOLS[2], version)

    @precondition(lambda self: self.known)
    @rule(pick=picks)
    def sync(self, pick: int) -> None:
        who = self.pick(pick)
        live = self.live(who.group_id)
        members = [] if live is None else list(live.members.values())
        shares = {m.id: f"{m.instance_id or m.id}@{who.generation}".encode() for m in members}
        ticket = self.c.sync(
            who.member_id,
            who.generation,
            shares,
            group_id=who.group_id,
            instance_id=who.instance_id,
            version=3,
        )
        self.syncs[ticket] = who
        self.learn(ticket)

    @rule(committed=st.booleans())
    def all_take_part(self, committed: bool) -> None:
        """Everybody does what it hears in its heartbeats, so that groups do get Stable."""
        for who in list(self.known):
            live = self.live(who.group_id)
            member = None if live is None else live.members.get(who.member_id)
            if live is None or member is None or member.join_ticket is not None:
                continue
            if live.state is GroupState.PREPARING_REBALANCE:
                self.join_again(self.known.index(who), PROTOCOLS[2], 9)
        self.time_passes(6_000)
        for index in range(len(self.known)):
            self.sync(index)
        if committed:
            self.writes_are_committed(100)

    @initialize(names=st.sampled_from(["", "a", "ab", "aab"]), config=st.sampled_from([CONFIG, CONFIG, TIGHT]))
    def stable_at_first(self, names: str, config: GroupConfig) -> None:
        self.c.config = self.c.groups.config = config
        for name in names:
            self.join_new("red", name, PROTOCOLS[2], 9)
            self.join_new("red", None, PROTOCOLS[2], 3)
        self.time_passes(6_000)
        self.all_take_part(committed=True)

    @precondition(lambda self: self.known)
    @rule(pick=picks)
    def heartbeat(self, pick: int) -> None:
        who = self.pick(pick)
        error = self.c.heartbeat(who.member_id, who.generation, group_id=who.group_id, instance_id=who.instance_id)
        live = self.live(who.group_id)
        if error == ErrorCode.NONE:
            assert live is not None
            assert live.generation == who.generation

    @precondition(lambda self: self.known)
    @rule(pick=picks, by_name=st.booleans())
    def leave(self, pick: int, by_name: bool) -> None:
        who = self.pick(pick)
        identity = ("", who.instance_id) if by_name and who.instance_id else (who.member_id, who.instance_id)
        self.ask(self.c.leave(identity, group_id=who.group_id))

    @rule(group_id=groups, pick=picks, offset=st.integers(0, 50), partition=st.integers(0, 1), large=st.booleans())
    def commit(self, group_id: str, pick: int, offset: int, partition: int, large: bool) -> None:
        topic = ("orders", "refunds")[pick % 2]
        who = self.pick(pick) if self.known else Known(group_id, "", None, -1)
        if pick % 3 == 0:
            who = Known(group_id, "", None, -1)
        self.ask(
            self.c.commit(
                {(topic, partition): offset, **({("orders", 2): offset} if large else {})},
                who.member_id,
                who.generation,
                group_id=who.group_id,
                instance_id=who.instance_id,
                large=large,
            )
        )

    @rule(group_id=groups, require_stable=st.booleans())
    def fetch(self, group_id: str, require_stable: bool) -> None:
        self.ask(self.c.fetch(group_id=group_id, require_stable=require_stable))

    @rule(group_id=groups, rare=rarely)
    def delete(self, group_id: str, rare: bool) -> None:
        if not rare:
            return
        self.ask(self.c.delete_group(group_id))

    @rule(group_id=groups, require_stable=st.booleans())
    def snapshot(self, group_id: str, require_stable: bool) -> None:
        self.ask(self.c.snapshot(group_id=group_id, require_stable=require_stable))

    # What happens to the coordinator

    @rule(silent_ms=st.sampled_from([1_000, 10_000]), is_gone=st.booleans())
    def silent_members_make_room(self, silent_ms: int, is_gone: bool) -> None:
        now_ms = self.c.now_ms
        effects, _ = self.c.groups.drop_silent(now_ms - silent_ms, lambda ticket: is_gone, 3, now_ms)
        self.c.carry_out(effects)
        self.learn()

    @rule()
    def the_oldest_id_makes_room(self) -> None:
        for pending in list(self.c.groups.usage.pending)[:1]:
            self.c.carry_out(self.c.groups.drop_id(pending, self.c.now_ms))
        self.learn()

    @rule(ms=st.sampled_from([1, 1_000, 1_000, 3_000, 3_000, 10_000, 60_000]))
    def time_passes(self, ms: int) -> None:
        self.c.pass_ms(ms)
        self.learn()

    @rule()
    def offsets_expire(self) -> None:
        self.c.expire_offsets()

    @rule()
    def a_topic_is_deleted(self) -> None:
        self.c.delete_topics("refunds")

    @rule(count=st.integers(1, 8))
    def writes_are_committed(self, count: int) -> None:
        for _ in self.c.waiting_writes()[:count]:
            self.c.settle()
        self.learn()

    @precondition(lambda self: self.c.waiting_writes())
    @rule(error=st.sampled_from([*ERRORS, ErrorCode.REQUEST_TIMED_OUT]))
    def a_write_fails(self, error: ErrorCode) -> None:
        self.c.settle(error)
        self.learn()

    @rule(kept=st.integers(0, 2), rare=rarely)
    def fail_over(self, kept: int, rare: bool) -> None:
        """The next leader may have more than was known to be committed."""
        if not rare:
            return
        in_flight = self.c.waiting_writes()[:kept]
        self.c.fail_over()
        for entry in in_flight:
            entry.outcome = ErrorCode.NONE
        if in_flight:
            self.c.fail_over()
        self.generations.clear()
        self.learn()

    # Keeping books

    def ask(self, ticket: int) -> None:
        self.asked.add(ticket)

    def pick(self, pick: int) -> Known:
        return self.known[pick % len(self.known)]

    def live(self, group_id: str) -> Group | None:
        return self.c.groups._groups.get(group_id)

    def learn(self, *tickets: int) -> None:
        """Clients hear their answers."""
        self.asked.update(tickets)
        for ticket in [ticket for ticket in self.joins if ticket in self.c.answers]:
            group_id, instance_id = self.joins.pop(ticket)
            answer = self.c.answers[ticket]
            assert isinstance(answer, JoinGroupResponse)
            if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                same = [k for k in self.known if (k.group_id, k.member_id) == (group_id, answer.member_id)]
                for old in same:
                    self.known.remove(old)
                self.known.append(Known(group_id, answer.member_id, instance_id, answer.generation_id))
                del self.known[:-12]
        for ticket in [ticket for ticket in self.syncs if ticket in self.c.answers]:
            who = self.syncs.pop(ticket)
            answer = self.c.answers[ticket]
            assert isinstance(answer, SyncGroupResponse)
            if answer.error_code == ErrorCode.NONE:
                assert answer.assignment in (b"", f"{who.owner()}@{who.generation}".encode())

    # What always holds

    @invariant()
    def members_are_consistent(self) -> None:
        for group in self.c.groups._groups.values():
            assert (group.leader in group.members) if group.members else (group.leader is None)
            assert group.joining == sum(m.join_ticket is not None for m in group.members.values())
            assert all(group.members[m].instance_id == name for name, m in group.static.items())
            assert len(group.static) == sum(m.instance_id is not None for m in group.members.values())
            assert all(member_id == member.id for member_id, member in group.members.items())
            assert not set(group.pending) & set(group.members)
            assert set(group.unsynced) <= set(group.members)
            assert (group.state is GroupState.EMPTY) <= (not group.members)
            assert len(group.members) <= 2 * CONFIG.max_size

    @invariant()
    def generations_do_not_fall(self) -> None:
        for group in self.c.groups._groups.values():
            before = self.generations.get(group, 0)
            assert group.generation >= before or (group.generation == 0 and group.protocol_type is None)
            self.generations[group] = group.generation

    @invariant()
    def nothing_waits_for_ever(self) -> None:
        for group in self.c.groups._groups.values():
            for member in group.members.values():
                assert member.may_be_silent or member.session.deadline_ms != NEVER
            assert all(timer.deadline_ms != NEVER for timer in group.pending.values())
            if group.state is GroupState.PREPARING_REBALANCE:
                assert group.join_timer.deadline_ms != NEVER
            if group.state is GroupState.COMPLETING_REBALANCE:
                assert group.storing or group.unsynced
            if group.unsynced:
                assert group.sync_timer.deadline_ms != NEVER
            waits = [m for m in group.members.values() if m.join_ticket is not None or m.sync_ticket is not None]
            if group.state is GroupState.STABLE and waits:
                assert self.c.waiting_writes()

    @invariant()
    def the_log_says_the_same(self) -> None:
        """Read in one piece, of which only the last record of each key counts, or in pieces of one."""
        at_once, one_by_one = Groups(CONFIG), Groups(CONFIG)
        at_once.replay(self.c.committed())
        for record in self.c.committed():
            one_by_one.replay([record])
        for replayed in (at_once, one_by_one):
            for group_id in {*self.c.groups._groups, *replayed._groups}:
                live, loaded = self.live(group_id), replayed._groups.get(group_id)
                assert _offsets(live) == _offsets_but_void(loaded, live)
                if live is not None and live.state is GroupState.STABLE and not self.c.waiting_writes():
                    assert _settled(live) == _settled(loaded)

    def teardown(self) -> None:
        """Whoever asked is answered, once."""
        self.c.fail_over()
        self.asked.update(self.joins, self.syncs)
        assert [ticket for ticket in sorted(self.asked) if ticket not in self.c.answers] == []


def _offsets(group: Group | None) -> Any:
    return {} if group is None else group.commits.by_topic


def _offsets_but_void(loaded: Group | None, live: Group | None) -> Any:
    """The log may hold offsets of deleted topics for a while."""
    if loaded is None or live is None:
        return _offsets(loaded)
    left = {
        topic: {partition: value for partition, value in values.items() if partition not in live.commits._void[topic]}
        if topic in live.commits._void
        else values
        for topic, values in loaded.commits.by_topic.items()
    }
    return {topic: values for topic, values in left.items() if values}


def _settled(group: Group | None) -> Any:
    """What a fail-over must not change."""
    assert group is not None
    members = {
        (m.id, m.instance_id, m.assignment, m.terms.protocols[group.protocol or ""], m.terms.session_timeout_ms)
        for m in group.members.values()
    }
    return group.state, group.generation, group.leader, group.protocol_type, group.protocol, members


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)

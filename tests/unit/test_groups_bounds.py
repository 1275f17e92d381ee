"""What clients can make groups keep, without a connection, is bounded and counted."""

from __future__ import annotations

import pytest

from tests.kits.groupkit import GROUP, SESSION_MS, Coordinator, group_config, subscription
from tidelog.broker.apis import SERVED
from tidelog.config.broker import BrokerConfig
from tidelog.errors import ErrorCode
from tidelog.groups import MAX_MEMBERS, GroupConfig, Usage
from tidelog.groups.group import Group
from tidelog.groups.timers import _FEW, NEVER, Timer, TimerKind, Timers

NOT_NOW = ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_pending_ids_expire_with_their_groups() -> None:
    coordinator = Coordinator()
    for number in range(3):
        assert coordinator.error(coordinator.join(group_id=f"g{number}")) == ErrorCode.MEMBER_ID_REQUIRED
    assert coordinator.counted() == (3, 3, 0, 0)
    coordinator.pass_ms(SESSION_MS)
    assert coordinator.counted() == (0, 0, 0, 0)


def test_a_pending_id_is_kept_for_a_minute_at_most() -> None:
    coordinator = Coordinator()
    member_id = coordinator.answers[coordinator.join(session_ms=1_800_000)].member_id
    coordinator.pass_ms(59_999)
    assert coordinator.counted() == (1, 1, 0, 0)
    coordinator.pass_ms(1)
    assert coordinator.counted() == (0, 0, 0, 0)
    assert coordinator.error(coordinator.join(member_id)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_oldest_pending_id_of_a_group_makes_room() -> None:
    """A client that asks for ids and never joins keeps no other client out."""
    coordinator = Coordinator(group_config(group_pending_members_max=2))
    ids = [coordinator.answers[coordinator.join()].member_id for _ in range(5)]
    other = coordinator.answers[coordinator.join(group_id="other")].member_id
    assert coordinator.counted() == (2, 3, 0, 0)
    assert coordinator.groups.usage.evicted_ids == 3
    assert [coordinator.error(coordinator.join(gone)) for gone in ids[:3]] == [ErrorCode.UNKNOWN_MEMBER_ID] * 3
    waiting = [coordinator.join(member_id) for member_id in ids[3:]]
    coordinator.pass_ms(2 * coordinator.config.initial_rebalance_delay_ms)
    assert [coordinator.joined(ticket).member_id for ticket in waiting] == ids[3:]
    assert [pending.member_id for pending in coordinator.groups.usage.pending] == [other]


def test_a_pending_id_that_makes_room_for_those_of_other_groups_stalls_no_rebalance() -> None:
    coordinator = Coordinator()
    (member_id,) = coordinator.stable()
    coordinator.join()
    coordinator.join(group_id="only-an-id")
    waiting = coordinator.join(member_id, protocols={"range": subscription("more")})
    assert waiting not in coordinator.answers, "the id is waited for"
    usage = coordinator.groups.usage
    for pending in list(usage.pending):
        assert coordinator.groups.holds(pending.group)
        coordinator.carry_out(coordinator.groups.drop_id(pending, coordinator.now_ms))
    assert coordinator.joined(waiting).generation_id == 2
    assert coordinator.counted() == (1, 0, 0, 0), "a group that was only an id is gone with it"
    assert usage.evicted_ids == 2


def test_an_id_that_leaves_takes_its_group_with_it() -> None:
    coordinator = Coordinator()
    member_id = coordinator.answers[coordinator.join()].member_id
    assert coordinator.error(coordinator.leave(member_id)) == ErrorCode.NONE
    assert (coordinator.counted(), coordinator.state()) == ((0, 0, 0, 0), "Dead")


def test_group_max_size_does_not_count_pending_ids() -> None:
    """As in Kafka: an id that nobody came back with takes nobody's place."""
    coordinator = Coordinator(group_config(max_size=1))
    coordinator.join()
    member_id, joining = coordinator.new_member()
    coordinator.pass_ms(SESSION_MS + coordinator.config.initial_rebalance_delay_ms)
    assert coordinator.joined(joining).member_id == member_id


@pytest.mark.parametrize("how", ["join", "static", "commit"])
def test_groups_of_a_broker_are_bounded(how: str) -> None:
    coordinator = Coordinator(group_config(broker_groups_max=2))

    def ask(group_id: str) -> ErrorCode:
        if how == "commit":
            return coordinator.error(coordinator.commit({("t", 0): 1}, group_id=group_id))
        ticket = coordinator.join(group_id=group_id, instance_id="i" if how == "static" else None)
        return coordinator.error(ticket) if ticket in coordinator.answers else ErrorCode.NONE

    assert NOT_NOW not in (ask("a"), ask("b"))
    assert ask("c") == NOT_NOW
    assert ask("a") != NOT_NOW, "it is there already"
    assert coordinator.groups.usage.groups == 2


def test_metadata_of_a_broker_is_bounded_in_bytes() -> None:
    coordinator = Coordinator(group_config(broker_offset_metadata_max_bytes=10))

    def commit(metadata: str, group_id: str = "a", partition: int = 0) -> ErrorCode:
        return coordinator.error(coordinator.commit({("t", partition): 1}, group_id=group_id, metadata=metadata))

    assert commit("12345678") == ErrorCode.NONE
    assert commit("123", "b") == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert commit("\u20ac", "b") == ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "three bytes"
    assert commit("12", "b") == ErrorCode.NONE
    assert commit("87654321") == ErrorCode.NONE, "it replaces as much"
    assert commit("1") == ErrorCode.NONE
    assert commit("1234567", "c") == ErrorCode.NONE
    assert commit("", "d") == ErrorCode.NONE, "without metadata"
    assert coordinator.groups.usage.metadata_bytes == 10


def test_one_commit_of_many_partitions_is_bounded_too() -> None:
    coordinator = Coordinator(group_config(broker_offset_metadata_max_bytes=10, broker_offsets_max=3))
    answer = coordinator.answers[coordinator.commit({("t", index): 1 for index in range(4)}, metadata="1234")]
    codes = [partition.error_code for partition in answer.topics[0].partitions]
    assert codes == [0, 0, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
    assert coordinator.error(coordinator.commit({("t", 0): 2}, metadata="1234")) == ErrorCode.NONE


def test_offsets_of_a_broker_are_bounded() -> None:
    coordinator = Coordinator(group_config(broker_offsets_max=2))
    assert coordinator.error(coordinator.commit({("t", 0): 1, ("t", 1): 1})) == ErrorCode.NONE
    assert coordinator.error(coordinator.commit({("t", 2): 1})) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert coordinator.error(coordinator.commit({("t", 1): 9})) == ErrorCode.NONE
    assert coordinator.offsets() == {("t", 0): 1, ("t", 1): 9}


def test_what_a_log_holds_is_counted_and_not_refused() -> None:
    coordinator = Coordinator()
    coordinator.commit({("t", index): 1 for index in range(5)}, metadata="m")
    coordinator.config = group_config(broker_offsets_max=2, broker_offset_metadata_max_bytes=2, broker_groups_max=1)
    coordinator.fail_over()
    assert coordinator.counted() == (1, 0, 5, 5)
    assert coordinator.error(coordinator.commit({("t", 0): 2}, metadata="m")) == ErrorCode.NONE


def test_groups_that_are_unloaded_count_for_nothing_nor_does_what_they_still_write() -> None:
    coordinator = Coordinator()
    coordinator.commit({("t", 0): 1}, metadata="m")
    coordinator.join(group_id="pending")
    coordinator.hold = True
    coordinator.commit({("t", 1): 1}, metadata="m")
    usage = coordinator.groups.usage
    (write,) = coordinator.waiting_writes()
    coordinator.carry_out(coordinator.groups.unload(coordinator.now_ms))
    write.write.done(ErrorCode.NONE, coordinator.now_ms)
    assert usage == Usage()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"group_id": "g" * 1_025}, ErrorCode.INVALID_GROUP_ID),
        ({"instance_id": "i" * 250}, ErrorCode.INVALID_REQUEST),
        ({"protocol_type": "p" * 256}, ErrorCode.INVALID_REQUEST),
        ({"protocols": {"p" * 256: b""}}, ErrorCode.INVALID_REQUEST),
        ({"protocols": {"p": b"m" * (1 << 20)}}, ErrorCode.INVALID_REQUEST),
        ({"protocols": {f"p{number}": b"m" * (1 << 18) for number in range(4)}}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_names_that_are_too_long_are_refused(options: dict[str, object], code: ErrorCode) -> None:
    coordinator = Coordinator()
    assert coordinator.error(coordinator.join(**options)) == code  # type: ignore[arg-type]
    assert coordinator.counted() == (0, 0, 0, 0)


def test_names_of_the_greatest_length_are_taken() -> None:
    coordinator = Coordinator()
    ticket = coordinator.join(
        group_id="g" * 1_024,
        instance_id="i" * 249,
        protocol_type="p" * 255,
        protocols={"p" * 255: subscription("t")},
    )
    coordinator.pass_ms(coordinator.config.initial_rebalance_delay_ms)
    assert coordinator.joined(ticket).generation_id == 1


def test_a_commit_makes_no_group_with_a_name_that_is_too_long() -> None:
    coordinator = Coordinator()
    assert coordinator.error(coordinator.commit({("t", 0): 1}, group_id="g" * 1_025)) == ErrorCode.INVALID_GROUP_ID


# Members


BIG = {"range": b"m" * 10_000}
SMALL = {"range": subscription("orders")}


def test_members_of_a_broker_are_bounded_in_bytes() -> None:
    coordinator = Coordinator(group_config(broker_members_max_bytes=25_000))
    first, second = coordinator.join(protocols=BIG, version=3), coordinator.join(protocols=BIG, version=3)
    refused = [
        coordinator.join(protocols=BIG, version=3),
        coordinator.join(protocols=BIG, version=3, group_id="other"),
        coordinator.join(protocols=BIG, instance_id="static"),
    ]
    assert [coordinator.error(ticket) for ticket in refused] == [NOT_NOW] * 3
    assert coordinator.counted() == (1, 0, 0, 0), "nor is there a group for what was refused"
    assert coordinator.groups.usage.refused == 3
    small = coordinator.join(protocols=SMALL, version=3)
    coordinator.pass_ms(2 * coordinator.config.initial_rebalance_delay_ms)
    ids = [coordinator.joined(ticket).member_id for ticket in (first, second, small)]
    coordinator.leave(ids[0])
    waiting = coordinator.join(protocols=BIG, version=3)
    assert waiting not in coordinator.answers, "who left made room"


def test_a_member_id_that_finds_no_room_yet_can_join_with_it_later() -> None:
    coordinator = Coordinator(group_config(broker_members_max_bytes=15_000))
    big = coordinator.join(protocols=BIG, version=3, group_id="big")
    coordinator.pass_ms(coordinator.config.initial_rebalance_delay_ms)
    member_id = coordinator.answers[coordinator.join(protocols=BIG)].member_id
    assert coordinator.error(coordinator.join(member_id, protocols=BIG)) == NOT_NOW
    coordinator.leave(coordinator.joined(big).member_id, group_id="big")
    waiting = coordinator.join(member_id, protocols=BIG)
    coordinator.pass_ms(coordinator.config.initial_rebalance_delay_ms)
    assert coordinator.joined(waiting).member_id == member_id


def test_a_known_member_grows_within_the_bound_only() -> None:
    coordinator = Coordinator(group_config(broker_members_max_bytes=15_000))
    (member_id,) = coordinator.stable()
    assert coordinator.error(coordinator.join(member_id, protocols={"range": b"m" * 20_000})) == NOT_NOW
    assert coordinator.state() == "Stable"
    waiting = coordinator.join(member_id, protocols=BIG)
    assert coordinator.joined(waiting).generation_id == 2
    coordinator.config = group_config(broker_members_max_bytes=100)
    coordinator.groups.config = coordinator.config
    assert coordinator.joined(coordinator.join(member_id, protocols={"range": b"n" * 10_000})).generation_id == 3
    assert coordinator.joined(coordinator.join(member_id, protocols=SMALL)).generation_id == 4, "less is always taken"


def test_a_static_member_that_comes_back_with_more_than_there_is_room_for_keeps_its_place() -> None:
    coordinator = Coordinator(group_config(broker_members_max_bytes=8_000))
    first = coordinator.join(instance_id="i")
    coordinator.pass_ms(coordinator.config.initial_rebalance_delay_ms)
    member_id = coordinator.joined(first).member_id
    coordinator.sync(member_id, 1, {member_id: b"share"}, instance_id="i")
    assert coordinator.error(coordinator.join(instance_id="i", protocols=BIG)) == NOT_NOW
    assert coordinator.heartbeat(member_id, 1, instance_id="i") == ErrorCode.NONE
    again = coordinator.joined(coordinator.join(instance_id="i"))
    assert again.member_id != member_id


def test_assignments_count_and_are_bounded() -> None:
    coordinator = Coordinator(group_config(broker_members_max_bytes=8_000))
    member_id, waiting = coordinator.new_member()
    coordinator.pass_ms(coordinator.config.initial_rebalance_delay_ms)
    assert coordinator.joined(waiting).generation_id == 1
    before = coordinator.groups.usage.member_bytes
    assert coordinator.error(coordinator.sync(member_id, 1, {member_id: b"s" * 10_000})) == NOT_NOW
    assert coordinator.error(coordinator.sync(member_id, 1, {member_id: b"s" * 5_000})) == ErrorCode.NONE
    assert coordinator.groups.usage.member_bytes == before + 5_000
    coordinator.join(member_id)
    assert coordinator.error(coordinator.sync(member_id, 2, {member_id: b"t" * 6_000})) == ErrorCode.NONE
    assert coordinator.groups.usage.member_bytes == before + 6_000, "the new share takes the place of the old one"


def test_what_members_take_is_counted_through_fail_over_replay_and_expiry() -> None:
    """The kit compares what is counted with what is kept after each step."""
    coordinator = Coordinator(group_config(broker_members_max_bytes=20_000))
    ids = coordinator.stable(3)
    coordinator.commit({("t", 0): 1}, ids[0], 1)
    coordinator.fail_over()
    counted = coordinator.groups.usage.member_bytes
    assert counted > 3 * 900
    coordinator.groups.replay(coordinator.committed())
    coordinator.carry_out(coordinator.groups.loaded(coordinator.now_ms))
    assert coordinator.groups.usage.member_bytes == counted, "what is read again is not counted again"
    coordinator.pass_ms(SESSION_MS)
    assert coordinator.groups.usage.member_bytes == 0
    assert coordinator.error(coordinator.delete_group()) == ErrorCode.NONE
    usage = coordinator.groups.usage
    coordinator.join(instance_id="i", protocols=BIG)
    coordinator.carry_out(coordinator.groups.unload(coordinator.now_ms))
    assert usage.member_bytes == 0


def test_members_above_the_bound_in_the_log_are_loaded_and_live_on() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable(3)
    coordinator.config = group_config(broker_members_max_bytes=1_000)
    coordinator.fail_over()
    assert [coordinator.heartbeat(member_id, 1) for member_id in ids] == [ErrorCode.NONE] * 3
    assert coordinator.error(coordinator.join(version=3)) == NOT_NOW


def test_members_that_were_silent_make_room() -> None:
    coordinator = Coordinator()
    long = {"session_ms": 1_800_000, "rebalance_ms": 1_800_000}
    (lively,) = coordinator.stable(**long)
    silent = coordinator.join(group_id="static", instance_id="i", **long)
    gone = coordinator.join(group_id="waits", version=3, **long)
    coordinator.pass_ms(coordinator.config.initial_rebalance_delay_ms)
    for ticket in (silent, gone):
        coordinator.joined(ticket)
    waits = coordinator.join(group_id="waits", version=3, **long)
    coordinator.pass_ms(60_000)
    coordinator.heartbeat(lively, 1)

    def drop(is_gone: bool) -> int:
        effects, dropped = coordinator.groups.drop_silent(
            coordinator.now_ms - 60_000, lambda ticket: is_gone, 100, coordinator.now_ms
        )
        coordinator.carry_out(effects)
        return dropped

    assert drop(is_gone=False) == 2, "who waits for an answer is not silent"
    assert coordinator.joined(waits).generation_id == 2, "the others go on without those who are gone"
    assert [coordinator.state(group) for group in (GROUP, "static")] == ["Stable", "Empty"]
    late = coordinator.join(version=3)
    coordinator.pass_ms(60_000)
    coordinator.heartbeat(lively, 1)
    assert drop(is_gone=True) == 2, "the answer that one of them waits for cannot be delivered"
    assert coordinator.error(late) == ErrorCode.UNKNOWN_MEMBER_ID


def test_names_of_protocols_are_forgotten_with_the_members_that_brought_them() -> None:
    coordinator = Coordinator()
    coordinator.stable()
    group = coordinator.groups._groups[GROUP]
    for number in range(5):
        strange = {"range": b"", **{f"{number}-{name}": b"" for name in range(50)}}
        coordinator.join(protocols=strange, version=3)
    coordinator.pass_ms(coordinator.config.new_member_join_timeout_ms)
    assert set(group._supporters) <= {"range"}


def test_a_group_has_as_many_members_as_one_sync_can_name() -> None:
    assert (SERVED[14].max_elements or 0) >= MAX_MEMBERS
    for given, most in (("2147483647", MAX_MEMBERS), ("7", 7)):
        config = BrokerConfig.load({"broker.id": "1", "group.max.size": given})
        assert GroupConfig.of(config).max_size == most


@pytest.mark.parametrize("large", [False, True])
def test_a_commit_of_which_nothing_is_kept_makes_no_group(large: bool) -> None:
    coordinator = Coordinator(group_config(broker_offsets_max=1))
    coordinator.commit({("t", 0): 1}, group_id="a")
    ticket = coordinator.commit({("t", 0): 1}, group_id="b", large=large)
    assert coordinator.error(ticket) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert [group.group_id for group in coordinator.groups.list_groups()] == ["a"]


def test_a_refusal_says_which_setting_it_is_for() -> None:
    config = group_config(
        broker_groups_max=2,
        broker_members_max_bytes=10,
        broker_offsets_max=2,
        broker_offset_metadata_max_bytes=2,
    )
    coordinator, told = Coordinator(config), list[str]()
    coordinator.groups.usage.on_refusal = told.append
    coordinator.commit({("t", 0): 1}, group_id="a", metadata="m")
    coordinator.commit({("t", 0): 1}, group_id="a", metadata="mmm")
    coordinator.join(group_id="a", version=3)
    coordinator.commit({("t", 1): 1, ("t", 2): 1}, group_id="a")
    coordinator.join(group_id="b")
    coordinator.join(group_id="c")
    assert told == [
        "tidelog.broker.offset.metadata.max.bytes",
        "tidelog.broker.members.max.bytes",
        "tidelog.broker.offsets.max",
        "tidelog.broker.groups.max",
    ]


# Timers


def test_cancelled_timers_do_not_pile_up() -> None:
    timers, group = Timers(), Group(GROUP, 0, Usage())
    kept = Timer(TimerKind.SESSION, group, "kept")
    timers.set(kept, 500)
    for number in range(20 * _FEW):
        timer = Timer(TimerKind.PENDING, group, f"m{number}")
        timers.set(timer, 1_000_000 + number)
        timers.cancel(timer)
        assert len(timers._heap) <= _FEW + 1
    again = Timer(TimerKind.PENDING, group, "again")
    timers.set(again, 700)
    timers.cancel(again)
    for _ in range(_FEW):
        dropped = Timer(TimerKind.PENDING, group, "dropped")
        timers.set(dropped, 900)
        timers.cancel(dropped)
    timers.set(again, 600)
    assert timers.pop_due(550) is kept
    assert timers.pop_due(650) is again
    assert (timers.pop_due(10**9), again.deadline_ms) == (None, NEVER)

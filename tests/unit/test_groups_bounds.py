"""What clients can make groups keep, without a connection, is bounded and counted."""

from __future__ import annotations

import pytest

from tests.groupkit import GROUP, SESSION_MS, Coordinator, subscription
from tidelog.errors import ErrorCode
from tidelog.groups import GroupConfig, Usage
from tidelog.groups.group import Group
from tidelog.groups.timers import _FEW, NEVER, Timer, TimerKind, Timers

NOT_NOW = ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_pending_ids_of_a_broker_are_bounded_and_expire() -> None:
    coordinator = Coordinator(GroupConfig(broker_pending_members_max=3))
    for number in range(3):
        assert coordinator.error(coordinator.join(group_id=f"g{number}")) == ErrorCode.MEMBER_ID_REQUIRED
    assert coordinator.error(coordinator.join(group_id="one-more")) == NOT_NOW
    assert coordinator.counted() == (3, 3, 0, 0), "nor is there a group for it"
    assert coordinator.groups.usage.refused == 1
    coordinator.pass_ms(SESSION_MS)
    assert coordinator.counted() == (0, 0, 0, 0), "the groups go with the last id"
    assert coordinator.error(coordinator.join(group_id="one-more")) == ErrorCode.MEMBER_ID_REQUIRED


def test_pending_ids_of_a_group_are_bounded() -> None:
    coordinator = Coordinator(GroupConfig(group_pending_members_max=2))
    first = coordinator.join()
    coordinator.join()
    assert coordinator.error(coordinator.join()) == NOT_NOW
    assert coordinator.error(coordinator.join(group_id="other")) == ErrorCode.MEMBER_ID_REQUIRED
    coordinator.join(coordinator.answers[first].member_id)
    assert coordinator.error(coordinator.join()) == ErrorCode.MEMBER_ID_REQUIRED, "one has become a member"


def test_an_id_that_leaves_takes_its_group_with_it() -> None:
    coordinator = Coordinator()
    member_id = coordinator.answers[coordinator.join()].member_id
    assert coordinator.error(coordinator.leave(member_id)) == ErrorCode.NONE
    assert (coordinator.counted(), coordinator.state()) == ((0, 0, 0, 0), "Dead")


def test_group_max_size_does_not_count_pending_ids() -> None:
    """As in Kafka: an id that nobody came back with takes nobody's place."""
    coordinator = Coordinator(GroupConfig(max_size=1))
    coordinator.join()
    member_id, joining = coordinator.new_member()
    coordinator.pass_ms(SESSION_MS + coordinator.config.initial_rebalance_delay_ms)
    assert coordinator.joined(joining).member_id == member_id


@pytest.mark.parametrize("how", ["join", "static", "commit"])
def test_groups_of_a_broker_are_bounded(how: str) -> None:
    coordinator = Coordinator(GroupConfig(broker_groups_max=2))

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
    coordinator = Coordinator(GroupConfig(broker_offset_metadata_max_bytes=10))

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
    coordinator = Coordinator(GroupConfig(broker_offset_metadata_max_bytes=10, broker_offsets_max=3))
    answer = coordinator.answers[coordinator.commit({("t", index): 1 for index in range(4)}, metadata="1234")]
    codes = [partition.error_code for partition in answer.topics[0].partitions]
    assert codes == [0, 0, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
    assert coordinator.error(coordinator.commit({("t", 0): 2}, metadata="1234")) == ErrorCode.NONE


def test_offsets_of_a_broker_are_bounded() -> None:
    coordinator = Coordinator(GroupConfig(broker_offsets_max=2))
    assert coordinator.error(coordinator.commit({("t", 0): 1, ("t", 1): 1})) == ErrorCode.NONE
    assert coordinator.error(coordinator.commit({("t", 2): 1})) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert coordinator.error(coordinator.commit({("t", 1): 9})) == ErrorCode.NONE
    assert coordinator.offsets() == {("t", 0): 1, ("t", 1): 9}


def test_what_a_log_holds_is_counted_and_not_refused() -> None:
    coordinator = Coordinator()
    coordinator.commit({("t", index): 1 for index in range(5)}, metadata="m")
    coordinator.config = GroupConfig(broker_offsets_max=2, broker_offset_metadata_max_bytes=2, broker_groups_max=1)
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

"""The states of a group as a table, and the four scenarios of S8.4: what happens, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.kits.groupkit import GROUP, SESSION_MS, Coordinator
from tidelog.errors import ErrorCode
from tidelog.groups import GroupState, partition_of
from tidelog.groups.group import Group
from tidelog.groups.states import TRANSITIONS
from tidelog.groups.usage import Usage
from tidelog.types import java_hash

NONE, REBALANCE, UNKNOWN = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID


class Step(NamedTuple):
    """Something happens: the state after it, the errors of the answers it leads to, and how many records it writes."""

    what: str
    does: Callable[[], object]
    state: str
    answers: list[ErrorCode]
    records: int


def play(coordinator: Coordinator, steps: list[Step]) -> None:
    for step in steps:
        answered, written = len(coordinator.answers), len(coordinator.log)
        step.does()
        new = list(coordinator.answers.values())[answered:]
        errors = [coordinator.error(ticket) for ticket in list(coordinator.answers)[answered : answered + len(new)]]
        got = (coordinator.state(), errors, len(coordinator.log) - written)
        assert got == (step.state, step.answers, step.records), step.what


def test_a_member_joins_a_stable_group() -> None:
    c = Coordinator()
    (first,) = c.stable()
    second = "reader-0003"
    play(
        c,
        [
            Step("a newcomer asks for an id", c.join, "Stable", [ErrorCode.MEMBER_ID_REQUIRED], 0),
            Step("it comes with its id", lambda: c.join(second), "PreparingRebalance", [], 0),
            Step("the old one hears of it", lambda: c.heartbeat(first, 1), "PreparingRebalance", [REBALANCE], 0),
            Step("and joins again", lambda: c.join(first), "CompletingRebalance", [NONE, NONE], 0),
            Step("the follower syncs first", lambda: c.sync(second, 2), "CompletingRebalance", [], 0),
            Step("the leader assigns", lambda: c.sync(first, 2, {second: b"half"}), "Stable", [NONE, NONE], 1),
            Step("all is well", lambda: c.heartbeat(second, 2), "Stable", [NONE], 0),
        ],
    )


def test_a_member_leaves() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    play(
        c,
        [
            Step("one leaves", lambda: c.leave(follower), "PreparingRebalance", [NONE], 0),
            Step("the other hears", lambda: c.heartbeat(leader, 1), "PreparingRebalance", [REBALANCE], 0),
            Step("and is alone", lambda: c.join(leader), "CompletingRebalance", [NONE], 0),
            Step("it has all", lambda: c.sync(leader, 2, {leader: b"all"}), "Stable", [NONE], 1),
            Step("it leaves too", lambda: c.leave(leader), "Empty", [NONE], 1),
            Step("it is no member", lambda: c.heartbeat(leader, 3), "Empty", [UNKNOWN], 0),
        ],
    )


def test_a_member_crashes() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    play(
        c,
        [
            Step("time passes", lambda: c.pass_ms(SESSION_MS - 1), "Stable", [], 0),
            Step("one lives", lambda: c.heartbeat(follower, 1), "Stable", [NONE], 0),
            Step("the leader does not", lambda: c.pass_ms(1), "PreparingRebalance", [], 0),
            Step("which is heard", lambda: c.heartbeat(follower, 1), "PreparingRebalance", [REBALANCE], 0),
            Step("the follower leads", lambda: c.join(follower), "CompletingRebalance", [NONE], 0),
            Step("it assigns", lambda: c.sync(follower, 2, {follower: b"all"}), "Stable", [NONE], 1),
            Step("it dies as well", lambda: c.pass_ms(SESSION_MS), "Empty", [], 1),
        ],
    )
    assert c.heartbeat(leader, 1) == UNKNOWN


def test_offsets_during_a_rebalance() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    play(
        c,
        [
            Step("stable", lambda: c.commit({("orders", 0): 1}, leader, 1), "Stable", [NONE], 1),
            Step("the leader joins again", lambda: c.join(leader), "PreparingRebalance", [], 0),
            Step("what was read", lambda: c.commit({("orders", 1): 2}, follower, 1), "PreparingRebalance", [NONE], 1),
            Step("all joined", lambda: c.join(follower), "CompletingRebalance", [NONE, NONE], 0),
            Step("new", lambda: c.commit({("orders", 1): 3}, follower, 2), "CompletingRebalance", [REBALANCE], 0),
            Step(
                "old",
                lambda: c.commit({("orders", 1): 3}, follower, 1),
                "CompletingRebalance",
                [ErrorCode.ILLEGAL_GENERATION],
                0,
            ),
            Step("assigned", lambda: c.sync(leader, 2), "Stable", [NONE], 1),
            Step("again", lambda: c.commit({("orders", 1): 4}, follower, 2), "Stable", [NONE], 1),
        ],
    )
    assert c.offsets() == {("orders", 0): 1, ("orders", 1): 4}


def test_the_table_of_states() -> None:
    preparing = {state for state, targets in TRANSITIONS.items() if GroupState.PREPARING_REBALANCE in targets}
    assert preparing == {GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING_REBALANCE}
    for target, source in (
        (GroupState.COMPLETING_REBALANCE, GroupState.PREPARING_REBALANCE),
        (GroupState.STABLE, GroupState.COMPLETING_REBALANCE),
        (GroupState.EMPTY, GroupState.PREPARING_REBALANCE),
    ):
        assert [state for state, targets in TRANSITIONS.items() if target in targets] == [source]
    assert all(GroupState.DEAD in TRANSITIONS[state] for state in GroupState if state is not GroupState.DEAD)


@pytest.mark.parametrize("source", GroupState)
@pytest.mark.parametrize("target", GroupState)
def test_a_move_that_is_not_in_the_table_is_a_mistake(source: GroupState, target: GroupState) -> None:
    group = Group(GROUP, 0, Usage())
    group.state = source
    if target in TRANSITIONS[source]:
        group.move_to(target, 7)
        assert (group.state, group.state_ms) == (target, 7)
    else:
        with pytest.raises(AssertionError):
            group.move_to(target, 7)
        assert group.state is source


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [
        ("", 0),
        ("group", 47),
        ("orders-readers", 24),
        ("spark-kafka-source-1f", 22),
        ("a\U0001f600", 16),
        ("verbraucher-ä", 4),
    ],
)
def test_the_partition_of_a_group(group_id: str, partition: int) -> None:
    """As Java computes it."""
    assert partition_of(group_id, 50) == partition


def test_the_smallest_hash_has_no_absolute_value() -> None:
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert partition_of("polygenelubricants", 50) == 0

"""Static members (KIP-345): they come back to their place, and whoever has their old id is fenced."""

from __future__ import annotations

import pytest

from tests.kits.groupkit import REBALANCE_MS, SESSION_MS, Coordinator, group_config, subscription
from tidelog.errors import ErrorCode

DELAY_MS = group_config().initial_rebalance_delay_ms


def static_group(c: Coordinator) -> tuple[str, str]:
    """Two static members, a and b; a leads. Assignments are their instance ids."""
    tickets = [c.join(instance_id=name) for name in "ab"]
    c.pass_ms(2 * DELAY_MS)
    a, b = (c.joined(ticket).member_id for ticket in tickets)
    c.sync(b, 1, instance_id="b")
    c.sync(a, 1, {a: b"share a", b: b"share b"}, instance_id="a")
    assert c.state() == "Stable"
    return a, b


def test_a_static_member_joins_without_asking_for_an_id() -> None:
    c = Coordinator()
    a, b = static_group(c)
    assert (a, b) == ("a-0001", "b-0002")
    described = c.groups.describe("orders-readers", 5)
    assert [member.group_instance_id for member in described.members] == ["a", "b"]


@pytest.mark.parametrize("version", range(5, 10))
def test_a_follower_comes_back_without_a_rebalance(version: int) -> None:
    c = Coordinator()
    a, old = static_group(c)
    written = len(c.log)
    answer = c.joined(c.join(instance_id="b", version=version))
    assert (answer.generation_id, answer.leader, answer.members, answer.skip_assignment) == (1, a, [], False)
    assert answer.member_id == "b-0003"
    assert c.state() == "Stable"
    assert len(c.log) == written + 1
    assert c.answers[c.sync("b-0003", 1, instance_id="b")].assignment == b"share b"
    assert c.heartbeat(old, 1, instance_id="b") == ErrorCode.FENCED_INSTANCE_ID
    assert c.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_comes_back_is_told_to_skip_the_assignment() -> None:
    c = Coordinator()
    static_group(c)
    answer = c.joined(c.join(instance_id="a", version=9))
    assert (answer.leader, answer.member_id, answer.skip_assignment) == ("a-0003", "a-0003", True)
    assert sorted(member.member_id for member in answer.members) == ["a-0003", "b-0002"]


@pytest.mark.parametrize("version", range(5, 9))
def test_before_v9_a_leader_that_comes_back_does_not_know_that_it_leads(version: int) -> None:
    c = Coordinator()
    old, _ = static_group(c)
    answer = c.joined(c.join(instance_id="a", version=version))
    assert (answer.leader, answer.member_id, answer.members) == (old, "a-0003", [])
    c.join("a-0003", instance_id="a", version=version)
    assert c.state() == "PreparingRebalance", "it does lead, so its join asks for a rebalance"


def test_edge_26_a_new_id_is_stored_before_it_is_told() -> None:
    c = Coordinator()
    _, old = static_group(c)
    c.hold = True
    ticket = c.join(instance_id="b")
    assert ticket not in c.answers
    c.settle()
    new = c.joined(ticket).member_id
    c.fail_over()
    assert c.heartbeat(new, 1, instance_id="b") == ErrorCode.NONE
    assert c.heartbeat(old, 1, instance_id="b") == ErrorCode.FENCED_INSTANCE_ID
    assert c.answers[c.sync(new, 1, instance_id="b")].assignment == b"share b"


def test_edge_26_an_id_that_cannot_be_stored_does_not_count() -> None:
    c = Coordinator()
    _, old = static_group(c)
    c.hold = True
    ticket = c.join(instance_id="b", protocols={"range": subscription("other")})
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert c.error(ticket) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.heartbeat(old, 1, instance_id="b") == ErrorCode.NONE
    assert c.heartbeat("b-0003", 1, instance_id="b") == ErrorCode.FENCED_INSTANCE_ID
    described = c.groups.describe("orders-readers", 5)
    assert {member.member_metadata for member in described.members} == {subscription("orders")}
    c.pass_ms(SESSION_MS)
    assert c.heartbeat(old, 1, instance_id="b") == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_is_stored_late_counts() -> None:
    c = Coordinator()
    static_group(c)
    c.hold = True
    ticket = c.join(instance_id="b")
    c.settle(ErrorCode.REQUEST_TIMED_OUT)
    assert c.error(ticket) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    c.settle()
    assert c.heartbeat("b-0003", 1, instance_id="b") == ErrorCode.NONE


def test_who_comes_back_twice_fences_itself() -> None:
    c = Coordinator()
    static_group(c)
    c.hold = True
    first, second = c.join(instance_id="b"), c.join(instance_id="b")
    assert c.error(first) == ErrorCode.FENCED_INSTANCE_ID
    c.settle()
    assert second not in c.answers
    c.settle()
    assert c.joined(second).member_id == "b-0004"


def test_who_comes_back_twice_in_vain_is_who_it_was() -> None:
    c = Coordinator()
    _, old = static_group(c)
    c.hold = True
    c.join(instance_id="b")
    ticket = c.join(instance_id="b")
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert c.error(ticket) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.heartbeat(old, 1, instance_id="b") == ErrorCode.NONE


def test_an_id_may_be_stored_with_that_of_another_member() -> None:
    c = Coordinator()
    a, _ = static_group(c)
    c.hold = True
    first, second = c.join(instance_id="a"), c.join(instance_id="b")
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert c.error(first) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    c.settle()
    assert c.joined(second).member_id == "b-0004"
    for _ in range(2):
        assert c.heartbeat(a, 1, instance_id="a") == ErrorCode.FENCED_INSTANCE_ID
        assert c.heartbeat("a-0003", 1, instance_id="a") == ErrorCode.NONE
        assert c.heartbeat("b-0004", 1, instance_id="b") == ErrorCode.NONE
        c.fail_over()


def test_a_rebalance_takes_over_who_comes_back() -> None:
    c = Coordinator()
    a, _ = static_group(c)
    c.hold = True
    ticket = c.join(instance_id="b")
    other = c.join(a, instance_id="a")
    assert c.joined(ticket).generation_id == c.joined(other).generation_id == 2
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert c.heartbeat("b-0003", 2, instance_id="b") == ErrorCode.NONE, "the next generation will store it"


def test_a_full_group_has_room_for_who_comes_back() -> None:
    c = Coordinator(group_config(max_size=2))
    static_group(c)
    assert c.joined(c.join(instance_id="b")).generation_id == 1
    assert c.error(c.join(instance_id="c")) == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_another_protocol_makes_a_rebalance() -> None:
    c = Coordinator()
    tickets = [c.join(instance_id=name, protocols={"range": b"", "sticky": b""}) for name in "ab"]
    c.pass_ms(2 * DELAY_MS)
    a, b = (c.joined(ticket).member_id for ticket in tickets)
    c.sync(a, 1, {}, instance_id="a")
    ticket = c.join(instance_id="b", protocols={"sticky": b""})
    assert c.state() == "PreparingRebalance"
    c.join(a, instance_id="a", protocols={"range": b"", "sticky": b""})
    assert c.joined(ticket).protocol_name == "sticky"
    assert c.heartbeat(b, 2, instance_id="b") == ErrorCode.FENCED_INSTANCE_ID


def test_who_comes_back_while_the_leader_assigns_makes_a_rebalance() -> None:
    c = Coordinator()
    a, b = static_group(c)
    c.join(a, instance_id="a")
    c.join(b, instance_id="b")
    waiting = c.sync(b, 2, instance_id="b")
    ticket = c.join(instance_id="b")
    assert c.error(waiting) == ErrorCode.FENCED_INSTANCE_ID
    assert c.state() == "PreparingRebalance"
    c.join(a, instance_id="a")
    assert c.joined(ticket).generation_id == 3


def test_who_comes_back_while_members_join_is_one_of_them() -> None:
    c = Coordinator()
    a, b = static_group(c)
    first = c.join(b, instance_id="b", protocols={"range": subscription("other")})
    assert c.state() == "PreparingRebalance"
    second = c.join(instance_id="b")
    assert c.error(first) == ErrorCode.FENCED_INSTANCE_ID
    c.join(a, instance_id="a")
    assert c.joined(second).generation_id == 2


@pytest.mark.parametrize(
    ("member_id", "instance_id", "error"),
    [
        ("a-0001", "b", ErrorCode.FENCED_INSTANCE_ID),
        ("stranger", "a", ErrorCode.FENCED_INSTANCE_ID),
        ("a-0001", "c", ErrorCode.UNKNOWN_MEMBER_ID),
        ("stranger", None, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_is_not_who_it_says(member_id: str, instance_id: str | None, error: ErrorCode) -> None:
    c = Coordinator()
    static_group(c)
    assert c.error(c.join(member_id, instance_id=instance_id)) == error
    assert c.error(c.sync(member_id, 1, instance_id=instance_id)) == error
    assert c.heartbeat(member_id, 1, instance_id=instance_id) == error
    assert c.error(c.leave((member_id, instance_id))) == error
    assert c.error(c.commit({("orders", 0): 1}, member_id, 1, instance_id=instance_id)) == error


def test_a_static_member_that_does_not_join_keeps_its_place_until_the_sync_is_due() -> None:
    c = Coordinator()
    tickets = [c.join(instance_id=name, session_ms=200_000) for name in "ab"]
    c.pass_ms(2 * DELAY_MS)
    a, b = (c.joined(ticket).member_id for ticket in tickets)
    c.sync(a, 1, {}, instance_id="a")
    c.sync(b, 1, instance_id="b")
    c.join(b, instance_id="b", protocols={"range": subscription("other")}, session_ms=200_000)
    c.pass_ms(REBALANCE_MS)
    assert c.state() == "CompletingRebalance"
    described = c.groups.describe("orders-readers", 5)
    assert len(described.members) == 2, "the one that did not join is expected back"
    c.sync(b, 2, {}, instance_id="b")
    assert c.state() == "Stable"
    c.pass_ms(REBALANCE_MS)
    assert [m.member_id for m in c.groups.describe("orders-readers", 5).members] == [b]


def test_a_leader_that_does_not_join_hands_over() -> None:
    c = Coordinator()
    tickets = [c.join(instance_id=name, session_ms=200_000) for name in "ab"]
    c.pass_ms(2 * DELAY_MS)
    a, b = (c.joined(ticket).member_id for ticket in tickets)
    c.sync(a, 1, {}, instance_id="a")
    ticket = c.join(b, instance_id="b", protocols={"range": subscription("other")}, session_ms=200_000)
    c.pass_ms(REBALANCE_MS)
    answer = c.joined(ticket)
    assert (answer.leader, len(answer.members)) == (b, 2)


def test_nobody_joins_and_static_members_are_waited_for() -> None:
    c = Coordinator()
    tickets = [c.join(instance_id=name, session_ms=200_000) for name in "abc"]
    c.pass_ms(2 * DELAY_MS)
    a, b, gone = (c.joined(ticket).member_id for ticket in tickets)
    c.sync(a, 1, {}, instance_id="a")
    c.sync(b, 1, instance_id="b")
    c.sync(gone, 1, instance_id="c")
    c.leave(("", "c"))
    c.pass_ms(REBALANCE_MS)
    assert c.state() == "PreparingRebalance"
    ticket = c.join(b, instance_id="b")
    c.pass_ms(REBALANCE_MS)
    assert c.joined(ticket).leader == b


def test_administrators_remove_static_members_by_their_names() -> None:
    c = Coordinator()
    a, b = static_group(c)
    ticket = c.leave(("", "b"), ("", "nobody"), ("", None), (a, "b"))
    assert [member.error_code for member in c.answers[ticket].members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert c.state() == "PreparingRebalance"
    assert c.heartbeat(b, 1, instance_id="b") == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_removed_while_it_waits_hears_of_it() -> None:
    c = Coordinator()
    a, b = static_group(c)
    joining = c.join(a, instance_id="a")
    c.leave(("", "a"))
    assert c.error(joining) == ErrorCode.UNKNOWN_MEMBER_ID
    c.join(b, instance_id="b")
    syncing_group = Coordinator()
    a, b = static_group(syncing_group)
    syncing_group.join(a, instance_id="a")
    syncing_group.join(b, instance_id="b")
    syncing = syncing_group.sync(b, 2, instance_id="b")
    syncing_group.leave(("", "b"))
    assert syncing_group.error(syncing) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("rebalance_ms", [0, -1])
def test_no_time_to_rebalance_is_little_time(rebalance_ms: int) -> None:
    c = Coordinator()
    tickets = [c.join(instance_id=name, rebalance_ms=rebalance_ms) for name in "ab"]
    c.pass_ms(DELAY_MS)
    a, b = (c.joined(ticket).member_id for ticket in tickets)
    c.sync(a, 1, {}, instance_id="a")
    c.sync(b, 1, instance_id="b")
    c.leave(("", "b"))
    c.now_ms += 5
    c.carry_out(c.groups.expire(c.now_ms))
    assert c.state() == "PreparingRebalance", "the other one is waited for until its session ends"
    c.pass_ms(SESSION_MS)
    assert c.state() == "Empty"

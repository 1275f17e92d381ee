"""JoinGroup: ids, sizes, protocols, who leads, how long a new group waits."""

from __future__ import annotations

import pytest

from tests.kits.groupkit import REBALANCE_MS, SESSION_MS, Coordinator, group_config, subscription
from tidelog.errors import ErrorCode
from tidelog.wire.messages.groups import JoinGroupResponse

RANGE = subscription("orders")
DELAY_MS = group_config().initial_rebalance_delay_ms


def test_one_member_waits_for_others_and_leads() -> None:
    c = Coordinator()
    member_id, ticket = c.new_member()
    c.pass_ms(DELAY_MS - 1)
    assert ticket not in c.answers
    c.pass_ms(1)
    answer = c.joined(ticket)
    assert (answer.generation_id, answer.leader, answer.member_id) == (1, member_id, member_id)
    assert (answer.protocol_type, answer.protocol_name, answer.skip_assignment) == ("consumer", "range", False)
    assert [(m.member_id, m.metadata) for m in answer.members] == [(member_id, RANGE)]


def test_the_delay_is_extended_while_members_come_up_to_the_rebalance_timeout() -> None:
    c = Coordinator()
    tickets = [c.new_member(rebalance_ms=7_000)[1]]
    c.pass_ms(2_999)
    tickets.append(c.new_member(rebalance_ms=7_000)[1])
    c.pass_ms(2_999)
    tickets.append(c.new_member(rebalance_ms=7_000)[1])
    c.pass_ms(1_001)
    assert not any(ticket in c.answers for ticket in tickets)
    c.pass_ms(1)
    assert {c.joined(ticket).generation_id for ticket in tickets} == {1}
    assert [len(c.joined(ticket).members) for ticket in tickets] == [3, 0, 0]


def test_without_a_delay_the_first_member_is_alone() -> None:
    c = Coordinator(group_config(initial_rebalance_delay_ms=0))
    _, ticket = c.new_member()
    c.pass_ms(0)
    assert c.joined(ticket).generation_id == 1


@pytest.mark.parametrize("version", range(10))
def test_every_version_can_join(version: int) -> None:
    c = Coordinator()
    first = c.join(version=version)
    if version >= 4:
        assert c.error(first) == ErrorCode.MEMBER_ID_REQUIRED
        first = c.join(c.answers[first].member_id, version=version)
    c.pass_ms(DELAY_MS)
    assert c.joined(first).leader == "reader-0001"
    if version == 0:
        assert c.state() == "CompletingRebalance"
        c.heartbeat("reader-0001", 1)
        c.pass_ms(SESSION_MS)
        assert c.state() == "Empty", "in v0 the session timeout is the rebalance timeout, so the sync was due"


def test_edge_25_retries_without_an_id_do_not_grow_the_group() -> None:
    c = Coordinator()
    ids = {c.answers[c.join()].member_id for _ in range(100)}
    assert len(ids) == 100
    assert c.groups.describe("orders-readers", 5).members == []
    _, ticket = c.new_member()
    c.pass_ms(DELAY_MS)
    assert len(c.joined(ticket).members) == 1


def test_edge_25_an_abandoned_id_does_not_stall_a_rebalance() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    assert c.error(c.join()) == ErrorCode.MEMBER_ID_REQUIRED
    assert c.state() == "Stable"
    tickets = [c.join(leader), c.join(follower)]
    assert not any(ticket in c.answers for ticket in tickets), "who asked for an id is waited for"
    c.pass_ms(SESSION_MS - 1)
    assert c.state() == "PreparingRebalance"
    c.pass_ms(1)
    assert {c.joined(ticket).generation_id for ticket in tickets} == {2}


def test_edge_25_an_abandoned_id_is_forgotten_and_leaves_no_group() -> None:
    c = Coordinator()
    member_id = c.answers[c.join()].member_id
    assert c.state() == "Empty"
    c.pass_ms(SESSION_MS)
    assert c.state() == "Dead"
    assert c.error(c.join(member_id)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert c.log == []


def test_a_pending_id_with_an_instance_id_is_a_mix_up() -> None:
    c = Coordinator()
    member_id = c.answers[c.join()].member_id
    assert c.error(c.join(member_id, instance_id="a")) == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_what_no_group_takes(options: dict[str, object], error: ErrorCode) -> None:
    c = Coordinator()
    ticket = c.join(**options)  # type: ignore[arg-type]
    assert c.error(ticket) == error
    assert c.answers[ticket].member_id == options.get("member_id", "")
    assert c.groups.list_groups() == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "reader-0001", "instance_id": "a"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {"sticky": b""}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "reader-0001", "protocols": {"sticky": b""}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_what_a_group_with_members_does_not_take(options: dict[str, object], error: ErrorCode) -> None:
    c = Coordinator()
    c.stable()
    assert c.error(c.join(**options)) == error  # type: ignore[arg-type]
    assert c.state() == "Stable"


def test_the_protocol_that_most_prefer_of_those_that_all_can_do() -> None:
    c = Coordinator()
    asked = [
        {"sticky": b"", "range": RANGE, "roundrobin": RANGE},
        {"roundrobin": RANGE, "range": RANGE},
        {"sticky": b"", "roundrobin": RANGE, "range": RANGE},
    ]
    tickets = [c.new_member(protocols=protocols)[1] for protocols in asked]
    c.pass_ms(3 * DELAY_MS)
    assert {c.joined(ticket).protocol_name for ticket in tickets} == {"roundrobin"}


def test_the_group_is_full() -> None:
    c = Coordinator(group_config(max_size=2))
    leader, follower = c.stable(2)
    ticket = c.join()
    assert c.error(ticket) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert c.answers[ticket].member_id == ""
    assert c.state() == "Stable"
    c.join(leader)
    c.join(follower)
    assert c.state() == "CompletingRebalance"
    assert c.error(c.join("reader-0009")) == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_smaller_limit_keeps_those_who_join_first() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    c.groups.config = group_config(max_size=1)
    first = c.join(leader)
    assert c.state() == "PreparingRebalance"
    assert c.error(c.join(follower)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(c.joined(first).members) == 1, "nobody is left to be waited for"


def test_a_group_above_the_limit_rebalances_when_it_is_loaded() -> None:
    c = Coordinator()
    c.stable(2)
    c.config = group_config(max_size=1)
    c.fail_over()
    assert c.state() == "PreparingRebalance"


def test_a_follower_that_joins_unchanged_gets_the_current_generation() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    answer = c.joined(c.join(follower))
    assert (answer.generation_id, answer.leader, answer.members) == (1, leader, [])
    assert c.state() == "Stable"


def test_a_follower_that_changed_makes_a_rebalance() -> None:
    c = Coordinator()
    _, follower = c.stable(2)
    ticket = c.join(follower, protocols={"range": subscription("orders", "refunds")})
    assert ticket not in c.answers
    assert c.state() == "PreparingRebalance"


def test_a_leader_that_joins_again_makes_a_rebalance() -> None:
    c = Coordinator()
    (leader,) = c.stable()
    assert c.joined(c.join(leader)).generation_id == 2


def test_a_lost_answer_is_given_again_while_the_assignment_is_waited_for() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    tickets = [c.join(leader), c.join(follower)]
    assert c.joined(c.join(leader)) == c.joined(tickets[0])
    assert c.joined(c.join(follower)) == c.joined(tickets[1])
    assert c.state() == "CompletingRebalance"
    c.join(follower, protocols={"range": subscription("refunds")})
    assert c.state() == "PreparingRebalance"


def test_who_asks_again_while_it_waits_is_answered_once_in_earnest() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    first, second = c.join(leader), c.join(leader)
    assert c.error(first) == ErrorCode.REBALANCE_IN_PROGRESS
    c.join(follower)
    assert c.joined(second).generation_id == 2


def test_who_does_not_join_in_time_is_out() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    ticket = c.join(follower, protocols={"range": subscription("refunds")})
    for _ in range(REBALANCE_MS // 5_000):
        assert c.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        c.pass_ms(5_000)
    answer = c.joined(ticket)
    assert (answer.leader, len(answer.members)) == (follower, 1)
    assert c.heartbeat(leader, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_member_does_not_wait_for_ever() -> None:
    c = Coordinator()
    (leader,) = c.stable(rebalance_ms=2_000_000)
    _, ticket = c.new_member()
    for _ in range(60):
        c.heartbeat(leader, 1)
        c.pass_ms(5_000)
    assert c.answers[ticket] == JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert len(c.groups.describe("orders-readers", 5).members) == 1


def test_all_go_while_a_new_group_waits() -> None:
    c = Coordinator()
    member_id, ticket = c.new_member()
    c.leave(member_id)
    assert c.error(ticket) == ErrorCode.UNKNOWN_MEMBER_ID
    assert c.state() == "PreparingRebalance"
    c.pass_ms(DELAY_MS)
    assert c.state() == "Empty"
    assert len(c.log) == 1


def test_a_thousand_members_join_and_sync() -> None:
    c = Coordinator(group_config(initial_rebalance_delay_ms=3_000))
    ids = c.stable(1_000)
    described = c.groups.describe("orders-readers", 5)
    assert [m.member_assignment for m in described.members] == [m.encode() for m in ids]

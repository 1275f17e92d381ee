"""SyncGroup and Heartbeat: assignments are stored before they are given out; who is silent is out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.kits.groupkit import GROUP, REBALANCE_MS, SESSION_MS, Coordinator, subscription
from tidelog.errors import ErrorCode


def completing(c: Coordinator) -> tuple[str, str]:
    """A leader and a follower of generation 2 that have not synced."""
    leader, follower = c.stable(2)
    c.join(leader)
    c.join(follower)
    assert c.state() == "CompletingRebalance"
    return leader, follower


def test_assignments_are_given_out_when_they_are_stored() -> None:
    c = Coordinator()
    leader, follower = completing(c)
    c.hold = True
    first = c.sync(follower, 2)
    second = c.sync(leader, 2, {leader: b"l", "stranger": b"s"})
    assert c.state() == "CompletingRebalance"
    assert first not in c.answers
    assert second not in c.answers
    c.settle()
    assert c.state() == "Stable"
    assert c.answers[first].assignment == b"", "who is not assigned anything has nothing"
    assert c.answers[second].assignment == b"l"
    assert (c.answers[second].protocol_type, c.answers[second].protocol_name) == ("consumer", "range")


def test_a_late_sync_is_answered_from_the_stored_assignment() -> None:
    c = Coordinator()
    leader, follower = completing(c)
    c.sync(leader, 2, {follower: b"f"})
    assert c.answers[c.sync(follower, 2)].assignment == b"f"
    assert c.answers[c.sync(follower, 2)].assignment == b"f"


@pytest.mark.parametrize(
    ("append_error", "answer"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_FETCH_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_an_assignment_that_cannot_be_stored_is_not_given_out(append_error: ErrorCode, answer: ErrorCode) -> None:
    c = Coordinator()
    leader, follower = completing(c)
    c.hold = True
    tickets = [c.sync(follower, 2), c.sync(leader, 2, {follower: b"f"})]
    c.settle(append_error)
    assert [c.error(ticket) for ticket in tickets] == [answer, answer]
    assert [c.answers[ticket].assignment for ticket in tickets] == [b"", b""]
    assert c.state() == "PreparingRebalance"
    if append_error == ErrorCode.REQUEST_TIMED_OUT:
        c.settle()
        assert c.state() == "PreparingRebalance"


def test_a_group_that_is_much_too_large_for_the_log_is_not_even_encoded() -> None:
    """As if the log had refused it: 100 bytes of a leader would have a record of 100 MB made."""
    c = Coordinator()
    protocols = {"range": b"m" * 1_048_000}
    joins = [c.join(version=3, protocols=protocols) for _ in range(17)]
    c.pass_ms(6_000)
    leader, follower = (c.joined(ticket).member_id for ticket in joins[:2])
    waits = c.sync(follower, 1, version=3)
    asked = c.sync(leader, 1, {follower: b"share"}, version=3)
    assert c.log == []
    assert c.error(asked) == c.error(waits) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert c.state() == "PreparingRebalance"


def test_a_leader_that_asks_again_is_stored_once() -> None:
    c = Coordinator()
    leader, _ = completing(c)
    c.hold = True
    first = c.sync(leader, 2, {leader: b"1"})
    second = c.sync(leader, 2, {leader: b"2"})
    assert c.error(first) == ErrorCode.REBALANCE_IN_PROGRESS
    assert len(c.waiting_writes()) == 1
    c.settle()
    assert c.answers[second].assignment == b"1"


def test_an_assignment_of_a_generation_that_is_over_is_not_given_out() -> None:
    c = Coordinator()
    leader, follower = completing(c)
    c.hold = True
    ticket = c.sync(leader, 2, {leader: b"2"})
    c.leave(follower)
    assert c.error(ticket) == ErrorCode.REBALANCE_IN_PROGRESS
    c.settle()
    assert c.state() == "PreparingRebalance"
    c.join(leader)
    ticket = c.sync(leader, 3, {leader: b"3"})
    c.settle()
    assert c.answers[ticket].assignment == b"3"


def test_an_old_assignment_does_not_stand_for_that_of_the_next_generation() -> None:
    c = Coordinator()
    leader, follower = completing(c)
    c.hold = True
    c.sync(leader, 2, {leader: b"2"})
    c.leave(follower)
    c.join(leader)
    assert c.state() == "CompletingRebalance"
    c.settle()
    assert c.state() == "CompletingRebalance"


def test_who_hears_that_it_joined_has_to_show_that_it_lives() -> None:
    c = Coordinator()
    _, ticket = c.new_member()
    c.pass_ms(3_000)
    assert c.joined(ticket)
    c.pass_ms(SESSION_MS - 1)
    assert c.state() == "CompletingRebalance"
    c.pass_ms(1)
    assert c.state() == "Empty"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "another"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"generation": 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 3}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_sync_that_is_refused(options: dict[str, object], error: ErrorCode) -> None:
    c = Coordinator()
    leader, _ = completing(c)
    asked = {"member_id": leader, "generation": 2, **options}
    assert c.error(c.sync(**asked)) == error  # type: ignore[arg-type]
    assert c.state() == "CompletingRebalance"


@pytest.mark.parametrize("version", range(6))
def test_every_version_can_sync(version: int) -> None:
    c = Coordinator()
    leader, _ = completing(c)
    ticket = c.sync(leader, 2, {leader: b"l"}, version=version)
    assert c.answers[ticket].assignment == b"l"


def test_a_sync_while_members_join_again() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    c.join(leader)
    assert c.error(c.sync(follower, 1)) == ErrorCode.REBALANCE_IN_PROGRESS


def test_who_does_not_sync_in_time_is_out() -> None:
    c = Coordinator()
    leader, follower = completing(c)
    c.sync(leader, 2, {})
    for _ in range(REBALANCE_MS // 5_000):
        assert c.heartbeat(leader, 2) == c.heartbeat(follower, 2) == ErrorCode.NONE
        c.pass_ms(5_000)
    assert c.state() == "PreparingRebalance"
    assert c.heartbeat(follower, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert c.heartbeat(leader, 2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_thousands_who_do_not_sync_in_time_are_out_some_at_a_time() -> None:
    c = Coordinator()
    options = {"session_ms": 1_800_000, "version": 3}
    joins = [c.join(**options) for _ in range(1_300)]  # type: ignore[arg-type]
    c.pass_ms(6_000)
    ids = [c.joined(ticket).member_id for ticket in joins]
    waits = c.sync(ids[1_299], 1, version=3)
    c.now_ms += REBALANCE_MS
    counts = [1_300]
    while (due_ms := c.groups.deadline_ms()) is not None and due_ms <= c.now_ms:
        c.carry_out(c.groups.expire(c.now_ms))
        counts.append(len(c.groups.describe(GROUP, 5).members))
        assert c.error(waits) == ErrorCode.REBALANCE_IN_PROGRESS
        assert c.state() == "PreparingRebalance"
        assert c.heartbeat(ids[1_298], 1) in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID)
    assert max(before - after for before, after in pairwise(counts)) <= 501
    assert counts[-1] == 2, "one that synced, and one that was heard of in time"


def test_a_leader_that_does_not_sync_in_time_is_out() -> None:
    c = Coordinator()
    leader, follower = completing(c)
    ticket = c.sync(follower, 2)
    for _ in range(REBALANCE_MS // 5_000):
        c.heartbeat(leader, 2)
        c.pass_ms(5_000)
    assert c.error(ticket) == ErrorCode.REBALANCE_IN_PROGRESS
    assert c.joined(c.join(follower)).leader == follower


def test_heartbeats_in_each_state() -> None:
    c = Coordinator()
    assert c.heartbeat("stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert c.heartbeat("stranger", 1, group_id="") == ErrorCode.INVALID_GROUP_ID
    leader, follower = c.stable(2)
    assert c.heartbeat(leader, 1) == ErrorCode.NONE
    assert c.heartbeat(leader, 0) == ErrorCode.ILLEGAL_GENERATION
    assert c.heartbeat(leader, 2) == ErrorCode.ILLEGAL_GENERATION
    assert c.heartbeat(leader, 1, instance_id="a") == ErrorCode.UNKNOWN_MEMBER_ID
    c.join(leader)
    assert c.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    c.join(follower)
    assert c.heartbeat(leader, 2) == ErrorCode.NONE
    c.leave(leader, follower)
    assert c.state() == "Empty"
    assert c.heartbeat(leader, 3) == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_waits_for_an_answer_need_not_heartbeat() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    joining = c.join(leader)
    for _ in range(5):
        c.pass_ms(SESSION_MS // 2)
        c.heartbeat(follower, 1)
    c.join(follower)
    assert c.joined(joining).generation_id == 2
    syncing = c.sync(follower, 2)
    for _ in range(5):
        c.pass_ms(SESSION_MS // 2)
        c.heartbeat(leader, 2)
    c.sync(leader, 2, {follower: b"f"})
    assert c.answers[syncing].assignment == b"f"
    c.pass_ms(SESSION_MS - 1)
    assert c.heartbeat(follower, 2) == ErrorCode.NONE
    c.pass_ms(1)
    assert c.heartbeat(follower, 2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_shows_that_a_member_lives() -> None:
    c = Coordinator()
    (member,) = c.stable()
    for _ in range(3):
        c.pass_ms(SESSION_MS - 1)
        c.commit({("orders", 0): 1}, member, 1)
    assert c.heartbeat(member, 1) == ErrorCode.NONE


def test_heartbeats_do_not_fill_the_heap() -> None:
    c = Coordinator()
    (member,) = c.stable()
    for _ in range(1_000):
        c.pass_ms(100)
        assert c.heartbeat(member, 1) == ErrorCode.NONE
    assert len(c.groups._timers._heap) < 5


def test_leaving_in_each_form() -> None:
    c = Coordinator()
    leader, *others = c.stable(4)
    assert c.answers[c.leave("stranger", version=2)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert c.answers[c.leave(leader, group_id="another", version=0)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert c.answers[c.leave(leader, group_id="")].error_code == ErrorCode.INVALID_GROUP_ID
    members = c.answers[c.leave(leader, group_id="another")].members
    assert [(m.member_id, m.error_code) for m in members] == [(leader, ErrorCode.UNKNOWN_MEMBER_ID)]
    assert c.state() == "Stable"
    for version, member in enumerate(others):
        assert c.error(c.leave(member, version=version)) == ErrorCode.NONE
    assert c.error(c.leave(leader, "stranger")) == ErrorCode.NONE
    assert c.state() == "Empty"


def test_a_pending_id_that_leaves_disturbs_nobody() -> None:
    c = Coordinator()
    (leader,) = c.stable()
    pending = c.answers[c.join()].member_id
    joining = c.join(leader, protocols={"range": subscription("other")})
    assert joining not in c.answers
    assert c.error(c.leave(pending)) == ErrorCode.NONE
    assert c.joined(joining).generation_id == 2
    c.sync(leader, 2, {})
    pending = c.answers[c.join()].member_id
    c.leave(pending)
    assert c.state() == "Stable"


def test_the_last_member_goes_while_a_new_one_has_only_its_id() -> None:
    c = Coordinator()
    (leader,) = c.stable()
    c.pass_ms(SESSION_MS - 1)
    new = c.answers[c.join()].member_id
    c.pass_ms(1)
    assert c.state() == "PreparingRebalance"
    ticket = c.join(new)
    assert c.joined(ticket).leader == new
    assert c.heartbeat(leader, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_one_to_leave_is_answered_when_that_is_stored() -> None:
    c = Coordinator()
    (leader,) = c.stable()
    c.hold = True
    ticket = c.leave(leader)
    assert ticket not in c.answers
    c.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert c.answers[ticket].error_code == ErrorCode.NOT_COORDINATOR
    assert c.state() == "Empty"


def test_the_last_one_to_leave_is_answered_once_even_if_it_is_stored_late() -> None:
    c = Coordinator()
    (leader,) = c.stable()
    c.hold = True
    ticket = c.leave(leader)
    c.settle(ErrorCode.REQUEST_TIMED_OUT)
    assert c.answers[ticket].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    c.settle()
    c.fail_over()
    assert c.state() == "Empty"


def test_whoever_waits_is_sent_to_the_new_coordinator() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    joining = c.join(leader)
    c.fail_over()
    assert c.error(joining) == ErrorCode.NOT_COORDINATOR
    assert c.state() == "Stable"
    c.join(leader)
    c.join(follower)
    syncing = c.sync(follower, 2)
    c.fail_over()
    assert c.error(syncing) == ErrorCode.NOT_COORDINATOR
    assert c.heartbeat(follower, 1) == ErrorCode.NONE, "the generation that was stored counts"
    c.pass_ms(SESSION_MS)
    assert c.heartbeat(leader, 1) == ErrorCode.UNKNOWN_MEMBER_ID

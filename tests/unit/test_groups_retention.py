"""What is forgotten: old offsets, groups without anything, offsets of deleted topics, groups that are deleted."""

from __future__ import annotations

import pytest

from tests.kits.groupkit import GROUP, SESSION_MS, Coordinator, group_config, subscription
from tidelog.errors import ErrorCode
from tidelog.groups import Write
from tidelog.groups.commits import Commits
from tidelog.groups.records import read_record

ORDERS = ("orders", 0)
RETENTION_MS = group_config().offsets_retention_ms


def clean(c: Coordinator, after_ms: int = 0) -> list[tuple[str, str | None]]:
    """The tombstones that are written: group and topic, or group alone."""
    written = len(c.log)
    c.now_ms += after_ms
    c.expire_offsets()
    tombstones: list[tuple[str, str | None]] = []
    for entry in c.log[written:]:
        for key, value in entry.write.records:
            assert value is None
            stored = read_record(key, value)
            assert stored is not None
            tombstones.append((stored[0].group, getattr(stored[0], "topic", None)))
    return tombstones


def test_a_simple_group_expires_by_its_commits() -> None:
    c = Coordinator()
    c.commit({ORDERS: 7})
    c.now_ms += 1_000
    c.commit({("refunds", 0): 8})
    assert clean(c, RETENTION_MS - 1_001) == []
    assert clean(c, 1) == [(GROUP, "orders")]
    assert c.offsets() == {("refunds", 0): 8}
    assert clean(c, 1_000) == [(GROUP, "refunds"), (GROUP, None)]
    assert c.state() == "Dead"
    assert clean(c) == []


def test_a_group_expires_since_it_is_empty() -> None:
    c = Coordinator()
    (member,) = c.stable()
    c.commit({ORDERS: 7}, member, 1)
    c.pass_ms(SESSION_MS)
    assert c.state() == "Empty"
    empty_ms = c.now_ms
    assert clean(c, RETENTION_MS - 1) == []
    c.fail_over()
    c.now_ms = empty_ms + RETENTION_MS
    assert clean(c) == [(GROUP, "orders"), (GROUP, None)]
    c.fail_over()
    assert c.state() == "Dead"


def test_topics_that_a_stable_group_does_not_read_any_more_expire() -> None:
    c = Coordinator()
    (member,) = c.stable(protocols={"range": subscription("orders")}, session_ms=1_800_000)
    c.commit({ORDERS: 7, ("refunds", 0): 8}, member, 1)
    assert clean(c, RETENTION_MS - 1) == []
    assert clean(c, 1) == [(GROUP, "refunds")]
    assert c.offsets() == {ORDERS: 7}


@pytest.mark.parametrize("options", [{"protocol_type": "connect"}, {"protocols": {"range": b"?"}}])
def test_what_members_read_is_not_known_so_nothing_expires(options: dict[str, object]) -> None:
    c = Coordinator()
    first = c.join(version=3, **options)  # type: ignore[arg-type]
    c.pass_ms(3_000)
    member = c.joined(first).member_id
    c.sync(member, 1, version=3)
    c.commit({ORDERS: 7}, member, 1)
    assert clean(c, RETENTION_MS) == []


def test_nothing_expires_while_a_group_rebalances() -> None:
    c = Coordinator()
    leader, follower = c.stable(2)
    c.commit({("refunds", 0): 8}, leader, 1)
    c.join(leader)
    assert clean(c, RETENTION_MS) == []
    c.join(follower)
    assert c.state() == "CompletingRebalance"
    assert clean(c) == []


def test_old_clients_say_how_long_a_commit_is_kept() -> None:
    c = Coordinator()
    (member,) = c.stable()
    c.commit({ORDERS: 7}, member, 1, retention_ms=5_000, version=4)
    c.leave(member)
    assert clean(c, 4_999) == []
    c.fail_over()
    assert clean(c, 1) == [(GROUP, "orders"), (GROUP, None)]


def test_a_commit_under_way_keeps_what_it_replaces() -> None:
    c = Coordinator()
    c.commit({ORDERS: 7})
    c.hold = True
    c.now_ms += RETENTION_MS
    c.commit({ORDERS: 8})
    assert clean(c) == []
    c.settle()
    assert c.offsets() == {ORDERS: 8}


def test_an_empty_group_without_offsets_is_forgotten() -> None:
    c = Coordinator()
    (member,) = c.stable()
    c.leave(member)
    assert clean(c) == [(GROUP, None)]
    assert c.state() == "Dead"


def test_who_has_asked_for_an_id_keeps_a_group() -> None:
    c = Coordinator()
    (member,) = c.stable()
    c.leave(member)
    new = c.answers[c.join()].member_id
    assert clean(c) == []
    ticket = c.join(new)
    c.pass_ms(3_000)
    assert c.joined(ticket).generation_id == 3


def test_tombstones_that_cannot_be_stored_change_nothing() -> None:
    c = Coordinator()
    c.commit({ORDERS: 7})
    c.hold = True
    clean(c, RETENTION_MS)
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert c.offsets() == {ORDERS: 7}
    clean(c)
    c.settle()
    assert c.state() == "Dead"


def test_offsets_of_deleted_topics_go() -> None:
    c = Coordinator()
    c.commit({ORDERS: 7, ("orders", 1): 8, ("refunds", 0): 9})
    c.commit({ORDERS: 1}, group_id="another")
    c.delete_topics("orders")
    assert c.offsets() == {("refunds", 0): 9}
    assert c.offsets("another") == {}
    c.fail_over()
    assert c.offsets() == {("refunds", 0): 9}


def test_a_deleted_group_is_gone() -> None:
    c = Coordinator()
    assert c.error(c.delete_group()) == ErrorCode.GROUP_ID_NOT_FOUND
    (member,) = c.stable()
    c.commit({ORDERS: 7}, member, 1)
    assert c.error(c.delete_group()) == ErrorCode.NON_EMPTY_GROUP
    c.join(member)
    assert c.error(c.delete_group()) == ErrorCode.NON_EMPTY_GROUP
    c.leave(member)
    assert c.error(c.delete_group()) == ErrorCode.NONE
    assert c.state() == "Dead"
    assert c.offsets() == {}
    c.fail_over()
    assert c.groups.list_groups() == []


def test_a_group_that_cannot_be_deleted_stays() -> None:
    c = Coordinator()
    c.commit({ORDERS: 7})
    c.hold = True
    ticket = c.delete_group()
    assert ticket not in c.answers
    c.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert c.answers[ticket].error_code == ErrorCode.NOT_COORDINATOR
    assert c.offsets() == {ORDERS: 7}


def test_a_commit_under_way_is_deleted_too() -> None:
    c = Coordinator(hold=True)
    c.commit({ORDERS: 7})
    c.delete_group()
    c.settle()
    c.settle()
    assert c.groups.list_groups() == []
    c.fail_over()
    assert c.groups.list_groups() == []
    assert c.offsets() == {}


def test_a_commit_behind_the_deletion_makes_a_new_group() -> None:
    c = Coordinator()
    (member,) = c.stable()
    c.leave(member)
    c.hold = True
    c.delete_group()
    c.commit({ORDERS: 7})
    c.settle()
    (listed,) = c.groups.list_groups()
    assert (listed.group_state, listed.protocol_type) == ("Empty", "")
    c.settle()
    c.fail_over()
    assert c.offsets() == {ORDERS: 7}
    assert c.groups.list_groups() == [listed]


def test_who_joins_while_a_group_is_deleted_is_not_lost() -> None:
    c = Coordinator()
    (member,) = c.stable()
    c.leave(member)
    c.hold = True
    c.delete_group()
    _, ticket = c.new_member()
    c.settle()
    assert c.state() == "PreparingRebalance"
    c.pass_ms(3_000)
    assert c.joined(ticket).members


def test_a_group_that_lived_again_while_it_was_deleted_stays() -> None:
    c = Coordinator()
    (member,) = c.stable()
    c.leave(member)
    c.hold = True
    c.delete_group()
    new, _ = c.new_member()
    c.pass_ms(3_000)
    c.leave(new)
    assert c.state() == "Empty"
    for _ in c.waiting_writes():
        c.settle()
    (listed,) = c.groups.list_groups()
    assert listed.protocol_type == "consumer"
    c.fail_over()
    assert c.groups.list_groups() == [listed]


# Some at a time


def test_very_many_groups_end_some_at_a_time() -> None:
    c = Coordinator()
    for number in range(300):
        c.commit({ORDERS: 7}, group_id=f"group-{number}")
    c.now_ms += RETENTION_MS
    c.groups.forgetting.begin_expiry()
    written = []
    while c.groups.forgetting.has_expiry:
        effects, looked_at = c.groups.forgetting.expire_offsets(40, c.now_ms)
        assert looked_at <= 50
        written.append(sum(len(effect.records) for effect in effects if isinstance(effect, Write)))
        c.carry_out(effects)
    assert max(written) <= 50
    assert sum(written) == 600, "an offset and a group each"
    assert c.groups.list_groups() == []


def test_a_group_with_very_many_offsets_expires_some_at_a_time() -> None:
    c = Coordinator()
    c.commit({("orders", partition): 7 for partition in range(1_700)} | {("refunds", 0): 7}, large=True)
    c.hold = True
    c.now_ms += RETENTION_MS
    c.expire_offsets()
    entries = c.waiting_writes()
    assert [len(entry.write.records) for entry in entries] == [500, 500, 500, 201]
    for _ in entries:
        c.settle()
    assert c.offsets() == {}
    assert clean(c) == [(GROUP, None)], "the next check ends the group: its last offsets were on their way"
    c.settle()
    assert c.state() == "Dead"


def test_what_is_committed_while_a_check_goes_on_is_kept() -> None:
    c = Coordinator()
    c.commit({("orders", partition): 7 for partition in range(600)})
    c.now_ms += RETENTION_MS
    c.groups.forgetting.begin_expiry()
    c.carry_out(c.groups.forgetting.expire_offsets(30, c.now_ms)[0])
    assert len(c.offsets()) == 600, "nothing is written yet"
    c.commit({ORDERS: 8})
    c.expire_offsets()
    assert c.offsets() == {ORDERS: 8}


def test_a_check_ends_when_the_groups_are_unloaded() -> None:
    c = Coordinator()
    c.commit({ORDERS: 7})
    c.now_ms += RETENTION_MS
    c.groups.forgetting.begin_expiry()
    assert c.groups.forgetting.has_expiry
    c.groups.unload(c.now_ms)
    assert not c.groups.forgetting.has_expiry


def test_a_group_that_gets_members_while_a_check_goes_on_keeps_what_they_may_read() -> None:
    c = Coordinator()
    c.commit({("orders", partition): 7 for partition in range(600)})
    c.now_ms += RETENTION_MS
    c.groups.forgetting.begin_expiry()
    c.carry_out(c.groups.forgetting.expire_offsets(1, c.now_ms)[0])
    c.stable()
    while c.groups.forgetting.has_expiry:
        c.carry_out(c.groups.forgetting.expire_offsets(1, c.now_ms)[0])
    assert len(c.offsets()) == 600


def test_a_fault_with_one_group_keeps_none_of_the_others_from_expiring(monkeypatch: pytest.MonkeyPatch) -> None:
    c = Coordinator()
    for group_id in "abc":
        c.commit({ORDERS: 7}, group_id=group_id)
    faulty, left = c.groups.commits_of("b"), [1]
    is_in_flight = Commits.is_in_flight

    def fails_once(self: Commits, topic: str, partition: int) -> bool:
        if self is faulty and left:
            left.pop()
            raise ValueError("one fault, once")
        return is_in_flight(self, topic, partition)

    monkeypatch.setattr(Commits, "is_in_flight", fails_once)
    c.now_ms += RETENTION_MS
    c.groups.forgetting.begin_expiry()
    faults = 0
    while c.groups.forgetting.has_expiry:
        try:
            effects, _ = c.groups.forgetting.expire_offsets(1_000, c.now_ms)
        except ValueError:
            faults += 1
        else:
            c.carry_out(effects)
    assert faults == 1
    assert [c.state(group_id) for group_id in "abc"] == ["Dead", "Empty", "Dead"]
    c.expire_offsets()
    assert c.state("b") == "Dead"

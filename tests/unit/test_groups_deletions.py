"""Groups forget the offsets of deleted topics some at a time; in between anything may happen to them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.kits.groupkit import Coordinator
from tidelog.errors import ErrorCode
from tidelog.groups.commits import Commits
from tidelog.groups.usage import Usage
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.group_records import OffsetCommitValue

ORDERS, REFUNDS = ("orders", 0), ("refunds", 0)


def look_at_some(c: Coordinator, most: int) -> int:
    effects, looked_at = c.groups.forgetting.forget_deleted(most, c.now_ms)
    c.carry_out(effects)
    return looked_at


def coordinator(groups: int = 10) -> Coordinator:
    """Groups 0, 1 and so on have committed for both topics."""
    c = Coordinator()
    for number in range(groups):
        c.commit({ORDERS: 7, REFUNDS: 8}, group_id=str(number))
    return c


def values(c: Coordinator, group_id: int) -> dict[tuple[str, int], int]:
    """What a group has, without a request for it."""
    commits = c.groups.commits_of(str(group_id))
    assert commits is not None
    return {known: value.offset for known in commits.known_partitions() if (value := commits.get(*known)) is not None}


def test_some_groups_are_looked_at_at_a_time() -> None:
    c = coordinator()
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    assert c.groups.forgetting.has_deleted_topics
    assert look_at_some(c, 6) == 6
    assert [values(c, number) for number in range(3)] == [{REFUNDS: 8}] * 2 + [{ORDERS: 7, REFUNDS: 8}]
    assert look_at_some(c, 1000) == 24
    assert not c.groups.forgetting.has_deleted_topics
    assert [values(c, number) for number in range(10)] == [{REFUNDS: 8}] * 10


def test_what_is_committed_for_a_topic_of_the_same_name_stays() -> None:
    c = coordinator()
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    c.commit({ORDERS: 1}, group_id="9")
    c.commit({("orders", 1): 2}, group_id="8", large=True)
    c.commit({ORDERS: 3}, group_id="new")
    while c.groups.forgetting.has_deleted_topics:
        look_at_some(c, 3)
    assert values(c, 9) == {ORDERS: 1, REFUNDS: 8}
    assert values(c, 8) == {("orders", 1): 2, REFUNDS: 8}
    assert c.offsets("new") == {ORDERS: 3}
    assert values(c, 7) == {REFUNDS: 8}
    c.fail_over()
    assert c.offsets("9") == {ORDERS: 1, REFUNDS: 8}
    assert c.offsets("8") == {("orders", 1): 2, REFUNDS: 8}


def test_readers_of_a_topic_of_the_same_name_find_nothing() -> None:
    c = coordinator()
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    c.offsets("9")
    assert values(c, 9) == {REFUNDS: 8}
    assert values(c, 8) == {ORDERS: 7, REFUNDS: 8}


@pytest.mark.parametrize("is_looked_at", [False, True], ids=["by the reader", "before"])
def test_readers_find_nothing_while_the_log_cannot_take_tombstones(is_looked_at: bool) -> None:
    c = Coordinator()
    c.commit({ORDERS: 7, REFUNDS: 8})
    c.hold = True
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    if is_looked_at:
        look_at_some(c, 10)
    fetched = c.fetch({"orders": [0], "refunds": [0]})
    read = c.snapshot("orders")
    assert [topic.partitions[0].committed_offset for topic in c.answers[fetched].topics] == [-1, 8]
    assert c.answers[read] == {}


@pytest.mark.parametrize("error", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_tombstones_that_were_refused_are_written_later(error: ErrorCode) -> None:
    c = Coordinator()
    c.commit({ORDERS: 7, REFUNDS: 8})
    c.hold = True
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    for _ in range(2):
        look_at_some(c, 10)
        c.settle(ErrorCode.REQUEST_TIMED_OUT)
        c.settle(error)
        assert c.groups.forgetting.has_deleted_topics
        assert look_at_some(c, 10) == 0, "after a rest"
        assert not c.waiting_writes()
        c.now_ms += 1_000
    look_at_some(c, 10)
    c.settle()
    assert not c.groups.forgetting.has_deleted_topics
    c.hold = False
    c.fail_over()
    assert c.offsets() == {REFUNDS: 8}


def test_many_offsets_are_forgotten_some_at_a_time() -> None:
    c = Coordinator()
    c.commit({("orders", partition): 7 for partition in range(1_200)}, large=True)
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    sizes = []
    c.offsets()
    while c.groups.forgetting.has_deleted_topics:
        before = len(c.log)
        look_at_some(c, 1)
        sizes += [len(entry.write.records) for entry in c.log[before:]]
    assert sizes == [500, 500, 200]
    c.fail_over()
    assert c.offsets() == {}


def test_a_commit_that_fails_does_not_save_the_old_offset() -> None:
    """A tombstone is not needed behind a newer commit. If that fails, it is."""
    c = Coordinator()
    c.commit({ORDERS: 7})
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    c.hold = True
    c.commit({ORDERS: 1})
    look_at_some(c, 10)
    assert len(c.waiting_writes()) == 1
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    c.hold = False
    while c.groups.forgetting.has_deleted_topics:
        look_at_some(c, 10)
        c.now_ms += 100
    c.fail_over()
    assert c.offsets() == {}


def test_a_commit_under_way_is_forgotten_too() -> None:
    c = Coordinator(hold=True)
    c.commit({ORDERS: 7})
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    look_at_some(c, 10)
    for entry in c.waiting_writes():
        c.settle(ErrorCode.NONE, entry)
    assert c.offsets() == {}


def test_topics_that_are_deleted_meanwhile() -> None:
    c = coordinator()
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    look_at_some(c, 10)
    c.commit({ORDERS: 1}, group_id="0")
    c.groups.forgetting.topics_deleted(dict.fromkeys(["refunds"], ZERO_UUID))
    look_at_some(c, 4)
    c.groups.forgetting.topics_deleted(dict.fromkeys(["others"], ZERO_UUID))
    c.groups.forgetting.topics_deleted(dict.fromkeys(["more"], ZERO_UUID))
    while c.groups.forgetting.has_deleted_topics:
        look_at_some(c, 3)
    assert values(c, 0) == {ORDERS: 1}, "it was committed after the deletion of the first orders"
    assert [values(c, number) for number in range(1, 10)] == [{}] * 9


def test_groups_that_come_and_go_meanwhile() -> None:
    c = coordinator()
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    look_at_some(c, 2)
    c.delete_group("9")
    c.delete_group("8")
    c.commit({ORDERS: 1}, group_id="8")
    while c.groups.forgetting.has_deleted_topics:
        look_at_some(c, 3)
    assert c.groups.commits_of("9") is None
    assert values(c, 8) == {ORDERS: 1}


def test_nothing_is_left_to_do_when_the_groups_move_away() -> None:
    c = coordinator()
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    look_at_some(c, 2)
    c.carry_out(c.groups.unload(c.now_ms))
    assert not c.groups.forgetting.has_deleted_topics
    assert look_at_some(c, 2) == 0


def test_without_groups_there_is_nothing_to_do() -> None:
    c = Coordinator()
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    assert look_at_some(c, 10) == 0
    assert not c.groups.forgetting.has_deleted_topics


def test_offsets_of_the_next_topic_of_the_name_stay() -> None:
    c = Coordinator()
    c.topic_ids["orders"] = b"1" * 16
    c.commit({ORDERS: 7, ("orders", 1): 7})
    c.topic_ids["orders"] = b"2" * 16
    c.commit({ORDERS: 1})
    c.groups.forgetting.topics_deleted({"orders": b"1" * 16})
    while c.groups.forgetting.has_deleted_topics:
        look_at_some(c, 10)
    assert c.offsets() == {ORDERS: 1}
    c.fail_over()
    assert c.offsets() == {ORDERS: 1}
    c.groups.forgetting.topics_deleted({"orders": b"2" * 16})
    assert c.offsets() == {}


def test_topics_and_offsets_count_too() -> None:
    c = Coordinator()
    value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=c.now_ms)
    for group_id in ("a", "b"):
        group = c.groups._create(group_id, c.now_ms)
        for number in range(200):
            group.commits.put(f"topic-{number}", 0, value)
    c.groups.forgetting.topics_deleted(dict.fromkeys([f"topic-{number}" for number in range(150, 350)], ZERO_UUID))
    assert look_at_some(c, 10) == 1 + (200 + 50) // 20
    assert look_at_some(c, 10) == 1 + 50
    assert look_at_some(c, 10) == 1 + (200 + 50) // 20


@pytest.mark.parametrize("faulty", range(3))
@pytest.mark.parametrize("step", ["void", "topics_deleted"])
def test_a_fault_with_one_group_keeps_none_of_the_others_from_forgetting(
    faulty: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = coordinator(3)
    of_faulty, left = c.groups.commits_of(str(faulty)), [1]
    work = getattr(Commits, step)

    def fails_once(self: Commits, given: Any) -> Any:
        if self is of_faulty and left:
            left.pop()
            raise ValueError("one fault, once")
        return work(self, given)

    monkeypatch.setattr(Commits, step, fails_once)
    c.groups.forgetting.topics_deleted(dict.fromkeys(["orders"], ZERO_UUID))
    faults = 0
    for _ in range(10):
        try:
            look_at_some(c, 1_000)
        except ValueError:
            faults += 1
        c.now_ms += 1_500
    assert faults == 1
    assert not c.groups.forgetting.has_deleted_topics
    c.fail_over()
    assert [c.offsets(str(number)) for number in range(3)] == [{REFUNDS: 8}] * 3


def test_what_is_under_way_for_a_topic_is_not_lost_with_an_earlier_one_of_its_name() -> None:
    """The end of the earlier one is told late, when the later one is there already."""
    first, second = b"first topic's id", b"second topic'sid"
    for applies in (True, False):
        commits = Commits(Usage())
        kept, new = _value(5, second), _value(9, second)
        commits.put("orders", 0, kept)
        number = commits.sent([("orders", 0, new)])
        large = commits.sent_large({"orders": {1: new}})
        commits.topics_deleted({"orders": {first}})
        commits.settled([("orders", 0, new)], number, applies)
        commits.settled_large(large, applies)
        assert commits.get("orders", 0) == (new if applies else kept)
        assert commits.get("orders", 1) == (new if applies else None)
        assert not commits.has_void


def test_what_is_under_way_for_a_deleted_topic_is_void_and_what_comes_for_the_next_is_not() -> None:
    first, second = b"first topic's id", b"second topic'sid"
    commits = Commits(Usage())
    old, new = [("orders", 0, _value(5, first))], [("orders", 0, _value(9, second))]
    before = commits.sent(old)
    commits.topics_deleted({"orders": {first}})
    after = commits.sent(new)
    commits.settled(old, before, True)
    assert commits.get("orders", 0) is None
    assert commits.has_void
    commits.settled(new, after, True)
    assert commits.get("orders", 0) == new[0][2]
    assert not commits.has_void


def _value(offset: int, topic_id: bytes) -> OffsetCommitValue:
    return OffsetCommitValue(offset=offset, metadata="", commit_timestamp=1, topic_id=topic_id)


def test_a_group_that_stays_at_fault_keeps_no_later_deletion_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    c = coordinator(5)
    of_faulty, is_broken = c.groups.commits_of("2"), True
    work = Commits.topics_deleted

    def fails(self: Commits, topics: Any) -> int:
        if self is of_faulty and is_broken:
            raise ValueError("it stays")
        return work(self, topics)

    def go_on() -> int:
        """The most that a call looked at."""
        most = 0
        for _ in range(20):
            with contextlib.suppress(ValueError):
                most = look_at_some(c, 1_000)
            c.now_ms += 1_500
        return most

    monkeypatch.setattr(Commits, "topics_deleted", fails)
    c.groups.forgetting.topics_deleted({"orders": ZERO_UUID})
    go_on()
    c.groups.forgetting.topics_deleted({"refunds": ZERO_UUID})
    assert go_on() == 0, "who calls it rests when only the group at fault is left"
    assert [values(c, number) for number in range(5)] == [{}, {}, {ORDERS: 7, REFUNDS: 8}, {}, {}]
    for _ in range(10):
        with pytest.raises(ValueError, match="it stays"):
            c.offsets("2")
    deleted = c.groups.forgetting._deleted
    assert (len(deleted._deletions), len(deleted._left), len(deleted._again)) == (0, 0, 1)
    is_broken = False
    go_on()
    assert values(c, 2) == {}
    assert not c.groups.forgetting.has_deleted_topics


def test_a_write_for_a_deleted_topic_is_void_whatever_was_settled_before_it() -> None:
    first, second = b"first topic's id", b"second topic'sid"
    commits = Commits(Usage())
    new, old = [("orders", 0, _value(9, second))], [("orders", 0, _value(5, first))]
    numbers = [commits.sent(new), commits.sent(old)]
    commits.topics_deleted({"orders": {first}})
    commits.settled(new, numbers[0], True)
    commits.settled(old, numbers[1], True)
    assert commits.get("orders", 0) == new[0][2]


def test_an_offset_that_is_being_deleted_goes_though_an_earlier_topic_of_its_name_has_gone_meanwhile() -> None:
    first, second = b"first topic's id", b"second topic'sid"
    commits = Commits(Usage())
    commits.put("orders", 0, _value(9, second))
    number = commits.sent([("orders", 0, None)])
    commits.topics_deleted({"orders": {first}})
    commits.settled([("orders", 0, None)], number, True)
    assert commits.get("orders", 0) is None

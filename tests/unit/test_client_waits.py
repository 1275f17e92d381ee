"""The table of what a client waits for and why (`client.waits`)."""

from __future__ import annotations

from tidelog.client.errors import BrokerError, DeadlineError, last_cause, unreachable
from tidelog.client.waits import OwnWaits, Wait, Waits
from tidelog.errors import ErrorCode
from tidelog.net.calling import CannotConnectError

LEADERLESS = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "topic orders", "it has no leader")
GONE = CannotConnectError("cannot connect to b1:9092")


def test_the_longest_wait_is_told_once_it_is_long_enough() -> None:
    waits = Waits()
    assert waits.longest(9.0, 2.0) is None
    waits.failed("a", "topic orders", LEADERLESS, 5.0)
    waits.failed("b", "topic payments", GONE, 6.0)
    assert waits.longest(6.9, 2.0) is None
    assert waits.longest(7.0, 2.0) == Wait("topic orders", LEADERLESS, 5.0)
    waits.failed("a", "topic orders", GONE, 6.5)
    assert waits.longest(7.0, 2.0) == Wait("topic orders", GONE, 5.0), "it waits since the first failure"
    waits.over("a")
    waits.over("never heard of")
    assert waits.longest(8.0, 2.0) == Wait("topic payments", GONE, 6.0)


def test_an_attempt_without_a_failure_says_what_for_once_a_broker_is_silent() -> None:
    waits = Waits()
    waits.begins("a", "the list of groups", 1.0)
    assert waits.longest(9.0, 2.0) is None, "there is nothing to tell but that it takes long"
    with waits.unanswered("b2:9092 has not answered ListGroups", 2.0):
        assert waits.longest(3.9, 2.0) is None
        assert waits.longest(4.0, 2.0) == Wait("the list of groups", "b2:9092 has not answered ListGroups", 1.0)
    assert waits.longest(9.0, 2.0) is None


def test_a_silent_broker_is_a_newer_cause_than_the_failure_before_it() -> None:
    waits = Waits()
    waits.failed("a", "topic orders", LEADERLESS, 1.0)
    number = waits.asked("b2:9092 has not answered Metadata", 1.5)
    told = waits.longest(3.2, 2.0)
    assert told is not None
    assert told.cause is LEADERLESS
    assert waits.longest(3.5, 2.0) == Wait("topic orders", "b2:9092 has not answered Metadata", 1.0)
    waits.answered(number)
    assert waits.longest(3.5, 2.0) == Wait("topic orders", LEADERLESS, 1.0)


def test_the_waits_of_one_reader_end_with_it_and_leave_those_of_others() -> None:
    waits = Waits()
    one, other = OwnWaits(waits), OwnWaits(waits)
    one.failed(1, "fetch from broker 1", GONE, 1.0)
    one.failed(2, "fetch from broker 2", LEADERLESS, 2.0)
    other.failed(1, "fetch from broker 1", GONE, 3.0)
    assert one.last(2) is LEADERLESS
    one.all_over([2, 7])
    assert one.last(2) is None
    one.clear()
    assert waits.longest(9.0, 0.0) == Wait("fetch from broker 1", GONE, 3.0)


def test_a_deadline_of_all_calls_bounds_each_and_leaves_the_last_one_a_second() -> None:
    waits = Waits()
    assert (waits.bounds(60_000, 1.0), waits.patience_ms(30_000, 0.0)) == ((61.0, 60_000), 30_000)
    waits.end_all(9_000, 1.0)
    assert waits.bounds(60_000, 2.0) == (10.0, 9_000)
    assert waits.bounds(5_000, 2.0) == (7.0, 5_000)
    assert waits.patience_ms(30_000, 4.0) == 6_000
    assert waits.patience_ms(30_000, 9.9) == 1_000
    assert waits.patience_ms(500, 9.9) == 500


def test_the_last_cause_is_below_all_deadlines() -> None:
    inner = DeadlineError.of("finding coordinators", 4000, LEADERLESS)
    outer = DeadlineError.of("the list of groups", 5000, inner)
    assert last_cause(outer) is LEADERLESS
    assert last_cause(GONE) is GONE
    assert str(DeadlineError.of("produce", 1000, "b2 is silent", "delivery.timeout.ms")) == (
        "produce: gave up after 1 s (delivery.timeout.ms); last: b2 is silent"
    )


def test_addresses_that_refuse_are_one_cause_in_whatever_order_they_were_tried() -> None:
    one, two = CannotConnectError("cannot connect to a"), CannotConnectError("cannot connect to b")
    assert str(unreachable([one, two])) == str(unreachable([two, one]))

"""What comes behind a refused batch of an idempotent producer."""

from __future__ import annotations

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.logkit import FixedClock, idempotent
from tidelog.broker.refusals import Refusals, Sent
from tidelog.errors import ErrorCode

REFUSED = ErrorCode.NOT_ENOUGH_REPLICAS
LAST = 2**31 - 1
CONNECTION = FixedClock()
"""Any object: it is only compared."""


def sent(sequence: int, *, epoch: int = 0, pid: int = 7, partition: int = 0) -> Sent:
    return Sent("t", partition, pid, epoch, sequence)


@pytest.mark.parametrize(
    ("behind", "code"),
    [
        (sent(5), None),
        (sent(10), None),
        (sent(15), REFUSED),
        (sent(15, epoch=1), None),
        (sent(15, pid=8), None),
        (sent(15, partition=1), None),
    ],
)
def test_who_is_told_the_same(behind: Sent, code: ErrorCode | None) -> None:
    refusals = Refusals(FixedClock())
    refusals.refused(sent(10), REFUSED, CONNECTION)
    assert refusals.reason_for(behind) is code


def test_sequences_wrap() -> None:
    refusals = Refusals(FixedClock())
    refusals.refused(sent(LAST - 1), REFUSED, CONNECTION)
    assert refusals.reason_for(sent(3)) is REFUSED
    assert refusals.reason_for(sent(LAST - 9)) is None


@pytest.mark.parametrize(
    ("taken", "is_over"), [(sent(5), False), (sent(10), True), (sent(15), True), (sent(0, epoch=1), True)]
)
def test_when_it_is_over(taken: Sent, is_over: bool) -> None:
    refusals = Refusals(FixedClock())
    refusals.refused(sent(10), REFUSED, CONNECTION)
    refusals.taken(taken)
    assert bool(refusals) is not is_over


def test_the_first_refused_one_counts_until_an_earlier_one_is() -> None:
    refusals = Refusals(FixedClock())
    refusals.refused(sent(10), REFUSED, CONNECTION)
    refusals.refused(sent(15), ErrorCode.NOT_LEADER_OR_FOLLOWER, CONNECTION)
    assert refusals.reason_for(sent(12)) is REFUSED
    refusals.refused(sent(5), ErrorCode.NOT_LEADER_OR_FOLLOWER, CONNECTION)
    assert refusals.reason_for(sent(8)) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_oldest_are_forgotten() -> None:
    refusals = Refusals(FixedClock())
    for pid in range(10_001):
        refusals.refused(sent(1, pid=pid), REFUSED, CONNECTION)
    assert refusals.reason_for(sent(2, pid=0)) is None
    assert refusals.reason_for(sent(2, pid=1)) is REFUSED


def test_edge_20_what_comes_behind_a_refused_batch_is_not_out_of_order() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(min_insync_replicas="1")
        partition = kit.partition()
        first, second, third = map(idempotent, range(3))
        assert (await kit.produce(first, acks=-1)).error_code == 0
        leader, partition.leader = partition.leader, None
        assert (await kit.produce(second, acks=-1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition.leader = leader
        assert (await kit.produce(third, acks=-1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        for one in (second, third):
            assert (await kit.produce(one, acks=-1)).error_code == 0
        assert (await kit.produce(idempotent(9), acks=-1)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    run(story)

"""Where replicas go when partitions are to have more or fewer of them."""

from __future__ import annotations

from collections import Counter

import pytest

from tidelog.cli.replica_plan import with_replicas
from tidelog.types import TopicPartition

SIX = {TopicPartition("t", number): (1,) for number in range(6)}


def test_more_replicas_are_spread_and_so_are_preferred_leaders() -> None:
    plan = with_replicas(SIX, 2, [1, 2, 3])
    assert plan.keys() == SIX.keys()
    assert all(len(set(replicas)) == 2 and 1 in replicas for replicas in plan.values())
    assert Counter(broker for replicas in plan.values() for broker in replicas) == {1: 6, 2: 3, 3: 3}
    assert max(Counter(replicas[0] for replicas in plan.values()).values()) <= 3
    three = with_replicas(SIX, 3, [1, 2, 3])
    assert Counter(replicas[0] for replicas in three.values()) == {1: 2, 2: 2, 3: 2}


def test_what_is_as_it_should_be_is_left_alone() -> None:
    assert with_replicas(SIX, 1, [1, 2]) == {}
    assert with_replicas({TopicPartition("t", 0): (2, 1)}, 2, [1, 2, 3]) == {}


def test_replicas_on_dead_brokers_are_replaced() -> None:
    assert with_replicas({TopicPartition("t", 0): (9, 1)}, 2, [1, 2]) == {TopicPartition("t", 0): (1, 2)}


def test_fewer_replicas_stay_where_they_are() -> None:
    plan = with_replicas({TopicPartition("t", 0): (1, 2, 3)}, 2, [1, 2, 3])
    assert len(plan[TopicPartition("t", 0)]) == 2
    assert set(plan[TopicPartition("t", 0)]) <= {1, 2, 3}


@pytest.mark.parametrize("factor", [0, 4])
def test_there_must_be_brokers_enough(factor: int) -> None:
    with pytest.raises(ValueError, match="living brokers"):
        with_replicas(SIX, factor, [1, 2, 3])

"""Where replicas go when partitions are to have more or fewer of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.cli.replica_plan import spread, with_replicas
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


# Spread over given brokers


def test_replicas_go_to_the_given_brokers_and_as_few_as_possible_move() -> None:
    current = {TopicPartition("t", number): (1, 2) for number in range(4)}
    plan = spread(current, [1, 2, 3, 4])
    after = {**current, **plan}
    assert Counter(broker for replicas in after.values() for broker in replicas) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert sum(len(set(replicas) - {1, 2}) for replicas in after.values()) == 4
    assert Counter(replicas[0] for replicas in after.values()).most_common(1)[0][1] <= 2
    assert spread(after, [1, 2, 3, 4]) == {}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.permutations(range(1, 7)).map(lambda brokers: tuple(brokers[:3])), min_size=1, max_size=30),
    st.sets(st.integers(1, 9), min_size=3, max_size=9),
)
def test_a_spread_plan_keeps_the_factor_and_uses_only_the_given_brokers(
    replicas: list[tuple[int, ...]], brokers: set[int]
) -> None:
    current = {TopicPartition("tuv"[number % 3], number): held for number, held in enumerate(replicas)}
    after = {**current, **spread(current, list(brokers))}
    for held in after.values():
        assert len(set(held)) == 3
        assert set(held) <= brokers
    for topics in ("t", "u", "v", "tuv"):
        counts = Counter(dict.fromkeys(brokers, 0))
        counts.update(broker for partition, held in after.items() if partition.topic in topics for broker in held)
        assert max(counts.values()) - min(counts.values()) <= 1
    assert spread(after, list(brokers)) == {}, "it was spread"


def test_a_new_broker_gets_its_share_of_each_topic_and_no_more_than_that_moves() -> None:
    topics = {"__consumer_offsets": 50, "orders": 6, "one": 1, "two": 1}
    ring = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    current = {TopicPartition(name, at): ring[at % 3] for name, count in topics.items() for at in range(count)}
    plan = spread(current, [1, 2, 3, 4])
    after = {**current, **plan}
    counts = Counter(broker for held in after.values() for broker in held)
    assert sorted(counts.values()) == [43, 43, 44, 44]
    assert sum(4 in held for partition, held in after.items() if partition.topic == "orders") in (4, 5)
    assert sum(len(set(held) - set(current[partition])) for partition, held in after.items()) == counts[4]
    leaders = Counter(held[0] for held in after.values())
    assert max(leaders.values()) - min(leaders.values()) <= 2


def test_too_few_brokers_for_a_spread_are_refused() -> None:
    with pytest.raises(ValueError, match="t-0 has 3 replicas"):
        spread({TopicPartition("t", 0): (1, 2, 3)}, [1, 2])

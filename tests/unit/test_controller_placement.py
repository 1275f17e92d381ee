"""Where replicas go. The tables are the answers of Kafka 3.9.1's AdminUtils."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tidelog.controller.placement import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    alternate_racks,
    place,
    place_more,
)
from tidelog.errors import ErrorCode


class Fixed(random.Random):
    """Both draws are the same, as with Kafka's fixed start index."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return self.value


def racks_of(brokers: int, racks: int) -> dict[int, str | None]:
    return {at + 1: f"r{at % racks}" if racks else None for at in range(brokers)}


KAFKA = [
    (
        (5, 10, 3, 0, 0, 0),
        [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 1], [5, 1, 2], [1, 3, 4], [2, 4, 5], [3, 5, 1], [4, 1, 2], [5, 2, 3]],
    ),
    ((3, 4, 2, 1, 0, 0), [[2, 1], [3, 2], [1, 3], [2, 3]]),
    (
        (4, 6, 4, 2, 3, 0),
        [[2, 1, 3, 4], [3, 4, 1, 2], [4, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 1], [3, 1, 2, 4]],
    ),
    ((1, 2, 1, 0, 0, 0), [[1], [1]]),
    ((6, 7, 3, 0, 0, 3), [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 1], [6, 1, 2], [1, 5, 6]]),
    ((6, 5, 4, 2, 6, 2), [[3, 6, 1, 2], [4, 1, 2, 3], [5, 2, 3, 4], [6, 3, 4, 5], [1, 4, 5, 6]]),
    ((5, 6, 2, 1, 0, 2), [[2, 5], [3, 2], [4, 3], [5, 4], [1, 4], [2, 3]]),
]


@pytest.mark.parametrize(("case", "replicas"), KAFKA)
def test_replicas_go_where_kafka_puts_them(case: tuple[int, ...], replicas: list[list[int]]) -> None:
    brokers, partitions, replication_factor, start, existing, racks = case
    if existing:
        # Partition 0 led by the broker at the start index is what gives Kafka that index.
        first = (start + 1, *range(100, 99 + replication_factor))
        placed = place_more(racks_of(brokers, racks), first, existing, partitions)
    else:
        placed = place(racks_of(brokers, racks), partitions, replication_factor, Fixed(start))
    assert placed == {existing + at: tuple(each) for at, each in enumerate(replicas)}


def test_leaders_and_replicas_are_spread_evenly() -> None:
    placed = place(racks_of(6, 3), 60, 3, random.Random(1))
    assert set(Counter(replicas[0] for replicas in placed.values()).values()) == {10}
    assert set(Counter(broker for replicas in placed.values() for broker in replicas).values()) == {30}
    for replicas in placed.values():
        assert len({(broker - 1) % 3 for broker in replicas}) == 3


def test_racks_do_not_count_if_a_broker_has_none() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: None}
    assert place(racks, 1, 3, Fixed(0)) == {0: (1, 2, 3)}


def test_brokers_alternate_between_racks() -> None:
    assert alternate_racks({0: "a", 1: "a", 2: "b", 3: "b", 4: "b"}) == [0, 2, 1, 3, 4]


def test_more_partitions_go_on_where_the_first_broker_is_gone() -> None:
    assert place_more({1: None, 2: None}, (9,), 1, 2) == {1: (2,), 2: (1,)}


def test_what_cannot_be_placed() -> None:
    with pytest.raises(InvalidPartitionsError, match="larger than 0"):
        place({1: None}, 0, 1, Fixed(0))
    with pytest.raises(InvalidReplicationFactorError):
        place({1: None}, 1, 0, Fixed(0))
    with pytest.raises(InvalidReplicationFactorError, match="of 2 needs as many brokers, and 1 are alive") as failure:
        place({1: None}, 1, 2, Fixed(0))
    assert failure.value.code is ErrorCode.INVALID_REPLICATION_FACTOR

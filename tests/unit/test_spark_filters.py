"""Filters: what they leave of a batch, and which of them Spark must still apply."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest

from tidelog.spark.filters import narrowed
from tidelog.spark.offsets import OffsetRange
from tidelog.spark.planning import ALL, Narrowing
from tidelog.types import TopicPartition


class _Binary(NamedTuple):
    attribute: tuple[str, ...]
    value: Any


class EqualTo(_Binary): ...


class EqualNullSafe(_Binary): ...


class GreaterThan(_Binary): ...


class GreaterThanOrEqual(_Binary): ...


class LessThan(_Binary): ...


class LessThanOrEqual(_Binary): ...


class In(_Binary): ...


class StringStartsWith(_Binary): ...


class IsNotNull(NamedTuple):
    attribute: tuple[str, ...]


class IsNull(NamedTuple):
    attribute: tuple[str, ...]


class Not(NamedTuple):
    child: Any


TIME = datetime(2024, 1, 1, tzinfo=UTC)
TIME_MS = 1_704_067_200_000
P = ("partition",)
OFFSET = ("offset",)
T = ("timestamp",)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(P, 3)], Narrowing(min_partition=3, max_partition=3)),
        ([EqualNullSafe(P, 3), LessThan(P, 9)], Narrowing(min_partition=3, max_partition=3)),
        ([GreaterThan(P, 3), LessThanOrEqual(P, 7)], Narrowing(min_partition=4, max_partition=7)),
        ([In(P, [1, 2, 3]), In(P, (2, 3, 4))], Narrowing(partitions=frozenset({2, 3}))),
        (
            [GreaterThanOrEqual(OFFSET, 10), GreaterThan(OFFSET, 4), LessThan(OFFSET, 20)],
            Narrowing(min_offset=10, max_offset=19),
        ),
        ([EqualTo(("topic",), "t"), IsNotNull(("topic",)), IsNotNull(T)], Narrowing(topics=frozenset("t"))),
        ([In(("topic",), ["t", "u"])], Narrowing(topics=frozenset({"t", "u"}))),
    ],
)
def test_taken_whole(filters: list[Any], expected: Narrowing) -> None:
    assert narrowed(filters) == (expected, [])


@pytest.mark.parametrize(
    ("one", "min_timestamp"),
    [
        (GreaterThanOrEqual(T, TIME), TIME_MS),
        (GreaterThan(T, TIME), TIME_MS + 1),
        (GreaterThan(T, TIME + timedelta(microseconds=999)), TIME_MS + 1),
        (GreaterThanOrEqual(T, TIME + timedelta(microseconds=1)), TIME_MS + 1),
        (EqualTo(T, TIME.replace(tzinfo=None)), TIME_MS),
        (GreaterThanOrEqual(T, TIME.astimezone(timezone(timedelta(hours=5)))), TIME_MS),
        (GreaterThanOrEqual(T, datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)), 0),
    ],
)
def test_times_move_the_start_and_are_applied_again(one: Any, min_timestamp: int) -> None:
    assert narrowed([one]) == (Narrowing(min_timestamp=min_timestamp), [one])


@pytest.mark.parametrize(
    "one",
    [
        LessThan(T, TIME),
        Not(EqualTo(P, 1)),
        IsNull(P),
        IsNotNull(("key",)),
        EqualTo(("key",), b"x"),
        EqualTo(("headers", "key"), "x"),
        EqualTo(P, None),
        In(OFFSET, [1, 2]),
        StringStartsWith(("topic",), "t"),
        GreaterThan(("timestampType",), 0),
    ],
)
def test_left_to_spark(one: Any) -> None:
    assert narrowed([one]) == (ALL, [one])


def test_what_is_left() -> None:
    narrowing = Narrowing(frozenset("t"), frozenset({1, 2}), 2, 5, 10, 19)
    assert [n for n in range(4) if narrowing.takes(TopicPartition("t", n))] == [2]
    assert not narrowing.takes(TopicPartition("u", 2))
    one = TopicPartition("t", 2)
    assert narrowing.cut(OffsetRange(one, 0, 100)) == OffsetRange(one, 10, 20)
    assert narrowing.cut(OffsetRange(one, 12, 15)) == OffsetRange(one, 12, 15)
    assert narrowing.cut(OffsetRange(one, 30, 40)).size == 0
    assert narrowing.cut(OffsetRange(one, 0, 5)).size == 0

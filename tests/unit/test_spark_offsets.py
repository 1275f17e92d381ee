"""JSON forms, limits, splitting and loss: the rules of a micro-batch."""

from __future__ import annotations

import json
import logging

import pytest

from tidelog.spark.errors import DataLossError, OptionError
from tidelog.spark.limits import MinimumGate, available, limited, split, stream_ranges
from tidelog.spark.losses import Loss, check_losses
from tidelog.spark.offsets import (
    OffsetRange,
    Position,
    check_names_all,
    from_json,
    initial_of,
    made_anew,
    parse_partitions,
    position_of,
    position_to_json,
    to_json,
    with_initial,
)
from tidelog.types import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def test_json_is_that_of_sparks_connector_and_always_the_same() -> None:
    offsets = {TopicPartition("u", 10): 1, B: 2, A: 3, TopicPartition("u", 9): 4}
    text = json.dumps(to_json(offsets))
    assert text == '{"t": {"0": 3, "1": 2}, "u": {"9": 4, "10": 1}}'
    assert from_json(json.loads(text)) == offsets
    assert json.dumps(to_json(dict(reversed(offsets.items())))) == text


def test_a_note_of_where_a_query_began_is_no_offset() -> None:
    noted = json.loads(json.dumps(with_initial(to_json({A: 9, B: 4}), {A: 3, B: 4})))
    assert initial_of(noted) == {A: 3, B: 4}
    assert from_json(noted) == {A: 9, B: 4}
    assert all(type(offset) is int for partitions in noted.values() for offset in partitions.values())
    assert initial_of(to_json({A: 9})) is None
    assert initial_of(with_initial({}, {})) == {}


def test_a_note_of_topic_ids_is_no_offset() -> None:
    ids = {"u": b"\x01" * 16, "t": b"\xff" * 16}
    position = Position({B: 4, A: 9}, ids)
    noted = json.loads(json.dumps(position_to_json(position)))
    assert position_of(noted) == position
    assert from_json(noted) == {A: 9, B: 4}
    assert all(type(offset) is int for partitions in noted.values() for offset in partitions.values())
    twisted = Position({A: 9, B: 4}, dict(reversed(ids.items())))
    assert json.dumps(position_to_json(twisted)) == json.dumps(position_to_json(position)), "Spark compares the text"
    assert position_of(to_json({A: 9})) == Position({A: 9}, {})
    both = with_initial(position_to_json(position), {A: 3})
    assert (position_of(both), initial_of(both)) == (position, {A: 3})
    assert initial_of(position_to_json(position)) is None


def test_the_end_of_a_micro_batch_is_never_empty() -> None:
    """Spark's {} is the offset of a query that has not begun, and of no other."""
    nothing = Position({}, {})
    assert position_to_json(nothing)
    assert position_of(json.loads(json.dumps(position_to_json(nothing)))) == nothing


def test_a_topic_with_another_id_was_made_anew() -> None:
    a, b = b"a" * 16, b"b" * 16
    assert made_anew({"t": a, "u": a}, {"t": b, "u": a}) == {"t"}
    assert made_anew({"t": a}, {}) == made_anew({}, {"t": a}) == set(), "without an id nothing is known"
    position = Position({A: 1, TopicPartition("u", 0): 2}, {"t": a, "u": b})
    assert position.without({"t"}) == Position({TopicPartition("u", 0): 2}, {"u": b})


def test_json_names_every_partition_and_no_other() -> None:
    check_names_all("x", [A, B], [B, A])
    with pytest.raises(OptionError, match="lacks t-1, t-2"):
        check_names_all("x", [A], [A, B, C])
    with pytest.raises(OptionError, match="names t-2, which"):
        check_names_all("x", [A, C], [A])


@pytest.mark.parametrize("text", ["[]", "{", '{"t": 0}', '{"t": []}', '{"t": [-1]}', '{"t": ["x"]}', '{"t": [true]}'])
def test_partitions_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="option 'assign'"):
        parse_partitions("assign", text)


@pytest.mark.parametrize(
    ("limit", "start", "end", "expected"),
    [
        (100, {A: 0, B: 0}, {A: 30, B: 10}, {A: 30, B: 10}),
        (20, {A: 0, B: 0}, {A: 60, B: 20}, {A: 15, B: 5}),
        (10, {A: 5, B: 7}, {A: 1005, B: 8}, {A: 14, B: 8}),
        (1, {A: 0, B: 0, C: 0}, {A: 9, B: 9, C: 0}, {A: 1, B: 1, C: 0}),
        (4, {A: 3}, {A: 3, B: 9}, {A: 3, B: 9}),
        (4, {A: 9, B: 0}, {A: 5, B: 9}, {A: 5, B: 4}),
        (2**62, {A: 0}, {A: 2**62 + 5}, {A: 2**62}),
    ],
)
def test_a_limit_is_split_in_proportion(
    limit: int,
    start: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
    expected: dict[TopicPartition, int],
) -> None:
    assert limited(limit, start, end) == expected


def test_limits_reach_the_end() -> None:
    start, end = {A: 0, B: 0, C: 0}, {A: 1000, B: 17, C: 1}
    rounds = 0
    while start != end:
        start = limited(50, start, end)
        rounds += 1
        assert rounds < 30
    assert rounds >= 20


def test_a_micro_batch_waits_to_be_worth_its_while() -> None:
    gate = MinimumGate(10, 1000)
    assert gate.opens(1, 5000), "the first goes at once"
    assert not gate.opens(9, 5999)
    assert gate.opens(10, 5999)
    assert not gate.opens(9, 6998)
    assert gate.opens(0, 6999), "it has waited long enough"
    assert available({A: 5, B: 9}, {A: 8, B: 2, C: 4}) == 3


def _sizes(parts: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(part.partition.partition, part.size) for part in parts]


@pytest.mark.parametrize(
    ("sizes", "min_partitions", "max_records", "expected"),
    [
        ([(0, 10), (1, 0)], None, None, [(0, 10)]),
        ([(0, 10), (1, 5)], 2, None, [(0, 10), (1, 5)]),
        ([(0, 10), (1, 10)], 4, None, [(0, 5), (0, 5), (1, 5), (1, 5)]),
        ([(0, 100), (1, 5)], 7, None, [(0, 16), (0, 17), (0, 17), (0, 16), (0, 17), (0, 17), (1, 5)]),
        ([(0, 3)], 10, None, [(0, 1), (0, 1), (0, 1)]),
        ([(0, 10), (1, 2)], None, 4, [(0, 3), (0, 3), (0, 4), (1, 2)]),
        ([(0, 10)], 6, 5, [(0, 1), (0, 2), (0, 2), (0, 1), (0, 2), (0, 2)]),
        ([], 5, 5, []),
    ],
)
def test_tasks(
    sizes: list[tuple[int, int]], min_partitions: int | None, max_records: int | None, expected: list[tuple[int, int]]
) -> None:
    ranges = [OffsetRange(TopicPartition("t", number), 1000, 1000 + size) for number, size in sizes]
    parts = split(ranges, min_partitions, max_records)
    assert _sizes(parts) == expected
    for one in ranges:
        own = [part for part in parts if part.partition == one.partition]
        assert [part.start for part in own] == ([one.start] if own else []) + [part.end for part in own[:-1]]
        assert not own or own[-1].end == one.end


def test_losses() -> None:
    assert stream_ranges({A: 1}, {A: 5}, {}) == ([OffsetRange(A, 1, 5)], [])
    assert stream_ranges({A: 1}, {A: 1, B: 3}, {B: 0}) == ([OffsetRange(A, 1, 1), OffsetRange(B, 0, 3)], [])
    ranges, losses = stream_ranges({A: 7, B: 2}, {A: 5, C: 9}, {C: 4})
    assert ranges == [OffsetRange(A, 7, 7), OffsetRange(C, 4, 9)]
    assert [(loss.partition, loss.start, loss.end) for loss in losses] == [(B, 2, None), (A, 5, 7), (C, 0, 4)]
    assert [str(loss) for loss in stream_ranges({}, {A: 5}, {})[1]] == [
        "topic t, partition 0, from offset 0 up to 5: partition t-0 is new and gone again"
    ]
    check_losses([], True)
    with pytest.raises(DataLossError, match=r"partition t-1 is gone.*'failOnDataLoss' to false"):
        check_losses(losses, True)


def test_a_topic_made_anew_is_read_from_its_start() -> None:
    u = TopicPartition("u", 0)
    ranges, losses = stream_ranges({A: 3, B: 5, u: 4}, {A: 2, C: 9, u: 6}, {A: 0, C: 1}, {"t"})
    assert ranges == [OffsetRange(A, 0, 2), OffsetRange(C, 1, 9), OffsetRange(u, 4, 6)]
    assert [(loss.partition, loss.start, loss.end) for loss in losses] == [(A, 3, None), (B, 5, None), (C, 0, 1)]
    assert str(losses[0]) == "topic t, partition 0, from offset 3 on: topic t was deleted and made again"


def test_a_new_partition_that_begins_behind_the_end_is_told_once() -> None:
    ranges, losses = stream_ranges({}, {A: 2}, {A: 5})
    assert ranges == [OffsetRange(A, 5, 5)]
    assert [(loss.start, loss.end) for loss in losses] == [(0, 2)]


def test_a_loss_that_is_tolerated_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_losses([Loss(A, 3, 8, "it was deleted"), Loss(B, 5, None, "it is gone")], False)
    told = [record.getMessage() for record in caplog.records]
    assert ["topic t, partition 0, from offset 3 up to 8: it was deleted" in told[0], len(told)] == [True, 2]
    assert "topic t, partition 1, from offset 5 on: it is gone" in told[1]

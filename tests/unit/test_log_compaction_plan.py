"""What the cleaner chooses, as tables."""

import pytest

from tidelog.config.topic import TopicConfig, default_topic
from tidelog.log.compaction_plan import Plan, SegmentSize, due, groups, plan

NOW = 1_000_000
SEGMENTS = [
    SegmentSize(0, 100, 8, NOW - 900),
    SegmentSize(10, 100, 8, NOW - 500),
    SegmentSize(20, 200, 8, NOW - 100),
    SegmentSize(30, 50, 8, NOW),
]


def planned(config: TopicConfig | None = None, *, first_dirty: int = 0, log_start: int = 0, stable: int = 35) -> Plan:
    return plan(
        SEGMENTS,
        config or default_topic(),
        first_dirty_offset=first_dirty,
        log_start_offset=log_start,
        stable_offset=stable,
        now_ms=NOW,
    )


@pytest.mark.parametrize(
    ("arguments", "start", "end", "ratio"),
    [
        ({}, 0, 30, 1.0),
        ({"first_dirty": 20}, 20, 30, 0.5),
        ({"first_dirty": 30}, 30, 30, 0.0),
        ({"stable": 25}, 0, 20, 1.0),
        ({"stable": 5}, 0, 0, 0.0),
        ({"first_dirty": 99}, 0, 30, 1.0),
        ({"log_start": 12}, 12, 30, 0.75),
        ({"config": default_topic(min_compaction_lag_ms=400)}, 0, 20, 1.0),
        ({"config": default_topic(min_compaction_lag_ms=1000)}, 0, 0, 0.0),
    ],
    ids=[
        "all but the active one", "half is clean", "all is clean", "only what is stable, in whole segments",
        "nothing is stable", "a checkpoint past the log starts over", "not below the log start",
        "the lag protects the young", "all are too young",
    ],
)  # fmt: skip
def test_what_can_be_cleaned(arguments: dict[str, object], start: int, end: int, ratio: float):
    found = planned(**arguments)  # type: ignore[arg-type]
    assert (found.first_dirty_offset, found.end_offset, found.dirty_ratio) == (start, end, pytest.approx(ratio))


def test_due_by_ratio_or_by_lag():
    half = planned(first_dirty=20)
    assert not due(half, default_topic(min_cleanable_dirty_ratio=0.5))
    assert due(half, default_topic(min_cleanable_dirty_ratio=0.4))
    late = planned(default_topic(max_compaction_lag_ms=50), first_dirty=20)
    assert due(late, default_topic(min_cleanable_dirty_ratio=0.9))
    assert not due(planned(first_dirty=30), default_topic(min_cleanable_dirty_ratio=0.0))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (default_topic(), [3]),
        (default_topic(segment_bytes=400), [3]),
        (default_topic(segment_bytes=399), [2, 1]),
        (default_topic(segment_bytes=50), [1, 1, 1]),
        (default_topic(segment_index_bytes=16), [2, 1]),
    ],
)
def test_segments_are_cleaned_together_as_long_as_they_fit_one(config: TopicConfig, expected: list[int]):
    assert groups(SEGMENTS[:3], config) == expected


def test_a_group_never_spans_more_offsets_than_an_index_can_say():
    far = [SegmentSize(0, 1, 8, 0), SegmentSize(2**30, 1, 8, 0), SegmentSize(2**32, 1, 8, 0)]
    assert groups(far, default_topic()) == [1, 1, 1]

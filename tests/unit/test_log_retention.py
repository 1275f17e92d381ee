"""Retention as a table (S10.2)."""

import pytest

from tidelog.config.topic import TopicConfig, default_topic
from tidelog.log.retention import SegmentFacts, expired_count

NOW = 1_000_000
THREE = [SegmentFacts(10, 100, NOW - 900), SegmentFacts(20, 100, NOW - 500), SegmentFacts(30, 100, NOW - 100)]


@pytest.mark.parametrize(
    ("config", "log_start", "high_watermark", "expected"),
    [
        (default_topic(retention_ms=-1), 0, 30, 0),
        (default_topic(retention_ms=500), 0, 30, 1),
        (default_topic(retention_ms=499), 0, 30, 2),
        (default_topic(retention_ms=50), 0, 30, 3),
        (default_topic(retention_ms=50), 0, 29, 2),
        (default_topic(retention_ms=50), 0, 9, 0),
        (default_topic(retention_bytes=300), 0, 30, 0),
        (default_topic(retention_bytes=201), 0, 30, 0),
        (default_topic(retention_bytes=200), 0, 30, 1),
        (default_topic(retention_bytes=0), 0, 30, 3),
        (default_topic(retention_bytes=0), 0, 20, 2),
        (default_topic(), 10, 30, 1),
        (default_topic(), 9, 30, 0),
        (default_topic(), 30, 30, 3),
        (default_topic(retention_ms=50, cleanup_policy=("compact",)), 10, 30, 1),
    ],
    ids=[
        "no limit", "first is too old", "two are too old", "all are too old", "not above the high watermark",
        "nothing committed", "small enough", "the rest would be too small", "the rest is just large enough",
        "no bytes wanted", "size stops at the high watermark", "below the log start", "log start inside the first",
        "log start at the end", "compacted topics go by the log start alone",
    ],
)  # fmt: skip
def test_which_segments_expire(config: TopicConfig, log_start: int, high_watermark: int, expected: int):
    count = expired_count(THREE, config, now_ms=NOW, log_start_offset=log_start, high_watermark=high_watermark)
    assert count == expected


def test_a_young_segment_shields_the_older_ones_behind_it():
    """Segments go from the front only: an old one behind a young one stays."""
    mixed = [SegmentFacts(10, 100, NOW), SegmentFacts(20, 100, 0)]
    assert expired_count(mixed, default_topic(retention_ms=5), now_ms=NOW, log_start_offset=0, high_watermark=20) == 0

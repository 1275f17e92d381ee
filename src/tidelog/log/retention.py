"""Which segments are too old or too many (S10.2). Pure: facts in, a number out."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.config.topic import TopicConfig
from tidelog.types import Offset


class SegmentFacts(NamedTuple):
    """What retention knows of a segment. `end_offset` is where the next one starts."""

    end_offset: Offset
    size_bytes: int
    largest_timestamp: int


def expired_count(
    segments: list[SegmentFacts],
    config: TopicConfig,
    *,
    now_ms: int,
    log_start_offset: Offset,
    high_watermark: Offset,
) -> int:
    """How many segments, from the oldest on, may go. Nothing at or above the high watermark does."""
    committed = [segment for segment in segments if segment.end_offset <= high_watermark]
    counts = [_below_log_start(committed, log_start_offset)]
    if config.deletes:
        counts.append(_by_time(committed, config.retention_ms, now_ms))
        counts.append(_by_size(committed, config.retention_bytes, sum(segment.size_bytes for segment in segments)))
    return max(counts)


def _below_log_start(segments: list[SegmentFacts], log_start_offset: Offset) -> int:
    count = 0
    for segment in segments:
        if segment.end_offset > log_start_offset:
            break
        count += 1
    return count


def _by_time(segments: list[SegmentFacts], retention_ms: int, now_ms: int) -> int:
    """A segment is as old as its youngest record; the first one young enough ends the search."""
    if retention_ms < 0:
        return 0
    count = 0
    for segment in segments:
        if now_ms - segment.largest_timestamp <= retention_ms:
            break
        count += 1
    return count


def _by_size(segments: list[SegmentFacts], retention_bytes: int, log_bytes: int) -> int:
    """A segment goes only if what stays is still at least retention.bytes."""
    if retention_bytes < 0:
        return 0
    excess = log_bytes - retention_bytes
    count = 0
    for segment in segments:
        if excess < segment.size_bytes:
            break
        excess -= segment.size_bytes
        count += 1
    return count

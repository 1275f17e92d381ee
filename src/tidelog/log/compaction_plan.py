"""What to compact, and in which pieces (S10.3). Pure: facts in, decisions out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.config.topic import TopicConfig
from tidelog.types import Offset

_MAX_RELATIVE_OFFSET = 2**31 - 1


class SegmentSize(NamedTuple):
    """What planning knows of a segment; the last in a list is the active one."""

    base_offset: Offset
    size_bytes: int
    index_bytes: int
    largest_timestamp: int


class Plan(NamedTuple):
    """Clean [first_dirty_offset, end_offset), and all before it anew; `dirty_ratio` of the bytes were never cleaned."""

    first_dirty_offset: Offset
    end_offset: Offset
    dirty_ratio: float
    overdue: bool
    """max.compaction.lag.ms has passed: the ratio does not matter any more."""

    @property
    def worth_it(self) -> bool:
        return self.end_offset > self.first_dirty_offset


def plan(
    segments: Sequence[SegmentSize],
    config: TopicConfig,
    *,
    first_dirty_offset: Offset,
    log_start_offset: Offset,
    stable_offset: Offset,
    now_ms: int,
) -> Plan:
    """What can be cleaned now: whole segments, never the active one, nothing unstable, nothing younger than the lag."""
    first_dirty_offset = max(first_dirty_offset, log_start_offset)
    if first_dirty_offset > segments[-1].base_offset:
        first_dirty_offset = log_start_offset  # the checkpoint speaks of a log that was cut since
    end = min(segments[-1].base_offset, stable_offset)
    end = max((segment.base_offset for segment in segments if segment.base_offset <= end), default=log_start_offset)
    ends = [segment.base_offset for segment in segments[1:]]
    dirty = [
        (segment, segment_end)
        for segment, segment_end in zip(segments, ends, strict=False)
        if segment_end > first_dirty_offset
    ]
    for segment, _ in dirty:
        if config.min_compaction_lag_ms > 0 and now_ms - segment.largest_timestamp < config.min_compaction_lag_ms:
            end = min(end, segment.base_offset)
            break
    clean_bytes = sum(
        segment.size_bytes
        for segment, segment_end in zip(segments, ends, strict=False)
        if segment_end <= first_dirty_offset
    )
    dirty_bytes = sum(segment.size_bytes for segment, _ in dirty if segment.base_offset < end)
    total = clean_bytes + dirty_bytes
    overdue = any(
        now_ms - segment.largest_timestamp > config.max_compaction_lag_ms
        for segment, _ in dirty
        if segment.base_offset < end
    )
    return Plan(first_dirty_offset, max(end, first_dirty_offset), dirty_bytes / total if total else 0.0, overdue)


def due(plan: Plan, config: TopicConfig) -> bool:
    return plan.worth_it and (plan.overdue or plan.dirty_ratio > config.min_cleanable_dirty_ratio)


def groups(segments: Sequence[SegmentSize], config: TopicConfig) -> list[int]:
    """How many segments, one after the other, are cleaned into one: what cannot outgrow a segment together."""
    counts: list[int] = []
    start = 0
    while start < len(segments):
        first = segments[start]
        size, index, count = first.size_bytes, first.index_bytes, 1
        for place in range(start + 1, len(segments)):
            segment = segments[place]
            size += segment.size_bytes
            index += segment.index_bytes
            # The end of a segment is not known here but lies before the next one's base.
            last = segments[place + 1].base_offset if place + 1 < len(segments) else segment.base_offset + 1
            if (
                size > config.segment_bytes
                or index > config.segment_index_bytes
                or last - first.base_offset > _MAX_RELATIVE_OFFSET
            ):
                break
            count += 1
        counts.append(count)
        start += count
    return counts

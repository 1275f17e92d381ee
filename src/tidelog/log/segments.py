"""The segments of one log, in the order of their offsets; the last one is active, the others are sealed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from tidelog.log.segment import Segment
from tidelog.types import Offset


class Segments:
    """Never empty once the log is open. Looked up by the offsets that the segments start at."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self.active = segments[-1]
        self._bases = [segment.base_offset for segment in segments]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, place: int) -> Segment:
        return self._segments[place]

    @property
    def sealed(self) -> list[Segment]:
        return self._segments[:-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def place_of(self, offset: Offset) -> int:
        """Where in the list the segment stands that holds `offset`; the first one if all start later."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def end_of(self, place: int, log_end_offset: Offset) -> Offset:
        """The offset at which the next segment starts."""
        return self._bases[place + 1] if place + 1 < len(self._bases) else log_end_offset

    def copy(self) -> Segments:
        """For a disk thread, while the loop goes on adding and replacing."""
        return Segments(list(self._segments))

    def add(self, segment: Segment) -> None:
        assert not self._bases or segment.base_offset > self._bases[-1]
        self._segments.append(segment)
        self.active = segment
        self._bases.append(segment.base_offset)

    def replace(self, start: int, stop: int, new: list[Segment]) -> list[Segment]:
        """Put other segments in the place of some; these are returned. One assignment: no reader sees half of it."""
        old = self._segments[start:stop]
        self._segments = self._segments[:start] + new + self._segments[stop:]
        self._bases = [segment.base_offset for segment in self._segments]
        self.active = self._segments[-1]
        return old

"""How much of the sealed segments' indexes stays in memory."""

from __future__ import annotations

from collections import OrderedDict

from tidelog.log.segment import Segment

DEFAULT_LIMIT_BYTES = 64 << 20


class IndexMemory:
    """The most recently used indexes, up to a limit for a whole log directory. It belongs to the loop.

    A log may have thousands of segments, and a broker thousands of logs; what is read, though, is mostly a few of them.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[Segment, int] = OrderedDict()
        self._total_bytes = 0

    def used(self, segment: Segment) -> None:
        """Its indexes were just read or completed; others may have to go for them."""
        if not segment.indexes_loaded:
            return
        self._total_bytes += segment.index_bytes - self._sizes.pop(segment, 0)
        self._sizes[segment] = segment.index_bytes
        while self._total_bytes > self._limit_bytes and len(self._sizes) > 1:
            oldest, size = self._sizes.popitem(last=False)
            self._total_bytes -= size
            oldest.release_indexes()

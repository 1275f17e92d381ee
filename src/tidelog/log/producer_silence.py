"""How long producers have been silent: what silence is, what the files of a log tell of it, and who is silent longest.

A producer is silent when no batch of it comes. A batch that is refused, or is a duplicate, is a sign of life too: while
there are too few replicas, or the high watermark stands still, a producer at work sends the same batches again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nsmallest
from operator import attrgetter
from typing import TypeAlias

from tidelog.log.producer_state import ProducerState
from tidelog.ports import Clock, Disk
from tidelog.types import Offset, ProducerId

SILENT_MS = 7 * 60_000
"""A producer that was silent for so long sends none of its batches again, as far as clients go by their defaults.

Clients give a batch up after delivery.timeout.ms (Java: 2 minutes) or message.timeout.ms (librdkafka: 5 minutes). The
last try may be under way for another minute (librdkafka's socket.timeout.ms), and one more minute is the margin. A
client that tries for longer (Kafka Connect sets delivery.timeout.ms to 2^31 - 1) sends its batches again all the time,
and so is not silent, unless it cannot reach the leader.
"""
RETURN_MS = 60_000
"""In this time after a start, producers that tried in vain while the broker was down come with their batches again."""
_MOST_BY_FILES_MS = SILENT_MS - RETURN_MS
_FOUND_AT_ONCE = 20

HeardMs: TypeAlias = Callable[[int], int]
"""From the silence of a producer in a snapshot: when a batch of it last came, or later."""


class FileTimes:
    """What the files of a log tell of silence when the log is opened, at `now_ms` of the clock that never falls.

    What was written long before the start is old, but that proves too little. The wall clock, by which files are dated,
    may have jumped, and clients may have tried in vain while the broker was down. So by the age of a file a producer
    becomes silent RETURN_MS after the start at the earliest. Until then, those at work give signs of life.
    """

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self.now_ms = clock.monotonic_ms()
        self._disk = disk
        self._wall_ms = clock.wall_ms()

    def written_ms(self, path: str) -> int:
        """The file was last written then, or earlier."""
        return self.now_ms - min(self._age_ms(path), _MOST_BY_FILES_MS)

    def heard_before(self, snapshot: str, is_of_close: bool) -> HeardMs:
        """For the producers of a snapshot.

        The snapshot of a clean close knows all signs of life, so that silence counts in full. After a snapshot of a
        roll there may have been some: batches that were refused or were duplicates are not in the log.
        """
        age_ms = self._age_ms(snapshot)

        def heard_ms(silent_ms: int) -> int:
            known_ms = silent_ms if is_of_close else 0
            return self.now_ms - max(known_ms, min(silent_ms + age_ms, _MOST_BY_FILES_MS))

        return heard_ms

    def _age_ms(self, path: str) -> int:
        return max(self._wall_ms - self._disk.modified_ms(path), 0)


class LongestSilent:
    """Finds the longest silent producer of a partition among those that may be forgotten.

    To look for one costs as much as to look for many, so a search finds a twentieth of them. A sign of life makes a
    producer the last of all. So the first one of those found that has given none since is the longest silent still.
    """

    def __init__(self, states: Mapping[ProducerId, ProducerState]) -> None:
        self._states = states
        self._found: list[tuple[tuple[int, Offset], ProducerState]] = []
        """What the last search found, with its silence then; the longest silent one is at the end."""
        self._is_search_in_vain = False
        self._heard_since_ms: int | None = None
        """All that may be forgotten were heard of at this time or later."""

    def added(self) -> None:
        """There is a new producer."""
        self._is_search_in_vain = False

    def find_silent(self, since_ms: int) -> ProducerState | None:
        """None if all that may be forgotten were heard of after `since_ms`.

        A flood of new ids, for each of which this is asked, does not cost a search each.
        """
        if self._heard_since_ms is not None and since_ms < self._heard_since_ms:
            return None
        state = self.find()
        if state is None:
            return None
        self._heard_since_ms = state.heard_ms
        return state if state.heard_ms <= since_ms else None

    def find(self) -> ProducerState | None:
        """None if no producer may be forgotten. To forget it is left to the caller."""
        while True:
            while self._found:
                silence, state = self._found[-1]
                if self._states.get(state.producer_id) is state and state.silence == silence:
                    return state
                self._found.pop()
            if self._is_search_in_vain:
                return None
            self._search()

    def _search(self) -> None:
        candidates = (state for state in self._states.values() if state.may_be_forgotten)
        found = nsmallest(len(self._states) // _FOUND_AT_ONCE + 1, candidates, key=attrgetter("silence"))
        self._found = [(state.silence, state) for state in reversed(found)]
        self._is_search_in_vain = not found

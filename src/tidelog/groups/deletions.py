"""Which groups have yet to forget what they committed for topics that were deleted.

There may be very many groups, so they are looked at some at a time. Meanwhile a topic of the same name may be created,
and offsets of it committed. Therefore a group is looked at before anything is committed to it or read from it, and what
it has to forget was always committed before the deletion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Set

from tidelog.groups.group import Group


class DeletedTopics:
    """Deletions have numbers. `Group.deletions_seen` is the number of the last one that the group was looked at for.

    Always: a deletion that some group has not been looked at for is among `_deletions`.
    """

    def __init__(self) -> None:
        self._last = 0
        self._deletions: deque[tuple[int, frozenset[str]]] = deque()
        """Their numbers and topics, oldest first."""
        self._since: dict[int, frozenset[str]] = {}
        """The topics of all deletions after a number, for the numbers that were asked for."""
        self._left: list[Group] = []
        """Groups that are still to be looked at, for all deletions up to `_looked_for`."""
        self._looked_for = 0

    def __bool__(self) -> bool:
        """Whether there are groups to be looked at."""
        return bool(self._deletions)

    def add(self, topics: Collection[str]) -> None:
        self._last += 1
        self._deletions.append((self._last, frozenset(topics)))
        self._since.clear()

    def created(self, group: Group) -> None:
        """It has committed nothing before."""
        group.deletions_seen = self._last

    def take(self, group: Group) -> Set[str]:
        """The topics that were deleted since the group was looked at; now it is."""
        seen, group.deletions_seen = group.deletions_seen, self._last
        topics = self._since.get(seen)
        if topics is None:
            later = (topics for number, topics in self._deletions if number > seen)
            topics = self._since[seen] = frozenset().union(*later)
        return topics

    def next_group(self, groups: Collection[Group]) -> Group | None:
        """One of `groups`, which are all there are, that may have to be looked at. None if no deletion is left."""
        while not self._left and self._deletions:
            while self._deletions and self._deletions[0][0] <= self._looked_for:
                self._deletions.popleft()
            if self._deletions:
                self._left, self._looked_for = list(groups), self._last
                self._left.reverse()
        return self._left.pop() if self._left else None

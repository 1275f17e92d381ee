"""Which groups have yet to forget what they committed for topics that were deleted.

A topic that was deleted has a name and an id: a later topic of the same name has another one.

There may be very many groups, so they are looked at some at a time. Meanwhile a topic of the same name may be created,
and offsets of it committed. Therefore a group is looked at before anything is committed to it or read from it, and what
it has to forget was always committed before the deletion.

From then on nobody reads these offsets any more. The log still holds them: tombstones are written for them, some at a
time, and again if that is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Set
from typing import TypeAlias

from tidelog.groups.group import Group

_REST_MS = 1_000

Ids: TypeAlias = Mapping[str, Set[bytes]]
"""Of deleted topics, by name."""


class DeletedTopics:
    """Deletions have numbers. `Group.deletions_seen` is the number of the last one that the group was looked at for.

    Always: a deletion that some group has not been looked at for is among `_deletions`, or its topics are in `_again`.
    A group with void offsets is in `_to_bury` or in `_under_way`.
    """

    def __init__(self) -> None:
        self._last = 0
        self._deletions: deque[tuple[int, Mapping[str, bytes]]] = deque()
        """Their numbers and topics, oldest first."""
        self._since: dict[int, Ids] = {}
        """The topics of all deletions after a number, for the numbers that were asked for."""
        self._left: list[Group] = []
        """Groups that are still to be looked at, for all deletions up to `_looked_for`."""
        self._looked_for = 0
        self._again: dict[Group, Ids] = {}
        """Groups that could not be looked at, and what they have yet to forget."""
        self._to_bury: dict[Group, None] = {}
        """Groups whose void offsets want tombstones."""
        self._under_way: dict[Group, None] = {}
        """Groups whose tombstones are on their way."""
        self._look_ms = 0
        """When these are looked at again: the log may have refused them."""

    def __bool__(self) -> bool:
        """Whether something is left to do."""
        return bool(self._deletions or self._again or self._to_bury) or self._is_under_way()

    def add(self, topics: Mapping[str, bytes]) -> None:
        self._last += 1
        self._deletions.append((self._last, dict(topics)))
        self._since.clear()

    def created(self, group: Group) -> None:
        """It has committed nothing before."""
        group.deletions_seen = self._last

    def take(self, group: Group) -> Ids:
        """The topics that were deleted since the group was looked at; now it is."""
        seen, group.deletions_seen = group.deletions_seen, self._last
        topics = self._since.get(seen)
        if topics is None:
            topics = self._since[seen] = _merged(topics for number, topics in self._deletions if number > seen)
        again = self._again.pop(group, None)
        return (
            topics
            if again is None
            else {name: topics.get(name, set()) | again.get(name, set()) for name in {*topics, *again}}
        )

    def look_again(self, group: Group, topics: Ids) -> None:
        """A fault kept it from forgetting these. It comes after all others."""
        self._again[group] = topics

    def has_gone(self, group: Group) -> None:
        self._again.pop(group, None)

    def bury(self, group: Group) -> None:
        """It has void offsets, and none of its tombstones is on its way."""
        self._under_way.pop(group, None)
        self._to_bury[group] = None

    def look_later(self, group: Group, now_ms: int) -> None:
        """Its tombstones, or newer offsets, are on their way. If the log does not take them, more has to be written."""
        if not self._under_way:
            self._look_ms = now_ms + _REST_MS
        self._under_way[group] = None

    def next_to_bury(self, now_ms: int) -> Group | None:
        if self._is_under_way() and now_ms >= self._look_ms:
            self._to_bury |= self._under_way
            self._under_way.clear()
        return self._to_bury.popitem()[0] if self._to_bury else None

    def _is_under_way(self) -> bool:
        """Whether a group is left that has void offsets yet."""
        while self._under_way:
            group = next(reversed(self._under_way))
            if group.commits.has_void:
                return True
            del self._under_way[group]
        return False

    def next_group(self, groups: Collection[Group]) -> Group | None:
        """One of `groups`, which are all there are, that may have to be looked at. None if no deletion is left."""
        while not self._left and self._deletions:
            while self._deletions and self._deletions[0][0] <= self._looked_for:
                self._deletions.popleft()
            if self._deletions:
                self._left, self._looked_for = list(groups), self._last
                self._left.reverse()
        if self._left:
            return self._left.pop()
        return next(iter(self._again), None)


def _merged(deletions: Iterable[Mapping[str, bytes]]) -> Ids:
    merged: dict[str, set[bytes]] = {}
    for topics in deletions:
        for name, topic_id in topics.items():
            merged.setdefault(name, set()).add(topic_id)
    return merged

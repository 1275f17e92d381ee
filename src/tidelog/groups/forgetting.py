"""What groups forget: offsets that were not used for too long, and those of deleted topics. Some groups at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog.groups import offsets
from tidelog.groups.commits import Commit
from tidelog.groups.deletions import DeletedTopics
from tidelog.groups.effects import Effect, Turn
from tidelog.groups.group import Group
from tidelog.groups.retention import Expiry

_TOPICS_OF_ELEMENT = 20
"""To look whether a group has committed to some topics takes little time."""
_MOST_BURIED = 500
"""Offsets of deleted topics that one write forgets, at most."""


class _Fault:
    """What one group led to while many were looked at. It is raised at the next call: the present one has effects of
    other groups, which are not to be lost."""

    def __init__(self) -> None:
        self._found: Exception | None = None

    def __bool__(self) -> bool:
        return self._found is not None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> bool:
        if isinstance(fault, Exception):
            self._found = fault
        return isinstance(fault, Exception)

    def tell(self) -> None:
        fault, self._found = self._found, None
        if fault is not None:
            raise fault


class Forgetting:
    """A fault with one group is raised, and keeps none of the others from forgetting."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        new_turn: Callable[[int], Turn],
        end: Callable[[Turn, Group, list[Commit]], None],
    ) -> None:
        self._groups = groups
        self._new_turn = new_turn
        self._end = end
        """Writes the tombstones of a group that has nothing else, and its own."""
        self._deleted = DeletedTopics()
        self._expiry: Expiry | None = None
        """The check for old offsets that is under way."""
        self._expiry_fault, self._deletion_fault = _Fault(), _Fault()

    def created(self, group: Group) -> None:
        """It has committed nothing before."""
        self._deleted.created(group)

    def _is_here(self, group: Group) -> bool:
        return self._groups.get(group.id) is group

    # Old offsets

    def begin_expiry(self) -> None:
        """Every offsets.retention.check.interval.ms: `expire_offsets` has all groups to look at, or goes on with them
        if it has not come to the end of the last check."""
        if self._expiry is None:
            self._expiry = Expiry(self._groups.values(), self._end)

    @property
    def has_expiry(self) -> bool:
        """`expire_offsets` has something to do."""
        return self._expiry is not None

    def expire_offsets(self, most: int, now_ms: int) -> tuple[list[Effect], int]:
        """Forgets old offsets, and groups that have nothing left, until about `most` elements were looked at; how many
        that were."""
        self._expiry_fault.tell()
        turn, looked_at = self._new_turn(now_ms), 0
        while looked_at < most and self._expiry is not None and not self._expiry_fault:
            with self._expiry_fault:
                elements = self._expiry.step(turn)
                looked_at += elements or 0
                if elements is None:
                    self._expiry = None
        return turn.effects, looked_at

    # Deleted topics

    def topics_deleted(self, topics: Mapping[str, bytes]) -> None:
        """What was committed for topics of these names and ids has no meaning any more; `forget_deleted` forgets it."""
        self._deleted.add(topics)

    @property
    def has_deleted_topics(self) -> bool:
        """`forget_deleted` has something to do."""
        return bool(self._deleted)

    def forget_deleted(self, most: int, now_ms: int) -> tuple[list[Effect], int]:
        """Look at some groups, until about `most` groups, topics and offsets were looked at; how many that were:
        none if all that is left is under way."""
        self._deletion_fault.tell()
        turn, looked_at = self._new_turn(now_ms), 0
        while looked_at < most and not self._deletion_fault:
            with self._deletion_fault:
                if (group := self._deleted.next_to_bury(now_ms)) is not None:
                    looked_at += self._bury_offsets(turn, group)
                elif (group := self._deleted.next_group(self._groups.values())) is not None:
                    if self._is_here(group):
                        looked_at += self._forget_deleted_of(group)
                    else:
                        self._deleted.has_gone(group)
                    looked_at += 1
                else:
                    break
        return turn.effects, looked_at

    def _forget_deleted_of(self, group: Group) -> int:
        """What it has committed for topics that were deleted is void from now on. How much there was to look at."""
        topics, known = self._deleted.take(group), len(group.commits.by_topic)
        try:
            count = group.commits.topics_deleted(topics) if topics else 0
        except Exception:
            self._deleted.look_again(group, topics)
            raise
        if count:
            self._deleted.bury(group)
        return (min(known, len(topics)) + count) // _TOPICS_OF_ELEMENT

    def _bury_offsets(self, turn: Turn, group: Group) -> int:
        """Tombstones for some of its void offsets, and for more when the log has them; how much there was to do."""
        if not self._is_here(group):
            return 1
        self._deleted.look_later(group, turn.now_ms)
        going: list[Commit] = [(*partition, None) for partition in group.commits.void(_MOST_BURIED)]

        def written(turn: Turn, error: int) -> None:
            if not error and group.commits.has_void:
                self._deleted.bury(group)

        if going:
            offsets.write_commits(turn, group, going, written)
        return 1 + len(going)

    def catch_up(self, group: Group | None) -> None:
        """Before offsets of the group are written or read."""
        if group is not None and self._deleted:
            self._forget_deleted_of(group)

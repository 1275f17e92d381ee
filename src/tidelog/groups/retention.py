"""When committed offsets are forgotten, and groups with them (S9.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tidelog.groups import offsets
from tidelog.groups.commits import Commit
from tidelog.groups.effects import Turn
from tidelog.groups.group import CONSUMER, Group
from tidelog.groups.states import GroupState
from tidelog.groups.subscriptions import Subscriptions
from tidelog.types import TopicPartition
from tidelog.wire.messages.group_records import OffsetCommitValue

_NO_TIME = -1
_PARTITIONS_AT_ONCE = 500
"""Offsets that are looked at in one go, and the most that one write forgets."""
_OFFSETS_OF_ELEMENT = 20
"""To look whether an offset is old takes little time."""
_COST_OF_WRITE = 2
"""Elements of a slice that a write takes, beside one for each of its records."""


class Expiry:
    """One check of all groups for what was not used for too long.

    There may be very many groups with very many offsets, so they are looked at some at a time. Each is looked at as it
    is then. A group that has nothing left ends with its last offsets; if some of these are still on their way, the next
    check ends it.
    """

    def __init__(self, groups: Iterable[Group], end: Callable[[Turn, Group, list[Commit]], None]) -> None:
        self._left = list(groups)
        self._left.reverse()
        self._end = end
        """Writes the tombstones of a group that has nothing else, and its own."""
        self._walk = self._check_all()
        self._turn: Turn

    def step(self, turn: Turn) -> int | None:
        """Go on for some elements; how many these are, or None if all groups were looked at.

        A group that leads to a fault is left to the next check.
        """
        self._turn = turn
        try:
            return next(self._walk, None)
        except Exception:
            self._walk = self._check_all()
            raise

    def _check_all(self) -> Iterator[int]:
        while self._left:
            yield 1
            yield from self._check(self._left.pop())

    def _check(self, group: Group) -> Iterator[int]:
        """Offsets that seem old are looked at again when they are written: there may be a slice in between."""
        going: list[TopicPartition] = []
        reads: Subscriptions | None = None
        for topic in list(group.commits.by_topic) if _may_expire(group) else ():
            partitions = list(group.commits.by_topic.get(topic, ()))
            for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
                some = partitions[start : start + _PARTITIONS_AT_ONCE]
                yield 1 + len(some) // _OFFSETS_OF_ELEMENT
                old = [TopicPartition(topic, partition) for partition in some if self._is_old(group, topic, partition)]
                if not old:
                    continue
                if reads is None and group.members:
                    reads = Subscriptions(lambda: group, list(group.commits.by_topic))
                if len(going) + len(old) > _PARTITIONS_AT_ONCE:
                    yield from self._forget(group, going, reads)
                    going = []
                going += old
        yield from self._forget(group, going, reads, are_last=True)

    def _forget(
        self, group: Group, going: list[TopicPartition], reads: Subscriptions | None, *, are_last: bool = False
    ) -> Iterator[int]:
        """Writes the tombstones, and behind the last ones that of the group if nothing else is left of it."""
        while going and reads is not None and not reads.is_complete:
            yield reads.look(_PARTITIONS_AT_ONCE)
        if not _may_expire(group):
            return
        commits: list[Commit] = [
            (topic, partition, None)
            for topic, partition in going
            if not _is_read(group, reads, topic) and self._is_old(group, topic, partition)
        ]
        group.usage.story.offsets_forgotten(group, len(commits))
        if are_last and is_finished(group, commits):
            self._end(self._turn, group, commits)
        elif commits:
            offsets.write_commits(self._turn, group, commits, lambda turn, error: None)
        else:
            return
        yield _COST_OF_WRITE + len(commits)

    def _is_old(self, group: Group, topic: str, partition: int) -> bool:
        """What is being committed just now is in use."""
        value = group.commits.get(topic, partition)
        if value is None:
            return False
        is_empty = group.protocol_type is not None and group.state is GroupState.EMPTY
        turn, empty_since_ms = self._turn, group.state_ms if is_empty else None
        if not _is_expired(value, empty_since_ms, turn.now_ms, turn.config.offsets_retention_ms):
            return False
        return not group.commits.is_in_flight(topic, partition)


def _is_read(group: Group, reads: Subscriptions | None, topic: str) -> bool:
    """A group that got its first members since it was looked at may read it."""
    return bool(group.members) and (reads is None or reads.reads(topic))


def _may_expire(group: Group) -> bool:
    """Of an empty group, of consumers, who tell which topics they read, and of those who only commit."""
    if group.state is GroupState.DEAD:
        return False
    if group.protocol_type is None or group.state is GroupState.EMPTY:
        return True
    return group.protocol_type == CONSUMER and group.state is GroupState.STABLE


def _is_expired(value: OffsetCommitValue, empty_since_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    """By its own time, if an old client gave one; else since the group is empty; else since the commit."""
    if value.expire_timestamp != _NO_TIME:
        return now_ms >= value.expire_timestamp
    since_ms = value.commit_timestamp if empty_since_ms is None else empty_since_ms
    return now_ms - since_ms >= retention_ms


def all_of(group: Group) -> list[Commit]:
    return [(topic, partition, None) for topic, partition in group.commits.known_partitions()]


def is_finished(group: Group, going: list[Commit]) -> bool:
    """Nobody is there, and nothing is left of it but what is going."""
    return (
        group.state is GroupState.EMPTY
        and not group.pending
        and not group.commits.has_in_flight()
        and not group.commits.has_void
        and len(going) == sum(map(len, group.commits.by_topic.values()))
    )

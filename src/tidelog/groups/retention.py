"""When committed offsets are forgotten, and groups with them (S9.1)."""

from __future__ import annotations

from collections.abc import Collection

from tidelog.groups.commits import Commit
from tidelog.groups.group import CONSUMER, Group
from tidelog.groups.states import GroupState
from tidelog.wire.messages.group_records import OffsetCommitValue

_NO_TIME = -1


def expired(group: Group, now_ms: int, retention_ms: int) -> list[Commit]:
    """Tombstones for what was not used for so long. What is being committed just now is in use."""
    if not _may_expire(group):
        return []
    empty_since_ms = group.state_ms if group.protocol_type is not None and group.state is GroupState.EMPTY else None
    return [
        (topic, partition, None)
        for topic, partitions in group.commits.by_topic.items()
        if not group.is_subscribed_to(topic)
        for partition, value in partitions.items()
        if _is_expired(value, empty_since_ms, now_ms, retention_ms) and not group.commits.is_in_flight(topic, partition)
    ]


def _may_expire(group: Group) -> bool:
    """Of an empty group, of consumers whose topics are known, and of those who only commit."""
    if group.protocol_type is None or group.state is GroupState.EMPTY:
        return True
    is_known = group.protocol_type == CONSUMER and group.subscribed_topics is not None
    return is_known and group.state is GroupState.STABLE


def _is_expired(value: OffsetCommitValue, empty_since_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    """By its own time, if an old client gave one; else since the group is empty; else since the commit."""
    if value.expire_timestamp != _NO_TIME:
        return now_ms >= value.expire_timestamp
    since_ms = value.commit_timestamp if empty_since_ms is None else empty_since_ms
    return now_ms - since_ms >= retention_ms


def of_topics(group: Group, topics: Collection[str]) -> list[Commit]:
    """Tombstones for all that was committed for topics that are no more."""
    commits = group.commits
    if not commits.has_in_flight() and not any(topic in commits.by_topic for topic in topics):
        return []
    return [(topic, partition, None) for topic, partition in commits.known_partitions() if topic in topics]


def all_of(group: Group) -> list[Commit]:
    return [(topic, partition, None) for topic, partition in group.commits.known_partitions()]


def is_finished(group: Group, going: list[Commit]) -> bool:
    """Nobody is there, and nothing is left of it but what is going."""
    return (
        group.state is GroupState.EMPTY
        and not group.pending
        and not group.commits.has_in_flight()
        and len(going) == sum(map(len, group.commits.by_topic.values()))
    )

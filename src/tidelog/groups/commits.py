"""What a group has committed, and what of it is still on its way into the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TypeAlias

from tidelog.groups.usage import Usage
from tidelog.types import TopicPartition
from tidelog.wire.messages.group_records import OffsetCommitValue

_IN_FLIGHT, _APPLIED = 0, 1

Commit: TypeAlias = tuple[str, int, OffsetCommitValue | None]
"""Topic, partition, and the value as it stands in the log; None for a tombstone."""
Snapshot: TypeAlias = Mapping[str, Mapping[int, OffsetCommitValue]]
"""Values by topic and partition."""
ManyValues: TypeAlias = dict[str, dict[int, OffsetCommitValue]]
"""The same of one write that names very many partitions."""


class Commits:
    """Readers see what is committed. Writers have to know of what is in flight too, to leave none of it behind.

    Always: the value of a partition is that of its last record in the log below the high watermark. Readers see all
    values of a write at once, or none.
    """

    __slots__ = ("_in_flight", "_large", "_usage", "_writes", "being_forgotten", "by_topic")

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self.by_topic: dict[str, dict[int, OffsetCommitValue]] = {}
        self._in_flight: dict[tuple[str, int], list[int]] = {}
        """Of each partition: how many writes are under way, and the number of the last one that was applied."""
        self._large: deque[ManyValues] = deque()
        """Large writes under way, in the order of the log."""
        self._writes = 0
        self.being_forgotten = 0
        """Writes under way that take the values of deleted topics back. Until they are settled, such values are still
        in `by_topic`; a reader must not take them for those of a topic that was made anew under the same name."""

    def __bool__(self) -> bool:
        return bool(self.by_topic or self._in_flight or self._large)

    def get(self, topic: str, partition: int) -> OffsetCommitValue | None:
        partitions = self.by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, topic: str, partition: int, value: OffsetCommitValue | None) -> None:
        """What a record says, when it is committed or loaded."""
        partitions = self.by_topic.get(topic)
        self._count(None if partitions is None else partitions.get(partition), value)
        if value is not None:
            if partitions is None:
                self.by_topic[topic] = {partition: value}
            else:
                partitions[partition] = value
        elif partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del self.by_topic[topic]

    def _count(self, before: OffsetCommitValue | None, after: OffsetCommitValue | None) -> None:
        usage = self._usage
        usage.offsets += (after is not None) - (before is not None)
        if before is not None and before.metadata:
            usage.metadata_bytes -= len(before.metadata.encode())
        if after is not None and after.metadata:
            usage.metadata_bytes += len(after.metadata.encode())

    def snapshot(self, topics: Iterable[str] | None) -> Snapshot:
        """The values of these topics, or of all, as they are now. Values are replaced and never changed."""
        wanted = self.by_topic if topics is None else self.by_topic.keys() & set(topics)
        return {topic: self.by_topic[topic].copy() for topic in wanted}

    def release(self) -> None:
        """They are kept here no more: from now on they count for nothing, nor does what is still in flight."""
        for partitions in self.by_topic.values():
            for value in partitions.values():
                self._count(value, None)
        self._usage = Usage()

    # Writes

    def sent(self, commits: list[Commit]) -> int:
        """The number of the write that carries them, in the order of the log."""
        in_flight = self._in_flight
        for topic, partition, _ in commits:
            flight = in_flight.get((topic, partition))
            if flight is None:
                in_flight[topic, partition] = [1, 0]
            else:
                flight[_IN_FLIGHT] += 1
        self._writes += 1
        return self._writes

    def settled(self, commits: list[Commit], number: int, applies: bool) -> None:
        """That write is over: its records are committed, or will never be. Of a partition that it names more than once
        the last record counts, as in the log."""
        for topic, partition, value in commits:
            flight = self._in_flight[topic, partition]
            if flight[_IN_FLIGHT] == 1:
                del self._in_flight[topic, partition]
            else:
                flight[_IN_FLIGHT] -= 1
            if applies and number >= flight[_APPLIED]:
                flight[_APPLIED] = number
                self.put(topic, partition, value)

    def sent_large(self, values: ManyValues) -> None:
        """A write of very many partitions. Writes are settled in the order of the log, so nothing has to be noted of
        each of its partitions, which would take long."""
        self._large.append(values)

    def settled_large(self, values: ManyValues, applies: bool) -> None:
        first = self._large.popleft()
        assert first is values, "large writes are settled in the order of the log"
        if applies:
            for topic, partitions in values.items():
                self._put_all(topic, partitions)

    def _put_all(self, topic: str, values: dict[int, OffsetCommitValue]) -> None:
        known = self.by_topic.setdefault(topic, {})
        usage, count = self._usage, len(known)
        usage.metadata_bytes -= _metadata_bytes(
            before for partition in values if (before := known.get(partition)) is not None
        )
        known.update(values)
        usage.offsets += len(known) - count
        usage.metadata_bytes += _metadata_bytes(values.values())

    def has_in_flight(self) -> bool:
        return bool(self._in_flight or self._large)

    def is_in_flight(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._in_flight or any(
            partition in values.get(topic, ()) for values in self._large
        )

    def knows(self, topic: str, partition: int) -> bool:
        """Whether it has a value or is about to have one."""
        return self.get(topic, partition) is not None or self.is_in_flight(topic, partition)

    def known_partitions(self, among: Container[str] | None = None) -> Iterator[TopicPartition]:
        """All that have a value or are about to have one; or those of some topics."""
        for topic, partitions in self.by_topic.items():
            if among is None or topic in among:
                for partition in partitions:
                    yield TopicPartition(topic, partition)
        for topic, partition in self._in_flight:
            if (among is None or topic in among) and self.get(topic, partition) is None:
                yield TopicPartition(topic, partition)
        for values in self._large:
            for topic, partitions in values.items():
                if among is not None and topic not in among:
                    continue
                for partition in partitions:
                    if self.get(topic, partition) is None and (topic, partition) not in self._in_flight:
                        yield TopicPartition(topic, partition)


def _metadata_bytes(values: Iterable[OffsetCommitValue]) -> int:
    return sum(len(value.metadata.encode()) for value in values if value.metadata)

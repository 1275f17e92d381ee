"""What a group has committed, and what of it is still on its way into the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeAlias

from tidelog.groups.usage import Usage
from tidelog.types import TopicPartition
from tidelog.wire.messages.group_records import OffsetCommitValue
from tidelog.wire.uuids import ZERO_UUID

Commit: TypeAlias = tuple[str, int, OffsetCommitValue | None]
"""Topic, partition, and the value as it stands in the log; None for a tombstone."""
Snapshot: TypeAlias = Mapping[str, Mapping[int, OffsetCommitValue]]
"""Values by topic and partition."""
ManyValues: TypeAlias = dict[str, dict[int, OffsetCommitValue]]
"""The same of one write that names very many partitions."""


class _Flight:
    """Of one partition, while writes for it are under way."""

    __slots__ = ("applied", "topic_id", "writes")

    def __init__(self, topic_id: bytes) -> None:
        self.writes = 1
        """How many are under way."""
        self.applied = 0
        """The number of the last one that was applied."""
        self.topic_id = topic_id
        """Of what they commit; ZERO_UUID if that is of several topics, or is not known."""


class Commits:
    """Readers see what is committed. Writers have to know of what is in flight too, to leave none of it behind.

    Always: the value of a partition is that of its last record in the log below the high watermark, but for what was
    committed for topics that were deleted later. Readers see all values of a write at once, or none.
    """

    __slots__ = ("_in_flight", "_large", "_last_void", "_usage", "_void", "_writes", "by_topic")

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self.by_topic: dict[str, dict[int, OffsetCommitValue]] = {}
        self._in_flight: dict[tuple[str, int], _Flight] = {}
        self._large: deque[tuple[int, ManyValues]] = deque()
        """Large writes under way with their numbers, in the order of the log."""
        self._writes = 0
        self._void: dict[str, dict[int, OffsetCommitValue]] = {}
        """What the log holds of deleted topics, by topic and partition, until a tombstone or a newer value is committed
        behind it. Readers do not see it; the next coordinator would."""
        self._last_void: dict[str, tuple[int, tuple[Container[bytes], ...]]] = {}
        """Of deleted topics, while writes are under way: the number of the last one that was sent before the
        deletion, and the ids that were deleted."""

    def __bool__(self) -> bool:
        return bool(self.by_topic or self._in_flight or self._large or self._void)

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
        for topic, partition, value in commits:
            topic_id = ZERO_UUID if value is None else value.topic_id
            flight = in_flight.get((topic, partition))
            if flight is None:
                in_flight[topic, partition] = _Flight(topic_id)
            else:
                flight.writes += 1
                flight.topic_id = topic_id if topic_id == flight.topic_id else ZERO_UUID
        self._writes += 1
        return self._writes

    def settled(self, commits: list[Commit], number: int, applies: bool) -> None:
        """That write is over: its records are committed, or will never be. Of a partition that it names more than once
        the last record counts, as in the log."""
        for topic, partition, value in commits:
            flight = self._in_flight[topic, partition]
            flight.writes -= 1
            if not flight.writes:
                del self._in_flight[topic, partition]
            if applies and number >= flight.applied:
                flight.applied = number
                if value is None:  # of whichever topic: it is the last of this partition in the log
                    self.put(topic, partition, None)
                if not self._is_void(topic, ZERO_UUID if value is None else value.topic_id, number):
                    self._replace_void(topic, (partition,))
                    self.put(topic, partition, value)
        self._write_over()

    def sent_large(self, values: ManyValues) -> int:
        """A write of very many partitions. Writes that are in the log are settled in its order, so nothing has to be
        noted of each of its partitions, which would take long."""
        self._writes += 1
        self._large.append((self._writes, values))
        return self._writes

    def settled_large(self, number: int, applies: bool) -> None:
        values = next(values for other, values in self._large if other == number)
        self._large.remove((number, values))
        if applies:
            for topic, partitions in values.items():
                if not self._is_void(topic, topic_id_of(partitions), number):
                    self._replace_void(topic, partitions)
                    self._put_all(topic, partitions)
        self._write_over()

    def _write_over(self) -> None:
        if self._last_void and not self.has_in_flight():
            self._last_void.clear()

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
            partition in values.get(topic, ()) for _, values in self._large
        )

    def knows(self, topic: str, partition: int) -> bool:
        """Whether it has a value or is about to have one."""
        return self.get(topic, partition) is not None or self.is_in_flight(topic, partition)

    def known_partitions(self) -> Iterator[TopicPartition]:
        """All of which the log holds a value, or is about to."""
        for topic, partitions in self.by_topic.items():
            for partition in partitions:
                yield TopicPartition(topic, partition)
        for topic, partitions in self._void.items():
            for partition in partitions:
                if self.get(topic, partition) is None:
                    yield TopicPartition(topic, partition)
        for topic, partition in self._in_flight:
            if not self._is_held(topic, partition):
                yield TopicPartition(topic, partition)
        for _, values in self._large:
            for topic, partitions in values.items():
                for partition in partitions:
                    if not self._is_held(topic, partition) and (topic, partition) not in self._in_flight:
                        yield TopicPartition(topic, partition)

    def _is_held(self, topic: str, partition: int) -> bool:
        return self.get(topic, partition) is not None or partition in self._void.get(topic, ())

    # Deleted topics

    def topics_deleted(self, topics: Mapping[str, Container[bytes]]) -> int:
        """What was committed for topics of these names and ids is void, and so is what of it is under way; how much
        that was. An offset without an id may be of any topic of the name."""
        count = 0
        for topic in self.by_topic.keys() & topics.keys():
            known, ids = self.by_topic[topic], topics[topic]
            values = {partition: value for partition, value in known.items() if _is_among(value.topic_id, ids)}
            if len(values) == len(known):
                del self.by_topic[topic]
            else:
                self.by_topic[topic] = {index: value for index, value in known.items() if index not in values}
            if values:
                self._usage.offsets -= len(values)
                self._usage.metadata_bytes -= _metadata_bytes(values.values())
                self._void[topic] = values | self._void.get(topic, {})
                count += len(values)
        if self.has_in_flight():
            count += self._void_in_flight(topics)
        return count

    def _void_in_flight(self, topics: Mapping[str, Container[bytes]]) -> int:
        under_way = [
            partition
            for partition, flight in self._in_flight.items()
            if partition[0] in topics and _is_among(flight.topic_id, topics[partition[0]])
        ]
        for _, values in self._large:
            for topic in values.keys() & topics.keys():
                if _is_among(topic_id_of(values[topic]), topics[topic]):
                    under_way += ((topic, partition) for partition in values[topic])
        for topic, partition in under_way:
            self._void.setdefault(topic, {}).setdefault(partition, _VOID)
        for topic in topics.keys() & self._void.keys():
            _, ids = self._last_void.get(topic, (0, ()))
            self._last_void[topic] = (self._writes, (*ids, topics[topic]))
        return len(under_way)

    def _is_void(self, topic: str, topic_id: bytes, number: int) -> bool:
        """Whether its topic was deleted after this write had been sent."""
        if topic not in self._last_void:
            return False
        last, deletions = self._last_void[topic]
        return number <= last and any(_is_among(topic_id, ids) for ids in deletions)

    def _replace_void(self, topic: str, partitions: Iterable[int]) -> None:
        """Nothing of before is left of these partitions."""
        void = self._void.get(topic)
        if void is None:
            return
        for partition in partitions:
            void.pop(partition, None)
        if not void:
            del self._void[topic]

    @property
    def has_void(self) -> bool:
        return bool(self._void)

    def void(self, most: int) -> list[TopicPartition]:
        """So many partitions of which something void is in the log, and nothing on its way behind it."""
        void = (
            TopicPartition(topic, partition) for topic, partitions in self._void.items() for partition in partitions
        )
        return list(islice((known for known in void if not self.is_in_flight(*known)), most))


_VOID = OffsetCommitValue(offset=-1, metadata="", commit_timestamp=-1)
"""Stands for a value that is under way."""


def _is_among(topic_id: bytes, deleted: Container[bytes]) -> bool:
    """An offset without an id may be of any topic of its name, and so may a deletion that tells none."""
    return topic_id == ZERO_UUID or topic_id in deleted or ZERO_UUID in deleted


def topic_id_of(values: Mapping[int, OffsetCommitValue]) -> bytes:
    """The topic of what one write commits for a name."""
    return next((value.topic_id for value in values.values()), ZERO_UUID)


def _metadata_bytes(values: Iterable[OffsetCommitValue]) -> int:
    return sum(len(value.metadata.encode()) for value in values if value.metadata)

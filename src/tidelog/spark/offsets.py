"""Offsets as Spark's Kafka connector writes them, in JSON, and where a query begins and ends. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from tidelog.client.offsets import EARLIEST, LATEST
from tidelog.spark.errors import OptionError
from tidelog.types import Offset, TopicPartition
from tidelog.wire.uuids import parse_uuid, uuid_text

Offsets: TypeAlias = dict[TopicPartition, Offset]
"""Of each partition, the first offset that is not read yet."""

JsonOffsets: TypeAlias = dict[str, dict[str, int]]
"""The same as {"topic": {"0": 23}}: what stands in a checkpoint."""

TopicIds: TypeAlias = dict[str, bytes]
"""By name. A topic that is deleted and made again has another id; old brokers give none."""

_INITIAL = "began at "
_TOPIC_IDS = "topic ids "
_CLUSTER_ID = "cluster id "
_MAX_PARTITION = 2**31 - 1
_MAX_OFFSET = 2**63 - 1


class Everywhere(NamedTuple):
    """`earliest` or `latest`, in all partitions."""

    option: str
    offset: Offset


class AtOffsets(NamedTuple):
    """An offset for each partition; EARLIEST and LATEST are allowed."""

    option: str
    offsets: Offsets


class AtTimestamp(NamedTuple):
    """The first record at or after this time, in ms, in all partitions."""

    option: str
    timestamp: int


class AtTimestamps(NamedTuple):
    """The same, with a time for each partition."""

    option: str
    timestamps: dict[TopicPartition, int]


Bound: TypeAlias = Everywhere | AtOffsets | AtTimestamp | AtTimestamps
"""Where a read begins or ends; `option` said so."""


class Position(NamedTuple):
    """Where a micro-batch begins or ends, and the ids of the topics and of the cluster that the offsets belong to.

    Ids that are not known are left out.
    """

    offsets: Offsets
    topic_ids: TopicIds
    cluster_id: str | None = None

    def without(self, topics: Collection[str]) -> Position:
        return Position(
            {partition: offset for partition, offset in self.offsets.items() if partition.topic not in topics},
            {topic: topic_id for topic, topic_id in self.topic_ids.items() if topic not in topics},
            self.cluster_id,
        )


class OffsetRange(NamedTuple):
    """Offsets of one partition, `end` not among them. How many records these are is not known: there may be gaps."""

    partition: TopicPartition
    start: Offset
    end: Offset

    @property
    def size(self) -> int:
        return self.end - self.start


def to_json(offsets: Mapping[TopicPartition, Offset]) -> JsonOffsets:
    """Sorted, so that the same offsets are the same text: Spark compares the text."""
    found: JsonOffsets = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(number)): offset
        for topic, numbers in offsets.items()
        for number, offset in numbers.items()
    }


def position_to_json(position: Position) -> JsonOffsets:
    """The offsets, with notes of the ids: each is the name of a topic that cannot exist and has no partitions.

    A reader that does not know of the note, such as Spark's Kafka connector when it takes over a checkpoint, finds no
    offsets there. That of the topic ids stands there even if no partition is left, so the end of a micro-batch is
    never {}: only the offset of a query that has not begun is.
    """
    ids = {topic: uuid_text(topic_id) for topic, topic_id in sorted(position.topic_ids.items())}
    cluster: JsonOffsets = {} if position.cluster_id is None else {_CLUSTER_ID + position.cluster_id: {}}
    return {**to_json(position.offsets), _TOPIC_IDS + json.dumps(ids): {}, **cluster}


def position_of(offsets: Mapping[str, Mapping[str, int]]) -> Position:
    """Checkpoints of former versions and of Spark's connector have no ids."""
    ids = json.loads(_noted(offsets, _TOPIC_IDS) or "{}")
    topic_ids = {topic: parse_uuid(text) for topic, text in ids.items()}
    return Position(from_json(offsets), topic_ids, _noted(offsets, _CLUSTER_ID))


def made_anew(before: TopicIds, after: TopicIds) -> set[str]:
    """The topics that have another id than before: they were deleted, and others of the same name were made."""
    return {topic for topic, topic_id in after.items() if before.get(topic, topic_id) != topic_id}


def with_initial(offsets: JsonOffsets, initial: Mapping[TopicPartition, Offset]) -> JsonOffsets:
    """The same offsets, with a note of where the query began, for `initial_of`: again a topic without partitions."""
    return {**offsets, _INITIAL + json.dumps(to_json(initial)): {}}


def initial_of(offsets: Mapping[str, Mapping[str, int]]) -> Offsets | None:
    """Where the query began; None if that is not noted."""
    noted = _noted(offsets, _INITIAL)
    return None if noted is None else from_json(json.loads(noted))


def _noted(offsets: Mapping[str, Mapping[str, int]], kind: str) -> str | None:
    """What follows on this word in the name of a topic that is a note."""
    name = next((name for name in offsets if name.startswith(kind)), None)
    return None if name is None else name.removeprefix(kind)


def parse_offsets(option: str, text: str) -> Offsets:
    """{"topic": {"0": 23, "1": -2}}: -2 is the earliest offset, -1 the latest."""
    offsets = _parse_numbers(option, text, '{"topic": {"0": 23, "1": -2}}')
    wrong = next((item for item in offsets.items() if item[1] < EARLIEST), None)
    if wrong is not None:
        raise OptionError(
            option, f"{wrong[0]} has offset {wrong[1]}; below 0 there are only -1 (latest), -2 (earliest)"
        )
    return offsets


def parse_timestamps(option: str, text: str) -> dict[TopicPartition, int]:
    """{"topic": {"0": 1700000000000}}, in milliseconds."""
    timestamps = _parse_numbers(option, text, '{"topic": {"0": 1700000000000}}')
    wrong = next((item for item in timestamps.items() if item[1] < 0), None)
    if wrong is not None:
        raise OptionError(option, f"{wrong[0]} has timestamp {wrong[1]}, which is below 0")
    return timestamps


def parse_partitions(option: str, text: str) -> list[TopicPartition]:
    """{"topic": [0, 1]}."""
    form = '{"topic": [0, 1]}'
    found: list[TopicPartition] = []
    for topic, numbers in _parse_object(option, text, form).items():
        if not isinstance(numbers, list) or not numbers:
            raise OptionError(option, f"topic {topic} has no list of partitions; write {form}")
        found += [TopicPartition(topic, _partition(option, number, form)) for number in numbers]
    if not found:
        raise OptionError(option, f"it names no partition; write {form}")
    return sorted(set(found))


def _parse_numbers(option: str, text: str, form: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _parse_object(option, text, form).items():
        if not isinstance(numbers, dict):
            raise OptionError(option, f"topic {topic} has no partitions; write {form}")
        for number, value in numbers.items():
            if type(value) is not int or value > _MAX_OFFSET:
                raise OptionError(option, f"partition {number} of topic {topic} has {value!r}; write {form}")
            found[TopicPartition(topic, _partition(option, number, form))] = value
    if not found:
        raise OptionError(option, f"it names no partition; write {form}")
    return found


def _parse_object(option: str, text: str, form: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as failure:
        raise OptionError(option, f"{text!r} is not JSON; write {form}") from failure
    if not isinstance(found, dict):
        raise OptionError(option, f"{text!r} is not of the form {form}")
    return found


def _partition(option: str, number: Any, form: str) -> int:
    text = str(number)
    if isinstance(number, bool) or not text.isdecimal() or int(text) > _MAX_PARTITION:
        raise OptionError(option, f"{number!r} is not a partition; write {form}")
    return int(text)


def check_names_all(
    option: str, named: Iterable[TopicPartition], assigned: Iterable[TopicPartition], *, special: bool = True
) -> None:
    """JSON must name every partition that is read, and no other: what is left out would be a guess."""
    given, wanted = set(named), set(assigned)
    hint = " Use -1 for latest and -2 for earliest." if special else ""
    if missing := sorted(wanted - given):
        raise OptionError(option, f"it must name every partition; it lacks {_names(missing)}.{hint}")
    if unknown := sorted(given - wanted):
        raise OptionError(option, f"it names {_names(unknown)}, which the query does not read")


def check_batch_bounds(start: Bound, end: Bound) -> None:
    """What a batch query cannot mean: to begin at the end, to end at the beginning, or to end before it begins."""
    if isinstance(start, Everywhere) and start.offset == LATEST:
        raise OptionError(start.option, "a batch query cannot begin at latest")
    if isinstance(end, Everywhere) and end.offset == EARLIEST:
        raise OptionError(end.option, "a batch query cannot end at earliest")
    for bound, special, word in ((start, LATEST, "begin at latest"), (end, EARLIEST, "end at earliest")):
        if isinstance(bound, AtOffsets):
            wrong = next((partition for partition, offset in bound.offsets.items() if offset == special), None)
            if wrong is not None:
                raise OptionError(bound.option, f"a batch query of {wrong} cannot {word} ({special})")
    begun = start.timestamps if isinstance(start, AtTimestamps) else getattr(start, "offsets", None)
    ended = end.timestamps if isinstance(end, AtTimestamps) else getattr(end, "offsets", None)
    if begun is None or ended is None or type(start) is not type(end):
        return
    check_names_all(end.option, ended, begun)
    for partition, first in begun.items():
        if first >= 0 and 0 <= ended[partition] < first:
            raise OptionError(end.option, f"{partition} would end at {ended[partition]}, before its start {first}")


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(partition) for partition in partitions]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more

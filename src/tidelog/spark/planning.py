"""What the driver asks the brokers: which partitions there are, where they begin and end, which offset a time has."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.errors import DeadlineError, UnknownTopicError
from tidelog.client.offsets import EARLIEST, LATEST, NO_OFFSET, list_offsets
from tidelog.spark.errors import OptionError
from tidelog.spark.losses import Loss, check_losses
from tidelog.spark.offsets import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Everywhere,
    OffsetRange,
    Offsets,
    Position,
    TopicIds,
    check_names_all,
    made_anew,
)
from tidelog.spark.options import ReadOptions, Subscription
from tidelog.types import TopicPartition
from tidelog.wire.uuids import ZERO_UUID


class Narrowing(NamedTuple):
    """What filters leave of a batch. None leaves all."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    min_partition: int | None = None
    max_partition: int | None = None
    min_offset: int | None = None
    max_offset: int | None = None
    min_timestamp: int | None = None
    """In ms. Records that are late may lie anywhere behind the first that is as late as this, so there is no max."""

    def takes(self, partition: TopicPartition) -> bool:
        return (
            (self.topics is None or partition.topic in self.topics)
            and (self.partitions is None or partition.partition in self.partitions)
            and (self.min_partition is None or partition.partition >= self.min_partition)
            and (self.max_partition is None or partition.partition <= self.max_partition)
        )

    def cut(self, one: OffsetRange) -> OffsetRange:
        """May be empty: its end is then its start."""
        start = one.start if self.min_offset is None else max(one.start, self.min_offset)
        end = one.end if self.max_offset is None else min(one.end, self.max_offset + 1)
        return one._replace(start=start, end=max(start, end))


ALL = Narrowing()
NO_IDS: TopicIds = {}


async def assigned_partitions(cluster: Cluster, subscription: Subscription) -> list[TopicPartition]:
    """Those that the query reads now, sorted. OptionError if a topic or a partition that it names does not exist."""
    if subscription.pattern is not None:
        topics = await cluster.all_topics()
        matching = [
            topic
            for name, topic in topics.items()
            if not topic.is_internal and re.fullmatch(subscription.pattern, name) is not None
        ]
        return sorted(TopicPartition(topic.name, number) for topic in matching for number in topic.partitions)
    names = subscription.topics or sorted({partition.topic for partition in subscription.partitions})
    found: list[TopicPartition] = []
    for name in names:
        try:
            topic = await cluster.topic(name, fresh=True)
        except UnknownTopicError as failure:
            raise OptionError(subscription.option, f"topic {name} does not exist") from failure
        found += [TopicPartition(name, number) for number in topic.partitions]
    if not subscription.partitions:
        return sorted(found)
    missing = next((partition for partition in subscription.partitions if partition not in found), None)
    if missing is not None:
        raise OptionError(subscription.option, f"partition {missing} does not exist")
    return list(subscription.partitions)


def topic_ids(cluster: Cluster, partitions: Iterable[TopicPartition]) -> TopicIds:
    """Of the topics of these partitions, as far as metadata has them."""
    ids = {topic: cluster.metadata.topic_id(topic) for topic in _topics(partitions)}
    return {topic: topic_id for topic, topic_id in ids.items() if topic_id != ZERO_UUID}


def _topics(partitions: Iterable[TopicPartition]) -> list[str]:
    return list(dict.fromkeys(partition.topic for partition in partitions))


async def latest_offsets(cluster: Cluster, options: ReadOptions, known: TopicIds = NO_IDS) -> Position:
    """Of all assigned partitions, the end as a reader of this isolation sees it. Topics that are gone are left out.

    The topic ids are from before the ends. If a topic is made again in between, the id is that of the old one and
    never that of the new one with an end of the old one, which would pass over records of the new one.
    If an id is not the one that is `known`, another broker is asked: the first may know the past only.
    """
    try:
        partitions = await assigned_partitions(cluster, options.subscription)
    except OptionError:
        partitions = await _remaining(cluster, options.subscription)
    ids = topic_ids(cluster, partitions)
    if doubtful := sorted(made_anew(known, ids)):
        await cluster.retrying(lambda: cluster.refresh_once(doubtful, elsewhere=True), "topic ids", topics=None)
        partitions = [partition for partition in partitions if cluster.metadata.partition(partition) is not None]
        ids = topic_ids(cluster, partitions)
    try:
        return Position(await _listed(cluster, dict.fromkeys(partitions, LATEST), options), ids)
    except DeadlineError:
        if all(cluster.metadata.partition(partition) is not None for partition in partitions):
            raise
        # A topic was deleted after its partitions were found.
        return await latest_offsets(cluster, options, known)


async def latest_from(cluster: Cluster, options: ReadOptions, start: Position) -> Position:
    """The same for a query that has read up to `start`.

    An end before that may be an answer of the past, from a broker that has just begun to lead, and a partition that is
    missing may not be known yet to a broker that has just started. So they are asked for again. If the answer stays,
    the log was cut, deleted or made anew, and planning will tell of the loss.
    """
    found = await latest_offsets(cluster, options, start.topic_ids)
    for _ in range(1, options.offset_attempts):
        if not _behind(start, found):
            break
        await asyncio.sleep(options.offset_interval_ms / 1000)
        found = await latest_offsets(cluster, options, start.topic_ids)
    return found


def _behind(start: Position, end: Position) -> set[str]:
    """The topics that were read further than `end`, or that are not those that were read."""
    shorter = {
        partition.topic for partition, offset in start.offsets.items() if end.offsets.get(partition, -1) < offset
    }
    return shorter | made_anew(start.topic_ids, end.topic_ids)


async def until_target(cluster: Cluster, options: ReadOptions, start: Position, target: Position) -> Position:
    """Where Trigger.AvailableNow ends: at its target, which is asked for anew of topics whose target is before `start`.

    So it is if the query began at a later end, if a topic appeared after the target was asked for and before the
    query began, and if the broker that told the target did not know better.
    """
    behind = _behind(start, target)
    if not behind:
        return target
    now = await latest_from(cluster, options, start)
    kept, renewed = target.without(behind), now.without(set(_topics(now.offsets)) - behind)
    return Position({**kept.offsets, **renewed.offsets}, {**kept.topic_ids, **renewed.topic_ids})


async def _remaining(cluster: Cluster, subscription: Subscription) -> list[TopicPartition]:
    """Of a query that runs: a topic that was deleted under it is a loss of data, not a wrong option."""
    topics = await cluster.all_topics()
    there = {TopicPartition(topic.name, number) for topic in topics.values() for number in topic.partitions}
    if subscription.partitions:
        return [partition for partition in subscription.partitions if partition in there]
    return sorted(partition for partition in there if partition.topic in subscription.topics)


async def earliest_offsets(cluster: Cluster, partitions: Iterable[TopicPartition], options: ReadOptions) -> Offsets:
    """Of those that exist."""
    asked = list(partitions)
    for topic in _topics(asked):
        try:
            await cluster.topic(topic, fresh=True)
        except UnknownTopicError:
            asked = [partition for partition in asked if partition.topic != topic]
    asked = [partition for partition in asked if cluster.metadata.partition(partition) is not None]
    return await _listed(cluster, dict.fromkeys(asked, EARLIEST), options)


async def starting_offsets(cluster: Cluster, options: ReadOptions) -> Position:
    """Where a query begins, as numbers."""
    partitions = await assigned_partitions(cluster, options.subscription)
    ids = topic_ids(cluster, partitions)
    return Position(await _resolved(cluster, options.start, partitions, options), ids)


async def batch_ranges(cluster: Cluster, options: ReadOptions, narrowing: Narrowing = ALL) -> list[OffsetRange]:
    """What a batch query reads of each partition; never past the end that its isolation sees now."""
    partitions = await assigned_partitions(cluster, options.subscription)
    starts = await _resolved(cluster, options.start, partitions, options)
    ends = await _resolved(cluster, options.end, partitions, options, ending=True)
    latest = await _listed(cluster, dict.fromkeys(partitions, LATEST), options)
    ranges: list[OffsetRange] = []
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        if end > latest[partition]:
            why = f"option '{options.end.option}' ends {partition} at {end}; its log ends at {latest[partition]}"
            check_losses([Loss(partition, latest[partition], end, why)], options.fail_on_data_loss)
            end = latest[partition]
        if start > end:
            both = f"'{options.start.option}' and '{options.end.option}'"
            raise OptionError(options.start.option, f"{partition} would begin at {start} and end at {end} by {both}")
        if narrowing.takes(partition):
            ranges.append(narrowing.cut(OffsetRange(partition, start, end)))
    return await _from_time(cluster, ranges, narrowing, options)


async def _from_time(
    cluster: Cluster, ranges: list[OffsetRange], narrowing: Narrowing, options: ReadOptions
) -> list[OffsetRange]:
    """Without what lies before the first record that is late enough.

    Brokers know no time before 1970, while records without a timestamp have -1, one millisecond before.
    """
    if narrowing.min_timestamp is None or narrowing.min_timestamp <= 0:
        return ranges
    times = {one.partition: narrowing.min_timestamp for one in ranges if one.size > 0}
    found = await _listed(cluster, times, options)
    cut: list[OffsetRange] = []
    for one in ranges:
        first = found.get(one.partition, one.start)
        first = one.end if first == NO_OFFSET else first
        cut.append(one._replace(start=min(one.end, max(one.start, first))))
    return cut


async def _resolved(
    cluster: Cluster,
    bound: Bound,
    partitions: list[TopicPartition],
    options: ReadOptions,
    *,
    ending: bool = False,
) -> Offsets:
    if isinstance(bound, Everywhere):
        return await _listed(cluster, dict.fromkeys(partitions, bound.offset), options)
    if isinstance(bound, AtOffsets):
        check_names_all(bound.option, bound.offsets, partitions)
        special = {partition: offset for partition, offset in bound.offsets.items() if offset < 0}
        return {**bound.offsets, **await _listed(cluster, special, options)}
    times = dict.fromkeys(partitions, bound.timestamp) if isinstance(bound, AtTimestamp) else bound.timestamps
    if isinstance(bound, AtTimestamps):
        check_names_all(bound.option, times, partitions, special=False)
    found = await _listed(cluster, times, options)
    none = [partition for partition in partitions if found[partition] == NO_OFFSET]
    if none and not ending and not options.latest_if_no_match:
        what = f"no record of {none[0]} is as late as {times[none[0]]}"
        raise OptionError(bound.option, f"{what}; with startingOffsetsByTimestampStrategy=latest it begins at the end")
    return {**found, **await _listed(cluster, dict.fromkeys(none, LATEST), options)}


async def _listed(cluster: Cluster, times: Mapping[TopicPartition, int], options: ReadOptions) -> Offsets:
    if not times:
        return {}
    found = await list_offsets(cluster, times, isolation=options.fetch.isolation)
    return {partition: one.offset for partition, one in found.items()}

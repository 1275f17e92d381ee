"""What each replica has itself: where its log ends, and how far it knows records to be committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.client.admin import Admin
from tidelog.client.cluster import Cluster
from tidelog.client.leaders import by_topic
from tidelog.client.metadata import TopicMetadata
from tidelog.client.offsets import LATEST
from tidelog.errors import ErrorCode, TidelogError, error_code
from tidelog.types import BrokerId, Offset, TopicPartition
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchRequestReplicaState,
    FetchResponse,
    FetchTopic,
)
from tidelog.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.versions import Versions

_DEBUGGING_REPLICA = -2
"""Asks a replica for what it has itself, be it the leader or not."""

_LIST_OFFSETS = Versions(1, 10)
_FETCH = Versions(15, 18)
"""The replica state came with 15. Before 13 topics have names, and here they have ids."""

_LOOKS = 3
"""A replica that cuts its log between two questions is asked again, but not for ever."""

_Ends = dict[TopicPartition, Offset | ErrorCode]


class ReplicaWatermarks(NamedTuple):
    """One replica of one partition. Either it has both offsets, or `failure` says why it has none."""

    broker: BrokerId
    log_end_offset: Offset | None = None
    high_watermark: Offset | None = None
    failure: str | None = None


async def replica_watermarks(
    cluster: Cluster, topics: Iterable[TopicMetadata]
) -> dict[TopicPartition, list[ReplicaWatermarks]]:
    """By partition, each replica in the order of the assignment. Every broker is asked once for all it holds."""
    replicas = {
        TopicPartition(topic.name, partition.partition): partition.replicas
        for topic in topics
        for partition in topic.partitions.values()
    }
    held: dict[BrokerId, list[TopicPartition]] = {}
    for partition, brokers in replicas.items():
        for broker in brokers:
            held.setdefault(broker, []).append(partition)
    # Metadata may go on listing one that has just died.
    alive = {node.id for node in (await Admin(cluster).describe_cluster()).brokers}
    answers = await asyncio.gather(
        *(_of_broker(cluster, broker, partitions, broker in alive) for broker, partitions in held.items())
    )
    found = dict(zip(held, answers, strict=True))
    return {partition: [found[broker][partition] for broker in brokers] for partition, brokers in replicas.items()}


async def _of_broker(
    cluster: Cluster, broker: BrokerId, partitions: Sequence[TopicPartition], is_alive: bool
) -> dict[TopicPartition, ReplicaWatermarks]:
    if not is_alive or broker not in cluster.metadata.brokers:
        return {partition: ReplicaWatermarks(broker, failure="dead") for partition in partitions}
    found: dict[TopicPartition, ReplicaWatermarks] = {}
    open_ones = list(partitions)
    try:
        for _ in range(_LOOKS):
            looked = await _look(cluster, broker, open_ones)
            found |= looked
            open_ones = [
                partition for partition in open_ones if looked[partition].failure == ErrorCode.OFFSET_OUT_OF_RANGE.name
            ]
            if not open_ones:
                break
    except TidelogError as failure:
        # Alive for all that the cluster knows; the reader learns what is the matter with it.
        return {partition: ReplicaWatermarks(broker, failure=str(failure)) for partition in partitions}
    return found


async def _look(
    cluster: Cluster, broker: BrokerId, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, ReplicaWatermarks]:
    ends = await _log_ends(cluster, broker, partitions)
    known = {partition: end for partition, end in ends.items() if not isinstance(end, ErrorCode)}
    watermarks = await _high_watermarks(cluster, broker, known) if known else {}
    return {
        partition: _joined(
            broker,
            ends.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR),
            watermarks.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR),
        )
        for partition in partitions
    }


def _joined(broker: BrokerId, end: Offset | ErrorCode, watermark: Offset | ErrorCode) -> ReplicaWatermarks:
    if isinstance(end, ErrorCode):
        return ReplicaWatermarks(broker, failure=end.name)
    if isinstance(watermark, ErrorCode):
        return ReplicaWatermarks(broker, failure=watermark.name)
    # The second answer is the younger one: a log that grew in between ends at its high watermark at least.
    return ReplicaWatermarks(broker, max(end, watermark), watermark)


async def _log_ends(cluster: Cluster, broker: BrokerId, partitions: Iterable[TopicPartition]) -> _Ends:
    request = ListOffsetsRequest(
        replica_id=_DEBUGGING_REPLICA,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=number, timestamp=LATEST) for number in numbers],
            )
            for topic, numbers in by_topic(partitions).items()
        ],
        timeout_ms=cluster.settings.request_timeout_ms,
    )
    response: ListOffsetsResponse = await cluster.call(request, to=broker, versions=_LIST_OFFSETS)
    return {
        TopicPartition(topic.name, one.partition_index): error_code(one.error_code) if one.error_code else one.offset
        for topic in response.topics
        for one in topic.partitions
    }


async def _high_watermarks(cluster: Cluster, broker: BrokerId, ends: dict[TopicPartition, Offset]) -> _Ends:
    """Of a fetch at the end of the log, which reads nothing and does not wait."""
    names = {cluster.metadata.topic_id(topic): topic for topic in by_topic(ends)}
    request = FetchRequest(
        replica_state=FetchRequestReplicaState(replica_id=_DEBUGGING_REPLICA),
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            FetchTopic(
                topic=topic,
                topic_id=cluster.metadata.topic_id(topic),
                partitions=[
                    FetchPartition(
                        partition=number, fetch_offset=ends[TopicPartition(topic, number)], partition_max_bytes=1
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(ends).items()
        ],
    )
    response: FetchResponse = await cluster.call(request, to=broker, versions=_FETCH)
    found: _Ends = {}
    for topic in response.responses:
        for one in topic.partitions:
            partition = TopicPartition(names.get(topic.topic_id, topic.topic), one.partition_index)
            found[partition] = error_code(one.error_code) if one.error_code else one.high_watermark
    return found

"""Where partitions begin and end, and which offset a time has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.leaders import by_topic, call_leaders
from tidelog.types import NO_EPOCH, NO_TIMESTAMP, Epoch, Offset, TopicPartition
from tidelog.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.versions import Versions

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
"""In the place of a timestamp: the end, the start, the record with the highest timestamp."""

NO_OFFSET = -1
_CLIENT = -1


class Isolation(IntEnum):
    """What a reader may see: all below the high watermark, or only what is committed."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class FoundOffset(NamedTuple):
    """An offset and the timestamp of its record; -1 where no record is that late."""

    offset: Offset
    timestamp: int = NO_TIMESTAMP
    leader_epoch: Epoch = NO_EPOCH


async def list_offsets(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """The first offset at or after each time, in ms, or EARLIEST, LATEST, MAX_TIMESTAMP.

    With a timeout of 0 each leader is asked once; else as long as calls take by default.
    """

    def build(partitions: Sequence[TopicPartition]) -> ListOffsetsRequest:
        return ListOffsetsRequest(
            replica_id=_CLIENT,
            isolation_level=isolation,
            topics=[
                ListOffsetsTopic(name=topic, partitions=[_asked(cluster, topic, number, times) for number in numbers])
                for topic, numbers in by_topic(partitions).items()
            ],
            timeout_ms=cluster.settings.request_timeout_ms,
        )

    first = 7 if MAX_TIMESTAMP in times.values() else 1
    versions = Versions(first, 10)
    return await call_leaders(cluster, times, build, _read, "the offset", versions=versions, timeout_ms=timeout_ms)


def _asked(cluster: Cluster, topic: str, number: int, times: Mapping[TopicPartition, int]) -> ListOffsetsPartition:
    partition = TopicPartition(topic, number)
    return ListOffsetsPartition(
        partition_index=number,
        current_leader_epoch=cluster.metadata.leader_epoch(partition),
        timestamp=times[partition],
    )


def _read(response: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, int, FoundOffset]]:
    for topic in response.topics:
        for found in topic.partitions:
            partition = TopicPartition(topic.name, found.partition_index)
            yield partition, found.error_code, FoundOffset(found.offset, found.timestamp, found.leader_epoch)


async def start_and_end(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, tuple[Offset, Offset]]:
    """The log start, and the first offset that a reader of that isolation does not see yet."""
    asked = list(partitions)
    starts = await list_offsets(cluster, dict.fromkeys(asked, EARLIEST), isolation=isolation, timeout_ms=timeout_ms)
    ends = await list_offsets(cluster, dict.fromkeys(asked, LATEST), isolation=isolation, timeout_ms=timeout_ms)
    return {partition: (starts[partition].offset, ends[partition].offset) for partition in asked}

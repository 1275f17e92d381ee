"""The topics of OffsetCommit and OffsetFetch: ids become names and back, and what does not exist is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidelog.errors import ErrorCode
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

TOPIC_IDS = 10
"""Since this version both name topics by their ids."""
_NO_OFFSET = -1


def weight(partitions: Iterable[int]) -> int:
    """Topics and partitions together."""
    return sum(1 + count for count in partitions)


def take_out_unknown(
    broker: Broker, request: OffsetCommitRequest, by_id: bool, keep: Callable[[str], str]
) -> list[OffsetCommitResponseTopic]:
    """The answers for what does not exist, with the names that `keep` gives; it is in the request no more.

    What is left has ids: an offset belongs to one topic, and not to a later one of the same name.
    """
    refused: list[OffsetCommitResponseTopic] = []
    kept: list[OffsetCommitRequestTopic] = []
    for topic in request.topics:
        if by_id:
            topic.name = broker.metadata.name_of(topic.topic_id) or ""
        known = broker.metadata.topic(topic.name)
        if by_id and not topic.name:
            refused.append(
                _refused("", topic, [one.partition_index for one in topic.partitions], ErrorCode.UNKNOWN_TOPIC_ID)
            )
            continue
        there = {} if known is None else known.partitions
        if known is not None:
            topic.topic_id = known.topic_id
        if all(one.partition_index in there for one in topic.partitions):
            kept.append(topic)
            continue
        missing = [one.partition_index for one in topic.partitions if one.partition_index not in there]
        refused.append(_refused(keep(topic.name), topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        topic.partitions = [one for one in topic.partitions if one.partition_index in there]
        if topic.partitions:
            kept.append(topic)
    request.topics = kept
    return refused


def _refused(
    name: str, topic: OffsetCommitRequestTopic, indexes: list[int], code: ErrorCode
) -> OffsetCommitResponseTopic:
    partitions = [OffsetCommitResponsePartition(partition_index=index, error_code=code) for index in indexes]
    return OffsetCommitResponseTopic(name=name, topic_id=topic.topic_id, partitions=partitions)


def name_topics(broker: Broker, group: OffsetFetchRequestGroup) -> list[OffsetFetchResponseTopics]:
    """The answers for topics that do not exist; they are in the request no more."""
    unknown: list[OffsetFetchResponseTopics] = []
    for topic in group.topics or ():
        topic.name = broker.metadata.name_of(topic.topic_id) or ""
        if not topic.name:
            partitions = [
                OffsetFetchResponsePartitions(
                    partition_index=index,
                    committed_offset=_NO_OFFSET,
                    metadata="",
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                )
                for index in topic.partition_indexes
            ]
            unknown.append(OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=partitions))
    if group.topics is not None:
        group.topics = [topic for topic in group.topics if topic.name]
    return unknown


def give_ids(broker: Broker, group: OffsetFetchResponseGroup) -> None:
    """Who asks for all topics knows no ids; what belongs to topics that are gone cannot be told without one.

    An offset may have been read before its topic was deleted, and another one of this name may be there by now.
    """
    told = []
    for topic in group.topics:
        if topic.topic_id == ZERO_UUID:
            known = broker.metadata.topic(topic.name)
            topic.topic_id = ZERO_UUID if known is None else known.topic_id
        if broker.metadata.name_of(topic.topic_id) is not None:
            told.append(topic)
    group.topics = told

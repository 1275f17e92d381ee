"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).

The rules are in tidelog.groups, where topics have names. Here ids become names and back, and what does not exist is
refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import Later
from tidelog.broker.group.replies import Gathered, Reply
from tidelog.broker.handlers.groups import ask_group
from tidelog.broker.partition import RequestError
from tidelog.errors import ErrorCode
from tidelog.groups import fetch_error, fetch_response, fetched_groups, refuse
from tidelog.net.channel import Call
from tidelog.wire import ZERO_UUID, Message
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_TOPIC_IDS = 10
_NO_OFFSET = -1


# Commit


def offset_commit(broker: Broker, request: OffsetCommitRequest, call: Call) -> Message | Later:
    try:
        shard = broker.groups.shard_of(request.group_id)
    except RequestError as failure:
        return refuse(request, failure.code, call.version)
    if not request.group_id:
        return refuse(request, ErrorCode.INVALID_GROUP_ID, call.version)
    reply = Reply()
    refused = _take_out_unknown(broker, request, call.version >= _TOPIC_IDS)
    if refused:
        if not request.topics:
            return OffsetCommitResponse(topics=refused)
        reply = _WithRefused(refused)
    shard.perform(shard.groups.commit_offsets(request, call.version, broker.groups.now_ms(), reply))
    return reply.result


class _WithRefused(Reply):
    """What was refused before is added to what the group says."""

    __slots__ = ("_refused",)

    def __init__(self, refused: list[OffsetCommitResponseTopic]) -> None:
        super().__init__()
        self._refused = refused

    def give(self, message: Message) -> None:
        assert isinstance(message, OffsetCommitResponse)
        message.topics = [*message.topics, *self._refused]
        super().give(message)


def _take_out_unknown(broker: Broker, request: OffsetCommitRequest, by_id: bool) -> list[OffsetCommitResponseTopic]:
    """The answers for what does not exist; it is in the request no more."""
    refused: list[OffsetCommitResponseTopic] = []
    kept: list[OffsetCommitRequestTopic] = []
    for topic in request.topics:
        if by_id:
            topic.name = broker.metadata.name_of(topic.topic_id) or ""
        known = broker.metadata.topic(topic.name)
        if by_id and not topic.name:
            refused.append(
                _refused(topic, [one.partition_index for one in topic.partitions], ErrorCode.UNKNOWN_TOPIC_ID)
            )
            continue
        there = {} if known is None else known.partitions
        if all(one.partition_index in there for one in topic.partitions):
            kept.append(topic)
            continue
        missing = [one.partition_index for one in topic.partitions if one.partition_index not in there]
        refused.append(_refused(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        topic.partitions = [one for one in topic.partitions if one.partition_index in there]
        if topic.partitions:
            kept.append(topic)
    request.topics = kept
    return refused


def _refused(topic: OffsetCommitRequestTopic, indexes: list[int], code: ErrorCode) -> OffsetCommitResponseTopic:
    partitions = [OffsetCommitResponsePartition(partition_index=index, error_code=code) for index in indexes]
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


# Fetch


def offset_fetch(broker: Broker, request: OffsetFetchRequest, call: Call) -> Message | Later:
    version, by_id = call.version, call.version >= _TOPIC_IDS
    asked = fetched_groups(request, version)
    unknown = [_name_topics(broker, group) if by_id else [] for group in asked]

    def response(groups: list[OffsetFetchResponseGroup]) -> Message:
        if by_id:
            for group, missing in zip(groups, unknown, strict=True):
                _give_ids(broker, group)
                group.topics += missing
        return fetch_response(groups, version)

    gathered: Gathered[OffsetFetchResponseGroup] = Gathered(len(asked), response)
    for group, ticket in zip(asked, gathered.tickets, strict=True):
        try:
            shard = broker.groups.shard_of(group.group_id)
        except RequestError as failure:
            ticket.give(fetch_error(group, failure.code, version))
        else:
            now_ms, stable = broker.groups.now_ms(), request.require_stable
            shard.perform(shard.groups.fetch_offsets(group, version, now_ms, ticket, require_stable=stable))
    return gathered.result


def _name_topics(broker: Broker, group: OffsetFetchRequestGroup) -> list[OffsetFetchResponseTopics]:
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


def _give_ids(broker: Broker, group: OffsetFetchResponseGroup) -> None:
    """Who asks for all topics knows no ids; what belongs to topics that are gone cannot be told without one."""
    for topic in group.topics:
        if topic.topic_id == ZERO_UUID:
            known = broker.metadata.topic(topic.name)
            topic.topic_id = ZERO_UUID if known is None else known.topic_id
    group.topics = [topic for topic in group.topics if topic.topic_id != ZERO_UUID]


# Delete


def offset_delete(broker: Broker, request: OffsetDeleteRequest, call: Call) -> Message | Later:
    return ask_group(broker, request, call, lambda groups, now_ms, reply: groups.delete_offsets(request, now_ms, reply))

"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).

The rules are in tidelog.groups, where topics have names. Here ids become names and back, and what does not exist is
refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from tidelog.broker.dispatch import InSlices, Later
from tidelog.broker.group.replies import Gathered, Reply
from tidelog.broker.handlers.groups import ask_group
from tidelog.broker.pacing import PIECE, Pace, cost_of_id, pieces
from tidelog.broker.partition import RequestError
from tidelog.errors import ErrorCode
from tidelog.groups import fetch_error, fetch_response, fetched_groups, refuse
from tidelog.net.channel import Call
from tidelog.wire import ZERO_UUID, Message
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_MANY_GROUPS = 8
_TOPIC_IDS = 10
_NO_OFFSET = -1
_FEW_GROUPS = 20
_COST_OF_GROUP = 20
"""Elements of a slice that a group takes, beside its partitions."""


def _weight(partitions: Iterable[int]) -> int:
    """Topics and partitions together."""
    return sum(1 + count for count in partitions)


# Commit


def offset_commit(broker: Broker, request: OffsetCommitRequest, call: Call) -> Message | Later | InSlices:
    """A commit of very many partitions is stored in pieces, each of which is one write. An error between two pieces
    refuses those that follow; the answer says of each partition what became of it."""
    if _weight(len(topic.partitions) for topic in request.topics) > PIECE:
        return InSlices(_commit_in_pieces(broker, request, call.version))
    reply = CommitReply()
    _commit(broker, request, call.version, reply)
    return reply.result


def _commit(broker: Broker, request: OffsetCommitRequest, version: int, ticket: CommitReply) -> None:
    try:
        shard = broker.groups.shard_of(request.group_id)
    except RequestError as failure:
        ticket.give(refuse(request, failure.code, version))
        return
    if not request.group_id:
        ticket.give(refuse(request, ErrorCode.INVALID_GROUP_ID, version))
        return
    ticket.refused = _take_out_unknown(broker, request, version >= _TOPIC_IDS)
    if ticket.refused and not request.topics:
        ticket.give(OffsetCommitResponse())
        return
    shard.perform(shard.groups.commit_offsets(request, version, broker.groups.now_ms(), ticket))


async def _commit_in_pieces(broker: Broker, request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
    topics: dict[tuple[str, bytes], OffsetCommitResponseTopic] = {}
    for piece in pieces(request.topics, lambda topic: topic.partitions, _commit_part):
        await broker.lane.turn()
        part = OffsetCommitRequest(
            group_id=request.group_id,
            generation_id_or_member_epoch=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            retention_time_ms=request.retention_time_ms,
            topics=piece,
        )
        reply = CommitReply()
        _commit(broker, part, version, reply)
        answer = await reply.wait()
        assert isinstance(answer, OffsetCommitResponse)
        for topic in answer.topics:
            known = topics.setdefault((topic.name, topic.topic_id), topic)
            if known is not topic:
                known.partitions += topic.partitions
    return OffsetCommitResponse(topics=list(topics.values()))


def _commit_part(
    topic: OffsetCommitRequestTopic, partitions: list[OffsetCommitRequestPartition]
) -> OffsetCommitRequestTopic:
    return OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


class CommitReply(Reply):
    """What was refused before is added to what the group says."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[OffsetCommitResponseTopic] = []

    def give(self, message: Message) -> None:
        if self.refused:
            assert isinstance(message, OffsetCommitResponse)
            message.topics = [*message.topics, *self.refused]
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


def offset_fetch(broker: Broker, request: OffsetFetchRequest, call: Call) -> Message | Later | Awaitable[Message]:
    """A group that is asked for all its offsets is answered once, however often it is named."""
    version = call.version
    asked = fetched_groups(request, version)
    if version >= _MANY_GROUPS:
        asked = _each_once(asked)
    if len(asked) > _FEW_GROUPS or sum(_weight_of(broker, group) for group in asked) > PIECE:
        return _fetch_in_pieces(broker, asked, version, request.require_stable)
    return _fetch(broker, asked, version, request.require_stable).result


def _fetch(
    broker: Broker, asked: list[OffsetFetchRequestGroup], version: int, require_stable: bool
) -> Gathered[OffsetFetchResponseGroup]:
    by_id = version >= _TOPIC_IDS
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
            now_ms = broker.groups.now_ms()
            shard.perform(shard.groups.fetch_offsets(group, version, now_ms, ticket, require_stable=require_stable))
    return gathered


def _each_once(asked: list[OffsetFetchRequestGroup]) -> list[OffsetFetchRequestGroup]:
    once = {(group.group_id, None if group.topics is None else index): group for index, group in enumerate(asked)}
    return list(once.values())


def _weight_of(broker: Broker, group: OffsetFetchRequestGroup) -> int:
    """How many partitions are to be told, roughly."""
    return 1 + _weight(len(topic.partition_indexes) for topic in _topics_of(broker, group, by_id=False))


def _topics_of(broker: Broker, group: OffsetFetchRequestGroup, by_id: bool) -> list[OffsetFetchRequestTopics]:
    """What is asked for; if that is everything, what there is now. By id, only topics that exist can be told."""
    if group.topics is not None:
        return group.topics
    try:
        topics = broker.groups.shard_of(group.group_id).groups.committed_topics(group.group_id)
    except RequestError:
        return []
    if not by_id:
        return topics
    known = broker.metadata.topics
    for topic in topics:
        topic.topic_id = known[topic.name].topic_id if topic.name in known else ZERO_UUID
    return [topic for topic in topics if topic.topic_id != ZERO_UUID]


async def _fetch_in_pieces(
    broker: Broker, asked: list[OffsetFetchRequestGroup], version: int, require_stable: bool
) -> Message:
    """A piece of one group at a time. Commits may come in between; each offset is one that was committed."""
    answers = []
    pace = Pace(broker.lane)
    for group in asked:
        answer = OffsetFetchResponseGroup(group_id=group.group_id)
        topics: dict[tuple[str, bytes], OffsetFetchResponseTopics] = {}
        wanted = _topics_of(broker, group, version >= _TOPIC_IDS)
        for piece in pieces(wanted, lambda topic: topic.partition_indexes, _fetch_part):
            await pace.spend(
                _COST_OF_GROUP
                + 3 * cost_of_id(group.group_id)
                + _weight(len(topic.partition_indexes) for topic in piece)
            )
            part = OffsetFetchRequestGroup(
                group_id=group.group_id, member_id=group.member_id, member_epoch=group.member_epoch, topics=piece
            )
            told = await _fetch(broker, [part], max(version, _MANY_GROUPS), require_stable).wait()
            assert isinstance(told, OffsetFetchResponse)
            answer.error_code = answer.error_code or told.groups[0].error_code
            for topic in told.groups[0].topics:
                known = topics.setdefault((topic.name, topic.topic_id), topic)
                if known is not topic:
                    known.partitions += topic.partitions
        answer.topics = list(topics.values())
        answers.append(fetch_error(group, answer.error_code, version) if answer.error_code else answer)
    return fetch_response(answers, version)


def _fetch_part(topic: OffsetFetchRequestTopics, indexes: list[int]) -> OffsetFetchRequestTopics:
    return OffsetFetchRequestTopics(name=topic.name, topic_id=topic.topic_id, partition_indexes=indexes)


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

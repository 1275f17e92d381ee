"""OffsetCommit and OffsetFetch of very many partitions: in pieces, and still all of one moment for readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.group.replies import Reply, Told
from tidelog.broker.handlers.offset_topics import TOPIC_IDS, give_ids, name_topics, take_out_unknown, weight
from tidelog.broker.pacing import Pace, pieces
from tidelog.broker.partition import RequestError
from tidelog.controller.topics import cut_name
from tidelog.errors import ErrorCode
from tidelog.groups import Snapshot, fetch_error, fetch_response, fetched, topic_id_of
from tidelog.wire import ZERO_UUID, Message
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_ERROR_OF_GROUP = 2
"""Since this version of OffsetFetch there is a place for one error."""


# Commit


async def commit_in_pieces(broker: Broker, request: OffsetCommitRequest, version: int) -> Message:
    """What it commits for a topic that is deleted before all of it is read is not stored."""
    with broker.groups.deletions_seen() as deletions:
        async with broker.groups.large_commits:
            commit = broker.groups.large_commit(request)
            for piece in pieces(request.topics, lambda topic: topic.partitions, _commit_part):
                await broker.lane.turn()
                part = OffsetCommitRequest(topics=piece)
                commit.answer(take_out_unknown(broker, part, version >= TOPIC_IDS, cut_name))
                commit.read(part.topics)
            request.topics = []
            try:
                shard = broker.groups.shard_of(request.group_id)
            except RequestError as failure:
                return commit.response(failure.code)
            if not request.group_id:
                return commit.response(ErrorCode.INVALID_GROUP_ID)
            if not shard.has_room_for(commit):
                return commit.response(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            if deletions:
                commit.leave_out(set().union(*deletions), by_id=version >= TOPIC_IDS)
            reply = Reply()
            shard.perform(shard.groups.commit_large(commit, version, broker.groups.now_ms(), reply))
    return await reply.wait()


def _commit_part(
    topic: OffsetCommitRequestTopic, partitions: list[OffsetCommitRequestPartition]
) -> OffsetCommitRequestTopic:
    return OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


# Fetch


async def fetch_large_group(
    broker: Broker, pace: Pace, group: OffsetFetchRequestGroup, version: int, require_stable: bool
) -> OffsetFetchResponseGroup:
    """What is committed at one moment, told piece by piece. v1 tells an error of each partition."""
    found = await _snapshot(broker, group, version, require_stable)
    if isinstance(found, ErrorCode) and version >= _ERROR_OF_GROUP:
        return fetch_error(group, found, version)
    topics: dict[tuple[str, bytes], OffsetFetchResponseTopics] = {}
    are_named = version < TOPIC_IDS or group.topics is None
    wanted = _all_of(found) if group.topics is None else group.topics
    for piece in pieces(wanted, lambda topic: topic.partition_indexes, _fetch_part):
        await pace.spend(weight(len(topic.partition_indexes) for topic in piece))
        part = OffsetFetchRequestGroup(group_id=group.group_id, topics=piece)
        unknown = [] if are_named else name_topics(broker, part)
        for topic in _tell_piece(broker, found, part, version) + unknown:
            known = topics.setdefault((topic.name, topic.topic_id), topic)
            if known is not topic:
                known.partitions += topic.partitions
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=list(topics.values()))


def _tell_piece(
    broker: Broker, found: Snapshot | ErrorCode, part: OffsetFetchRequestGroup, version: int
) -> list[OffsetFetchResponseTopics]:
    if isinstance(found, ErrorCode):
        return fetch_error(part, found, version).topics
    told = fetched(found, part)
    if version >= TOPIC_IDS:
        for topic in told.topics:
            if topic.topic_id == ZERO_UUID:  # all of the group was asked for
                topic.topic_id = topic_id_of(found.get(topic.name, {}))
        give_ids(broker, told)
    return told.topics


async def fetch_old(broker: Broker, pace: Pace, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
    """v1 to v7 ask for one group, and are answered in another form."""
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
    if request.topics is not None:
        asked.topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            async for topic in pace.each(request.topics)
        ]
    found = await fetch_large_group(broker, pace, asked, version, request.require_stable)
    response = OffsetFetchResponse(error_code=found.error_code)
    async for topic in pace.each(found.topics):
        old = OffsetFetchResponseTopic(name=topic.name)
        response.topics.append(old)
        async for partitions in pace.slices(topic.partitions):
            part = OffsetFetchResponseTopics(name=topic.name, partitions=list(partitions))
            old.partitions += fetch_response([OffsetFetchResponseGroup(topics=[part])], version).topics[0].partitions
    return response


async def _snapshot(
    broker: Broker, group: OffsetFetchRequestGroup, version: int, require_stable: bool
) -> Snapshot | ErrorCode:
    """Of the topics that are asked for, by name."""
    try:
        shard = broker.groups.shard_of(group.group_id)
    except RequestError as failure:
        return failure.code
    if group.topics is None:
        names = None
    elif version >= TOPIC_IDS:
        names = {broker.metadata.name_of(topic.topic_id) or "" for topic in group.topics}
    else:
        names = {topic.name for topic in group.topics}
    told: Told[Snapshot | ErrorCode] = Told()
    now_ms = broker.groups.now_ms()
    shard.perform(shard.groups.snapshot_offsets(group.group_id, names, now_ms, told, require_stable=require_stable))
    return await told.wait()


def _all_of(found: Snapshot | ErrorCode) -> list[OffsetFetchRequestTopics]:
    if isinstance(found, ErrorCode):
        return []
    return [
        OffsetFetchRequestTopics(name=name, partition_indexes=list(partitions)) for name, partitions in found.items()
    ]


def _fetch_part(topic: OffsetFetchRequestTopics, indexes: list[int]) -> OffsetFetchRequestTopics:
    return OffsetFetchRequestTopics(name=topic.name, topic_id=topic.topic_id, partition_indexes=indexes)

"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).

The rules are in tidelog.groups, where topics have names. Here ids become names and back, and what does not exist is
refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from tidelog.broker.dispatch import InSlices, Later
from tidelog.broker.group.replies import Gathered, Reply
from tidelog.broker.group.shard import GroupShard
from tidelog.broker.handlers.groups import ask_group
from tidelog.broker.handlers.large_group_offsets import commit_in_pieces, fetch_large_group, fetch_old
from tidelog.broker.handlers.offset_topics import TOPIC_IDS, give_ids, name_topics, take_out_unknown, weight
from tidelog.broker.pacing import FIRST, PIECE, SLICE, Pace, cost_of_id
from tidelog.broker.partition import RequestError
from tidelog.controller.topics import kept_names
from tidelog.errors import ErrorCode
from tidelog.groups import MAX_GROUP_ID, Subscriptions, fetch_error, fetch_response, fetched_groups, refuse
from tidelog.net.channel import Call
from tidelog.wire import Message
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_MANY_GROUPS = 8
_FEW_GROUPS = 20
_COST_OF_GROUP = 20
"""Elements of a slice that a group takes, beside its partitions."""


# Commit


def offset_commit(broker: Broker, request: OffsetCommitRequest, call: Call) -> Message | Later | InSlices:
    """A commit of very many partitions is read in pieces and stored in one write: readers see all of it or nothing."""
    if weight(len(topic.partitions) for topic in request.topics) > PIECE:
        return InSlices(commit_in_pieces(broker, request, call.version))
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
    keep = kept_names(topic.name for topic in request.topics)
    ticket.refused = take_out_unknown(broker, request, version >= TOPIC_IDS, keep)
    if ticket.refused and not request.topics:
        ticket.give(OffsetCommitResponse())
        return
    shard.perform(shard.groups.commit_offsets(request, version, broker.groups.now_ms(), ticket))


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


# Fetch


def offset_fetch(broker: Broker, request: OffsetFetchRequest, call: Call) -> Message | Awaitable[Message]:
    """A group that is asked for all its offsets is answered once, however often it is named.

    An answer that has to wait is awaited, so that the connection gets one at a time: each may be of megabytes.
    """
    if len(request.topics or ()) > PIECE or len(request.groups) > _FEW_GROUPS:
        return _fetch_in_pieces(broker, request, call.version)
    asked = fetched_groups(request, call.version)
    if sum(_weight_of(broker, group) for group in asked) > PIECE:
        return _fetch_in_pieces(broker, request, call.version)
    if call.version >= _MANY_GROUPS:
        asked = list(_each_once(asked))
    gathered = _fetch(broker, asked, call.version, request.require_stable)
    result = gathered.result
    return gathered.wait() if isinstance(result, Later) else result


def _fetch(
    broker: Broker, asked: list[OffsetFetchRequestGroup], version: int, require_stable: bool
) -> Gathered[OffsetFetchResponseGroup]:
    by_id = version >= TOPIC_IDS
    unknown = [name_topics(broker, group) if by_id else [] for group in asked]

    def response(groups: list[OffsetFetchResponseGroup]) -> Message:
        if by_id:
            for group, missing in zip(groups, unknown, strict=True):
                give_ids(broker, group)
                group.topics += missing
        return fetch_response(groups, version)

    gathered: Gathered[OffsetFetchResponseGroup] = Gathered(len(asked), response)
    for group, ticket in zip(asked, gathered.tickets, strict=True):
        if len(group.group_id) > MAX_GROUP_ID:
            group.group_id = group.group_id[:MAX_GROUP_ID]  # the answer repeats it
            ticket.give(fetch_error(group, ErrorCode.INVALID_GROUP_ID, version))
            continue
        try:
            shard = broker.groups.shard_of(group.group_id)
        except RequestError as failure:
            ticket.give(fetch_error(group, failure.code, version))
        else:
            now_ms = broker.groups.now_ms()
            shard.perform(shard.groups.fetch_offsets(group, version, now_ms, ticket, require_stable=require_stable))
    return gathered


def _each_once(asked: Iterable[OffsetFetchRequestGroup]) -> Iterator[OffsetFetchRequestGroup]:
    named: set[str] = set()
    for group in asked:
        if group.topics is not None or group.group_id not in named:
            yield group
        if group.topics is None:
            named.add(group.group_id)


def _weight_of(broker: Broker, group: OffsetFetchRequestGroup) -> int:
    """How many topics and partitions are to be told; if all are asked for, how many there are now."""
    if len(group.group_id) > MAX_GROUP_ID:
        return 1
    if group.topics is not None:
        return 1 + weight(len(topic.partition_indexes) for topic in group.topics)
    try:
        commits = broker.groups.shard_of(group.group_id).groups.commits_of(group.group_id)
    except RequestError:
        return 1
    return 1 if commits is None else 1 + weight(map(len, commits.by_topic.values()))


async def _fetch_in_pieces(broker: Broker, request: OffsetFetchRequest, version: int) -> Message:
    """One group at a time. The offsets of a group are all of one moment, however many they are."""
    pace, require_stable = Pace(broker.lane), request.require_stable
    if version < _MANY_GROUPS:
        return await fetch_old(broker, pace, request, version)
    answers = []
    async for group in pace.each(_each_once(request.groups)):
        size = _weight_of(broker, group)
        await pace.spend(_COST_OF_GROUP + 3 * cost_of_id(group.group_id) + min(size, PIECE))
        if size > PIECE:
            answers.append(await fetch_large_group(broker, pace, group, version, require_stable))
        else:
            told = await _fetch(broker, [group], version, require_stable).wait()
            assert isinstance(told, OffsetFetchResponse)
            answers += told.groups
    return fetch_response(answers, version)


# Delete

Deleted: TypeAlias = Message | Later | Awaitable[Message | Later]


def offset_delete(broker: Broker, request: OffsetDeleteRequest, call: Call) -> Deleted:
    """What the members of a large group read is found out in slices."""
    try:
        shard = broker.groups.shard_of(request.group_id)
    except RequestError as failure:
        return refuse(request, failure.code, call.version)
    reads = shard.groups.subscriptions(request.group_id, [topic.name for topic in request.topics])
    reads.look(FIRST)
    if not reads.is_complete:
        return _delete_when_known(broker, request, call, shard, reads)
    return _delete(broker, request, call, reads)


async def _delete_when_known(
    broker: Broker, request: OffsetDeleteRequest, call: Call, shard: GroupShard, reads: Subscriptions
) -> Message | Later:
    while not reads.is_complete:
        await broker.lane.turn()
        reads.look(SLICE)
    if broker.groups.shards.get(broker.groups.index_of(request.group_id)) is not shard:
        return refuse(request, ErrorCode.NOT_COORDINATOR, call.version)
    return _delete(broker, request, call, reads)


def _delete(broker: Broker, request: OffsetDeleteRequest, call: Call, reads: Subscriptions) -> Message | Later:
    return ask_group(
        broker, request, call, lambda groups, now_ms, reply: groups.delete_offsets(request, reads, now_ms, reply)
    )

"""OffsetCommit v2-10, OffsetFetch v1-10, OffsetDelete v0: what groups have committed (S8.4, S9.1).

OffsetCommit v2-4 may bring a time to keep it for; v7 static members; v9 GROUP_ID_NOT_FOUND; v10 topic ids. OffsetFetch
v2 may ask for all topics; v7 for stable offsets only; v8 for many groups; v10 by topic id. Ids are resolved by the
caller: here topics have names, and an id that comes along is kept with the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog.errors import ErrorCode
from tidelog.groups.answers import commit_error, fetch_error, missing_offset
from tidelog.groups.commits import Commit, Commits, Snapshot, topic_id_of
from tidelog.groups.config import GroupConfig
from tidelog.groups.effects import Answer, Record, Ticket, Turn
from tidelog.groups.group import CONSUMER, Group
from tidelog.groups.rebalance import keep_alive
from tidelog.groups.records import answered_error, offset_record
from tidelog.groups.states import GroupState
from tidelog.groups.subscriptions import Subscriptions
from tidelog.groups.usage import METADATA_MAX_BYTES, OFFSETS_MAX, Usage
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tidelog.wire.messages.group_records import OffsetCommitValue
from tidelog.wire.uuids import ZERO_UUID

_NO_TIME = -1


def commit_refusal(group: Group, request: OffsetCommitRequest) -> ErrorCode:
    """Members commit for the current generation; others only to a group without members."""
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    if generation < 0:
        if group.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if not member_id and request.group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.error_of(member_id, request.group_instance_id)
    if error:
        return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        # It has not got its new share, so what it commits is of a share that may be another's by now.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def commit(
    turn: Turn, group: Group, request: OffsetCommitRequest, ticket: Ticket, came_to_nothing: Callable[[], None]
) -> None:
    """A commit that is allowed: answered when it is stored. A member that commits lives."""
    if group.members:
        keep_alive(turn, group.members[request.member_id])
    reading = Reading(turn.config, group.usage, group.commits, turn.now_ms, request.retention_time_ms)
    commits, topics = reading.read(request.topics)
    response = OffsetCommitResponse(topics=topics)
    if not commits:
        turn.answer(ticket, response)
        came_to_nothing()
        return
    waiting = [ticket]

    def settled(turn: Turn, error: int) -> None:
        if waiting:
            answer = commit_error(request, answered_error(error)) if error else response
            turn.effects.append(Answer(waiting.pop(), answer))
        if error:
            came_to_nothing()

    write_commits(turn, group, commits, settled)


class Reading:
    """One commit as it is read: what of it is to be stored, within what the broker may keep.

    It may always replace an offset by one with less metadata.
    """

    def __init__(
        self, config: GroupConfig, usage: Usage, commits: Commits, now_ms: int, retention_ms: int = _NO_TIME
    ) -> None:
        self._commits, self._usage, self._now_ms = commits, usage, now_ms
        self._expire_ms = _NO_TIME if retention_ms == _NO_TIME else now_ms + retention_ms
        self._metadata_limit = config.offset_metadata_max_bytes
        self._offsets = config.broker_offsets_max - usage.offsets
        self._bytes = config.broker_offset_metadata_max_bytes - usage.metadata_bytes

    def read(self, topics: Iterable[OffsetCommitRequestTopic]) -> tuple[list[Commit], list[OffsetCommitResponseTopic]]:
        """What is to be stored, and the answer if it is: some of it may be refused."""
        now_ms, expire_ms, limit, takes = self._now_ms, self._expire_ms, self._metadata_limit, self._takes
        commits: list[Commit] = []
        answers = []
        for topic in topics:
            name, topic_id, partitions = topic.name, topic.topic_id, []
            for partition in topic.partitions:
                index, metadata = partition.partition_index, partition.committed_metadata or ""
                error = ErrorCode.NONE
                if len(metadata) * 2 > limit and _java_length(metadata) > limit:
                    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                elif not takes(name, index, metadata):
                    error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
                else:
                    value = OffsetCommitValue(
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=metadata,
                        commit_timestamp=now_ms,
                        expire_timestamp=expire_ms,
                        topic_id=topic_id,
                    )
                    commits.append((name, index, value))
                partitions.append(OffsetCommitResponsePartition(partition_index=index, error_code=error))
            answers.append(OffsetCommitResponseTopic(name=name, topic_id=topic_id, partitions=partitions))
        return commits, answers

    def _takes(self, topic: str, partition: int, metadata: str) -> bool:
        before = self._commits.get(topic, partition)
        if before is not None and before.metadata == metadata:
            return True
        offsets = int(before is None)
        added = len(metadata.encode()) - (0 if before is None else len(before.metadata.encode()))
        if offsets > max(self._offsets, 0) or added > max(self._bytes, 0):
            self._usage.refuse(OFFSETS_MAX if offsets > max(self._offsets, 0) else METADATA_MAX_BYTES)
            return False
        self._offsets -= offsets
        self._bytes -= added
        return True


def _java_length(text: str) -> int:
    """Kafka counts UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def write_commits(
    turn: Turn,
    group: Group,
    commits: list[Commit],
    settled: Callable[[Turn, int], None],
    also: list[Record] | None = None,
) -> None:
    """Commits and tombstones on their way into the log; they count when they are there, in its order."""
    number = group.commits.sent(commits)
    group_id = group.id
    records = [offset_record(group_id, topic, partition, value) for topic, partition, value in commits]

    def written(turn: Turn, error: int) -> None:
        if error != ErrorCode.REQUEST_TIMED_OUT:
            group.commits.settled(commits, number, not error)
        settled(turn, error)

    turn.write(records + also if also else records, written)


# Fetching


def fetch(
    turn: Turn,
    group: Group | None,
    asked: OffsetFetchRequestGroup,
    version: int,
    ticket: Ticket,
    *,
    require_stable: bool,
) -> None:
    """Only what is committed is told. Who requires stable offsets waits for the commits under way."""

    def tell(turn: Turn, error: ErrorCode) -> None:
        found = fetched(group.commits.by_topic if group else {}, asked)
        turn.answer(ticket, fetch_error(asked, error, version) if error else found)

    _when_stable(turn, group is not None and require_stable and _awaits_commit(group, asked), tell)


def snapshot(
    turn: Turn, group: Group | None, topics: Iterable[str] | None, ticket: Ticket, *, require_stable: bool
) -> None:
    """Answers a Snapshot of these topics, or of all, or the error. It is for whoever reads it over several turns."""

    def tell(turn: Turn, error: ErrorCode) -> None:
        turn.effects.append(Answer(ticket, error or (group.commits.snapshot(topics) if group else {})))

    _when_stable(turn, group is not None and require_stable and group.commits.has_in_flight(), tell)


def _when_stable(turn: Turn, is_awaited: bool, tell: Callable[[Turn, ErrorCode], None]) -> None:
    """At once, or when the commits under way are settled."""
    if not is_awaited:
        tell(turn, ErrorCode.NONE)
        return
    waiting = [tell]

    def settled(turn: Turn, error: int) -> None:
        if waiting:
            # Older consumers know NOT_COORDINATOR and no other reason to ask again.
            waiting.pop()(turn, ErrorCode.NOT_COORDINATOR if error else ErrorCode.NONE)

    turn.write([], settled)


def _awaits_commit(group: Group, asked: OffsetFetchRequestGroup) -> bool:
    if asked.topics is None or not group.commits.has_in_flight():
        return group.commits.has_in_flight()
    return any(
        group.commits.is_in_flight(topic.name, partition)
        for topic in asked.topics
        for partition in topic.partition_indexes
    )


def fetched(by_topic: Snapshot, asked: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    """What is told of these offsets. Without a group there are none, and that is no error."""
    if asked.topics is None:
        topics = [
            OffsetFetchResponseTopics(
                name=name,
                topic_id=topic_id_of(partitions),
                partitions=[_offset(partition, value) for partition, value in partitions.items()],
            )
            for name, partitions in by_topic.items()
        ]
    else:
        topics = []
        for topic in asked.topics:
            values = by_topic.get(topic.name, {})
            partitions = [_offset(index, values.get(index), topic.topic_id) for index in topic.partition_indexes]
            topics.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


def _offset(
    partition: int, value: OffsetCommitValue | None, topic_id: bytes = ZERO_UUID
) -> OffsetFetchResponsePartitions:
    """What was committed for a topic of the same name that is no more is not an offset of this one."""
    if value is None or (ZERO_UUID not in (value.topic_id, topic_id) and value.topic_id != topic_id):
        return missing_offset(partition)
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


# Deleting


def delete_refusal(group: Group | None) -> ErrorCode:
    """What topics the members read can only be known of consumers."""
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def delete(turn: Turn, group: Group, request: OffsetDeleteRequest, reads: Subscriptions, ticket: Ticket) -> None:
    """All but those of topics that the group reads, which `reads` tells."""
    knows = group.commits.knows
    commits: list[Commit] = []
    topics = []
    for topic in request.topics:
        is_read = reads.reads(topic.name)
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
        indexes = [partition.partition_index for partition in topic.partitions]
        partitions = [OffsetDeleteResponsePartition(partition_index=index, error_code=error) for index in indexes]
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        if not is_read:
            commits += [(topic.name, index, None) for index in indexes if knows(topic.name, index)]
    if commits:
        write_commits(turn, group, commits, lambda turn, error: None)
    turn.answer_when_written(
        ticket,
        OffsetDeleteResponse(topics=topics),
        lambda error: OffsetDeleteResponse(error_code=answered_error(error)),
    )

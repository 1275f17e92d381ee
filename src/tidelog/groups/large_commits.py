"""A commit of very many partitions: read piece by piece, and stored as one write, so that readers see it whole.

The broker gives other requests their turn between two pieces, and nothing of the commit counts before all of it is
read. Whether the commit is allowed is decided when it is written, as if it had come then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from tidelog.errors import ErrorCode
from tidelog.groups.commits import Commits, ManyValues
from tidelog.groups.config import GroupConfig
from tidelog.groups.effects import Ticket, Turn
from tidelog.groups.group import Group
from tidelog.groups.offsets import Reading
from tidelog.groups.rebalance import keep_alive
from tidelog.groups.records import answered_error, offset_record
from tidelog.groups.usage import Usage
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
)

LARGE_COMMIT_MAX_BYTES = 16 << 20
"""Of the records of one commit. Kafka takes what fits into one batch."""


class LargeCommit:
    """`read` all pieces of it, then hand it to `Groups.commit_large`."""

    def __init__(
        self, request: OffsetCommitRequest, config: GroupConfig, usage: Usage, commits: Commits | None, now_ms: int
    ) -> None:
        self.request = request
        self.size_bytes = 0
        """Of all records."""
        self.largest_bytes = 0
        """Of the largest record."""
        self._reading = Reading(
            config, usage, Commits(Usage()) if commits is None else commits, now_ms, request.retention_time_ms
        )
        self._values: ManyValues = {}
        self._records: dict[str, dict[bytes, bytes | None]] = {}
        """By topic."""
        self._answers: dict[tuple[str, bytes], OffsetCommitResponseTopic] = {}

    def read(self, topics: Sequence[OffsetCommitRequestTopic]) -> None:
        """Of a partition that is named more than once the last offset counts."""
        commits, answers = self._reading.read(topics)
        for topic, partition, value in commits:
            assert value is not None
            key, stored = offset_record(self.request.group_id, topic, partition, value)
            self._values.setdefault(topic, {})[partition] = value
            self._records.setdefault(topic, {})[key] = stored
            size = len(key) + len(stored or b"")
            self.size_bytes += size
            self.largest_bytes = max(self.largest_bytes, size)
        self.answer(answers)

    def answer(self, topics: Sequence[OffsetCommitResponseTopic]) -> None:
        """What the client is told of some partitions if the rest is stored."""
        for topic in topics:
            known = self._answers.setdefault((topic.name, topic.topic_id), topic)
            if known is not topic:
                known.partitions += topic.partitions

    def leave_out(self, deleted: Set[str], by_id: bool) -> None:
        """These topics were deleted while it was read. What it says of them is not stored, be it that there are others
        of these names by now: it was said of the old ones."""
        for name in deleted:
            self._values.pop(name, None)
            self._records.pop(name, None)
        for topic in self._answers.values():
            if topic.name in deleted:
                code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                for partition in topic.partitions:
                    partition.error_code = partition.error_code or code

    def response(self, error: int = ErrorCode.NONE) -> OffsetCommitResponse:
        """What was found for each partition; or the error for all that would have been stored."""
        topics = list(self._answers.values())
        if error:
            for topic in topics:
                for partition in topic.partitions:
                    partition.error_code = partition.error_code or error
        return OffsetCommitResponse(topics=topics)

    def store(self, turn: Turn, group: Group, ticket: Ticket, came_to_nothing: Callable[[], None]) -> None:
        """It is allowed: answered when it is stored. A member that commits lives."""
        if group.members:
            keep_alive(turn, group.members[self.request.member_id])
        if not self._records:
            turn.answer(ticket, self.response())
            came_to_nothing()
            return
        waiting = [ticket]
        records = [record for of_topic in self._records.values() for record in of_topic.items()]
        self._records = {}
        number = group.commits.sent_large(self._values)

        def written(turn: Turn, error: int) -> None:
            if error != ErrorCode.REQUEST_TIMED_OUT:
                group.commits.settled_large(number, not error)
            if waiting:
                turn.answer(waiting.pop(), self.response(answered_error(error) if error else ErrorCode.NONE))
            if error:
                came_to_nothing()

        turn.write(records, written)

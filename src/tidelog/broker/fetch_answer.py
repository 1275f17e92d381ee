"""What a fetch has read so far, and whether it is enough to answer: facts in, decisions out (S2.9, S2.10)."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.fetch_sessions import FetchItem, FetchSession
from tidelog.broker.partition import Partition
from tidelog.replication.leader import Leader
from tidelog.types import BrokerId, Epoch, Offset
from tidelog.wire.messages.fetch import FetchRequest, FetchResponsePartitionData

CONSUMER = -1
_READ_COMMITTED = 1
DEBUGGING_REPLICA = -2
"""Asks a replica for what it has itself, be it the leader or not."""


class Wanted:
    """What a fetch asks for as a whole."""

    __slots__ = (
        "broker_epoch",
        "committed_only",
        "is_incremental",
        "max_bytes",
        "max_wait_s",
        "min_bytes",
        "replica_id",
    )

    def __init__(
        self, replica_id: BrokerId, broker_epoch: Epoch, request: FetchRequest, most_bytes: int, is_incremental: bool
    ) -> None:
        self.replica_id = replica_id
        """The follower that asks; negative for a consumer."""
        self.broker_epoch = broker_epoch
        """Of the follower, NO_EPOCH if it does not say it."""
        self.committed_only = request.isolation_level == _READ_COMMITTED
        self.max_wait_s = request.max_wait_ms / 1000
        self.max_bytes = max_bytes = min(request.max_bytes, most_bytes)
        self.min_bytes = min(request.min_bytes, max_bytes)
        self.is_incremental = is_incremental
        """The answer names only what is new."""


class Source(NamedTuple):
    """What an answer was read from. It is true in this leader's term alone."""

    partition: Partition
    leader: Leader | None
    times_named: int
    """Which of the positions that the client has named was read."""
    diverges: bool = False

    @property
    def is_over(self) -> bool:
        return self.partition.leader is not self.leader


class FetchAnswer:
    """The partitions that were read, and what they need not wait for.

    Always: `sources` has the partition and the leader for each answer without an error.
    """

    __slots__ = ("_has_error", "_session", "_wanted", "answers", "bytes", "has_more", "has_news", "number", "sources")

    def __init__(self, session: FetchSession, wanted: Wanted) -> None:
        self._session = session
        self.number = session.requests
        """Of the request, within its session."""
        self._wanted = wanted
        self.answers: dict[FetchItem, FetchResponsePartitionData] = {}
        self.sources: dict[FetchItem, Source] = {}
        self.bytes = 0
        self._has_error = False
        self.has_news = False
        """A follower has not been told of this HW yet (S2.9)."""
        self.has_more = False
        """There is more than this answer can hold, or it stands in the next segment: no need to wait for anything."""

    @property
    def is_satisfied(self) -> bool:
        wanted = self._wanted
        return (
            self.bytes >= wanted.min_bytes
            or self._has_error
            or self.has_news
            or self.has_more
            or wanted.max_wait_s <= 0
            or not self._session.items
        )

    def room_for(self, item: FetchItem) -> tuple[int, bool]:
        """How much may be read, and whether a batch that is larger is taken all the same (the first is)."""
        before = self.answers.get(item)
        taken = self.bytes - (len(before.records) if before is not None and before.records is not None else 0)
        return max(min(item.max_bytes, self._wanted.max_bytes - taken), 0), taken == 0

    def take(self, item: FetchItem, answer: FetchResponsePartitionData) -> None:
        """This was read; it replaces what was read of the partition before."""
        before = self.answers.get(item)
        if before is not None and before.records is not None:
            self.bytes -= len(before.records)
        self.answers[item] = answer
        size = len(answer.records) if answer.records is not None else 0
        self.bytes += size
        if answer.error_code != 0 or item.diverges:
            self._has_error = True
            return
        if self._wanted.replica_id >= 0 and self.is_untold(item):
            self.has_news = True
        if not self._is_at_the_end(item):
            self.has_more = self.has_more or (not size and self.bytes > 0)
        elif item.partition is not None and item.named_in <= self.number:
            # Else it has changed while the device was read, and hears of no change until it is read again; or a later
            # fetch has named it, and the client passes over what this one says.
            self._session.dirty.pop(item, None)

    def look_for_news(self) -> None:
        """After the follower was heard, which may have moved HW."""
        self.has_news = any(map(self.is_untold, self.answers))

    def is_untold(self, item: FetchItem) -> bool:
        source = self.sources.get(item)
        return source is not None and source.partition.log.high_watermark > item.told_high_watermark

    def _is_at_the_end(self, item: FetchItem) -> bool:
        """Nothing to read now. What only had no room in this answer has to come with the next."""
        source = self.sources.get(item)
        return source is not None and item.fetch_offset >= self.end_of(source.partition)

    def end_of(self, partition: Partition) -> Offset:
        """How far this reader may read."""
        if self._wanted.replica_id >= 0:
            return partition.log.log_end_offset  # committed and uncommitted records alike (S1.2)
        return partition.log.last_stable_offset if self._wanted.committed_only else partition.log.high_watermark

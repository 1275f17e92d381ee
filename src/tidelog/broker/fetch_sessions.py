"""Fetch sessions (KIP-227): what a client reads, remembered here, so that it need not say it with every fetch.

A session notes which of its partitions may have something to tell; an incremental fetch looks at those alone.

Sessions outlive connections, so their number is bounded (max.incremental.fetch.session.cache.slots), and so is the
number of partitions in them (tidelog.fetch.session.partitions.max). Who gets none is answered as if sessions did not
exist. Followers are privileged, as in Kafka: no consumer takes the place of one that is at work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeAlias

from tidelog.broker.partition import Partition
from tidelog.errors import ErrorCode
from tidelog.metrics import Metrics
from tidelog.ports import Clock, Random
from tidelog.types import NO_EPOCH, BrokerId, Offset
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponsePartitionData

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_MAX_EPOCH = 2**31 - 1
_EVICTION_MS = 120_000
"""A session unused for this long makes room for any other one. A session that is used makes room only when it is older
than this, and for one that is worth more: a follower's, or one with more partitions."""

Key: TypeAlias = tuple[bytes | str, int]
"""A partition as a client names it: by topic id or by topic name."""


class Parked(Protocol):
    """A fetch that waits for more to read."""

    @property
    def replica_id(self) -> BrokerId:
        """The follower that waits; negative for a consumer."""

    def wake(self) -> None: ...

    def give_way(self) -> None: ...


class FetchItem:
    """One partition of a fetch: what is wanted of it, and what the client was last told."""

    __slots__ = (
        "current_leader_epoch",
        "diverges",
        "fetch_offset",
        "given_at",
        "index",
        "key",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "named_in",
        "partition",
        "session",
        "times_named",
        "told_high_watermark",
        "told_log_start",
        "topic",
        "topic_id",
    )

    def __init__(self, session: FetchSession, key: Key, topic: str | None, topic_id: bytes, index: int) -> None:
        self.session = session
        self.key = key
        self.topic = topic
        """None while the topic id is not known here."""
        self.topic_id = topic_id
        self.index = index
        self.partition: Partition | None = None
        """The partition whose changes this item hears of; None while it is not watched."""
        self.times_named = 0
        """How often the client has said what it wants of this partition: tells one position from the next."""
        self.fetch_offset: Offset = 0
        self.max_bytes = 0
        self.current_leader_epoch = NO_EPOCH
        self.last_fetched_epoch = NO_EPOCH
        self.log_start_offset: Offset = -1
        """Of the follower's own log."""
        self.diverges = False
        """The client's log and this one part before what it asks for, and the answer says where."""
        self.told_high_watermark = -1
        self.told_log_start = -1
        self.named_in = 0
        """The request of the session that named the partition last."""
        self.given_at = 0
        """The naming of the partition for which records were last given; see `is_news`."""

    def update(self, wanted: FetchPartition) -> None:
        if wanted.fetch_offset <= self.fetch_offset or wanted.current_leader_epoch != self.current_leader_epoch:
            # Not named because it has read on. It may have passed over an answer, as a follower does that has begun to
            # follow anew meanwhile, and would never hear of a HW that was told in it and moves no more.
            self.told_high_watermark = self.told_log_start = -1
        self.times_named += 1
        self.named_in = self.session.requests
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset

    def changed(self) -> None:
        """The partition says that something moved.

        While no fetch waits, once is enough: the next one reads it, and has it watched again. So what abandoned
        sessions cost their partitions ends with the next record.
        """
        session = self.session
        session.dirty[self] = None
        if session.parked is not None:
            session.parked.wake()
        else:
            self.watch(None)

    def watch(self, partition: Partition | None) -> None:
        """Hear of a partition's changes, and of no other's. Not for one that its session has dropped meanwhile."""
        if self.partition is partition:
            return
        if self.partition is not None:
            self.partition.watchers.discard(self)
            self.partition = None
        if partition is not None and self.session.items.get(self.key) is self:
            self.partition = partition
            partition.watchers.add(self)

    def is_news(self, answer: FetchResponsePartitionData, request: int) -> bool:
        """Whether an incremental answer has to carry this; remembers what is told. `request` is the one it answers.

        A follower has several fetches under way, and they may wait for the device. It passes over an answer to a fetch
        from before it named the partition, and over a second answer to a position whose records it has taken. What is
        told there is therefore not known to it.
        """
        has_records = answer.records is not None and len(answer.records) > 0
        told = (
            answer.high_watermark == self.told_high_watermark
            and answer.log_start_offset == self.told_log_start
            and not answer.error_code
            and not self.diverges
            and not has_records
        )
        if request < self.named_in:
            return not told
        if self.given_at != self.times_named:
            self.told_high_watermark, self.told_log_start = answer.high_watermark, answer.log_start_offset
        if has_records:
            self.given_at = self.times_named
        return not told


class PartitionTotal:
    """How many partitions all sessions of a cache have."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class FetchSession:
    """The partitions of one reader, in the order they get their turn.

    Always: a partition that could answer something else than the client knows is in `dirty`. A session that is closed
    has no partitions.
    """

    def __init__(
        self, session_id: int, uses_topic_ids: bool, now_ms: int, total: PartitionTotal, *, is_privileged: bool = False
    ) -> None:
        self.id = session_id
        self.created_ms = now_ms
        self.is_privileged = is_privileged
        """It is a follower's."""
        self._total = total
        self.epoch = INITIAL_EPOCH + 1
        self.uses_topic_ids = uses_topic_ids
        self.items: dict[Key, FetchItem] = {}
        self.dirty: dict[FetchItem, None] = {}
        self.parked: Parked | None = None
        self.requests = 0
        """How many fetches of this session there were."""
        self.last_used_ms = now_ms
        self.is_closed = False

    def add(self, wanted: FetchPartition, topic: str | None, topic_id: bytes) -> FetchItem:
        """A new partition or new facts about one."""
        assert not self.is_closed, "whoever names partitions in slices looks whether the session is still there"
        key: Key = (topic_id if self.uses_topic_ids else topic or "", wanted.partition)
        item = self.items.get(key)
        if item is None:
            item = self.items[key] = FetchItem(self, key, topic, topic_id, wanted.partition)
            self._total.count += 1
        item.update(wanted)
        self.dirty[item] = None
        return item

    def stranger(self, wanted: FetchPartition, topic: str) -> FetchItem:
        """A partition of a topic that there cannot be. It is answered once, with an error, and not kept."""
        item = FetchItem(self, (topic, wanted.partition), topic, ZERO_UUID, wanted.partition)
        item.update(wanted)
        return item

    def drop(self, key: Key) -> None:
        item = self.items.pop(key, None)
        if item is not None:
            self._total.count -= 1
            self.dirty.pop(item, None)
            item.watch(None)

    def had_its_turn(self, item: FetchItem) -> None:
        """What got data goes behind the others, so that none starves while an answer is too small for all."""
        if self.items.get(item.key) is item:
            del self.items[item.key]
            self.items[item.key] = item
            if item in self.dirty:
                del self.dirty[item]
                self.dirty[item] = None

    def close(self) -> None:
        self.is_closed = True
        for item in self.items.values():
            item.watch(None)
        self._total.count -= len(self.items)
        self.items.clear()
        self.dirty.clear()
        if self.parked is not None:
            self.parked.wake()


class Opened(NamedTuple):
    """The session a fetch belongs to, and whether the answer names only what is new."""

    session: FetchSession
    is_incremental: bool


class FetchSessions:
    """At most `slots` of them, with at most `most_partitions` in those of clients together.

    A name that no topic can have is not kept in a session: it may be long, and there will be nothing to tell of it.
    """

    def __init__(self, slots: int, most_partitions: int, clock: Clock, random: Random, metrics: Metrics) -> None:
        self._slots = slots
        self._most_partitions = most_partitions
        self._clock = clock
        self._random = random
        self._sessions: dict[int, FetchSession] = {}
        self._total = PartitionTotal()
        self._evictions = metrics.counter(
            "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
            "Fetch sessions that made room for others.",
        )
        metrics.gauge(
            "kafka_server_fetchsessioncache_numincrementalfetchsessions",
            "Fetch sessions that are kept.",
            lambda: len(self._sessions),
        )
        metrics.gauge(
            "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached",
            "Partitions in the fetch sessions of clients.",
            lambda: self._total.count,
        )

    def open(self, request: FetchRequest, uses_topic_ids: bool, *, is_privileged: bool = False) -> Opened | ErrorCode:
        """By session id and epoch: none, a new one, the next fetch of a known one, or why that cannot be.

        `is_privileged`: the fetch is of a follower that is registered.
        """
        now_ms = self._clock.monotonic_ms()
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._close(request.session_id)
            if request.session_epoch == INITIAL_EPOCH and self._has_room(request, now_ms, is_privileged):
                session = FetchSession(self._new_id(), uses_topic_ids, now_ms, self._total, is_privileged=is_privileged)
                self._sessions[session.id] = session
            else:
                session = FetchSession(NO_SESSION, uses_topic_ids, now_ms, PartitionTotal())
            return Opened(session, False)
        known = self._sessions.get(request.session_id)
        if known is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if known.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if known.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if not (known.is_privileged or is_privileged) and not self._may_grow(known, request):
            self._close(known.id)  # the client names all of its partitions next, and gets no session for them
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        known.epoch = 1 if known.epoch == _MAX_EPOCH else known.epoch + 1
        known.last_used_ms = now_ms
        known.is_privileged = known.is_privileged or is_privileged
        return Opened(known, True)

    def forget(self, sessions: Iterable[FetchSession]) -> None:
        for session in sessions:
            self._close(session.id)

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _has_room(self, request: FetchRequest, now_ms: int, is_privileged: bool) -> bool:
        size = _partition_count(request)
        if not is_privileged and self._total.count + size > self._most_partitions:
            return False
        if len(self._sessions) < self._slots:
            return True
        evicted = self._evictable(now_ms, is_privileged, size)
        if evicted is None:
            return False
        self._evictions.add()
        self._close(evicted.id)
        return True

    def _evictable(self, now_ms: int, is_privileged: bool, size: int) -> FetchSession | None:
        """The session that makes room for one of this kind and size (KIP-227), None if there is none."""
        oldest = min(self._sessions.values(), key=lambda session: session.last_used_ms, default=None)
        if oldest is None or now_ms - oldest.last_used_ms >= _EVICTION_MS:
            return oldest
        least = min(
            (
                session
                for session in self._sessions.values()
                if now_ms - session.created_ms >= _EVICTION_MS and (is_privileged or not session.is_privileged)
            ),
            key=lambda session: (session.is_privileged, len(session.items)),
            default=None,
        )
        if least is None or (is_privileged, size) <= (least.is_privileged, len(least.items)):
            return None
        return least

    def _may_grow(self, session: FetchSession, request: FetchRequest) -> bool:
        room = self._most_partitions - self._total.count
        if not request.topics or _partition_count(request) <= room:
            return True
        new = {
            key
            for topic in request.topics
            for partition in topic.partitions
            if (key := (topic.topic_id if session.uses_topic_ids else topic.topic, partition.partition))
            not in session.items
        }
        return len(new) <= room

    def _new_id(self) -> int:
        while (candidate := self._random.randrange(1, _MAX_EPOCH)) in self._sessions:
            pass
        return candidate


def _partition_count(request: FetchRequest) -> int:
    return sum(len(topic.partitions) for topic in request.topics)

"""Fetch (1).

4 isolation level; 5 log start offset; 7 sessions; 9 leader epochs; 10 zstd; 11 rack; 12 flexible, diverging epochs;
13 topic ids in place of names; 14 tiered storage; 15 replica state; 16 the new leader with an error;
17 directory ids; 18 the follower's high watermark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidelog.broker.dispatch import InSlices, Later
from tidelog.broker.fetch_sessions import NO_SESSION, FetchItem, FetchSession
from tidelog.broker.pacing import Pace
from tidelog.broker.partition import Partition, RequestError
from tidelog.broker.regions import LogRegion
from tidelog.controller.topics import is_valid_name
from tidelog.errors import ErrorCode, TidelogError
from tidelog.log.reading import Region
from tidelog.log.segment import NotCachedError
from tidelog.net.channel import Call
from tidelog.records.header import Codec
from tidelog.replication.leader import FollowerFetch, Leader
from tidelog.types import NO_EPOCH, Offset
from tidelog.wire import records_to_come
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestReplicaState,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartitionData,
    FetchTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_ZSTD = 10
_TOPIC_IDS = 13
_LEADER_HINTS = 16
_REPLICA_STATE = 15
_READ_COMMITTED = 1
_CONSUMER = -1
_ONE_SLICE_BYTES = 16 * 1024
"""A smaller request does not name too many partitions for one slice."""
_MANY = 1_000
"""Partitions above which an answer is read and made in slices."""
_FEW = 16
"""Partitions that a fetch reads or answers at once, however many fetches do so in the same turn of the loop."""
DEBUGGING_REPLICA = -2
"""Asks a replica for what it has itself, be it the leader or not."""

_Answer: TypeAlias = FetchResponse | Later | Awaitable[FetchResponse | Later]


def fetch(broker: Broker, request: FetchRequest, call: Call) -> _Answer | InSlices:
    """What there is to read, at once or when there is enough of it (S2.10)."""
    by_id = call.version >= _TOPIC_IDS
    opened = broker.fetch_sessions.open(request, by_id, is_privileged=_is_of_follower(broker, request.replica_state))
    if isinstance(opened, ErrorCode):
        return FetchResponse(error_code=opened)
    session, is_incremental = opened
    session.requests += 1
    if session.parked is not None:
        session.parked.give_way()
    if call.frame is not None and len(call.frame) > _ONE_SLICE_BYTES:
        return InSlices(_fetch_in_slices(broker, request, call, session, is_incremental))
    for forgotten in request.forgotten_topics_data:
        _forget(session, forgotten, forgotten.partitions)
    named = _Named([], [])
    for topic in request.topics:
        _name(broker, session, topic, topic.partitions, named)
    return _Fetch(broker, request, call, session, is_incremental, named).start()


async def _fetch_in_slices(
    broker: Broker, request: FetchRequest, call: Call, session: FetchSession, is_incremental: bool
) -> _Answer:
    """The same with very many partitions. The next fetch of this connection begins when all of them are named.

    Between two slices the session may be closed, or make room for another.
    """
    pace = Pace(broker.lane, call.connection.is_broker)
    async for forgotten in pace.each(request.forgotten_topics_data):
        async for indexes in pace.slices(forgotten.partitions):
            _forget(session, forgotten, indexes)
    named = _Named([], [])
    async for topic in pace.each(request.topics):
        async for partitions in pace.slices(topic.partitions):
            if session.is_closed:
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            _name(broker, session, topic, partitions, named)
    return _Fetch(broker, request, call, session, is_incremental, named).start()


class _Named(NamedTuple):
    """The partitions that one request names."""

    items: list[tuple[FetchItem, int]]
    """Each with the count of its namings: of a follower, what it has now."""
    strangers: list[FetchItem]
    """Those of topics that there cannot be. The session does not keep them."""


def _forget(session: FetchSession, topic: FetchRequestForgottenTopic, indexes: Iterable[int]) -> None:
    for index in indexes:
        session.drop((topic.topic_id if session.uses_topic_ids else topic.topic, index))


def _name(
    broker: Broker,
    session: FetchSession,
    topic: FetchTopic,
    partitions: Iterable[FetchPartition],
    named: _Named,
) -> None:
    name = broker.metadata.name_of(topic.topic_id) if session.uses_topic_ids else topic.topic
    if name is not None and broker.metadata.topic(name) is None and not is_valid_name(name):
        named.strangers.extend(session.stranger(partition, name) for partition in partitions)
        return
    for partition in partitions:
        item = session.add(partition, name, topic.topic_id)
        named.items.append((item, item.times_named))


def _is_of_follower(broker: Broker, state: FetchRequestReplicaState) -> bool:
    """Whether a registered broker sent it. Versions that cannot say the broker epoch may be of anybody."""
    is_known = state.replica_id in broker.metadata.brokers
    return is_known and broker.registrations.is_registered(state.replica_id, state.replica_epoch)


class _Source(NamedTuple):
    """What an answer was read from. It is true in this leader's term alone."""

    partition: Partition
    leader: Leader | None
    times_named: int
    """Which of the positions that the client has named was read."""
    diverges: bool = False

    @property
    def is_over(self) -> bool:
        return self.partition.leader is not self.leader


class _Fetch:
    """One fetch while it is being answered; parked in purgatory while there is too little to read."""

    def __init__(
        self,
        broker: Broker,
        request: FetchRequest,
        call: Call,
        session: FetchSession,
        is_incremental: bool,
        named: _Named,
    ) -> None:
        self._broker = broker
        self._call = call
        self._session = session
        self._number = session.requests
        self._is_incremental = is_incremental
        self._named, self._strangers = named
        self._replica_state = state = request.replica_state
        by_state = call.version >= _REPLICA_STATE
        self.replica_id = state.replica_id if by_state else request.replica_id
        self._replica_epoch = state.replica_epoch if by_state else NO_EPOCH
        self._is_nameless = self._replica_epoch == NO_EPOCH
        """A follower that does not say its broker epoch is between two registrations, or it is no follower: versions
        before 15 cannot say it, and anybody can send them. It is given records, but not believed (edge case 32)."""
        self._committed_only = request.isolation_level == _READ_COMMITTED
        self._max_wait_s = request.max_wait_ms / 1000
        self._max_bytes = min(request.max_bytes, broker.config["fetch.max.bytes"])
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._answers: dict[FetchItem, FetchResponsePartitionData] = {}
        self._sources: dict[FetchItem, _Source] = {}
        """For each answer without an error: the partition and the leader that it was read from."""
        self._bytes = 0
        self._has_error = False
        self._is_unconfirmed = False
        """The controller has not confirmed one of the partitions."""
        self._has_tidings = False
        """A follower has not been told of this HW yet (S2.9)."""
        self._has_more = False
        """There is more than this answer can hold, or it stands in the next segment: no need to wait for anything."""
        self._is_cold = False
        self._heard: dict[FetchItem, None] = {}
        """What the follower has of these was heard before the device was read."""
        self._is_woken = False
        self._is_over = False
        """It is parked no more."""
        self._later = Later()
        self._timer: asyncio.TimerHandle | None = None
        self._waits_with = 0
        """Partitions that it keeps while it is parked, and that no session keeps."""

    def start(self) -> _Answer:
        if len(self._session.dirty) + len(self._strangers) > _MANY:
            return self._start_in_slices()
        try:
            self._read_dirty()
        except NotCachedError:
            return self._start_cold()
        self._hear_follower()
        return self._respond() if self._is_satisfied or not self._may_wait else self._park()

    @property
    def _is_satisfied(self) -> bool:
        return (
            self._bytes >= self._min_bytes
            or self._has_error
            or self._has_tidings
            or self._has_more
            or self._max_wait_s <= 0
            or not self._session.items
        )

    @property
    def _may_wait(self) -> bool:
        return self._broker.waiting_fetches.may_wait(self._session, self._call.connection)

    async def _start_cold(self) -> FetchResponse | Later:
        """The follower is heard first: what it acknowledges does not wait for a slow device (edge case 34)."""
        self._hear_follower()
        self._heard = dict.fromkeys(self._sources)
        await self._read_dirty_cold()
        return await self._go_on_in_slices()

    async def _start_in_slices(self) -> FetchResponse | Later:
        """Very many partitions: what is cached is read, then the follower is heard, and then the device is read.

        Terms that end between two slices are noticed as after a cold read.
        """
        pace = self._new_pace()
        missed: dict[FetchItem, None] = {}
        async for item in pace.each(self._due()):
            self._take_cached(item, missed)
        async for item, _ in pace.each(self._named):
            if item not in self._answers and item not in missed:
                self._take_cached(item, missed)  # another fetch of the session has read it meanwhile
        if missed:
            await self._hear_in_slices()
            self._heard = dict.fromkeys(self._sources)
        async for item in pace.each(list(missed)):
            await self._read_anyhow(item)
        return await self._go_on_in_slices()

    def _take_cached(self, item: FetchItem, missed: dict[FetchItem, None]) -> None:
        try:
            self._take(item, self._read(item))
        except NotCachedError:
            missed[item] = None

    async def _go_on_in_slices(self) -> FetchResponse | Later:
        await self._hear_in_slices()
        return await self._respond_in_slices() if self._is_satisfied or not self._may_wait else self._park()

    async def _hear_in_slices(self) -> None:
        if self._is_follower:
            async for named in self._new_pace().slices(self._named):
                self._hear(named)
            self._has_tidings = any(map(self._is_untold, self._answers))

    def _new_pace(self) -> Pace:
        return Pace(self._broker.lane, self._call.connection.is_broker)

    @property
    def _is_follower(self) -> bool:
        return self.replica_id >= 0 and not self._is_nameless

    def _hear_follower(self) -> None:
        if self._is_follower:
            self._hear(self._named)
            self._has_tidings = any(map(self._is_untold, self._answers))

    def _hear(self, named: Iterable[tuple[FetchItem, int]]) -> None:
        """What the follower has, which may move HW (S2.7): after the log was read, or is to be read from the device.

        Errors tell nothing (S2.5). It does not matter whether the items still watch their partitions: a change during a
        cold read of another partition ends the watch, and the follower would never be heard of this one.
        """
        if _is_of_follower(self._broker, self._replica_state):
            self._broker.replicas.follower_seen(self.replica_id)
        for item, times_named in named:
            source = self._sources.get(item)
            if source is None or source.diverges or source.is_over or item in self._heard:
                continue  # it tells nothing, or the term ended while a disk thread was reading (edge case 5)
            if not source.times_named == times_named == item.times_named:
                continue  # the follower has named another position since, in a fetch that is heard for itself
            source.partition.follower_fetched(
                FollowerFetch(self.replica_id, item.fetch_offset, item.log_start_offset, self._replica_epoch)
            )

    def _is_untold(self, item: FetchItem) -> bool:
        source = self._sources.get(item)
        return source is not None and source.partition.log.high_watermark > item.told_high_watermark

    # Purgatory

    def _park(self) -> Later:
        """Until the partitions' changes satisfy it, or its time is over."""
        self._timer = asyncio.get_running_loop().call_later(self._max_wait_s, self.give_way)
        self._session.parked = self
        self._waits_with = self._broker.waiting_fetches.begin(self._session, self._call.connection)
        self._call.when_gone = self.give_way
        if self._call.connection.is_closed:  # before it came here
            self._wake_later(self.give_way)
        elif self._session.dirty:
            self.wake()  # what changed while a disk thread was reading
        return self._later

    def wake(self) -> None:
        """Something changed. All that the present turn of requests changes is read together, at its end."""
        if not self._is_woken and not self._is_over:
            self._is_woken = True
            self._wake_later(self._look)

    def _wake_later(self, callback: Callable[[], None]) -> None:
        self._broker.channel.at_end_of_turn(callback)

    def _look(self) -> None:
        """Read what changed, in this turn of the loop if it has room for that."""
        if self._is_over or self._may_take(len(self._session.dirty)):
            self._look_now()
        else:
            turn = self._broker.lane.next_turn(self._call.connection.is_broker)
            turn.add_done_callback(lambda _: self._look_now())

    def _may_take(self, partitions: int) -> bool:
        return partitions <= _FEW or self._broker.lane.take(partitions)

    def _look_now(self) -> None:
        """Read what changed, and see whether it is enough now."""
        self._is_woken = False
        if self._is_over:
            return
        if len(self._session.dirty) > _MANY:
            self._is_cold = True
            self.give_way()
            return
        try:
            self._read_dirty()
        except NotCachedError:
            self._is_cold = True  # there is something, on the device
        if self._is_cold or self._is_satisfied:
            self.give_way()

    def give_way(self) -> None:
        """Answer with what there is: it is enough, its time is over, or the next fetch of the session has come already.

        Answers keep their order, so one that is held back would hold back the next.
        """
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._session.parked is self:
            self._session.parked = None
        self._broker.waiting_fetches.end(self._call.connection, self._waits_with)
        if self._is_cold:
            self._later.answer(self._respond_cold)
        elif len(self._answers) <= _MANY and self._may_take(len(self._answers)):
            self._later.answer(self._respond)
        else:
            self._later.answer(self._respond_in_slices)

    # Reading

    def _read_dirty(self) -> None:
        """Read what may have news. What was answered before and is dirty again is read anew.

        NotCachedError if some of it stands on the device; the rest is read.
        """
        missed: NotCachedError | None = None
        for item in self._due():
            try:
                self._take(item, self._read(item))
            except NotCachedError as miss:
                missed = miss
        if missed is not None:
            raise missed

    async def _read_dirty_cold(self) -> None:
        """And what this request names, even if another fetch of the session has read it meanwhile."""
        pace = self._new_pace()
        async for item in pace.each(self._due()):
            await self._read_anyhow(item)
        async for item, _ in pace.each(self._named):
            if item not in self._answers:
                await self._read_anyhow(item)

    async def _read_anyhow(self, item: FetchItem) -> None:
        """From the page cache, or else from the device."""
        try:
            answer = self._read(item)
        except NotCachedError:
            answer = await self._read_cold(item)
        self._take(item, answer)

    def _due(self) -> Iterable[FetchItem]:
        """Dirty ones, in the order of their turns. A few among many are not worth walking all."""
        dirty, items = self._session.dirty, self._session.items
        due = list(items.values() if len(dirty) == len(items) else dirty)
        return due + self._strangers if self._strangers else due

    def _take(self, item: FetchItem, answer: FetchResponsePartitionData) -> None:
        before = self._answers.get(item)
        if before is not None and before.records is not None:
            self._bytes -= len(before.records)
        self._answers[item] = answer
        size = len(answer.records) if answer.records is not None else 0
        self._bytes += size
        is_error = answer.error_code != 0 or item.diverges
        self._has_error = self._has_error or is_error
        if is_error:
            return
        if self.replica_id >= 0 and self._is_untold(item):
            self._has_tidings = True
        if not self._is_at_the_end(item):
            self._has_more = self._has_more or (not size and self._bytes > 0)
        elif item.partition is not None and item.named_in <= self._number:
            # Else it has changed while the device was read, and hears of no change until it is read again; or a later
            # fetch has named it, and the client passes over what this one says.
            self._session.dirty.pop(item, None)

    def _is_at_the_end(self, item: FetchItem) -> bool:
        """Nothing to read now. What only had no room in this answer has to come with the next."""
        source = self._sources.get(item)
        return source is not None and item.fetch_offset >= self._end(source.partition)

    def _read(self, item: FetchItem) -> FetchResponsePartitionData:
        try:
            source = self._source_of(item)
            partition = source.partition
            diverging = _diverging_epoch(partition, item)
            if diverging is not None:
                return self._answer(item, source, None, diverging)
            if self._must_confirm(partition, item.fetch_offset):
                raise NotCachedError  # the controller has to be asked first
            room, min_one = self._room(item)
            try:
                region = partition.log.read_now(item.fetch_offset, room, self._end(partition), min_one=min_one)
            except NotCachedError:
                self._sources[item] = source  # the follower's position is valid
                raise
            if region.size and self._committed_only and not partition.log.nothing_aborted_from(item.fetch_offset):
                raise NotCachedError
            return self._answer(item, source, region)
        except TidelogError as failure:
            return self._refusal(item, failure)

    async def _read_cold(self, item: FetchItem) -> FetchResponsePartitionData:
        try:
            source = self._source_of(item)
            partition = source.partition
            diverging = _diverging_epoch(partition, item)
            if diverging is not None:
                return self._answer(item, source, None, diverging)
            if self._must_confirm(partition, item.fetch_offset):
                await self._confirm(partition)
            room, min_one = self._room(item)
            end = self._end(partition)
            region = await partition.log.read(item.fetch_offset, room, end, min_one=min_one)
            if source.is_over:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # what stands there now may be of another term
            answer = self._answer(item, source, region)
            if region.size and self._committed_only:
                aborted = await partition.log.aborted_transactions(item.fetch_offset, end)
                answer.aborted_transactions = [
                    AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted
                ]
            return answer
        except TidelogError as failure:
            return self._refusal(item, failure)

    def _must_confirm(self, partition: Partition, offset: Offset) -> bool:
        """Whether a client would hear OFFSET_OUT_OF_RANGE from a leader that may be deposed (edge case 43).

        Only another leader can have more than this one. What is below the log start was deleted by a leader.
        """
        log = partition.log
        if self.replica_id != _CONSUMER or log.log_start_offset <= offset <= log.log_end_offset:
            return False
        partition.check_term()
        return offset > log.log_end_offset and not partition.is_sole_candidate

    async def _confirm(self, partition: Partition) -> None:
        """After one failure no other partition of this fetch is asked for: each would wait for a controller that does
        not answer, and all of them together longer than the client waits for its fetch."""
        if self._is_unconfirmed:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            await partition.confirm_term()
        except RequestError:
            self._is_unconfirmed = True
            raise

    def _source_of(self, item: FetchItem) -> _Source:
        """Whether or not it can be read, the item hears of the partition's changes from now on."""
        if item.topic is None:
            item.topic = self._broker.metadata.name_of(item.topic_id)
        if item.topic is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)
        try:
            partition = self._broker.replicas.get(item.topic, item.index)
        except TidelogError:
            item.watch(None)  # asked for again with each fetch, for it is in error; nothing must be held that is gone
            raise
        item.watch(partition)
        if self._session.uses_topic_ids and partition.topic_id != item.topic_id:
            raise RequestError(ErrorCode.INCONSISTENT_TOPIC_ID)
        if self.replica_id != DEBUGGING_REPLICA:
            partition.leader_for(item.current_leader_epoch)
        if self.replica_id >= 0:
            self._check_follower(partition, item)
        if partition.rules.codec is Codec.ZSTD and self._call.version < _ZSTD:
            raise RequestError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return _Source(partition, partition.leader, item.times_named)

    def _check_follower(self, partition: Partition, item: FetchItem) -> None:
        """Only replicas of the partition copy it, and only in the registration that the store has.

        A follower may have heard first that it is a replica, or which registration it has; so these errors, which are
        also Kafka's, let it try again and tell its position anew.
        """
        if self.replica_id not in partition.replicas:
            is_in_term = item.current_leader_epoch >= 0
            raise RequestError(ErrorCode.UNKNOWN_LEADER_EPOCH if is_in_term else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not self._is_nameless and not self._broker.registrations.is_registered(self.replica_id, self._replica_epoch):
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _room(self, item: FetchItem) -> tuple[int, bool]:
        """How much may be read, and whether a batch that is larger is taken all the same (the first is)."""
        before = self._answers.get(item)
        taken = self._bytes - (len(before.records) if before is not None and before.records is not None else 0)
        return max(min(item.max_bytes, self._max_bytes - taken), 0), taken == 0

    def _end(self, partition: Partition) -> Offset:
        if self.replica_id >= 0:
            return partition.log.log_end_offset  # committed and uncommitted records alike (S1.2)
        return partition.log.last_stable_offset if self._committed_only else partition.log.high_watermark

    # Answers

    def _answer(
        self,
        item: FetchItem,
        source: _Source,
        region: Region | None,
        diverging: FetchResponseEpochEndOffset | None = None,
    ) -> FetchResponsePartitionData:
        log = source.partition.log
        if region is not None and region.size and region.segment is not log.segments.active:
            self._has_more = True
        self._sources[item] = source if diverging is None else source._replace(diverges=True)
        answer = FetchResponsePartitionData(
            partition_index=item.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self._committed_only else None,
            records=records_to_come(LogRegion(log, region)) if region is not None and region.size else b"",
        )
        item.diverges = diverging is not None
        if diverging is not None:
            answer.diverging_epoch = diverging
        return answer

    def _refusal(self, item: FetchItem, failure: TidelogError) -> FetchResponsePartitionData:
        item.diverges = False
        self._sources.pop(item, None)
        answer = FetchResponsePartitionData(
            partition_index=item.index,
            error_code=failure.code,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )
        if self._call.version >= _LEADER_HINTS and failure.code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        ):
            leader = self._broker.metadata.leader_at(item.topic or "", item.index, self._call.listener)
            if leader is not None:
                answer.current_leader = FetchResponseLeaderIdAndEpoch(
                    leader_id=leader.broker.id, leader_epoch=leader.epoch
                )
        return answer

    async def _respond_cold(self) -> FetchResponse:
        await self._read_dirty_cold()
        return await self._respond_in_slices()

    async def _respond_in_slices(self) -> FetchResponse:
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        async for answers in self._new_pace().slices(list(self._answers.items())):
            self._add_answers(topics, answers)
        return self._response(topics)

    def _respond(self) -> FetchResponse:
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        self._add_answers(topics, self._answers.items())
        return self._response(topics)

    def _add_answers(
        self,
        topics: dict[str | bytes, FetchableTopicResponse],
        answers: Iterable[tuple[FetchItem, FetchResponsePartitionData]],
    ) -> None:
        session, counts = self._session, self._broker.counts
        count = counts.read_by_follower if self.replica_id >= 0 else counts.read
        for item, answer in answers:
            source = self._sources.get(item)
            if source is not None and source.is_over:
                answer = self._refusal(item, RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            elif source is not None:
                answer.high_watermark = source.partition.log.high_watermark  # as of sending (S2.7)
            size = len(answer.records) if answer.records is not None else 0
            count(None if source is None else source.partition.name.topic, size, answer.error_code)
            if not item.is_news(answer, self._number) and self._is_incremental:
                continue
            topic_key = item.key[0]
            topic = topics.get(topic_key)
            if topic is None:
                topic = topics[topic_key] = FetchableTopicResponse(topic=item.topic or "", topic_id=item.topic_id)
            topic.partitions.append(answer)
            if size:
                session.had_its_turn(item)

    def _response(self, topics: dict[str | bytes, FetchableTopicResponse]) -> FetchResponse:
        session = self._session
        if session.id == NO_SESSION:
            session.close()
        response = FetchResponse(session_id=session.id, responses=list(topics.values()))
        if self._call.version >= _LEADER_HINTS:
            response.node_endpoints = self._endpoints(topics.values())
        return response

    def _endpoints(self, topics: Iterable[FetchableTopicResponse]) -> list[FetchResponseNodeEndpoint]:
        """Addresses of the leaders that errors point to (KIP-951)."""
        brokers = {
            partition.current_leader.leader_id: None
            for topic in topics
            for partition in topic.partitions
            if partition.error_code and partition.current_leader.leader_id >= 0
        }
        found = []
        for broker_id in brokers:
            broker = self._broker.metadata.brokers.get(broker_id)
            if broker is not None and self._call.listener in broker.endpoints:
                host, port = broker.endpoints[self._call.listener]
                found.append(FetchResponseNodeEndpoint(node_id=broker_id, host=host, port=port, rack=broker.rack))
        return found


def _diverging_epoch(partition: Partition, item: FetchItem) -> FetchResponseEpochEndOffset | None:
    """Where a reader's log and this one part, if they do (S4.5)."""
    if item.last_fetched_epoch == NO_EPOCH:
        return None
    epoch, end_offset = partition.log.epochs.end_offset_for(item.last_fetched_epoch, partition.log.log_end_offset)
    if epoch < item.last_fetched_epoch or end_offset < item.fetch_offset:
        return FetchResponseEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None

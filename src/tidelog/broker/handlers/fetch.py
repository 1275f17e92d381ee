"""Fetch (1).

4 isolation level; 5 log start offset; 7 sessions; 9 leader epochs; 10 zstd; 11 rack; 12 flexible, diverging epochs;
13 topic ids in place of names; 14 tiered storage; 15 replica state; 16 the new leader with an error;
17 directory ids; 18 the follower's high watermark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidelog.broker.dispatch import InSlices, Later
from tidelog.broker.fetch_answer import FetchAnswer, Wanted
from tidelog.broker.fetch_reading import FetchReading
from tidelog.broker.fetch_sessions import FetchItem, FetchSession
from tidelog.broker.pacing import Pace
from tidelog.controller.topics import is_valid_name
from tidelog.errors import ErrorCode
from tidelog.log.segment import NotCachedError
from tidelog.net.channel import Call
from tidelog.replication.leader import FollowerFetch
from tidelog.types import NO_EPOCH
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestReplicaState,
    FetchResponse,
    FetchTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_TOPIC_IDS = 13
_REPLICA_STATE = 15
_ONE_SLICE_BYTES = 16 * 1024
"""A smaller request does not name too many partitions for one slice."""
_MANY = 1_000
"""Partitions above which an answer is read and made in slices."""
_FEW = 16
"""Partitions that a fetch reads or answers at once, however many fetches do so in the same turn of the loop."""

_Answer: TypeAlias = FetchResponse | Later | Awaitable[FetchResponse | Later]


def fetch(broker: Broker, request: FetchRequest, call: Call) -> _Answer | InSlices:
    """What there is to read, at once or when there is enough of it (S2.10)."""
    by_id = call.version >= _TOPIC_IDS
    state = request.replica_state  # made anew each time it is asked for
    opened = broker.fetch_sessions.open(request, by_id, is_privileged=_is_of_follower(broker, state))
    if isinstance(opened, ErrorCode):
        return FetchResponse(error_code=opened)
    session, is_incremental = opened
    session.requests += 1
    if session.parked is not None:
        session.parked.give_way()
    if call.frame is not None and len(call.frame) > _ONE_SLICE_BYTES:
        return InSlices(_fetch_in_slices(broker, request, state, call, session, is_incremental))
    for forgotten in request.forgotten_topics_data:
        _forget(session, forgotten, forgotten.partitions)
    named = _Named([], [])
    for topic in request.topics:
        _name(broker, session, topic, topic.partitions, named)
    return _Fetch(broker, request, state, call, session, is_incremental, named).start()


async def _fetch_in_slices(
    broker: Broker,
    request: FetchRequest,
    state: FetchRequestReplicaState,
    call: Call,
    session: FetchSession,
    is_incremental: bool,
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
    return _Fetch(broker, request, state, call, session, is_incremental, named).start()


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


class _State(Enum):
    """Of a fetch, from its first look to its answer."""

    READING = auto()
    """It is being read for the first time."""
    PARKED = auto()
    """It waits for more to read."""
    WOKEN = auto()
    """Something has changed, and is looked at when this turn of requests ends."""
    OVER = auto()
    """It is answered, or is about to be."""


_MOVES = {
    _State.READING: {_State.PARKED},
    _State.PARKED: {_State.WOKEN, _State.OVER},
    _State.WOKEN: {_State.PARKED, _State.OVER},
    _State.OVER: set[_State](),
}
"""A fetch that is answered without having waited stays READING."""


class _Fetch:
    """One fetch while it is being answered; parked in purgatory while there is too little to read."""

    __slots__ = (
        "_answer",
        "_broker",
        "_call",
        "_heard",
        "_is_cold",
        "_later",
        "_named",
        "_reading",
        "_replica_state",
        "_session",
        "_state",
        "_strangers",
        "_timer",
        "_waits_with",
        "_wanted",
        "replica_id",
    )

    def __init__(
        self,
        broker: Broker,
        request: FetchRequest,
        state: FetchRequestReplicaState,
        call: Call,
        session: FetchSession,
        is_incremental: bool,
        named: _Named,
    ) -> None:
        self._broker = broker
        self._call = call
        self._session = session
        self._named, self._strangers = named
        self._replica_state = state
        by_state = call.version >= _REPLICA_STATE
        self.replica_id = state.replica_id if by_state else request.replica_id
        self._wanted = wanted = Wanted(
            self.replica_id,
            state.replica_epoch if by_state else NO_EPOCH,
            request,
            broker.config["fetch.max.bytes"],
            is_incremental,
        )
        self._answer = FetchAnswer(session, wanted)
        self._reading = FetchReading(broker, call, session, wanted, self._answer)
        self._state = _State.READING
        self._is_cold = False
        """There is something to read on the device."""
        self._heard: dict[FetchItem, None] = {}
        """What the follower has of these was heard before the device was read."""
        self._later: Later | None = None
        """The answer of one that is parked."""
        self._timer: asyncio.TimerHandle | None = None
        self._waits_with = 0
        """Partitions that it keeps while it is parked, and that no session keeps."""

    def _move(self, state: _State) -> None:
        assert state in _MOVES[self._state], f"a fetch is {self._state.name}, so it is not {state.name} next"
        self._state = state

    def start(self) -> _Answer:
        if len(self._session.dirty) + len(self._strangers) > _MANY:
            return self._start_in_slices()
        try:
            self._read_dirty()
        except NotCachedError:
            return self._start_cold()
        self._hear_follower()
        return self._respond() if self._answer.is_satisfied or not self._may_wait else self._park()

    @property
    def _may_wait(self) -> bool:
        return self._broker.waiting_fetches.may_wait(self._session, self._call.connection)

    async def _start_cold(self) -> FetchResponse | Later:
        """The follower is heard first: what it acknowledges does not wait for a slow device (edge case 34)."""
        self._hear_follower()
        self._heard = dict.fromkeys(self._answer.sources)
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
            if item not in self._answer.answers and item not in missed:
                self._take_cached(item, missed)  # another fetch of the session has read it meanwhile
        if missed:
            await self._hear_in_slices()
            self._heard = dict.fromkeys(self._answer.sources)
        async for item in pace.each(list(missed)):
            await self._read_anyhow(item)
        return await self._go_on_in_slices()

    def _take_cached(self, item: FetchItem, missed: dict[FetchItem, None]) -> None:
        try:
            self._answer.take(item, self._reading.read(item))
        except NotCachedError:
            missed[item] = None

    async def _go_on_in_slices(self) -> FetchResponse | Later:
        await self._hear_in_slices()
        return await self._respond_in_slices() if self._answer.is_satisfied or not self._may_wait else self._park()

    async def _hear_in_slices(self) -> None:
        if self._is_follower:
            async for named in self._new_pace().slices(self._named):
                self._hear(named)
            self._answer.look_for_news()

    def _new_pace(self) -> Pace:
        return Pace(self._broker.lane, self._call.connection.is_broker)

    @property
    def _is_follower(self) -> bool:
        """One that does not say its broker epoch is between two registrations, or it is no follower: versions before
        15 cannot say it, and anybody can send them. It is given records, but not believed (edge case 32)."""
        return self.replica_id >= 0 and self._wanted.broker_epoch != NO_EPOCH

    def _hear_follower(self) -> None:
        if self._is_follower:
            self._hear(self._named)
            self._answer.look_for_news()

    def _hear(self, named: Iterable[tuple[FetchItem, int]]) -> None:
        """What the follower has, which may move HW (S2.7): after the log was read, or is to be read from the device.

        Errors tell nothing (S2.5). It does not matter whether the items still watch their partitions: a change during a
        cold read of another partition ends the watch, and the follower would never be heard of this one.
        """
        if _is_of_follower(self._broker, self._replica_state):
            self._broker.replicas.follower_seen(self.replica_id)
        for item, times_named in named:
            source = self._answer.sources.get(item)
            if source is None or source.diverges or source.is_over or item in self._heard:
                continue  # it tells nothing, or the term ended while a disk thread was reading (edge case 5)
            if not source.times_named == times_named == item.times_named:
                continue  # the follower has named another position since, in a fetch that is heard for itself
            source.partition.follower_fetched(
                FollowerFetch(self.replica_id, item.fetch_offset, item.log_start_offset, self._wanted.broker_epoch)
            )

    # Purgatory

    def _park(self) -> Later:
        """Until the partitions' changes satisfy it, or its time is over."""
        self._move(_State.PARKED)
        self._later = Later()
        self._timer = asyncio.get_running_loop().call_later(self._wanted.max_wait_s, self.give_way)
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
        if self._state is _State.PARKED:
            self._move(_State.WOKEN)
            self._wake_later(self._look)

    def _wake_later(self, callback: Callable[[], None]) -> None:
        self._broker.channel.at_end_of_turn(callback)

    def _look(self) -> None:
        """Read what changed, in this turn of the loop if it has room for that."""
        if self._state is _State.OVER or self._may_take(len(self._session.dirty)):
            self._look_now()
        else:
            turn = self._broker.lane.next_turn(self._call.connection.is_broker)
            turn.add_done_callback(lambda _: self._look_now())

    def _may_take(self, partitions: int) -> bool:
        return partitions <= _FEW or self._broker.lane.take(partitions)

    def _look_now(self) -> None:
        """Read what changed, and see whether it is enough now."""
        if self._state is _State.OVER:
            return
        self._move(_State.PARKED)
        if len(self._session.dirty) > _MANY:
            self._is_cold = True
            self.give_way()
            return
        try:
            self._read_dirty()
        except NotCachedError:
            self._is_cold = True  # there is something, on the device
        if self._is_cold or self._answer.is_satisfied:
            self.give_way()

    def give_way(self) -> None:
        """Answer with what there is: it is enough, its time is over, or the next fetch of the session has come already.

        Answers keep their order, so one that is held back would hold back the next.
        """
        if self._state is _State.OVER:
            return
        self._move(_State.OVER)
        if self._timer is not None:
            self._timer.cancel()
        if self._session.parked is self:
            self._session.parked = None
        self._broker.waiting_fetches.end(self._call.connection, self._waits_with)
        assert self._later is not None
        if self._is_cold:
            self._later.answer(self._respond_cold)
        elif len(self._answer.answers) <= _MANY and self._may_take(len(self._answer.answers)):
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
                self._answer.take(item, self._reading.read(item))
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
            if item not in self._answer.answers:
                await self._read_anyhow(item)

    async def _read_anyhow(self, item: FetchItem) -> None:
        """From the page cache, or else from the device."""
        try:
            answer = self._reading.read(item)
        except NotCachedError:
            answer = await self._reading.read_cold(item)
        self._answer.take(item, answer)

    def _due(self) -> Iterable[FetchItem]:
        """Dirty ones, in the order of their turns. A few among many are not worth walking all."""
        dirty, items = self._session.dirty, self._session.items
        due = list(items.values() if len(dirty) == len(items) else dirty)
        return due + self._strangers if self._strangers else due

    # Answers

    async def _respond_cold(self) -> FetchResponse:
        await self._read_dirty_cold()
        return await self._respond_in_slices()

    async def _respond_in_slices(self) -> FetchResponse:
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        async for answers in self._new_pace().slices(list(self._answer.answers.items())):
            self._reading.add_answers(topics, answers)
        return self._reading.response(topics)

    def _respond(self) -> FetchResponse:
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        self._reading.add_answers(topics, self._answer.answers.items())
        return self._reading.response(topics)

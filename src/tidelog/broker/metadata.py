"""What every broker knows of the cluster: brokers, topics, leaders. The controller pushes it with UpdateMetadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tidelog.broker.long_waits import Waits, alone
from tidelog.controller.elr_tags import elr_of, last_known_elr_of
from tidelog.ports import Clock
from tidelog.types import NO_EPOCH, BrokerId, Epoch
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.controller import UpdateMetadataPartitionState, UpdateMetadataRequest

NO_LEADER = -1
LEADER_DURING_DELETE = -2
"""A partition with this leader is being deleted, and is not known any more."""

FULL_UPDATE = 2
"""The type of an UpdateMetadata that names every topic there is."""

_LISTED_AFTER_DEATH_NS = 3_000_000_000


class Endpoint(NamedTuple):
    host: str
    port: int


class LiveBroker(NamedTuple):
    id: BrokerId
    endpoints: Mapping[str, Endpoint]
    """By listener name: a client is told the addresses of the listener it came through."""
    rack: str | None


class PartitionMetadata(NamedTuple):
    leader: BrokerId
    leader_epoch: Epoch
    partition_epoch: int
    """The version of the partition's state: it rises with each change of the leader or the ISR."""
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...] = ()
    """Replicas that may lead if no member of the ISR can; without a leader those that may lead when they are back."""
    last_known_elr: tuple[BrokerId, ...] = ()
    """Those that may have lost records since they were eligible."""

    def is_older_than(self, known: PartitionMetadata) -> bool:
        """Both of the same topic id. A state without epochs is never older: it tells that nothing is known."""
        if self.leader_epoch < 0 or self.partition_epoch < 0:
            return False
        return (self.leader_epoch, self.partition_epoch) < (known.leader_epoch, known.partition_epoch)


class TopicMetadata(NamedTuple):
    name: str
    topic_id: bytes
    partitions: dict[int, PartitionMetadata]

    @property
    def has_leaders(self) -> bool:
        return all(partition.leader >= 0 for partition in self.partitions.values())


class LeaderAt(NamedTuple):
    """Where the leader of a partition is, for a client that has to go there."""

    broker: LiveBroker
    endpoint: Endpoint
    epoch: Epoch


class MetadataCache:
    """Replaced piece by piece by each UpdateMetadata; nobody else changes it."""

    def __init__(self, clock: Clock) -> None:
        self.brokers: dict[BrokerId, LiveBroker] = {}
        self._clock = clock
        self._lately_gone: dict[BrokerId, tuple[LiveBroker, int]] = {}
        """And until when they are listed."""
        self.topics: dict[str, TopicMetadata] = {}
        self.controller_id: BrokerId = NO_LEADER
        self.is_complete = False
        """Whether every topic there is has been told."""
        self.told_epoch = NO_EPOCH
        """The broker epoch in which that was, the last time."""
        self._names: dict[bytes, str] = {}
        self._left_out: dict[str, bytes] = {}
        """The ids of topics that a full update left out, until their names come back."""
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def topic(self, name: str) -> TopicMetadata | None:
        return self.topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return self._names.get(topic_id)

    def partition(self, topic: str, index: int) -> PartitionMetadata | None:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(index)

    def leader_at(self, topic: str, index: int, listener: str) -> LeaderAt | None:
        partition = self.partition(topic, index)
        broker = None if partition is None else self.brokers.get(partition.leader)
        if partition is None or broker is None or listener not in broker.endpoints:
            return None
        return LeaderAt(broker, broker.endpoints[listener], partition.leader_epoch)

    def brokers_on(self, listener: str) -> list[LiveBroker]:
        """Those that can be reached through a listener, by id."""
        return _reachable(self.brokers, listener)

    def listed_on(self, listener: str) -> list[LiveBroker]:
        """What clients are told: those, and for a while those that are gone.

        A death is seen here within milliseconds, while clients know clusters where it takes a session timeout.
        librdkafka (2.16) takes partitions away from their new leader again when the answer that names that leader is
        also the first not to list the old one, and leaves them alone until the next refresh, a second later.
        """
        now_ns = self._clock.monotonic_ns()
        self._lately_gone = {
            broker: (one, until_ns)
            for broker, (one, until_ns) in self._lately_gone.items()
            if until_ns > now_ns and broker not in self.brokers
        }
        gone = {broker: one for broker, (one, _) in self._lately_gone.items()}
        return _reachable(gone | self.brokers, listener)

    def id_of(self, name: str) -> bytes:
        """ZERO_UUID if it is not known."""
        found = self.topics.get(name)
        return ZERO_UUID if found is None else found.topic_id

    def apply(self, request: UpdateMetadataRequest) -> dict[str, bytes]:
        """The topics that it says were deleted, with their ids; of those that a full update leaves out, which may know
        too little, only those whose names have come back with other ids."""
        self.controller_id = request.controller_id
        known = self.brokers
        self.brokers = {
            broker.id: LiveBroker(
                broker.id,
                {endpoint.listener: Endpoint(endpoint.host, endpoint.port) for endpoint in broker.endpoints},
                broker.rack,
            )
            for broker in request.live_brokers
        }
        until_ns = self._clock.monotonic_ns() + _LISTED_AFTER_DEATH_NS
        self._lately_gone |= {broker: (one, until_ns) for broker, one in known.items() if broker not in self.brokers}
        if request.type == FULL_UPDATE:
            self.is_complete, self.told_epoch = True, request.broker_epoch
            named = {topic.topic_name for topic in request.topic_states}
            for name in [name for name in self.topics if name not in named]:
                self._left_out[name] = self.topics[name].topic_id
                self._forget(name)
        deleted = {}
        for topic in request.topic_states:
            gone = self._apply_topic(topic.topic_name, topic.topic_id, topic.partition_states)
            if gone is not None:
                deleted[topic.topic_name] = gone
        for future, condition in list(self._waiting.items()):
            if not future.done() and condition():
                future.set_result(None)
        return deleted

    def _apply_topic(self, name: str, topic_id: bytes, states: Iterable[UpdateMetadataPartitionState]) -> bytes | None:
        """The id of the topic that was known if that is no more, or of one of which only the end is told.

        An older state of a partition never replaces a newer one of the same topic id (edge case 42). The requests of
        tidelog's controllers are in order when they come here; those of Kafka's may not be.
        """
        known = was = self.topics.get(name)
        is_other = known is not None and topic_id != ZERO_UUID and known.topic_id != topic_id
        states = list(states)
        is_end = bool(states) and all(state.leader == LEADER_DURING_DELETE for state in states)
        if is_other and is_end:
            return None  # the end of an earlier topic of this name, told late
        if is_other:
            known = None  # deleted and created anew
        partitions = dict(known.partitions) if known is not None else {}
        for state in states:
            if state.leader == LEADER_DURING_DELETE:
                partitions.pop(state.partition_index, None)
                continue
            told, here = _told(state), partitions.get(state.partition_index)
            if here is None or topic_id == ZERO_UUID or not told.is_older_than(here):
                partitions[state.partition_index] = told
        self._forget(name)
        if partitions:
            self.topics[name] = TopicMetadata(name, topic_id, dict(sorted(partitions.items())))
            if topic_id != ZERO_UUID:
                self._names[topic_id] = name
            left_out = self._left_out.pop(name, None)
            if was is None and left_out is not None and topic_id not in (ZERO_UUID, left_out):
                return left_out
        if was is None:  # told of its end first: offsets of it may have been loaded all the same
            return topic_id if is_end and topic_id != ZERO_UUID else None
        return was.topic_id if known is None or not partitions else None

    def _forget(self, name: str) -> None:
        old = self.topics.pop(name, None)
        if old is not None:
            self._names.pop(old.topic_id, None)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float, waits: Waits = alone) -> bool:
        """False if it did not hold in time. Looked at now and after each update."""
        if condition():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = condition
        timer = asyncio.get_running_loop().call_later(max(timeout_s, 0.0), future.cancel)
        try:
            with waits(future.cancel):
                await future
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return condition()
        finally:
            timer.cancel()
            del self._waiting[future]
        return True


def _told(state: UpdateMetadataPartitionState) -> PartitionMetadata:
    return PartitionMetadata(
        state.leader,
        state.leader_epoch,
        state.zk_version,
        tuple(state.isr),
        tuple(state.replicas),
        tuple(state.offline_replicas),
        elr_of(state),
        last_known_elr_of(state),
    )


def _reachable(brokers: Mapping[BrokerId, LiveBroker], listener: str) -> list[LiveBroker]:
    return [broker for _, broker in sorted(brokers.items()) if listener in broker.endpoints]

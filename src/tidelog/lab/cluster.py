"""The brokers of a simulated cluster, what each of them has, and cuts between them.

It looks at the brokers from outside, as nobody in a real cluster can: at all replicas at one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Generic, TypeVar

from tidelog.broker.broker import BrokerState
from tidelog.broker.partition import Partition
from tidelog.client.cluster import Cluster
from tidelog.client.settings import ClientSettings
from tidelog.controller import nodes
from tidelog.controller.image import PartitionState
from tidelog.coordination.memory import MemoryCoordination
from tidelog.coordination.port import NoNodeError
from tidelog.lab.broker import PORT, LabBroker, WaitedInVainError, eventually, sim_settings
from tidelog.lab.disk import SimFile
from tidelog.lab.lookout import Lookout
from tidelog.lab.store import EmbeddedStore, LabStore, StoreKind
from tidelog.lab.world import World
from tidelog.log.segment import Segment
from tidelog.records.batch import decode
from tidelog.records.header import headers
from tidelog.types import TopicPartition
from tidelog.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

SESSION_MS = 4_000
LAG_MS = 2_000
TOPIC = "t"
COMPACTED = "compacted"
"""A topic beside it whose replicas differ in what they have cleaned."""
_LOOK_S = 0.05
IMPATIENT = ClientSettings(request_timeout_ms=2_000, socket_connection_setup_timeout_ms=1_000, retry_backoff_max_ms=200)

AnyBroker = TypeVar("AnyBroker", bound=LabBroker)


def store_of(world: World, kind: StoreKind = "memory") -> LabStore:
    """The coordination store of a world. The one in memory is on a host of its own and answers with some delay."""
    if kind == "embedded":
        return EmbeddedStore(world)
    chance = world.chance_for("store")
    return MemoryCoordination(world.host("store").clock, delay_s=lambda: chance.random() / 1e3)


def settings_of(number: int, **settings: str) -> dict[str, str]:
    """Of one broker of a cluster that notices faults within seconds."""
    given = {
        "zookeeper_session_timeout_ms": str(SESSION_MS),
        "replica_lag_time_max_ms": str(LAG_MS),
        "replica_fetch_backoff_ms": "100",
        "replica_socket_timeout_ms": "2000",
        "controller_socket_timeout_ms": "2000",
        "auto_leader_rebalance_enable": "false",
        **settings,
    }
    return sim_settings(f"b{number}", **given)


def brokers_of(world: World, store: LabStore, count: int = 3, **settings: str) -> dict[int, LabBroker]:
    """Brokers 1..count on hosts b1, b2 and so on."""
    return {
        number: LabBroker(world.host(f"b{number}"), store, settings_of(number, **settings), number, f"b{number}")
        for number in range(1, count + 1)
    }


class LabCluster(Generic[AnyBroker]):
    """Brokers by their numbers, and one store. Where no topic is said, it is `t`."""

    def __init__(self, world: World, store: LabStore, brokers: Mapping[int, AnyBroker]) -> None:
        self.world = world
        self.store = store
        self.brokers = dict(brokers)
        self.lookout = Lookout()
        for one in self.brokers.values():
            one.lookout = self.lookout

    async def start(self) -> None:
        """All that are not up yet."""
        await asyncio.gather(*(one.start() for one in self.brokers.values() if one.host.process is None))
        ids = sorted(self.brokers)
        await eventually(lambda: all(sorted(one.broker.metadata.brokers) == ids for one in self.brokers.values()))

    def __getitem__(self, number: int) -> AnyBroker:
        return self.brokers[number]

    # Who is there, and what it has

    def is_up(self, number: int) -> bool:
        return self.brokers[number].host.process is not None

    def is_running(self, number: int) -> bool:
        """It serves, and is not on its way up or down."""
        one = self.brokers[number]
        return one.is_up and one.broker.state == BrokerState.RUNNING

    @property
    def up(self) -> list[int]:
        return [number for number in self.brokers if self.is_up(number)]

    def replica(self, number: int, index: int = 0, topic: str = TOPIC) -> Partition | None:
        """None while it is not there."""
        one = self.brokers[number]
        return one.broker.replicas.partitions.get(TopicPartition(topic, index)) if one.is_up else None

    def replicas(self, index: int = 0) -> dict[int, Partition]:
        found = {number: self.replica(number, index) for number in self.brokers}
        return {number: partition for number, partition in found.items() if partition is not None}

    def leader(self, index: int = 0) -> int:
        """Of the highest term; 0 if nobody leads now."""
        leading = [(one.leader.epoch, number) for number, one in self.replicas(index).items() if one.leader is not None]
        return max(leading)[1] if leading else 0

    def followers(self, index: int = 0) -> list[int]:
        return [number for number in self.brokers if number != self.leader(index)]

    @property
    def controller(self) -> int:
        """0 while there is none, or while one that was has not noticed that it is no more."""
        active = [
            number
            for number in self.up
            if hasattr(self.brokers[number].broker, "controller") and self.brokers[number].broker.controller.is_active
        ]
        return active[0] if len(active) == 1 else 0

    def isr(self, index: int = 0) -> list[int]:
        """As the leader has it; empty while there is none."""
        number = self.leader(index)
        leader = self.replicas(index)[number].leader if number else None
        return [] if leader is None else sorted(leader.isr)

    def stored_isr(self, index: int = 0) -> list[int]:
        """As the store has it."""
        return sorted(self.stored_state(index).isr)

    def stored_state(self, index: int = 0) -> PartitionState:
        """As the store has it, which decides who may be elected. Without the node's version.

        A node that cannot be read says nothing: it is as if there was none.
        """
        path = nodes.state_path(TopicPartition(TOPIC, index))
        try:
            return _stored_state(self.store.tree.get(path).data)
        except nodes.BadNodeError as failure:
            raise NoNodeError(path) from failure

    def intact_isr(self, index: int = 0) -> list[int]:
        """The members of the stored ISR that run and have lost nothing since it was written."""
        state = self.stored_state(index)
        return [
            member
            for member in state.isr
            if self.is_up(member) and 0 <= self[member].broker.storage.continuity.intact_since <= state.lives[member]
        ]

    def assigned(self, index: int = 0) -> list[int]:
        """Its replicas, as the leader has them."""
        number = self.leader(index)
        return sorted(self.replicas(index)[number].replicas) if number else []

    def ends(self, index: int = 0) -> dict[int, tuple[int, int]]:
        """(LEO, HW) of each replica."""
        return {n: (one.log.log_end_offset, one.log.high_watermark) for n, one in self.replicas(index).items()}

    def held(self, number: int, index: int = 0) -> bytes:
        """The log of one replica, as it is in its files."""
        log = self.replicas(index)[number].log
        return b"".join(content_of(one) for one in log.segments)

    def bytes_below(self, number: int, index: int, end: int) -> bytes:
        """The log of one replica below an offset."""
        log, held = self.replicas(index)[number].log, self.held(number, index)
        records = [record for record in decode(held) if record.offset < end]
        size = len(held) if end >= log.log_end_offset else _position(held, end)
        assert [record.offset for record in records] == list(range(log.log_start_offset, end))
        return held[:size]

    def values(self, number: int, index: int = 0) -> list[bytes | None]:
        """Of the committed records in one replica."""
        high_watermark = self.replicas(index)[number].log.high_watermark
        return [record.value for record in decode(self.held(number, index)) if record.offset < high_watermark]

    # Waiting

    async def until(self, condition: Callable[[], object], patience_s: float, what: str) -> None:
        """As `eventually`, but at less cost: it looks when something has happened, and else only now and then."""
        if not await self.lookout.until(condition, patience_s, _LOOK_S):
            raise WaitedInVainError(f"waited in vain until {what}")

    def is_in_sync(self, index: int = 0, factor: int = 3, topic: str = TOPIC) -> bool:
        """Every replica is in the ISR, and all have the same records, all of them committed."""
        replicas = {number: self.replica(number, index, topic) for number in self.brokers}
        leaders = [replica for replica in replicas.values() if replica is not None and replica.leader is not None]
        if not leaders:
            return False
        last = max(leaders, key=lambda replica: replica.leader_epoch)
        members = [replicas[number] for number in last.replicas]
        if last.leader is None or len(members) != factor or sorted(last.leader.isr) != sorted(last.replicas):
            return False
        logs = [None if member is None else member.log for member in members]
        ends = {None if log is None else (log.log_end_offset, log.high_watermark) for log in logs}
        return len(ends) == 1 and len(set(ends.pop() or (0, 1))) == 1

    async def leads(self, but: int = 0, index: int = 0) -> int:
        """Who leads, once somebody does, other than `but`."""
        await eventually(lambda: self.leader(index) not in (0, but), 60.0)
        return self.leader(index)

    # A client's part

    async def create_topic(
        self, name: str = TOPIC, assignments: Sequence[Sequence[int]] = ((1, 2, 3),), **config: str
    ) -> None:
        """Until it is led and every replica is there. min.insync.replicas is 2 unless it is said."""
        config = {"min_insync_replicas": "2", **config}
        topic = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                for index, replicas in enumerate(assignments)
            ],
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()],
        )
        answer = await self.brokers[self.controller].call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        assert answer.topics[0].error_code == 0, answer.topics[0]
        for index, replicas in enumerate(assignments):
            await eventually(partial(self._is_made, name, index, len(replicas)))

    def _is_made(self, topic: str, index: int, count: int) -> bool:
        replicas = [replica for number in self.brokers if (replica := self.replica(number, index, topic)) is not None]
        return len(replicas) == count and any(replica.leader is not None for replica in replicas)

    async def connect(self, host: str = "client") -> Cluster:
        """A real client on that host, which gives up on a broker soon."""
        bootstrap = [(f"b{number}", PORT) for number in self.brokers]
        return await Cluster.open(bootstrap, random=self.world.host(host).random, settings=IMPATIENT)

    # Cuts

    def cut_off(self, number: int) -> None:
        """From the other brokers, not from clients nor from the store."""
        for other in self.brokers:
            if other != number:
                self.world.network.cut(f"b{number}", f"b{other}")

    def heal(self, number: int, *, reset: bool = False) -> None:
        for other in self.brokers:
            if other != number:
                self.world.network.heal(f"b{number}", f"b{other}", reset=reset)


def content_of(segment: Segment, start: int = 0) -> bytes:
    """As it is in its file. Who looks on from outside is not hit by the faults of a disk, and spends none of them."""
    if isinstance(segment.file, SimFile):
        return bytes(segment.file._inode.content[start : segment.size])
    return bytes(segment.file.read_at(start, max(segment.size - start, 0)))


@lru_cache(maxsize=64)
def _stored_state(data: bytes) -> PartitionState:
    """Looked at far more often than it changes."""
    return nodes.decode_state(TopicPartition(TOPIC, 0), data, 0, 0)


def _position(held: bytes, end: int) -> int:
    return next((position for position, header in headers(held) if header.base_offset >= end), len(held))

"""Three brokers in one world, a replicated topic, and what must always hold of it.

A story gets a ClusterKit: brokers to kill, freeze and cut off, a client, and a witness that looks at all replicas
while the story goes on (HW <= LEO, HW never falls in a term, one leader per epoch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tests.brokerkit import PORT, Kit, eventually, sim_settings
from tests.logkit import batch
from tidelog.broker.partition import Partition
from tidelog.client.cluster import Cluster
from tidelog.client.produce import Produced, Producer
from tidelog.client.settings import ClientSettings
from tidelog.coordination.memory import MemoryCoordination
from tidelog.errors import ErrorCode, TidelogError
from tidelog.lab.world import World
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
_LOOK_S = 0.02
IMPATIENT = ClientSettings(request_timeout_ms=2_000, socket_connection_setup_timeout_ms=1_000, retry_backoff_max_ms=200)

Story = Callable[["ClusterKit"], Coroutine[Any, Any, None]]


class ClusterKit:
    """Brokers 1..n on hosts b1..bn, and one store."""

    def __init__(self, world: World, store: MemoryCoordination, brokers: int = 3, **settings: str) -> None:
        self.world = world
        self.store = store
        given = {
            "zookeeper_session_timeout_ms": str(SESSION_MS),
            "replica_lag_time_max_ms": str(LAG_MS),
            "replica_fetch_backoff_ms": "100",
            "replica_socket_timeout_ms": "2000",
            "controller_socket_timeout_ms": "2000",
            "auto_leader_rebalance_enable": "false",
            **settings,
        }
        self.kits = {
            number: Kit(world.host(f"b{number}"), store, sim_settings(f"b{number}", **given), number, f"b{number}")
            for number in range(1, brokers + 1)
        }
        self.witness = Witness(self)

    async def start(self) -> None:
        await asyncio.gather(*(kit.start() for kit in self.kits.values()))
        ids = sorted(self.kits)
        await eventually(lambda: all(sorted(kit.broker.metadata.brokers) == ids for kit in self.kits.values()))

    def __getitem__(self, number: int) -> Kit:
        return self.kits[number]

    # Who is there, and what it has

    def is_up(self, number: int) -> bool:
        return self.kits[number].host.process is not None

    @property
    def up(self) -> list[int]:
        return [number for number in self.kits if self.is_up(number)]

    def replica(self, number: int, index: int = 0, topic: str = "t") -> Partition | None:
        """None while it is not there."""
        if not self.is_up(number) or not hasattr(self.kits[number], "broker"):
            return None
        return self.kits[number].broker.replicas.partitions.get(TopicPartition(topic, index))

    def replicas(self, index: int = 0) -> dict[int, Partition]:
        found = {number: self.replica(number, index) for number in self.kits}
        return {number: partition for number, partition in found.items() if partition is not None}

    def leader(self, index: int = 0) -> int:
        """Of the highest term; 0 if nobody leads now."""
        leading = [(one.leader.epoch, number) for number, one in self.replicas(index).items() if one.leader is not None]
        return max(leading)[1] if leading else 0

    def followers(self, index: int = 0) -> list[int]:
        return [number for number in self.kits if number != self.leader(index)]

    @property
    def controller(self) -> int:
        active = [n for n in self.up if self.kits[n].broker.controller.is_active]
        return active[0] if len(active) == 1 else 0

    def isr(self, index: int = 0) -> list[int]:
        """As the leader has it; empty while there is none."""
        number = self.leader(index)
        leader = self.replicas(index)[number].leader if number else None
        return [] if leader is None else sorted(leader.isr)

    def ends(self, index: int = 0) -> dict[int, tuple[int, int]]:
        """(LEO, HW) of each replica."""
        return {n: (one.log.log_end_offset, one.log.high_watermark) for n, one in self.replicas(index).items()}

    def bytes_below(self, number: int, index: int, end: int) -> bytes:
        """The log of one replica below an offset, as it is in its files."""
        log = self.replicas(index)[number].log
        held = b"".join(bytes(one.file.read_at(0, one.size)) for one in log.segments)
        records = [record for record in decode(held) if record.offset < end]
        size = len(held) if end >= log.log_end_offset else _position(held, end)
        assert [record.offset for record in records] == list(range(log.log_start_offset, end))
        return held[:size]

    # Waiting

    async def all_in_sync(self, index: int = 0, patience_s: float = 60.0) -> None:
        """Every replica is in the ISR, and all have the same records, all of them committed."""

        def are_in_sync() -> bool:
            offsets = {offset for ends in self.ends(index).values() for offset in ends}
            return self.isr(index) == sorted(self.kits) and len(offsets) == 1

        await eventually(are_in_sync, patience_s)
        self.check_equal(index)

    def check_equal(self, index: int = 0) -> None:
        """All replicas are byte-equal below the smallest HW of them."""
        below = min(high_watermark for _, high_watermark in self.ends(index).values())
        logs = {number: self.bytes_below(number, index, below) for number in self.replicas(index)}
        assert len(set(logs.values())) == 1, f"replicas differ below {below}"

    async def leads(self, but: int = 0, index: int = 0) -> int:
        """Who leads, once somebody does, other than `but`."""
        await eventually(lambda: self.leader(index) not in (0, but), 60.0)
        return self.leader(index)

    # A client's part

    async def create_topic(
        self, name: str = "t", assignments: Sequence[Sequence[int]] = ((1, 2, 3),), **config: str
    ) -> None:
        """min.insync.replicas is 2 unless it is said."""
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
        answer = await self.kits[self.controller].call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        assert answer.topics[0].error_code == 0, answer.topics[0]
        for index in range(len(assignments)):
            await eventually(lambda index=index: self.leader(index) and len(self.replicas(index)) == len(self.kits))

    async def connect(self) -> Cluster:
        host = self.world.host("client")
        bootstrap = [(f"b{number}", PORT) for number in self.kits]
        return await Cluster.open(bootstrap, random=host.random, settings=IMPATIENT)

    async def produce(self, value: bytes, index: int = 0, **options: Any) -> ErrorCode:
        """One record to who leads now, tried once."""
        answer = await self.kits[self.leader(index)].produce(batch([value]), "t", index, **options)
        return ErrorCode(answer.error_code)

    def values(self, number: int, index: int = 0) -> list[bytes | None]:
        """Of the committed records in one replica."""
        log = self.replicas(index)[number].log
        held = b"".join(bytes(one.file.read_at(0, one.size)) for one in log.segments)
        return [record.value for record in decode(held) if record.offset < log.high_watermark]

    # Faults

    def cut_off(self, number: int) -> None:
        """From the other brokers, not from clients nor from the store."""
        for other in self.kits:
            if other != number:
                self.world.network.cut(f"b{number}", f"b{other}")

    def heal(self, number: int, *, reset: bool = False) -> None:
        for other in self.kits:
            if other != number:
                self.world.network.heal(f"b{number}", f"b{other}", reset=reset)


class Witness:
    """Looks at all replicas again and again."""

    def __init__(self, cluster: ClusterKit) -> None:
        self._cluster = cluster
        self.leaders: dict[tuple[TopicPartition, int], int] = {}
        """By partition and epoch."""
        self._high_watermarks: dict[tuple[TopicPartition, int], int] = {}

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        for number, kit in self._cluster.kits.items():
            if not self._cluster.is_up(number) or not hasattr(kit, "broker"):
                continue
            for name, partition in kit.broker.replicas.partitions.items():
                log, leader = partition.log, partition.leader
                assert log.high_watermark <= log.log_end_offset, f"{name} on {number}: HW is past LEO"
                if leader is not None:
                    term = (name, leader.epoch)
                    assert self.leaders.setdefault(term, number) == number, f"two lead {name} in epoch {leader.epoch}"
                    assert log.high_watermark >= self._high_watermarks.get(term, 0), f"HW of {name} fell"
                    self._high_watermarks[term] = log.high_watermark


class Writer:
    """An idempotent producer of numbered records to one partition, until all are acknowledged."""

    def __init__(self, cluster: ClusterKit, name: str, index: int, count: int, in_flight: int = 5) -> None:
        self._cluster = cluster
        self.name = name
        self.index = index
        self._count = count
        self._in_flight = in_flight
        self._chance = cluster.world.chance_for(f"writer {name} {index}")
        self.acknowledged: dict[int, int] = {}
        """The offset of each, -1 if the broker did not say."""

    def value(self, number: int) -> bytes:
        return b"%s %d" % (self.name.encode(), number)

    async def run(self, producer: Producer) -> None:
        number = 0
        while number < self._count:
            last = min(number + self._chance.randrange(1, self._in_flight + 1), self._count)
            sent = [producer.send(TopicPartition("t", self.index), self._batch(one)) for one in range(number, last)]
            for one, result in zip(range(number, last), await asyncio.gather(*sent), strict=True):
                assert isinstance(result, Produced)
                self.acknowledged[one] = result.base_offset
            number = last
            await asyncio.sleep(self._chance.uniform(0, 0.2))

    def _batch(self, number: int) -> memoryview:
        now_ms = self._cluster.world.host("client").clock.wall_ms()
        return memoryview(bytearray(batch([self.value(number)], timestamp=now_ms)))

    def check(self, found: Sequence[bytes | None]) -> None:
        """All that was acknowledged is there once, where it was said to be, in the order of sending."""
        mine = [value for value in found if value is not None and value.startswith(self.name.encode() + b" ")]
        assert mine == [self.value(number) for number in range(self._count)], f"{self.name}-{self.index}"
        for number, offset in self.acknowledged.items():
            assert offset < 0 or found[offset] == self.value(number)


async def write(cluster: ClusterKit, writers: Sequence[Writer]) -> None:
    """One producer for all of these, until they are done."""
    while True:
        try:
            client = await cluster.connect()
            await client.topic("t")
            break
        except TidelogError:
            await asyncio.sleep(0.1)
    async with client:
        producer = Producer(client, delivery_timeout_ms=600_000)
        await asyncio.gather(*(writer.run(producer) for writer in writers))
        producer.close()


def _position(held: bytes, end: int) -> int:
    return next((position for position, header in headers(held) if header.base_offset >= end), len(held))


def run(story: Story, *, seed: int = 1, topic: bool = True, **settings: str) -> World:
    """Tell a story of three brokers and the topic t, in a world of its own."""
    with World(seed) as world:
        world.run(_tell(world, story, topic, settings), limit_s=7200)
    return world


async def _tell(world: World, story: Story, topic: bool, settings: dict[str, str]) -> None:
    chance = world.chance_for("store")
    store = MemoryCoordination(world.host("store").clock, delay_s=lambda: chance.random() / 1e3)
    cluster = ClusterKit(world, store, **settings)
    await cluster.start()

    async def whole() -> None:
        if topic:
            await cluster.create_topic()
            await eventually(lambda: cluster.isr() == sorted(cluster.kits))
        await story(cluster)

    witness = asyncio.ensure_future(cluster.witness.run())
    story_told = world.host("client").start(whole())
    await asyncio.wait([witness, story_told], return_when=asyncio.FIRST_COMPLETED)
    if witness.done():
        await witness
    await story_told
    witness.cancel()
    cluster.witness.look()

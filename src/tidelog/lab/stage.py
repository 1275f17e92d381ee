"""Where a story is played: real brokers with letters for names, one partition, a client, and a look at all of it.

    stage = Stage(world, by_epoch=True)
    await stage.set("AB")
    sent = stage.produce("m0")
    await stage.until(lambda: sent.is_answered)
    stage.show("m0 is on both replicas.", "S2.9")

A story waits for conditions and shows what is there the moment they hold. Messages between brokers take 10 ms, so every
state in between lasts long enough to be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog.client.admin import Admin, Resource, ResourceType
from tidelog.client.leadership import Election, alter_reassignments, elect_leaders, wait_until_reassigned
from tidelog.controller import nodes
from tidelog.errors import ErrorCode, TidelogError
from tidelog.lab.broker import PORT, LabBroker, WaitedInVainError
from tidelog.lab.cluster import TOPIC, LabCluster, brokers_of, store_of
from tidelog.lab.frames import Frame, Record, ReplicaRow, Role
from tidelog.lab.rows import dead_row, living_row
from tidelog.lab.world import World
from tidelog.net.calling import Connection
from tidelog.records.build import BatchFacts, build_batch
from tidelog.types import BrokerId, Epoch, Offset, TopicPartition
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

ALL = -1
_PARTITION = TopicPartition(TOPIC, 0)
_PRODUCE_BY_NAME = 12
_PRODUCE_MS = 30_000
LATENCY_MS = 10.0
_LOOK_S = 0.0005
_PATIENCE_S = 60.0
CONTROLLER = "K"
"""A broker without a replica; it starts first and so controls. Deaths of replicas are then only that."""


class Scene:
    """What any story does: wait for what it is to show, and keep what it has shown."""

    def __init__(self, world: World) -> None:
        self.frames: list[Frame] = []
        self._world = world

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, condition: Callable[[], object], patience_s: float = _PATIENCE_S) -> None:
        """Looks twice per millisecond, so that it sees what lasts only as long as a message is under way."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while not condition():
            if loop.time() >= deadline:
                raise WaitedInVainError(f"after frame {len(self.frames)}: {self._now()}")
            await asyncio.sleep(_LOOK_S)

    def _now(self) -> str:
        """What is there, for whoever waited in vain."""
        raise NotImplementedError


class Sent:
    """One record that a client sends, and what it hears."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.code: ErrorCode | None = None
        self.offset: Offset = -1
        self.is_answered = False
        """Also when the connection broke: then there is no code."""


class Stage(Scene):
    """One partition of the topic `t`, its replicas by letters."""

    def __init__(self, world: World, *, by_epoch: bool = True) -> None:
        super().__init__(world)
        self.by_epoch = by_epoch
        self._names: dict[BrokerId, str] = {}
        self._numbers: dict[str, BrokerId] = {}
        self._replicas = ""
        self._sent: list[Sent] = []
        self._acknowledged: list[Record] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.cluster: LabCluster[LabBroker]

    async def set(self, replicas: str = "AB", topic: dict[str, str] | None = None, **settings: str) -> None:
        """Start the brokers and make the partition; A leads it, and all are in sync."""
        given = {"replica_high_watermark_checkpoint_interval_ms": "500", **settings}
        self._replicas = replicas
        self._names = dict(enumerate([*replicas, CONTROLLER], 1))
        self._numbers = {name: number for number, name in self._names.items()}
        store = store_of(self._world)
        self.cluster = LabCluster(self._world, store, brokers_of(self._world, store, len(self._names), **given))
        for one in replicas:
            for other in replicas:
                if one < other:
                    self.set_latency(one, other, LATENCY_MS)
        await self[CONTROLLER].start()
        await self.until(lambda: self.controller == CONTROLLER)
        await self.cluster.start()
        assignment = [self._numbers[name] for name in replicas]
        await self.cluster.create_topic(assignments=[assignment], **{"min_insync_replicas": "1", **(topic or {})})
        await self.until(
            lambda: self.isr == replicas and all(end is not None for _, end in self.leader_row.remote_log_ends)
        )

    # Who does what

    def __getitem__(self, name: str) -> LabBroker:
        return self.cluster[self._numbers[name]]

    def kill(self, name: str) -> None:
        self[name].kill()

    def lose_power(self, name: str) -> None:
        self[name].lose_power()

    async def start(self, name: str) -> None:
        """Until it serves, and has been told what to do with its replica."""
        await self[name].start()
        if name in self._replicas:
            await self.until(lambda: self.cluster.replica(self._numbers[name]) is not None)

    def freeze(self, name: str) -> None:
        self[name].host.freeze()

    def thaw(self, name: str) -> None:
        self[name].host.thaw()

    def set_latency(self, one: str, other: str, latency_ms: float) -> None:
        self._world.network.set_latency(self._host(one), self._host(other), latency_ms)

    def cut(self, one: str, other: str) -> None:
        self._world.network.cut(self._host(one), self._host(other))

    def heal(self, one: str, other: str) -> None:
        self._world.network.heal(self._host(one), self._host(other), reset=True)

    def _host(self, name: str) -> str:
        return f"b{self._numbers[name]}"

    # The client

    def produce(self, label: str, to: str = "A", acks: int = ALL) -> Sent:
        sent = Sent(label)
        self._sent.append(sent)
        self._tasks.append(asyncio.create_task(self._produce(sent, self._host(to), acks)))
        return sent

    async def _produce(self, sent: Sent, host: str, acks: int) -> None:
        batch = memoryview(bytearray(build_batch([(0, None, sent.label.encode())], BatchFacts())))
        data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(acks=acks, timeout_ms=_PRODUCE_MS, topic_data=[data])
        try:
            connection = await Connection.open(host, PORT, client_id="client")
            try:
                response = await connection.call(request, _PRODUCE_BY_NAME, timeout_ms=_PRODUCE_MS)
            finally:
                connection.close()
            answer = response.responses[0].partition_responses[0]
            sent.code, sent.offset = ErrorCode(answer.error_code), answer.base_offset
            if sent.code is ErrorCode.NONE and acks == ALL:
                self._acknowledged.append(Record(sent.offset, sent.label, self.leader_row.leader_epoch or 0))
        except (TidelogError, OSError):
            pass  # the broker is gone, and the client knows nothing
        sent.is_answered = True

    async def write(self, label: str, to: str = "A") -> None:
        """Acknowledged by all, and known to be by all."""
        sent = self.produce(label, to)
        await self.until(lambda: sent.code is ErrorCode.NONE)
        await self.until(lambda: all(self.high_watermark(name) == sent.offset + 1 for name in self.isr))

    async def set_topic(self, name: str, value: str) -> None:
        """Change a setting of the topic."""
        async with await self.cluster.connect() as client:
            await Admin(client).alter_configs(Resource(ResourceType.TOPIC, TOPIC), changed={name: value})

    async def prefer(self, replicas: str) -> None:
        """Put the replicas in another order, the preferred leader first. Who leads does not change by that."""
        target = {_PARTITION: [self._numbers[name] for name in replicas]}
        async with await self.cluster.connect() as client:
            await alter_reassignments(client, target)
            await wait_until_reassigned(client, target, timeout_ms=_PATIENCE_S * 1000)

    async def elect_preferred(self) -> None:
        async with await self.cluster.connect() as client:
            await elect_leaders(client, Election.PREFERRED, [_PARTITION])

    # What is there

    @property
    def controller(self) -> str:
        """Who the store says it is; nothing while nobody is. One that was frozen may believe otherwise."""
        tree = self.cluster.store.tree
        found = tree.exists(nodes.CONTROLLER) is not None
        return self._names[nodes.decode_controller(tree.get(nodes.CONTROLLER).data)] if found else ""

    @property
    def controller_epoch(self) -> Epoch:
        return nodes.decode_controller_epoch(self.cluster.store.tree.get(nodes.CONTROLLER_EPOCH).data)

    def is_registered(self, name: str) -> bool:
        """The store has its node, so that a controller takes it for alive."""
        return self.cluster.store.tree.exists(nodes.broker_path(self._numbers[name])) is not None

    def controls(self, name: str) -> bool:
        """What it believes itself."""
        return self[name].broker.controller.is_active

    @property
    def elected(self) -> str:
        """Who leads as the store has it, which is what a controller decided; nothing if nobody can."""
        data = self.cluster.store.tree.get(nodes.state_path(_PARTITION)).data
        state = nodes.decode_state(_PARTITION, data, 0, 0)
        return self._names.get(state.leader, "")

    @property
    def leader(self) -> str:
        """Of the highest term; nothing while nobody leads."""
        return self._names.get(self.cluster.leader(), "")

    @property
    def isr(self) -> str:
        """As the leader has it; nothing while there is none."""
        return "".join(self._names[number] for number in self.cluster.isr())

    @property
    def leader_row(self) -> ReplicaRow:
        return self.row(self.leader)

    def row(self, name: str) -> ReplicaRow:
        number = self._numbers[name]
        partition = self.cluster.replica(number)
        host = self[name].host
        if partition is None or host.process is None:
            return dead_row(name, host.disk, _PARTITION)
        role = Role.FOLLOWER if partition.leader is None else Role.LEADER
        return living_row(self._names, number, partition, Role.FROZEN if host.process.frozen else role)

    def log_end(self, name: str) -> Offset:
        return self.row(name).log_end

    def synced_end(self, name: str) -> Offset:
        """Up to where a living replica has synced its log."""
        partition = self.cluster.replica(self._numbers[name])
        return -1 if partition is None else partition.log.recovery_point

    def high_watermark(self, name: str) -> Offset:
        return self.row(name).high_watermark

    def written_high_watermark(self, name: str) -> Offset:
        """What its checkpoint says, which is what it finds after a death."""
        return dead_row(name, self[name].host.disk, _PARTITION).high_watermark

    def remote_end(self, name: str) -> Offset | None:
        """What the leader believes of that follower."""
        return dict(self.leader_row.remote_log_ends)[name]

    def epoch(self, name: str) -> Epoch | None:
        return self.row(name).leader_epoch

    def is_asking(self, name: str) -> bool:
        """A fetch of its replica is under way to the leader."""
        return self[name].broker.replicas._fetchers.is_asking(_PARTITION)

    # Telling

    def _now(self) -> str:
        return "; ".join(str(self.row(name)) for name in self._replicas if self._names and self.cluster)

    def show(self, says: str, rule: str, *notes: str) -> None:
        """A frame of what is there now."""
        waiting = tuple(sent.label for sent in self._sent if not sent.is_answered)
        rows = tuple(self.row(name) for name in self._replicas)
        self.frames.append(Frame(says, rule, rows, self.controller or None, tuple(self._acknowledged), waiting, notes))

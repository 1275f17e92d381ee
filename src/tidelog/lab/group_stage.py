"""Where a story of a consumer group is played: a broker that coordinates it, its consumers, and a look at all of it.

    stage = GroupStage(world)
    await stage.set()
    await stage.gather("c1", "c2")
    stage["c2"].kill()
    await stage.until(lambda: stage.state == "PreparingRebalance")
    stage.show("c2's session is over.", "S8.4")

Messages between consumers and the broker take 10 ms, so every state in between lasts long enough to be seen.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from tidelog.client.consumer_protocol import decode_assignment
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC
from tidelog.groups.assignors import NO_GENERATION
from tidelog.groups.group import Group as CoordinatedGroup
from tidelog.groups.states import GroupState
from tidelog.lab.broker import LabBroker
from tidelog.lab.cluster import TOPIC, LabCluster, brokers_of, store_of
from tidelog.lab.frames import Frame, Group, MemberRow, Role
from tidelog.lab.group_consumers import GROUP, Consumer, Reader, ScriptedConsumer
from tidelog.lab.stage import LATENCY_MS, Scene
from tidelog.lab.world import World

COORDINATOR = "A"
_HOST = "b1"
_PARTITIONS = 4

AnyConsumer = TypeVar("AnyConsumer", bound=Consumer)


class GroupStage(Scene):
    """The group `g`, which reads the topic `t` of four partitions."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._consumers: dict[str, Consumer] = {}
        self.cluster: LabCluster[LabBroker]

    async def set(self) -> None:
        """Start the broker, and make the topic and the one that groups are kept in."""
        store = store_of(self._world)
        settings = {"offsets_topic_replication_factor": "1", "offsets_topic_num_partitions": "1"}
        self.cluster = LabCluster(self._world, store, brokers_of(self._world, store, 1, **settings))
        await self.cluster.start()
        await self.until(lambda: self.cluster.controller == 1)
        await self.cluster.create_topic(assignments=[[1]] * _PARTITIONS, min_insync_replicas="1")
        async with await self.cluster.connect() as client:
            await client.coordinator(GROUP)
        await self.until(lambda: self.cluster.replica(1, 0, GROUP_OFFSETS_TOPIC) is not None)
        await self.until(lambda: self.cluster[1].broker.groups.shards[0].is_active)

    # Who does what

    def __getitem__(self, name: str) -> Consumer:
        return self._consumers[name]

    def reader(self, name: str) -> Reader:
        """Another consumer; it has started, and joins."""
        return self._begin(Reader(self._world.host(name)))

    def scripted(self, name: str) -> ScriptedConsumer:
        """Another consumer; it has started, and waits for what it is told."""
        return self._begin(ScriptedConsumer(self._world.host(name)))

    def _begin(self, consumer: AnyConsumer) -> AnyConsumer:
        self.set_latency(consumer.name, LATENCY_MS)
        self._consumers[consumer.name] = consumer
        consumer.start()
        return consumer

    async def gather(self, *names: str) -> list[Reader]:
        """Consumers that join one after the other, in time for the same generation, until each is at home in it."""
        readers = []
        for name in names:
            readers.append(self.reader(name))
            await self.until(partial(self.is_member, name))
        await self.until(lambda: self.is_settled and all(self.row(name).heartbeat == "ok" for name in names))
        return readers

    async def close(self) -> None:
        """The story is over: everybody goes home."""
        for consumer in self._consumers.values():
            if isinstance(consumer, Reader):
                consumer.leave()
            elif consumer.is_running:
                consumer.kill()
        await self.until(lambda: not any(consumer.is_running for consumer in self._consumers.values()))

    def set_latency(self, name: str, latency_ms: float) -> None:
        self._world.network.set_latency(name, _HOST, latency_ms)

    # What is there

    @property
    def _coordinated(self) -> CoordinatedGroup | None:
        """As the coordinator has it; None before the first has asked to join."""
        return self.cluster[1].broker.groups.shards[0].groups._groups.get(GROUP)

    @property
    def state(self) -> str:
        return self.group.state

    @property
    def is_settled(self) -> bool:
        """Stable, and every member knows its share."""
        rows = [row for row in self.group.members if row.role in (Role.LEADER, Role.MEMBER)]
        return self.state == "Stable" and all(row.held and not row.assigned for row in rows)

    def is_member(self, name: str) -> bool:
        return self.row(name).role in (Role.LEADER, Role.MEMBER)

    def row(self, name: str) -> MemberRow:
        consumer, group = self._consumers[name], self._coordinated
        seat = consumer.seat
        if seat is None:
            return MemberRow(name, Role.OUTSIDE)
        generation = None if seat.generation == NO_GENERATION else seat.generation
        share: list[int] = []
        role = Role.OUTSIDE
        if group is not None and seat.member_id in group.members:
            role = Role.LEADER if group.leader == seat.member_id else Role.MEMBER
            if group.state is GroupState.STABLE:
                share = [one.partition for one in decode_assignment(group.members[seat.member_id].assignment)]
        if consumer.is_dead:
            return MemberRow(name, Role.DEAD, generation, assigned=tuple(share))
        held = consumer.held
        return MemberRow(
            name,
            role,
            generation,
            held,
            tuple(partition for partition in share if partition not in held),
            ", ".join(f"{TOPIC}-{one} at {offset}" for one, offset in sorted(consumer.begins.items()) if one in held),
            seat.waits_for,
            seat.last_heartbeat,
            seat.last_commit,
        )

    @property
    def group(self) -> Group:
        group = self._coordinated
        rows = tuple(self.row(name) for name in self._consumers)
        if group is None:
            return Group("Empty", 0, COORDINATOR, TOPIC, _PARTITIONS, rows)
        committed = group.commits.by_topic.get(TOPIC, {})
        offsets = tuple((partition, value.offset) for partition, value in sorted(committed.items()))
        return Group(group.state.value, group.generation, COORDINATOR, TOPIC, _PARTITIONS, rows, offsets)

    # Telling

    def _now(self) -> str:
        return str(self.group)

    def show(self, says: str, rule: str, *notes: str) -> None:
        """A frame of what is there now."""
        self.frames.append(Frame(says, rule, notes=notes, group=self.group))

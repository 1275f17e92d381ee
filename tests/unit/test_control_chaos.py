"""Controllers and brokers that come and go at random: when it is calm again, everybody agrees."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from tests.kits.controlkit import Cluster, play
from tidelog.broker.control.admin import Deletion, MorePartitions
from tidelog.broker.control.shell import ControllerShell, NotControllerError
from tidelog.controller import nodes
from tidelog.controller.events import ElectionAsked, ElectionType, ReassignmentAsked
from tidelog.controller.topics import NewTopic
from tidelog.lab.broker import eventually
from tidelog.types import TopicPartition
from tidelog.wire.messages.controller import ControlledShutdownRequest, LeaderAndIsrRequest, UpdateMetadataRequest

STEPS = 60
TOPICS = ("a", "b", "c")


class Chaos:
    """What happens is drawn from one stream, so a seed tells the whole story."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.draw = random.Random(seed)
        self.sessions: dict[int, int] = {}
        self.shells: dict[int, ControllerShell] = {}
        self.leaders: dict[tuple[bytes, int, int], int] = {}
        """Who was told to lead, by topic id, partition and leader epoch."""
        cluster.store.delay_s = lambda: self.draw.choice((0.0, 0.0, 0.0005, 0.003))

    async def run(self) -> None:
        for id in (1, 2, 3):
            await self.cluster.start_broker(id)
            session = await self.cluster.connect()
            self.sessions[id] = session.id
            self.shells[id] = await self.cluster.start_shell(id, session)
        for _ in range(STEPS):
            rest = (self.bounce, self.shut_down, self.expire, self.suspend, self.elect)
            await self.draw.choice((*[self.admin] * 4, *[self.reassign] * 2, *[self.alter] * 3, *rest))()
            self.check_requests()
            await asyncio.sleep(self.draw.choice((0.0, 0.001, 0.01, 0.3)))
        await self.calm()

    async def admin(self) -> None:
        active = self.cluster.active
        if not active:
            return
        admin, name = self.cluster.admin(active[0]), self.draw.choice(TOPICS)
        try:
            match self.draw.randrange(4):
                case 0 | 1:
                    new = NewTopic(name, self.draw.randrange(1, 4), self.draw.randrange(1, 3))
                    await admin.create_topics([new])
                case 2:
                    await admin.create_partitions([MorePartitions(name, self.draw.randrange(1, 6))])
                case _:
                    await admin.delete_topics([Deletion(name)])
        except NotControllerError:
            pass

    def any_partition(self) -> TopicPartition | None:
        image = self.cluster.active[0].image if self.cluster.active else None
        if image is None or not image.topics:
            return None
        return self.draw.choice([at for topic in image.topics.values() for at in topic.partitions()])

    async def reassign(self) -> None:
        partition = self.any_partition()
        if partition is not None:
            target = tuple(self.draw.sample((1, 2, 3), self.draw.randrange(1, 4)))
            with suppress(NotControllerError):
                await self.cluster.active[0].ask(ReassignmentAsked({partition: self.draw.choice((None, target))}))

    async def alter(self) -> None:
        partition = self.any_partition()
        if partition is not None:
            await self.let_in(partition, self.draw.sample((1, 2, 3), self.draw.randrange(1, 4)))

    async def let_in(self, partition: TopicPartition, isr: list[int]) -> None:
        state = await self.cluster.state(*partition)
        if state is None or state.leader < 0 or partition not in self.cluster.brokers[state.leader].replicas:
            return
        if self.cluster.active and self.cluster.brokers[state.leader].metadata.topic(partition.topic) is not None:
            await self.cluster.alter_partition(*partition, dict.fromkeys([state.leader, *isr]))

    async def elect(self) -> None:
        if self.cluster.active:
            with suppress(NotControllerError):
                await self.cluster.active[0].ask(ElectionAsked(ElectionType.PREFERRED, None))

    async def shut_down(self) -> None:
        """In good order, or in none if there is no controller to tell."""
        broker = self.cluster.brokers[self.draw.choice((1, 2, 3))]
        if self.cluster.active and broker.is_alive:
            request = ControlledShutdownRequest(broker_id=broker.id, broker_epoch=broker.epoch)
            await self.cluster.active[0].controlled_shutdown(request)
            await self.cluster.stop_broker(broker.id)

    async def bounce(self) -> None:
        id = self.draw.choice((1, 2, 3))
        if self.cluster.brokers[id].is_alive:
            await self.cluster.stop_broker(id)
            await asyncio.sleep(self.draw.choice((0.0, 0.05)))
        if self.draw.random() < 0.7:
            await self.cluster.start_broker(id)

    async def expire(self) -> None:
        id = self.draw.choice((1, 2, 3))
        self.cluster.store.expire(self.sessions[id])
        await self.shells[id].stop()
        session = await self.cluster.connect()
        self.sessions[id] = session.id
        await self.shells[id].start(session)

    async def suspend(self) -> None:
        id = self.draw.choice((1, 2, 3))
        self.cluster.store.suspend(self.sessions[id])
        await asyncio.sleep(self.draw.choice((0.0, 0.01, 1.0)))
        self.cluster.store.resume(self.sessions[id])

    async def calm(self) -> None:
        for id, broker in self.cluster.brokers.items():
            if not broker.is_alive:
                await self.cluster.start_broker(id)
        await eventually(lambda: len(self.cluster.active) == 1)
        await eventually(self.is_settled)
        await self.end_reassignments()
        await eventually(self.is_settled)
        await asyncio.sleep(10)  # virtual: what is under way is done by then
        assert self.is_settled()
        self.check_requests()
        await self.check_nodes()

    async def end_reassignments(self) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        while asyncio.get_running_loop().time() < deadline:
            image = self.cluster.active[0].image
            assert image is not None
            moving = list(image.reassigning())
            if not moving:
                return
            for partition, assignment in moving:
                await self.let_in(partition, list(assignment.replicas))
            await asyncio.sleep(0.01)
        raise AssertionError("reassignments never end")

    def is_settled(self) -> bool:
        image = self.cluster.active[0].image if self.cluster.active else None
        if image is None or len(image.brokers) != 3 or image.deleting:
            return False
        shown = {name: len(topic.assignments) for name, topic in image.topics.items()}
        return all(
            {topic.name: len(topic.partitions) for topic in broker.metadata.topics.values()} == shown
            and all(topic.has_leaders for topic in broker.metadata.topics.values())
            for broker in self.cluster.brokers.values()
        )

    def check_requests(self) -> None:
        """One leader per epoch, whatever happens."""
        for broker in self.cluster.brokers.values():
            for request in broker.received:
                if isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest):
                    for topic in request.topic_states:
                        for told in topic.partition_states:
                            if told.leader >= 0:
                                key = (topic.topic_id, told.partition_index, told.leader_epoch)
                                assert self.leaders.setdefault(key, told.leader) == told.leader

    async def check_nodes(self) -> None:
        cluster = self.cluster
        topics = await cluster.session.children(nodes.TOPICS)
        assert await cluster.session.children(nodes.DELETE_TOPICS) == []
        assert await cluster.session.children("/config/topics") == topics
        for name in topics:
            node = await cluster.node(nodes.topic_path(name))
            assert node is not None
            for index, assignment in nodes.decode_topic(name, node.data).assignments.items():
                state = await cluster.state(name, index)
                assert state is not None
                assert state.leader in state.isr
                assert {*state.isr} <= {*assignment.replicas}
                for broker in cluster.brokers.values():
                    known = broker.metadata.partition(name, index)
                    assert known is not None
                    assert (known.leader, known.leader_epoch, known.isr) == (
                        state.leader,
                        state.leader_epoch,
                        state.isr,
                    )
                    assert known.offline_replicas == ()
                    if broker.id in assignment.replicas:
                        held = broker.replicas[TopicPartition(name, index)]
                        assert (held.leader, held.leader_epoch) == (state.leader, state.leader_epoch)
                        assert tuple(held.replicas) == assignment.replicas
                    else:
                        assert TopicPartition(name, index) not in broker.replicas
        held = {replica.topic for broker in cluster.brokers.values() for replica in broker.replicas}
        assert held == {*topics}


@pytest.mark.parametrize("seed", range(12))
def test_everybody_agrees_in_the_end(seed: int) -> None:
    play(lambda cluster: Chaos(cluster, seed).run())

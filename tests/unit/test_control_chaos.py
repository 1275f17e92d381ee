"""Controllers and brokers that come and go at random: when it is calm again, everybody agrees."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.controlkit import Cluster, eventually, play
from tidelog.broker.control.admin import MorePartitions
from tidelog.broker.control.shell import ControllerShell, NotControllerError
from tidelog.controller import nodes
from tidelog.controller.topics import NewTopic
from tidelog.types import TopicPartition
from tidelog.wire.messages.controller import LeaderAndIsrRequest, UpdateMetadataRequest

STEPS = 40
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
            await self.draw.choice((self.admin, self.admin, self.admin, self.bounce, self.expire, self.suspend))()
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
                    await admin.delete_topics([name])
        except NotControllerError:
            pass

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
        await asyncio.sleep(10)  # virtual: what is under way is done by then
        assert self.is_settled()
        self.check_requests()
        await self.check_nodes()

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
                        assert (held.leader, held.partition_epoch) == (state.leader, state.version)
        held = {replica.topic for broker in cluster.brokers.values() for replica in broker.replicas}
        assert held == {*topics}


@pytest.mark.parametrize("seed", range(12))
def test_everybody_agrees_in_the_end(seed: int) -> None:
    play(lambda cluster: Chaos(cluster, seed).run())

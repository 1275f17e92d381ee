"""Nodes that cannot be read or written: one partition is unavailable, not the cluster (edge case 36)."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging

import pytest

from tests.kits.controlkit import T0, Cluster, play
from tidelog.broker.control.admin import Deletion, MorePartitions
from tidelog.broker.control.shell import ControllerShell
from tidelog.controller import nodes
from tidelog.controller.topics import NewTopic
from tidelog.coordination.port import BadVersionError, ConnectionLostError, Op, OpResult, Session, Set
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.types import TopicPartition
from tidelog.wire.messages.controller import LeaderAndIsrPartitionError, LeaderAndIsrTopicError

U0, U1 = TopicPartition("u", 0), TopicPartition("u", 1)
DEEP = b"[" * 100_000


async def two_topics(cluster: Cluster) -> ControllerShell:
    """t and u on brokers 1 and 2, u with two partitions."""
    for id in (1, 2):
        await cluster.start_broker(id)
    shell = await cluster.start_shell(9)
    await eventually(lambda: shell.is_active)
    topics = [NewTopic("t", assignments=[(0, [1, 2])]), NewTopic("u", assignments=[(0, [1, 2]), (1, [2, 1])])]
    await cluster.admin(shell).create_topics(topics)
    await eventually(lambda: cluster.shows("t", 1) and cluster.shows("u", 2))
    return shell


async def another(cluster: Cluster, shell: ControllerShell) -> ControllerShell:
    """Another controller, with nothing but the nodes to go by."""
    await shell.stop()
    new = await cluster.start_shell(8)
    await eventually(lambda: new._has_taken_over)
    return new


async def data_of(cluster: Cluster, path: str) -> bytes:
    node = await cluster.node(path)
    assert node is not None
    return node.data


BAD_STATES = {
    "torn": b'{"controller_epoch":1,"lea',
    "deep": DEEP,
    "isr of words": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":["1"]}',
    "isr of nulls": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[null]}',
    "a number that fits in no request": b'{"controller_epoch":1,"leader":99999999999,"leader_epoch":0,"isr":[1]}',
    "epochs of words": b'{"controller_epoch":1,"leader":1,"leader_epoch":0,"isr":[1],"isr_epochs":["x"]}',
    "fewer epochs than members": b'{"controller_epoch":1,"leader":1,"leader_epoch":0,"isr":[1,2],"isr_epochs":[1]}',
    "elr that fits in no request": b'{"controller_epoch":1,"leader":1,"leader_epoch":0,"isr":[1],"elr":[99999999999]}',
    "empty": b"",
}


@pytest.mark.parametrize("bad", BAD_STATES.values(), ids=BAD_STATES)
def test_edge_36_a_bad_state_makes_one_partition_unavailable(bad: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def story(cluster: Cluster) -> None:
        shell = await two_topics(cluster)
        path = nodes.state_path(U0)
        good = await data_of(cluster, path)
        await cluster.session.set(path, bad)
        shell = await another(cluster, shell)
        await cluster.stop_broker(1)
        await eventually(lambda: cluster.brokers[2].replicas[T0].leader == 2)
        two = cluster.brokers[2]
        await eventually(lambda: two.metadata.partition("u", 1) is not None)
        assert two.replicas[U1].leader == 2
        shown = two.metadata.topic("u")
        assert shown is not None
        assert shown.partitions[0].leader in (-1, 1), "nobody leads it as far as the controller knows"
        assert len(shown.partitions) == 2, "a topic does not lose partitions: keys would go elsewhere"
        assert U0 in two.replicas, "a full request names it, so it is no stray"
        assert await data_of(cluster, path) == bad, "who mends it finds what was there"
        complaints = [record for record in caplog.records if path in record.message]
        assert len(complaints) == 1
        await cluster.start_broker(1)
        await cluster.session.set(path, good)
        await eventually(lambda: cluster.shows("u", 2) and cluster.brokers[1].replicas[U0].leader in (1, 2))
        assert shell.is_active

    with caplog.at_level(logging.WARNING):
        play(story)


def test_a_topic_with_a_bad_state_can_be_deleted() -> None:
    async def story(cluster: Cluster) -> None:
        shell = await two_topics(cluster)
        await cluster.session.set(nodes.state_path(U0), b"{")
        shell = await another(cluster, shell)
        admin = cluster.admin(shell)
        (result,) = await admin.delete_topics([Deletion("u")])
        assert result.code == ErrorCode.NONE
        await eventually(lambda: "u" not in shell.image.topics)  # type: ignore[union-attr]
        assert await cluster.node(nodes.topic_path("u")) is None
        assert U0 not in cluster.brokers[1].replicas
        (result,) = await admin.create_topics([NewTopic("u", assignments=[(0, [1, 2])])])
        assert result.code == ErrorCode.NONE
        await eventually(lambda: cluster.shows("u", 1))

    play(story)


BAD_TOPICS = {
    "torn": b'{"partitions":{"0":[1',
    "deep": DEEP,
    "no replicas": b'{"partitions":{"0":[]},"version":3}',
    "a broker that fits in no request": b'{"partitions":{"0":[99999999999]},"version":3}',
    "a negative partition": b'{"partitions":{"-1":[1]},"version":3}',
}


@pytest.mark.parametrize("bad", BAD_TOPICS.values(), ids=BAD_TOPICS)
def test_edge_36_a_bad_topic_node_makes_one_topic_unavailable(bad: bytes) -> None:
    async def story(cluster: Cluster) -> None:
        shell = await two_topics(cluster)
        path = nodes.topic_path("u")
        good = await data_of(cluster, path)
        await cluster.session.set(path, bad)
        await asyncio.sleep(1)
        assert cluster.shows("u", 2), "the controller that knows it serves it on"
        shell._has_taken_over = False
        shell._wake.set()
        await eventually(lambda: shell._has_taken_over)
        await asyncio.sleep(1)
        assert cluster.shows("u", 2), "also when it reads everything again"
        assert await cluster.alter_partition("u", 0, [1]) == ErrorCode.NONE
        more = await cluster.admin(shell).create_partitions([MorePartitions("u", 3)])
        assert more[0].code == ErrorCode.UNKNOWN_SERVER_ERROR
        shell = await another(cluster, shell)
        await cluster.stop_broker(1)
        await eventually(lambda: cluster.brokers[2].replicas[T0].leader == 2)
        (result,) = await cluster.admin(shell).create_topics([NewTopic("u", assignments=[(0, [2])])])
        assert result.code == ErrorCode.TOPIC_ALREADY_EXISTS
        more = await cluster.admin(shell).create_partitions([MorePartitions("u", 3)])
        assert more[0].code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert await data_of(cluster, path) == bad
        await cluster.start_broker(1)
        await cluster.session.set(path, good)
        await eventually(lambda: cluster.shows("u", 2))
        state = await cluster.state("u", 0)
        assert state is not None
        assert state.version > 0, "its states were kept"

    play(story)


@pytest.mark.parametrize("after_take_over", [True, False])
def test_a_topic_with_a_bad_node_can_be_deleted(after_take_over: bool) -> None:
    async def story(cluster: Cluster) -> None:
        shell = await two_topics(cluster)
        await cluster.session.set(nodes.topic_path("u"), b"{")
        if after_take_over:
            shell = await another(cluster, shell)
        for broker in cluster.brokers.values():
            broker.received.clear()
        (result,) = await cluster.admin(shell).delete_topics([Deletion("u")])
        assert result.code == ErrorCode.NONE
        await eventually(lambda: "u" not in shell.image.topics)  # type: ignore[union-attr]
        assert await cluster.node(nodes.topic_path("u")) is None
        for broker in cluster.brokers.values():
            stopped = [
                (topic.topic_name, state.partition_index, state.delete_partition)
                for request in broker.received
                if type(request).__name__ == "StopReplicaRequest"
                for topic in request.topic_states  # type: ignore[attr-defined]
                for state in topic.partition_states
            ]
            assert sorted(stopped) == [("u", 0, True), ("u", 1, True)]

    play(story)


def test_other_bad_nodes_are_passed_over() -> None:
    async def story(cluster: Cluster) -> None:
        shell = await two_topics(cluster)
        rack = json.loads(cluster.brokers[1].registration()) | {"rack": {"no": "text"}}
        for number, data in ((5, b"{"), (6, DEEP), (7, json.dumps(rack).encode())):
            await cluster.session.create(nodes.broker_path(number), data, ephemeral=True)
        await cluster.session.create(f"{nodes.BROKER_IDS}/\N{SUPERSCRIPT TWO}", b"", ephemeral=True)
        await cluster.session.set(nodes.config_path("topics", "u"), DEEP)
        await cluster.session.create(f"{nodes.TOPICS}/no name", b"{}")
        shell = await another(cluster, shell)
        for prefix in (nodes.ISR_CHANGE_PREFIX, nodes.LOG_DIR_EVENT_PREFIX):
            await cluster.session.create(prefix, DEEP, sequential=True)
        await asyncio.sleep(1)
        for parent in (nodes.ISR_CHANGES, nodes.LOG_DIR_EVENTS):
            assert await cluster.session.children(parent) == []
        assert shell.image is not None
        assert sorted(shell.image.brokers) == [1, 2]
        await cluster.stop_broker(1)
        await eventually(lambda: cluster.brokers[2].replicas[U0].leader == 2)

    play(story)


class StubbornSession:
    """A session of a store in which one node cannot be written."""

    def __init__(self, session: Session, path: str) -> None:
        self._session = session
        self.path = path

    async def multi(self, ops: list[Op]) -> list[OpResult]:
        if any(isinstance(op, Set) and op.path == self.path for op in ops):
            raise BadVersionError(self.path)
        return await self._session.multi(ops)

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._session, name)


def test_edge_36_a_state_that_cannot_be_written_does_not_keep_the_others_from_it() -> None:
    async def story(cluster: Cluster) -> None:
        shell = await two_topics(cluster)
        await shell.stop()
        stubborn = StubbornSession(await cluster.connect(), nodes.state_path(U0))
        shell = await cluster.start_shell(8, stubborn)
        await eventually(lambda: shell._has_taken_over)
        await cluster.stop_broker(1)
        await eventually(lambda: cluster.brokers[2].replicas[T0].leader == 2, 10)
        await eventually(lambda: shell._has_taken_over)
        stored = await cluster.state("t", 0)
        assert stored is not None
        assert stored.leader == 2
        assert shell.image is not None
        assert list(shell.image.topics["u"].faults) == [0]
        stubborn.path = ""
        state = await cluster.state("u", 0)
        assert state is not None
        await cluster.session.set(nodes.state_path(U0), nodes.encode_state(state))
        await eventually(lambda: cluster.brokers[2].replicas[U0].leader == 2)

    play(story)


def test_a_replica_that_a_broker_cannot_take_yet_is_told_again_after_a_rest() -> None:
    async def story(cluster: Cluster) -> None:
        one = await cluster.start_broker(1)
        told: list[tuple[float, bool]] = []
        take = one._lead_or_follow

        def take_later(topic):  # type: ignore[no-untyped-def]
            if topic.topic_name != "u" or len(told) == 3:
                return take(topic)
            told.append((asyncio.get_running_loop().time(), topic.partition_states[0].is_new))
            error = LeaderAndIsrPartitionError(partition_index=0, error_code=ErrorCode.LEADER_NOT_AVAILABLE)
            return LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=[error])

        one._lead_or_follow = take_later  # type: ignore[method-assign]
        shell = await cluster.start_shell(9)
        await eventually(lambda: shell.is_active)
        await cluster.admin(shell).create_topics(
            [NewTopic("u", assignments=[(0, [1])]), NewTopic("t", assignments=[(0, [1])])]
        )
        await eventually(lambda: U0 in one.replicas)
        assert all(is_new for _, is_new in told), "to the broker it is as new as at first"
        assert one.replicas[U0].is_new
        rests = [after - before for (before, _), (after, _) in itertools.pairwise(told)]
        assert rests
        assert all(0.9 < rest < 2 for rest in rests)

    play(story)


def test_a_controller_that_fails_again_and_again_rests_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    class Unreachable(StubbornSession):
        tries = 0
        fails = True

        async def get(self, *args: object, **kwargs: object) -> object:
            if not self.fails:
                return await self._session.get(*args, **kwargs)  # type: ignore[arg-type]
            Unreachable.tries += 1
            raise ConnectionLostError("the store does not answer")

    async def story(cluster: Cluster) -> None:
        await cluster.start_broker(1)
        session = Unreachable(await cluster.connect(), "")
        shell = await cluster.start_shell(9, session)
        await asyncio.sleep(30)
        assert not shell.is_active
        assert 5 < session.tries < 40
        said = [record for record in caplog.records if "cannot run for controller yet" in record.message]
        assert len(said) == 1
        session.fails = False
        cluster.store.suspend(session.id)
        cluster.store.resume(session.id)
        await eventually(lambda: shell.is_active, 0.5)

    with caplog.at_level(logging.INFO):
        play(story)

"""Large requests of administrators are done in several jobs of the controller. Other work comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.kits.controlkit import Cluster, play
from tidelog.broker.control.admin import Deletion, MorePartitions, TopicAdmin
from tidelog.controller import nodes
from tidelog.controller.events import ReassignmentAsked
from tidelog.controller.topics import NewTopic
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.net.calling import ConnectionClosedError
from tidelog.types import TopicPartition

MANY = [f"t{number}" for number in range(25)]
T0 = TopicPartition("t", 0)


async def begin(cluster: Cluster, names: list[str], partitions: int, replicas: int) -> TopicAdmin:
    for id in (1, 2, 3):
        await cluster.start_broker(id)
    shell = await cluster.start_shell(1)
    await eventually(lambda: shell.is_active)
    admin = cluster.admin(shell)
    await admin.create_topics([NewTopic(name, partitions, replicas) for name in names])
    await eventually(lambda: all(cluster.shows(name, partitions) for name in names))
    return admin


async def grow_less(cluster: Cluster, admin: TopicAdmin) -> None:
    (result,) = await admin.create_partitions([MorePartitions("t0", 4)])
    assert result.code is ErrorCode.INVALID_PARTITIONS


async def reassign(cluster: Cluster, admin: TopicAdmin) -> None:
    replicas = (await cluster.assignment("t0", 0)).replicas
    await cluster.ask(ReassignmentAsked({TopicPartition("t0", 0): tuple(reversed(replicas))}))


@pytest.mark.parametrize("other", [grow_less, reassign])
def test_partitions_that_were_added_stay(other: Callable[[Cluster, TopicAdmin], Awaitable[None]]) -> None:
    """S1.4: what comes between two jobs must not write the topic as it was before the first one."""

    async def story(cluster: Cluster) -> None:
        admin = await begin(cluster, MANY, 2, 2)
        growing = asyncio.ensure_future(admin.create_partitions([MorePartitions(name, 6) for name in MANY]))
        for _ in range(2):  # then its first job is in the controller's queue
            await asyncio.sleep(0)
        between = asyncio.ensure_future(other(cluster, admin))
        assert {result.code for result in await growing} == {ErrorCode.NONE}
        await between
        for name in MANY:
            node = await cluster.node(nodes.topic_path(name))
            assert node is not None
            assert len(nodes.decode_topic(name, node.data).assignments) == 6

    play(story)


def test_a_topic_that_was_made_anew_is_not_deleted_by_the_id_of_the_former_one() -> None:
    async def story(cluster: Cluster) -> None:
        admin = await begin(cluster, [*MANY, "t"], 1, 1)
        ids = {name: cluster.active[0].image.topics[name].topic_id for name in [*MANY, "t"]}  # type: ignore[union-attr]
        deleting = asyncio.ensure_future(admin.delete_topics([Deletion(name, id) for name, id in ids.items()]))
        other = cluster.admin(cluster.active[0])
        await other.delete_topics([Deletion("t")])
        await eventually(lambda: cluster.shows_no("t"))
        (made,) = await other.create_topics([NewTopic("t", 1, 1)])
        assert made.topic_id != ids["t"]
        await deleting
        (late,) = await admin.delete_topics([Deletion("t", ids["t"])])
        assert (late.code, late.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, ids["t"])
        await eventually(lambda: cluster.shows("t", 1))
        assert cluster.active[0].image.topics["t"].topic_id == made.topic_id  # type: ignore[union-attr]
        (right,) = await admin.delete_topics([Deletion("t", made.topic_id)])
        assert right.code is ErrorCode.NONE

    play(story)


def test_a_replica_that_cannot_tell_is_passed_by_though_everything_was_read_again() -> None:
    """The members of the ISR may have lost records; a third replica is mute. The store was away for a moment."""

    async def story(cluster: Cluster) -> None:
        for id in (1, 2, 3, 4):
            await cluster.start_broker(id)
        session = await cluster.connect()
        shell = await cluster.start_shell(4, session)
        await eventually(lambda: shell.is_active)
        await cluster.admin(shell).create_topics([NewTopic("t", assignments=[(0, [1, 2, 3])])])
        await eventually(lambda: cluster.shows("t", 1))
        assert await cluster.alter_partition("t", 0, (1, 2)) is ErrorCode.NONE
        for id in (1, 2):
            await cluster.stop_broker(id)
        await eventually(lambda: not {1, 2} & shell.image.brokers.keys())  # type: ignore[union-attr]

        def cut(*_: Any) -> Any:
            raise ConnectionClosedError("cut")

        cluster.brokers[3].answer = cut  # type: ignore[method-assign]
        (await cluster.start_broker(1)).log_end = (0, 10)
        (await cluster.start_broker(2)).log_end = (0, 10)
        await eventually(lambda: {1, 2} <= shell.image.log_ends.of(T0).keys())  # type: ignore[union-attr]
        await cluster.stop_broker(2)
        await eventually(lambda: shell.image.log_ends.cannot_tell(T0, 3), 60)  # type: ignore[union-attr]
        before = shell.image
        cluster.store.suspend(session.id)
        shell.config_changed(["t"])
        await asyncio.sleep(0.5)
        cluster.store.resume(session.id)
        await eventually(lambda: shell.image is not before)
        (await cluster.start_broker(2)).log_end = (0, 10)
        await eventually(lambda: shell.image.state(T0).leader in (1, 2), patience_s=20)  # type: ignore[union-attr]

    play(story)

"""Replicas move from brokers to others, whatever becomes of the controller meanwhile (S12.4)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.kits.controlkit import Cluster, MortalSession, play
from tidelog.broker.control.shell import NotControllerError
from tidelog.controller.events import ReassignmentAsked
from tidelog.controller.image import Assignment
from tidelog.controller.topics import NewTopic
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.types import TopicPartition

ENOUGH = 16
"""More writes than one controller does in the story."""

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]


async def begin(cluster: Cluster) -> None:
    """The topic t is on brokers 1 and 2."""
    new = NewTopic("t", assignments=[(0, [1, 2]), (1, [2, 1])])
    while not cluster.shows("t", 2):
        await eventually(lambda: cluster.active)
        with suppress(NotControllerError):
            await cluster.admin(cluster.active[0]).create_topics([new])
        await asyncio.sleep(0.1)


async def fall_in_sync(cluster: Cluster) -> None:
    """Leaders let in whoever they are told of, until nothing moves any more."""
    for partition in PARTITIONS:
        while (await cluster.assignment(*partition)).is_being_reassigned:
            state = await cluster.state(*partition)
            assert state is not None
            told = cluster.brokers[state.leader].replicas.get(partition)
            if told is not None:
                await cluster.alter_partition(*partition, told.replicas)
            await asyncio.sleep(0.01)


async def check(cluster: Cluster, *replicas: tuple[int, ...]) -> None:
    """Nodes, replicas and metadata agree."""
    for partition, wanted in zip(PARTITIONS, replicas, strict=True):
        assert await cluster.assignment(*partition) == Assignment(wanted)
        await eventually(
            lambda p=partition, w=wanted: (  # type: ignore[misc]
                {id for id, broker in cluster.brokers.items() if p in broker.replicas} == {*w}
            )
        )
        state = await cluster.state(*partition)
        assert state is not None
        assert state.leader in state.isr
        assert {*state.isr} <= {*wanted}

        def is_told(p: TopicPartition = partition, version: int = state.version, r: tuple[int, ...] = wanted) -> bool:
            return all(
                cluster.brokers[id].replicas[p].partition_epoch == version
                and tuple(cluster.brokers[id].replicas[p].replicas) == r
                for id in r
            ) and all(
                (known := broker.metadata.partition(*p)) is not None and tuple(known.replicas) == r
                for broker in cluster.brokers.values()
            )

        await eventually(is_told)


async def story(cluster: Cluster, dies_at: int, after: bool) -> int:
    for id in (1, 2, 3):
        await cluster.start_broker(id)
    mortal = MortalSession(await cluster.connect(), cluster.store, dies_at, after)
    first = await cluster.start_shell(8, mortal)
    await eventually(lambda: first.is_active or mortal.is_dead)
    second = await cluster.start_shell(9)
    await begin(cluster)

    answer = await cluster.ask(ReassignmentAsked(dict.fromkeys(PARTITIONS, (3, 2))))
    assert answer == dict.fromkeys(PARTITIONS)
    await fall_in_sync(cluster)
    await check(cluster, (3, 2), (3, 2))

    await cluster.ask(ReassignmentAsked(dict.fromkeys(PARTITIONS, (1,))))
    answer = await cluster.ask(ReassignmentAsked(dict.fromkeys(PARTITIONS)))
    codes = {ErrorCode.NONE if failure is None else failure.code for failure in answer.values()}
    assert codes <= {ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
    await check(cluster, (3, 2), (3, 2))
    assert cluster.active == [second if mortal.is_dead else first]
    return mortal.writes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("dies_at", range(1, ENOUGH))
def test_a_controller_dies_at_a_write(dies_at: int, after: bool) -> None:
    play(lambda cluster: story(cluster, dies_at, after))


def test_the_deaths_above_are_all_there_are() -> None:
    writes = play(lambda cluster: story(cluster, 1000, False))
    assert 8 <= writes < ENOUGH


def test_a_replica_that_leaves_while_its_broker_is_dead_is_gone_when_it_is_back() -> None:
    async def story(cluster: Cluster) -> None:
        for id in (1, 2, 3):
            await cluster.start_broker(id)
        await cluster.start_shell(9)
        await begin(cluster)
        await cluster.stop_broker(1)
        await eventually(lambda: all(told.leader == 2 for told in cluster.brokers[2].replicas.values()))
        assert await cluster.ask(ReassignmentAsked(dict.fromkeys(PARTITIONS, (2, 3)))) == dict.fromkeys(PARTITIONS)
        for partition in PARTITIONS:
            await eventually(lambda p=partition: p in cluster.brokers[3].replicas)  # type: ignore[misc]
            assert await cluster.alter_partition(*partition, [2, 3]) is ErrorCode.NONE
        assert cluster.brokers[1].replicas
        await cluster.start_broker(1)
        await check(cluster, (2, 3), (2, 3))

    play(story)

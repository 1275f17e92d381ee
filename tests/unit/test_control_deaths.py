"""Whatever a controller was doing when it died, the next one finishes (S12.4)."""

from __future__ import annotations

import pytest

from tests.kits.controlkit import Cluster, MortalSession, play
from tidelog.broker.control.admin import Deletion, MorePartitions, TopicResult
from tidelog.broker.control.shell import NotControllerError
from tidelog.controller import nodes
from tidelog.controller.topics import NewTopic
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually

ENOUGH = 16
"""More writes than one controller does in the story."""


async def on_the_controller(cluster: Cluster, act: str, *args: object) -> TopicResult:
    """As a client does it: again, until a controller has done it."""
    while True:
        await eventually(lambda: cluster.active)
        try:
            (result,) = await getattr(cluster.admin(cluster.active[0]), act)([*args])
        except NotControllerError:
            continue
        assert isinstance(result, TopicResult)
        return result


async def story(cluster: Cluster, dies_at: int, after: bool) -> int:
    for id in (1, 2):
        await cluster.start_broker(id)
    mortal = MortalSession(await cluster.connect(), cluster.store, dies_at, after)
    first = await cluster.start_shell(1, mortal)
    await eventually(lambda: first.is_active or mortal.is_dead)
    second = await cluster.start_shell(2)

    result = await on_the_controller(cluster, "create_topics", NewTopic("t", 2, 2, configs=[("retention.ms", "1")]))
    assert result.code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    await eventually(lambda: cluster.shows("t", 2))
    result = await on_the_controller(cluster, "create_partitions", MorePartitions("t", 3))
    assert result.code in (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS)
    await eventually(lambda: cluster.shows("t", 3))
    for index in range(3):
        state = await cluster.state("t", index)
        assert state is not None
        assert len(state.isr) == 2

    await cluster.stop_broker(1)
    await eventually(lambda: all(told.leader == 2 for told in cluster.brokers[2].replicas.values()))
    await cluster.start_broker(1)
    await eventually(lambda: cluster.shows("t", 3))

    result = await on_the_controller(cluster, "delete_topics", Deletion("t"))
    assert result.code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    await eventually(lambda: cluster.shows_no("t") and cluster.active)
    await cluster.admin(cluster.active[0]).wait_deleted(["t"], 30)
    await eventually(lambda: cluster.active and not cluster.active[0].image.topics)  # type: ignore[union-attr]
    for parent in (nodes.TOPICS, nodes.DELETE_TOPICS, "/config/topics"):
        assert await cluster.session.children(parent) == []
    assert not any(broker.replicas for broker in cluster.brokers.values())
    assert cluster.active == [second if mortal.is_dead else first]
    return mortal.writes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("dies_at", range(1, ENOUGH))
def test_a_controller_dies_at_a_write(dies_at: int, after: bool) -> None:
    play(lambda cluster: story(cluster, dies_at, after))


def test_the_deaths_above_are_all_there_are() -> None:
    writes = play(lambda cluster: story(cluster, 1000, False))
    assert 8 <= writes < ENOUGH

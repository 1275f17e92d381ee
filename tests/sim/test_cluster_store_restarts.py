"""Three brokers whose store restarts again and again (edge case 41)."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import SESSION_MS

SESSION_S = SESSION_MS / 1e3
BACK_S = 1.0


async def _is_back(cluster: ClusterKit) -> float:
    """How long it takes until a record is acknowledged by all of the ISR."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while await cluster.produce(b"after") is not ErrorCode.NONE:
        await asyncio.sleep(0.02)
    return loop.time() - began_s


@pytest.mark.parametrize("away_s", [0.5, SESSION_S - 0.5, 2 * SESSION_S])
def test_edge_41_a_cluster_is_back_within_a_second_of_its_store(
    away_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the store was away, no broker registers anew and no leader changes."""

    async def story(cluster: ClusterKit) -> None:
        lives = {number: kit.broker.epoch for number, kit in cluster.kits.items()}
        leader, controller = cluster.leader(), cluster.controller
        caplog.clear()
        for _ in range(9):
            await cluster.store.restart(away_s)
            assert await _is_back(cluster) <= BACK_S
            await asyncio.sleep(0.2)
        assert (cluster.leader(), cluster.controller) == (leader, controller)
        assert {number: kit.broker.epoch for number, kit in cluster.kits.items()} == lives
        await cluster.all_in_sync()
        assert len(caplog.records) <= 9 * 3 * 3, "the brokers do not fill their logs while the store is away"

    run(story)


def test_edge_41_nothing_is_acknowledged_once_the_sessions_may_be_over() -> None:
    async def story(cluster: ClusterKit) -> None:
        cluster.store.stop()
        assert await cluster.produce(b"sessions last") is ErrorCode.NONE
        await asyncio.sleep(SESSION_S + 0.1)
        for acks in (1, -1):
            assert await cluster.produce(b"may be over", acks=acks) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.store.start()
        assert await _is_back(cluster) <= BACK_S
        await cluster.all_in_sync()

    run(story)


def test_edge_41_a_broker_that_died_while_the_store_was_away_is_found_dead() -> None:
    """Its session gets a new timeout as well, and then it expires."""

    async def story(cluster: ClusterKit) -> None:
        old = cluster.leader()
        cluster.store.stop()
        await asyncio.sleep(1)
        cluster[old].kill()
        await asyncio.sleep(2 * SESSION_S)
        cluster.store.start()
        await eventually(lambda: cluster.leader() not in (0, old), SESSION_S + 2)
        assert await _is_back(cluster) <= BACK_S
        await cluster[old].start()
        await cluster.all_in_sync()

    run(story)

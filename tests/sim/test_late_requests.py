"""Bytes of a connection that its owner gave up arrive after those of the next one (edge case 42)."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tests.sim import edge_mutations
from tidelog.broker.broker import Broker
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import SESSION_MS
from tidelog.lab.loop import SimulationError

LATE_MS = 20_000.0
SOCKET_TIMEOUT_S = 1.0


def _knows_all(cluster: ClusterKit, broker: Broker) -> bool:
    known = broker.metadata.partition("t", 0)
    return known is not None and sorted(known.isr) == sorted(broker.metadata.brokers) == sorted(cluster.kits)


def test_edge_42_late_requests_of_a_controller_bring_back_nothing_old() -> None:
    """As the torture run saw it: a broker dies while its neighbour is cut off from the controller, and comes back."""

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        leader, other = [number for number in cluster.kits if number != controller]
        await cluster.create_topic("t", [(leader, other, controller)])
        await eventually(lambda: cluster.leader() == leader and len(cluster.isr()) == 3)
        network, here = cluster.world.network, cluster[leader].broker
        network.set_late_bytes(f"b{controller}", f"b{leader}", LATE_MS)
        network.cut(f"b{controller}", f"b{leader}")
        cluster[other].kill()
        cluster[other].expire_session()
        await asyncio.sleep(1.5 * SOCKET_TIMEOUT_S)
        assert other in here.metadata.brokers, "the controller's requests wait in the cut"
        network.heal(f"b{controller}", f"b{leader}")
        await eventually(lambda: other not in here.metadata.brokers, LATE_MS / 4000)
        await cluster[other].start()
        await eventually(lambda: _knows_all(cluster, here), LATE_MS / 4000)
        for _ in range(int(2 * LATE_MS / 10)):
            await asyncio.sleep(0.01)
            assert _knows_all(cluster, here), "the old bytes have come"
        await cluster.all_in_sync()

    run(story, topic=False, controller_socket_timeout_ms=str(int(SOCKET_TIMEOUT_S * 1000)))


def test_edge_34_a_late_fetch_does_not_take_a_follower_out_of_the_isr() -> None:
    """Seed 996: the follower has all records and nothing to tell, and the leader hears where it was long ago."""

    async def story(cluster: ClusterKit) -> None:
        leader, network = cluster.leader(), cluster.world.network
        follower = next(number for number in cluster.kits if number != leader)
        await cluster.all_in_sync()
        network.set_late_bytes(f"b{follower}", f"b{leader}", LATE_MS)
        network.cut(f"b{follower}", f"b{leader}", one_way=True)
        assert await cluster.produce(b"asked for after this one, in the cut", acks=1) is ErrorCode.NONE
        await eventually(lambda: follower not in cluster.isr())
        network.heal(f"b{follower}", f"b{leader}")
        await eventually(lambda: follower in cluster.isr())
        for number in range(3):
            assert await cluster.produce(f"{number}".encode()) is ErrorCode.NONE
        await cluster.all_in_sync()
        for _ in range(int(2 * LATE_MS / 10)):
            await asyncio.sleep(0.01)
            assert follower in cluster.isr()

    run(story)


def test_without_its_rule_a_late_fetch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    edge_mutations.late_fetches_take_followers_back(monkeypatch)
    with pytest.raises(SimulationError):
        test_edge_34_a_late_fetch_does_not_take_a_follower_out_of_the_isr()


def test_a_question_to_a_controller_out_of_reach_ends_when_another_makes_itself_known() -> None:
    """With half a minute for an answer, which is Kafka's default, an ISR must not wait for it."""

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        leader, other = [number for number in cluster.kits if number != controller]
        await cluster.create_topic("t", [(leader, other, controller)])
        await eventually(lambda: cluster.leader() == leader and len(cluster.isr()) == 3)
        cluster.cut_off(controller)
        await eventually(lambda: cluster.replicas()[leader].leader.pending_isr is not None)  # type: ignore[union-attr]
        await eventually(lambda: cluster.controller not in (0, controller), 2 * SESSION_MS / 1000)
        await eventually(lambda: cluster.isr() == sorted([leader, other]), 1.0)

    run(story, topic=False, controller_socket_timeout_ms="30000")

"""A controller that is cut off from the other brokers, but not from the store, resigns."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tests.kits.controlkit import Cluster as FakeCluster
from tests.kits.controlkit import play
from tidelog.broker.control.reach import Reach
from tidelog.controller import nodes
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import LAG_MS, SESSION_MS

SESSION_S, LAG_S = SESSION_MS / 1000, LAG_MS / 1000
RESIGNED_WITHIN_S = 1.25 * SESSION_S + 1.0
"""The cut may come just after a round of questions; then four rounds fail, each a quarter of a session long."""


def controller_epoch(cluster: ClusterKit) -> int:
    """How many controllers there have been."""
    return nodes.decode_controller_epoch(cluster.store.tree.get(nodes.CONTROLLER_EPOCH).data)


async def _led_elsewhere(cluster: ClusterKit) -> tuple[int, int, int]:
    """The controller, and the leader and the follower of the topic, which are other brokers."""
    controller = cluster.controller
    leader, follower = [number for number in cluster.kits if number != controller]
    await cluster.create_topic("t", [(leader, follower, controller)])
    await eventually(lambda: cluster.leader() == leader and len(cluster.isr()) == 3)
    return controller, leader, follower


def test_an_isolated_controller_resigns_and_the_other_side_goes_on() -> None:
    async def story(cluster: ClusterKit) -> None:
        isolated, leader, follower = await _led_elsewhere(cluster)
        epoch = controller_epoch(cluster)
        cluster.cut_off(isolated)
        await eventually(lambda: cluster.controller in (leader, follower), RESIGNED_WITHIN_S)
        await eventually(lambda: cluster.isr() == sorted([leader, follower]), 2 * LAG_S)
        assert await cluster.produce(b"acknowledged by both") is ErrorCode.NONE
        await asyncio.sleep(4 * SESSION_S)
        assert cluster.controller in (leader, follower)
        assert controller_epoch(cluster) == epoch + 1, "the isolated broker leaves the office to the others"
        cluster.heal(isolated)
        await cluster.all_in_sync()
        assert controller_epoch(cluster) == epoch + 1

    run(story, topic=False)


def test_leaders_move_while_the_old_controller_is_out_of_reach() -> None:
    async def story(cluster: ClusterKit) -> None:
        isolated, leader, follower = await _led_elsewhere(cluster)
        cluster.cut_off(isolated)
        cluster[leader].kill()
        await eventually(lambda: cluster.leader() == follower, RESIGNED_WITHIN_S + SESSION_S)
        assert cluster.controller == follower
        cluster.heal(isolated)
        await cluster[leader].start()
        await cluster.all_in_sync()

    run(story, topic=False)


@pytest.mark.parametrize("brokers", [2, 3])
def test_brokers_that_all_lose_each_other_do_not_change_controllers_in_haste(brokers: int) -> None:
    """Each broker that resigns in vain waits twice as long the next time."""

    async def story(cluster: ClusterKit) -> None:
        await cluster.create_topic("t", [tuple(cluster.kits)], min_insync_replicas="1")
        await cluster.all_in_sync()
        epoch = controller_epoch(cluster)
        for number in cluster.kits:
            cluster.cut_off(number)
        await asyncio.sleep(60 * SESSION_S)
        changes = controller_epoch(cluster) - epoch
        assert 1 <= changes <= 5 * brokers, "1 + 2 + 4 + 8 + 16 sessions for each broker"
        for number in cluster.kits:
            cluster.heal(number)
        await cluster.all_in_sync()
        await eventually(lambda: cluster.controller)
        epoch = controller_epoch(cluster)
        await asyncio.sleep(4 * SESSION_S)
        assert controller_epoch(cluster) == epoch

    run(story, topic=False, brokers=brokers)  # type: ignore[arg-type]


def test_dead_brokers_do_not_make_a_controller_resign() -> None:
    """They lose their registrations before the controller loses its patience. The last broker is a cluster of one."""

    async def story(cluster: ClusterKit) -> None:
        controller, leader, follower = await _led_elsewhere(cluster)
        epoch = controller_epoch(cluster)
        cluster[leader].kill()
        cluster[follower].lose_power()
        for _ in range(int(6 * SESSION_S * 10)):
            await asyncio.sleep(0.1)
            assert cluster.controller == controller
        assert controller_epoch(cluster) == epoch
        await cluster[leader].start()
        await cluster[follower].start()
        await cluster.all_in_sync()

    run(story, topic=False)


def test_a_broker_that_is_slow_to_apply_a_request_is_reached_all_the_same() -> None:
    """The question for an answer goes its own way, beside the requests that wait for theirs."""

    async def story(cluster: FakeCluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active)
        cluster.brokers[2].drops_answers = 10**9
        await asyncio.sleep(60)
        assert (shell.is_active, shell.epoch) == (True, 1)

    play(story, isolation_timeout_ms=6000)


def test_an_isolated_controller_that_no_other_replaces_takes_the_office_again() -> None:
    async def story(cluster: FakeCluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active)
        cluster.brokers[2].refuses_connections = True
        await eventually(lambda: not shell.is_active, 10)
        await eventually(lambda: shell.is_active and shell.epoch == 2, 2)
        await asyncio.sleep(10)
        assert shell.epoch == 2, "it has twice the patience now"
        cluster.brokers[2].refuses_connections = False
        await asyncio.sleep(60)
        assert (shell.is_active, shell.epoch) == (True, 2)

    play(story, isolation_timeout_ms=6000)


@pytest.mark.parametrize("registered_s", [5.5, 6.0, 6.9])
def test_a_controller_does_not_resign_because_the_only_other_broker_is_dead(registered_s: float) -> None:
    """Its elections are needed just then. The store ends the session of the dead one about a session timeout later."""

    async def story(cluster: FakeCluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active)
        cluster.brokers[2].refuses_connections = True
        await asyncio.sleep(registered_s)
        await cluster.stop_broker(2)
        await asyncio.sleep(20)
        assert (shell.is_active, shell.epoch) == (True, 1)

    play(story, isolation_timeout_ms=6000)


def test_the_office_is_given_up_once_though_the_answer_of_the_store_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second try finds no node, or another controller's epoch; neither keeps the broker from running again."""
    monkeypatch.setattr(Reach, "_answers", lambda self, endpoint: asyncio.sleep(0, False))

    async def story(cluster: FakeCluster) -> None:
        await cluster.start_broker(2)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active)
        shell._reach.is_isolated = True
        await cluster.session.delete(nodes.CONTROLLER)
        await eventually(lambda: shell.epoch == 2)

    play(story, isolation_timeout_ms=6000)

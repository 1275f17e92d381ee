"""What a follower copies when its leader's log, or the topic itself, is not what it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tests.kits.logkit import batch
from tests.sim import edge_mutations
from tests.unit.test_broker_offsets import delete_records
from tidelog.broker.copying import Repairs
from tidelog.errors import ErrorCode
from tidelog.lab.broker import WaitedInVainError, eventually
from tidelog.lab.loop import SimulationError

_IN_A_BATCH = 5
_BEGINS = 7
"""Within the second batch."""


async def _fill(cluster: ClusterKit) -> None:
    for number in range(3):
        values = [b"%d" % (number * _IN_A_BATCH + place) for place in range(_IN_A_BATCH)]
        answer = await cluster[cluster.leader()].produce(batch(values), "t", 0)
        assert answer.error_code == ErrorCode.NONE


@pytest.mark.parametrize("how", ["it was away", "it loses power", "it is killed as it begins"])
def test_a_follower_begins_within_a_batch_of_its_leader(how: str) -> None:
    """DeleteRecords has moved the log start there, and the leader can only send whole batches."""

    async def story(cluster: ClusterKit) -> None:
        leader = cluster.leader()
        one = next(number for number in cluster.kits if number != leader)
        if how != "it loses power":
            cluster[one].kill()
            await eventually(lambda: len(cluster.isr()) == 2, 60)
        await _fill(cluster)
        answer = await delete_records(cluster[leader], _BEGINS)
        assert answer.error_code == ErrorCode.NONE
        if how == "it loses power":
            cluster[one].lose_power()
            await asyncio.sleep(1)
        await cluster[one].start()
        if how == "it is killed as it begins":
            await eventually(lambda: cluster.ends().get(one, (-1, -1))[0] > 0)
            cluster[one].kill()
            await cluster[one].start()
        await eventually(cluster.is_in_sync, 60)
        assert await cluster.produce(b"more") is ErrorCode.NONE
        await eventually(cluster.is_in_sync, 60)
        log = cluster.replicas()[one].log
        assert (log.log_start_offset, log.log_end_offset) == (_BEGINS, 3 * _IN_A_BATCH + 1)
        assert cluster.held(one)[-100:] == cluster.held(leader)[-100:]

    run(story, rules=())


def test_a_follower_that_asks_a_frozen_leader_still_hears_its_controller() -> None:
    """It asks for the leader's log start, to begin there. What the controller says waited for the answer."""

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        leader, follower = (number for number in cluster.kits if number != controller)
        await cluster.create_topic("t", ((leader, controller, follower),))
        await eventually(lambda: len(cluster.isr()) == 3 and cluster.leader() == leader)
        cluster[follower].kill()
        await eventually(lambda: len(cluster.isr()) == 2, 60)
        await _fill(cluster)
        assert (await delete_records(cluster[leader], _BEGINS)).error_code == ErrorCode.NONE
        ask = Repairs._leader_offset

        async def freeze_and_ask(self: Repairs, *question: Any) -> int:
            cluster[leader].host.freeze()
            return await ask(self, *question)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Repairs, "_leader_offset", freeze_and_ask)
            await cluster[follower].start()
            await eventually(lambda: cluster.leader() == controller, 60)
        await cluster.create_topic("new", ((follower,),), min_insync_replicas="1")
        await eventually(lambda: _leads(cluster, follower, "new"), 1)
        cluster[leader].host.thaw()
        await eventually(cluster.is_in_sync, 60)

    run(story, topic=False, rules=(), replica_socket_timeout_ms="30000", controller_socket_timeout_ms="30000")


def _leads(cluster: ClusterKit, number: int, topic: str) -> bool:
    replica = cluster.replica(number, 0, topic)
    return replica is not None and replica.leader is not None


async def _made_anew(cluster: ClusterKit) -> None:
    """The link from the leader to the follower stalls, for less than any time-out, while t is deleted and made anew."""
    controller, network = cluster.controller, cluster.world.network
    leader, follower = [number for number in cluster.kits if number != controller]
    replicas = ((leader, follower),)
    await cluster.create_topic("t", replicas)
    await cluster.create_topic("other", replicas)  # keeps the fetcher and its session
    await eventually(lambda: len(cluster.isr()) == 2)
    assert await cluster.produce(b"old") is ErrorCode.NONE
    await asyncio.sleep(2)
    network.cut(f"b{leader}", f"b{follower}")
    await cluster[controller].delete_topic("t")
    await eventually(lambda: not cluster.replicas())
    await cluster.create_topic("t", replicas)
    await asyncio.sleep(0.2)
    network.heal(f"b{leader}", f"b{follower}")
    assert await cluster.produce(b"new") is ErrorCode.NONE
    await eventually(lambda: cluster.is_in_sync(factor=2))
    (session,) = cluster[leader].broker.fetch_sessions._sessions.values()
    before = session.requests
    await asyncio.sleep(10)
    assert session.requests - before < 100, "an idle follower asks twice a second"


def test_a_topic_that_is_made_anew_is_copied_though_the_leader_still_answers_for_the_old_one() -> None:
    run(_made_anew, topic=False)


def test_without_topic_ids_in_fetch_sessions_that_story_ends_badly(monkeypatch: pytest.MonkeyPatch) -> None:
    edge_mutations.topics_of_one_name_are_one(monkeypatch)
    with pytest.raises((AssertionError, SimulationError, WaitedInVainError)):
        run(_made_anew, topic=False)


def test_a_new_leader_shows_only_what_its_flush_policy_has_synced() -> None:
    async def story(cluster: ClusterKit) -> None:
        first = next(number for number in cluster.kits if number != cluster.controller)
        await cluster.create_topic("t", [(first,)], flush_messages="1", min_insync_replicas="1")
        await eventually(lambda: cluster.leader() == first)
        assert await cluster.produce(b"0") is ErrorCode.NONE
        disk = cluster[first].host.disk
        disk.work.delay_ms = (300.0, 300.0)
        writing = asyncio.ensure_future(cluster[first].produce(batch([b"1"]), "t", 0, timeout_ms=5_000))
        while cluster.ends()[first][0] < 2:
            await asyncio.sleep(0.0005)
        cluster[first].kill()
        cluster[first].expire_session()
        writing.cancel()
        disk.work.delay_ms = (0.0, 0.0)
        await cluster[first].start()
        while cluster.leader() != first:
            await asyncio.sleep(0.0005)
        seen = await cluster[first].values()
        cluster[first].lose_power()
        await asyncio.sleep(1)
        await cluster[first].start()
        await eventually(lambda: cluster.leader() == first, 60)
        assert (await cluster[first].values())[: len(seen)] == seen

    run(story, topic=False, rules=())

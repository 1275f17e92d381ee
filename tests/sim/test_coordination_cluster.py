"""Brokers that agree through the embedded store on a simulated machine, while that machine and they go wrong."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.kits.clusterkit import ClusterKit, Story, run
from tidelog.errors import ErrorCode, TidelogError
from tidelog.lab.broker import eventually
from tidelog.lab.store import EmbeddedStore
from tidelog.lab.store_faults import STORE_FAULTS, StoreFaults


def tell(story: Story, seed: int = 1) -> None:
    run(story, seed=seed, store="embedded")


def store_in(cluster: ClusterKit) -> EmbeddedStore:
    assert isinstance(cluster.store, EmbeddedStore)
    return cluster.store


async def produced(cluster: ClusterKit, value: bytes) -> None:
    """Until it is acknowledged."""
    while True:
        leader = await cluster.leads()
        try:
            if await cluster.produce(value) == ErrorCode.NONE:
                return
        except (TidelogError, OSError):
            cluster[leader].disconnect()
        await asyncio.sleep(0.1)


def test_a_killed_leader_is_replaced_at_once_for_its_lock_is_gone() -> None:
    async def story(cluster: ClusterKit) -> None:
        await produced(cluster, b"1")
        first = cluster.leader()
        cluster[first].kill()
        killed_s = cluster.world.loop.time()
        await cluster.leads(but=first)
        assert cluster.world.loop.time() - killed_s < 1.0, "the session timeout is 4 s"
        await produced(cluster, b"2")
        await cluster[first].start()
        await cluster.all_in_sync()
        assert cluster.values(first) == [b"1", b"2"]

    tell(story)


def test_a_frozen_controller_and_leader_wakes_up_and_does_no_harm() -> None:
    async def story(cluster: ClusterKit) -> None:
        first = cluster.leader()
        for number in dict.fromkeys([first, cluster.controller]):
            await produced(cluster, b"before %d" % number)
            cluster[number].host.freeze()
            await cluster.leads(but=number)
            await produced(cluster, b"frozen %d" % number)
            cluster[number].host.thaw()
            await cluster.all_in_sync()
        await eventually(lambda: cluster.controller != 0)

    for seed in range(3):
        tell(story, seed)


def test_a_full_coordination_disk_keeps_leaders_and_stops_only_changes() -> None:
    """Records are acknowledged as before, a change of the cluster waits, and it is made when there is room."""

    async def story(cluster: ClusterKit) -> None:
        leader = cluster.leader()
        store_in(cluster).machine.fill()
        for number in range(20):
            assert await cluster.produce(b"%d" % number) == ErrorCode.NONE
            await asyncio.sleep(1)
        assert cluster.leader() == leader
        [other] = [number for number in cluster.followers() if number != cluster.controller][:1]
        cluster[other].kill()
        await asyncio.sleep(10)
        assert other in cluster.stored_isr()
        store_in(cluster).machine.disk.mend()
        await eventually(lambda: other not in cluster.stored_isr())
        await produced(cluster, b"after")
        await cluster[other].start()
        await cluster.all_in_sync()
        assert len(cluster.values(leader)) == 21

    tell(story)


def test_a_power_loss_of_the_store_loses_no_topic_and_no_isr() -> None:
    """All brokers die with the machine; their own disks keep the page cache here, so every record must be there."""

    async def story(cluster: ClusterKit) -> None:
        for number in range(5):
            await produced(cluster, b"%d" % number)
            before = cluster.stored_state()
            for kit in cluster.kits.values():
                kit.disconnect()
            store_in(cluster).machine.power_loss()
            after = cluster.stored_state()
            # It may be a newer one, whose line was synced and which no process had applied yet.
            assert after == before or after.leader_epoch > before.leader_epoch
            await cluster.start()
            await cluster.all_in_sync()
        assert cluster.values(cluster.leader()) == [b"%d" % number for number in range(5)]

    for seed in range(3):
        tell(story, seed)


def test_a_failing_coordination_disk_costs_sessions_and_no_record() -> None:
    """One sync fails, so every broker whose journal was open hears of it, joins again and trusts nothing it read."""

    async def story(cluster: ClusterKit) -> None:
        for number in range(3):
            await produced(cluster, b"%d" % number)
            await asyncio.sleep(1)  # each broker has the journal open for good: only then it hears of a failed sync
            sessions = [kit.broker.session.id for kit in cluster.kits.values()]
            store_in(cluster).machine.disk.fail_next("sync", under="/store/coordination/journal")
            cluster[1].expire_session()
            await eventually(partial(_have_other_sessions, cluster, sessions))
            await cluster.all_in_sync()
        assert cluster.values(cluster.leader()) == [b"%d" % number for number in range(3)]

    tell(story)


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_records_outlive_all_that_can_happen_to_the_store(seed: int) -> None:
    async def story(cluster: ClusterKit) -> None:
        chance = cluster.world.chance_for("store faults")
        faults = StoreFaults(cluster, chance)
        over = asyncio.Event()

        async def sabotage() -> None:
            for fault in chance.sample(STORE_FAULTS, len(STORE_FAULTS)):
                await faults.known[fault](0)
            over.set()

        sabotaging = asyncio.ensure_future(sabotage())
        written: list[bytes] = []
        while not over.is_set() or len(written) < 5:
            value = b"%d" % len(written)
            await produced(cluster, value)
            written.append(value)
            await asyncio.sleep(chance.random() / 5)
        await sabotaging
        await cluster.all_in_sync()
        there = cluster.values(cluster.leader())
        assert [value for value in dict.fromkeys(there) if value in written] == written

    tell(story, seed)


def _have_other_sessions(cluster: ClusterKit, before: list[int]) -> bool:
    return all(kit.broker.session.id not in before for kit in cluster.kits.values())

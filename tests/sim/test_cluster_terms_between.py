"""A replica leads for a moment between two others, and lacks what is committed afterwards (edge case 31)."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.clusterkit import ClusterKit
from tests.kits.logkit import idempotent
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import SESSION_MS, store_of
from tidelog.lab.world import World

VALUES = [b"0", b"1", b"2"]
_ALL_ENDED_S = SESSION_MS / 1000 * 2


async def _write(cluster: ClusterKit, number: int, sequence: int, *, acks: int = -1, producer_id: int = 7) -> None:
    answer = await cluster[number].produce(idempotent(sequence, producer_id=producer_id), acks=acks)
    assert answer.error_code == ErrorCode.NONE


async def _lead_in_between(cluster: ClusterKit, first: int, between: int, last: int, *, is_empty: bool) -> None:
    """The third record is on all but the one in between, which leads a term; then the last one commits that record."""
    network = cluster.world.network
    network.cut(f"b{first}", f"b{between}")
    network.cut(f"b{between}", f"b{last}")
    await _write(cluster, first, 2, acks=1)
    await eventually(lambda: cluster.ends()[last][0] == 3)
    session = cluster[first].broker.session.id
    cluster[first].kill()
    cluster.store.expire(session)
    await eventually(lambda: cluster.stored_state().leader == between)
    await eventually(lambda: cluster.replicas()[between].leader is not None)
    if not is_empty:
        await _write(cluster, between, 0, acks=1, producer_id=99)
    cluster[between].expire_session()
    await eventually(lambda: cluster.stored_state().leader == last)
    await cluster[first].start()
    await eventually(lambda: set(cluster.stored_state().isr) == {first, last}, 60)
    await _write(cluster, last, 2)
    await eventually(lambda: cluster.ends()[first][1] == 3)


@pytest.mark.parametrize("is_empty", [True, False])
def test_edge_31_one_that_led_in_between_does_not_outbid_the_members_of_the_isr(is_empty: bool) -> None:
    """Both members lose power, which takes nothing from them: every record is synced before it is acknowledged."""

    async def story(cluster: ClusterKit) -> None:
        first, between, last = (number for number in cluster.kits if number != cluster.controller)
        await cluster.create_topic("t", [(first, between, last)], min_insync_replicas="2", flush_messages="1")
        await eventually(lambda: len(cluster.isr()) == 3)
        for sequence in (0, 1):
            await _write(cluster, first, sequence)
        await eventually(lambda: len({cluster.ends()[number] for number in (first, between, last)}) == 1)
        await _lead_in_between(cluster, first, between, last, is_empty=is_empty)
        for number in (first, last):
            cluster[number].lose_power()
        await asyncio.sleep(_ALL_ENDED_S)
        for number in (first, last):
            await cluster[number].start()
        await eventually(lambda: cluster.stored_state().leader > 0, 60)
        assert cluster.stored_state().leader in (first, last)
        cluster.world.network.heal_all()
        await eventually(lambda: cluster.is_in_sync(0, 3), 60)
        for number in (first, between, last):
            assert len(cluster.values(number)) == 3

    async def whole() -> None:
        await cluster.start()
        await world.host("client").start(story(cluster))

    with World(1) as world:
        cluster = ClusterKit(world, store_of(world), 4)
        world.run(whole(), limit_s=600)

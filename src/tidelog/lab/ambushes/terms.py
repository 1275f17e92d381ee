"""Ambushes for elections: a replica leads for a moment between two other leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.lab.client_faults import WRITER_PREFIX
from tidelog.types import BrokerId

_PATIENCE_S = 15.0
_WRITE_S = 5.0
_ANSWER_S = 0.5
_WRITTEN = 0.7
"""How often the one in between gets a record before it loses its session."""


async def _lead_in_between(scene: Scene) -> None:
    """A replica that is cut off from the others leads a term, and is followed by one that has what it lacks.

    That record is committed in the third term, which has no records of its own. Then all that have it lose power, which
    does no harm, for it is synced: but the one that led in between knows a later term than they do.
    """
    index = scene.chance.choice(scene.partitions)
    cluster, network = scene.cluster, scene.cluster.world.network
    await scene.control_from_elsewhere(index)
    await scene.until(lambda: cluster.stored_isr(index) == cluster.assigned(index), _PATIENCE_S)
    first = cluster.leader(index)
    replicas = cluster.replicas(index)[first].replicas if first else ()
    others = [number for number in replicas if number != first]
    if len(replicas) < 3 or set(cluster.stored_isr(index)) != set(replicas):
        return
    between, last = others[0], others[1]
    writers = [name for name in scene.clients if name.startswith(WRITER_PREFIX)]
    links = [(f"b{between}", f"b{other}") for other in replicas if other != between]
    try:
        for link in links:
            network.cut(*link)
        if await _is_ahead(scene, last, between, index) and await _led(scene, first, between, last, index, writers):
            await scene.start(first)
            is_committed = await scene.until(lambda: _is_committed(scene, last, index), 2 * _PATIENCE_S)
            # If a controller went dark, the one in between could be the next, and could not reach those that start.
            if is_committed and cluster.controller not in (first, last):
                await scene.pause(_ANSWER_S, _ANSWER_S / 2)
                scene.note("led in between", f"b{between}")
                for number in (first, last):
                    scene.power.go_dark(number)
                await asyncio.gather(scene.start(first), scene.start(last))
                await scene.until(lambda: cluster.leader(index), _PATIENCE_S)
                _thaw(scene, writers)
                await scene.pause(_WRITE_S)
    finally:
        for link in links:
            network.heal(*link)
        _thaw(scene, writers)
        await asyncio.gather(*map(scene.start, cluster.brokers))


async def _is_ahead(scene: Scene, number: BrokerId, behind: BrokerId, index: int) -> bool:
    """It has a record that the other lacks."""

    def is_ahead() -> bool:
        ends = scene.cluster.ends(index)
        return number in ends and behind in ends and ends[number][0] > ends[behind][0]

    return await scene.until(is_ahead, _WRITE_S)


async def _led(
    scene: Scene, first: BrokerId, between: BrokerId, last: BrokerId, index: int, writers: Sequence[str]
) -> bool:
    """The leader dies. The one in between leads, perhaps takes a record that it cannot commit, and loses its session.

    From then on the writers stand still, so that the third term has no records.
    """
    cluster = scene.cluster
    if not cluster.is_running(first) or not cluster.is_running(between):
        return False
    session = cluster[first].broker.session.id
    cluster[first].kill()
    cluster.store.expire(session)
    if not await scene.until(lambda: _leads(scene, between, index), _PATIENCE_S) or not cluster.is_running(between):
        return False
    begin = cluster.ends(index).get(between, (0, 0))[0]
    if scene.chance.random() < _WRITTEN:
        await scene.until(lambda: cluster.ends(index).get(between, (0, 0))[0] > begin, _WRITE_S)
    if not cluster.is_running(between):
        return False
    for name in writers:
        cluster.world.host(name).freeze()
    cluster[between].expire_session()
    return await scene.until(lambda: _leads(scene, last, index), _PATIENCE_S)


def _thaw(scene: Scene, writers: Sequence[str]) -> None:
    for name in writers:
        scene.cluster.world.host(name).thaw()


def _leads(scene: Scene, number: BrokerId, index: int) -> bool:
    replica = scene.cluster.replica(number, index)
    return replica is not None and replica.leader is not None


def _is_committed(scene: Scene, leader: BrokerId, index: int) -> bool:
    end, high_watermark = scene.cluster.ends(index).get(leader, (1, 0))
    return high_watermark == end


LED_IN_BETWEEN = Ambush(
    _lead_in_between,
    {
        "saboteurs": (),
        "brokers": 4,
        "partitions": 1,
        "segment_bytes": 100_000,
        "filling": (0,),
        "flush_each": True,
        "records": 30,
        "longest_rest_s": 3.0,
        "members": 0,
        "sides": False,
        "topics": False,
        "moves": False,
    },
)

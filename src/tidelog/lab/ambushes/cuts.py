"""Ambushes for logs that are cut: what a broker keeps of records that it has to drop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.lab.client_faults import WRITER_PREFIX
from tidelog.types import BrokerId

_WRITE_S = 5.0
_PATIENCE_S = 15.0
_SLOW_MS = (100.0, 500.0)


async def _stop_in_a_cut(scene: Scene) -> None:
    """A leader is alone with the last records and loses its term. It stops in good order while it cuts them off.

    The writers stand still until that broker leads again. Then they send the records again, and it must not take them
    for duplicates.
    """
    index = scene.chance.choice(scene.partitions)
    cluster, network, leader = scene.cluster, scene.cluster.world.network, scene.cluster.leader(index)
    if leader in (0, cluster.controller) or len(cluster.stored_isr(index)) < 3:
        return
    log, end = cluster.replicas(index)[leader].log, cluster.ends(index)[leader][0]
    writers = [name for name in scene.clients if name.startswith(WRITER_PREFIX)]
    links = [(f"b{leader}", f"b{other}") for other in cluster.brokers if other != leader]
    heir = 0
    try:
        for link in links:
            network.cut(*link)
        if await scene.until(lambda: log.log_end_offset > end, _WRITE_S):
            _freeze(scene, writers)
            heir = await _deposed(scene, leader, index)
        for link in links:
            network.heal(*link)
        if heir and await _stopped_in_its_cut(scene, leader, index):
            scene.note("stopped", f"b{leader}")
            await scene.start(leader)
            await _lead_again(scene, leader, heir, index)
    finally:
        for link in links:
            network.heal(*link)
        for name in writers:
            cluster.world.host(name).thaw()
        await asyncio.gather(*(scene.start(number) for number in (leader, heir) if number))


def _freeze(scene: Scene, writers: Sequence[str]) -> None:
    for name in writers:
        scene.cluster.world.host(name).freeze()


async def _deposed(scene: Scene, leader: BrokerId, index: int) -> BrokerId:
    """Who leads after it; 0 if nobody does in time."""
    if scene.cluster.is_running(leader):
        scene.cluster[leader].expire_session()
        await scene.until(lambda: scene.cluster.leader(index) not in (0, leader), _PATIENCE_S)
    heir = scene.cluster.leader(index)
    return heir if heir != leader else 0


async def _stopped_in_its_cut(scene: Scene, number: BrokerId, index: int) -> bool:
    """False if it was not seen to cut its log in time."""
    disk = scene.cluster[number].host.disk
    usual_ms, disk.work.delay_ms = disk.work.delay_ms, _SLOW_MS
    is_cutting = await scene.until(lambda: _is_cutting(scene, number, index), _PATIENCE_S)
    if is_cutting:
        await scene.cluster[number].stop()
    disk.work.delay_ms = usual_ms
    return is_cutting


def _is_cutting(scene: Scene, number: BrokerId, index: int) -> bool:
    replica = scene.cluster.replica(number, index)
    return replica is not None and replica.leader is None and replica.log.reshaping.locked()


async def _lead_again(scene: Scene, number: BrokerId, heir: BrokerId, index: int) -> None:
    """The heir stops when both are in sync. Whoever else may lead then is not stopped, so this may fail."""
    if await scene.until(lambda: number in scene.cluster.stored_isr(index), _PATIENCE_S):
        await scene.cluster[heir].stop()
        await scene.until(lambda: scene.cluster.leader(index) == number, _WRITE_S)


AMBUSHES = {
    "a stop in a cut": Ambush(
        _stop_in_a_cut,
        {
            "saboteurs": (),
            "brokers": 4,
            "partitions": 3,
            "segment_bytes": 3000,
            "filling": (0,),
            "flush_each": False,
            "cold": False,
            "records": 30,
            "longest_rest_s": 1.0,
            "brief": False,
            "members": 0,
            "elections": True,
        },
    ),
}

"""Ambushes for logs that are cut: what a broker keeps of records that it has to drop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.lab.client_faults import WRITER_PREFIX
from tidelog.types import BrokerId

_WRITE_S = 5.0
_TERM_S = 0.5
_PATIENCE_S = 15.0
_SLOW_MS = (400.0, 1_500.0)


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
    try:
        for link in links:
            network.cut(*link)
        is_deposed = False
        if await scene.until(lambda: log.log_end_offset > end, _WRITE_S):
            _freeze(scene, writers)
            is_deposed = await _is_deposed(scene, leader, index)
        for link in links:
            network.heal(*link)
        if is_deposed and await _stopped_in_its_cut(scene, leader, index):
            await scene.start(leader)
            await _lead_again(scene, leader, index)
    finally:
        for link in links:
            network.heal(*link)
        for name in writers:
            cluster.world.host(name).thaw()
        await asyncio.gather(*map(scene.start, cluster.brokers))


def _freeze(scene: Scene, writers: Sequence[str]) -> None:
    for name in writers:
        scene.cluster.world.host(name).freeze()


async def _is_deposed(scene: Scene, leader: BrokerId, index: int) -> bool:
    """Another one leads in time."""
    if not scene.cluster.is_running(leader):
        return False
    scene.cluster[leader].expire_session()
    return await scene.until(lambda: scene.cluster.leader(index) not in (0, leader), _PATIENCE_S)


async def _stopped_in_its_cut(scene: Scene, number: BrokerId, index: int) -> bool:
    """Another term begins meanwhile, so that no fetcher is in charge of it. False if no cut is seen in time."""
    disk = scene.cluster[number].host.disk
    usual_ms, disk.work.delay_ms = disk.work.delay_ms, _SLOW_MS
    is_cutting = await scene.until(lambda: _is_cutting(scene, number, index), _PATIENCE_S)
    if is_cutting:
        if (heir := scene.cluster.leader(index)) and scene.cluster.is_running(heir):
            scene.cluster[heir].expire_session()
        await scene.until(lambda: scene.cluster.leader(index) not in (0, heir), _TERM_S)
        await scene.pause(_TERM_S / 2)
        await scene.cluster[number].stop()
    disk.work.delay_ms = usual_ms
    return is_cutting


def _is_cutting(scene: Scene, number: BrokerId, index: int) -> bool:
    replica = scene.cluster.replica(number, index)
    return replica is not None and replica.log.being_cut


async def _lead_again(scene: Scene, number: BrokerId, index: int) -> None:
    """When it is in sync the other replicas stop, so that it alone can lead. They are started by whoever called."""
    if await scene.until(lambda: number in scene.cluster.stored_isr(index), _PATIENCE_S):
        others = [other for other in scene.cluster.assigned(index) if other != number]
        await asyncio.gather(*(scene.cluster[other].stop() for other in others))
        if await scene.until(lambda: scene.cluster.leader(index) == number, _WRITE_S):
            scene.note("leads again", f"b{number}")


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
            "elections": False,
            "moves": False,
        },
    ),
}

"""Ambushes for log directories: one fails while its broker cannot say so; one is not what it was before."""

from __future__ import annotations

import asyncio

from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.lab.cluster import TOPIC
from tidelog.lab.directory_faults import DIRECTORY_FAULTS, DirectoryFaults
from tidelog.types import BrokerId, TopicPartition

_LACKS_S = (0.05, 0.5)
"""How long the followers are cut off before the directory fails: they lack a record then."""
_UNHEARD_S = (2.2, 3.5)
"""Longer than replica.lag.time.max.ms, shorter than a session."""
_FOUND_OUT_S = 3.0
_LED_AGAIN_S = (12.0, 14.0)
_ALONE_S = (4.0, 9.0)
"""About as long as it takes until a start that fails has failed, and the next one has led."""


async def lost_directory(scene: Scene) -> None:
    """The directory of a leader's log fails while the store does not answer that broker; an operator mends it later.

    Its followers may lack the last records, which the leader alone has.
    """
    cluster, chance = scene.cluster, scene.chance
    index = chance.choice(scene.partitions)
    leader = cluster.leader(index)
    if leader in (0, cluster.controller) or not cluster.is_running(leader):
        return
    one = cluster[leader]
    session, path = one.broker.session.id, _directory_of(scene, leader, index)
    if path is None:
        return
    if chance.random() < 0.7:
        cluster.cut_off(leader)
        await scene.pause(*reversed(_LACKS_S))
    cluster.store.suspend(session)
    one.host.disk.fail_next("write", count=None, under=f"{path}/")
    began_s = cluster.world.loop.time()
    await cluster.lookout.until(lambda: one.broker.storage.is_partly_offline, _FOUND_OUT_S, 0.05)
    cluster.heal(leader)
    if one.is_up and one.broker.storage.is_partly_offline:
        scene.note("lost directory", f"b{leader}")
    spent_s = cluster.world.loop.time() - began_s
    await scene.pause(max(_UNHEARD_S[1] - spent_s, 0.0), max(_UNHEARD_S[0] - spent_s, 0.0))
    cluster.store.resume(session)
    await scene.pause(*reversed(_LED_AGAIN_S))
    if cluster.leader(index) not in (0, leader):
        scene.note("led by another", f"b{cluster.leader(index)}")
    one.kill()
    one.host.disk.mend()
    await one.start_if_down(lambda: scene.pause(1))
    await scene.pause(4.0, 2.0)


async def stale_directory(scene: Scene) -> None:
    """A broker starts with less than it had, while all others are down: they were killed, and have everything."""
    cluster, chance = scene.cluster, scene.chance
    number = cluster.leader(chance.choice(scene.partitions))
    killed: list[BrokerId] = []

    def leave_it_alone() -> None:
        for other in cluster.brokers:
            if other != number and cluster.is_up(other):
                cluster[other].kill()
                killed.append(other)

    if number == 0:
        return
    faults = DirectoryFaults(scene.power, leave_it_alone)
    doing = asyncio.create_task(faults.known[chance.choice(DIRECTORY_FAULTS)](number))
    while not doing.done() or killed:
        if await scene.until(lambda: killed or doing.done(), _ALONE_S[1]) and killed:
            scene.note("alone", f"b{number}")
            await scene.pause(*reversed(_ALONE_S))
            while killed:
                await scene.start(killed.pop())
    await doing


def _directory_of(scene: Scene, number: int, index: int) -> str | None:
    """The log directory in which a broker has this partition."""
    directories = scene.cluster[number].broker.storage.directories
    return next((str(one.path) for one in directories if TopicPartition(TOPIC, index) in one.logs), None)


AMBUSHES = {
    "lost directory": Ambush(
        lost_directory,
        {
            "store": "memory",
            "directories": 2,
            "partitions": 3,
            "saboteurs": (),
            "longest_rest_s": 0.2,
            "filling": (0,),
            "careless": True,
        },
    ),
    "stale directory": Ambush(
        stale_directory,
        {
            "store": "memory",
            "directories": 2,
            "saboteurs": (),
            "longest_rest_s": 0.2,
            "filling": (0,),
            "flush_each": False,
        },
    ),
}

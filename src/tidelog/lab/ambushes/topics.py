"""Ambushes for topics that are deleted and made anew under the same name."""

from __future__ import annotations

from tidelog.client.admin import Admin
from tidelog.errors import TidelogError
from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.lab.operators import PASSING
from tidelog.lab.workload import connected

_HOST = "ambush"
_STALL_S = 1.0
"""Shorter than any time-out: all connections stay open."""
_PATIENCE_S = 5.0


async def made_anew(scene: Scene) -> None:
    """The link from a leader to its follower stalls while their topic is deleted and made anew.

    So the follower hears of the new topic before it could tell the leader that it copies the old one no longer.
    """
    cluster, chance = scene.cluster, scene.chance
    name = chance.choice(PASSING)
    if not await scene.until(lambda: _leader(scene, name), _PATIENCE_S):
        await _change(scene, name, is_there=False)
        return
    leader, controller = _leader(scene, name), cluster.controller
    followers = [number for number in cluster.brokers if number not in (leader, controller)]
    if leader in (0, controller) or not followers:
        return
    ends = (f"b{leader}", f"b{chance.choice(followers)}")
    cluster.world.network.cut(*ends)
    await _change(scene, name, is_there=True)
    await scene.pause(_STALL_S)
    cluster.world.network.heal(*ends)
    await scene.pause(_PATIENCE_S)


def _leader(scene: Scene, topic: str) -> int:
    """The leader of partition 0; 0 if there is none."""
    for number in scene.cluster.brokers:
        replica = scene.cluster.replica(number, 0, topic)
        if replica is not None and replica.leader is not None:
            return number
    return 0


async def _change(scene: Scene, topic: str, *, is_there: bool) -> None:
    """Delete it if it is there, and make it, without a rest in between."""

    async def change() -> None:
        try:
            async with await connected(scene.cluster, _HOST, topic=None) as client:
                if is_there:
                    await Admin(client).delete_topic(topic)
                await Admin(client).create_topic(topic, partitions=2, replication_factor=3)
                if is_there:
                    scene.note("made anew", topic)
        except TidelogError:
            pass

    await scene.cluster.world.host(_HOST).start(change())


AMBUSHES = {"made anew": Ambush(made_anew, {"topics": True, "saboteurs": ()})}

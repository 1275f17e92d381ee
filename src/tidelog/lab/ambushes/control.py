"""Ambushes for what the controller tells the brokers: its requests arrive in another order than it sent them."""

from __future__ import annotations

from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.lab.health import is_told

_GIVES_UP_S = (2.1, 3.5)
"""controller.socket.timeout.ms is 2 s: by then the controller has closed the connection that does not answer."""
_SETTLES_S = 6.0
_LATE_S = 8.5
"""Longer than bytes of a closed connection can be late."""
_KILL_CHANCE = 0.5


async def late_requests(scene: Scene) -> None:
    """The controller cannot reach a broker and tells it of a change, gives the connection up, and reaches it again.

    What it told first waits in the network, and arrives after all that it told since. The change is a broker that dies
    or loses its session, and is back before the old bytes arrive.
    """
    cluster, chance = scene.cluster, scene.chance
    controller = cluster.controller
    others = [number for number in cluster.brokers if number != controller and cluster.is_running(number)]
    if not controller or len(others) < 2:
        return
    deaf, changing = chance.sample(others, 2)
    ends = (f"b{controller}", f"b{deaf}")
    cluster.world.network.cut(*ends, one_way=chance.random() < 0.5)
    await scene.pause(0.3)
    if chance.random() < _KILL_CHANCE:
        cluster[changing].kill()
    if cluster.is_running(changing) or chance.random() < 0.7:
        cluster[changing].expire_session()
    await scene.pause(*reversed(_GIVES_UP_S))
    cluster.world.network.heal(*ends)
    if changing in cluster[deaf].broker.metadata.brokers:
        scene.note("told late", *ends)
    await scene.pause(0.5)
    await cluster[changing].start_if_down(lambda: scene.pause(1))
    await cluster.lookout.until(lambda: is_told(cluster, scene.partitions), _SETTLES_S, 0.2)
    await scene.pause(_LATE_S, _LATE_S - 1)


AMBUSHES = {"late requests": Ambush(late_requests, {"late_bytes": True, "saboteurs": ()})}

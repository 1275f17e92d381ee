"""Ambushes for what the controller tells the brokers: its requests arrive late, or do not arrive."""

from __future__ import annotations

from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.lab.cluster import TOPIC
from tidelog.lab.health import is_told
from tidelog.lab.operators import elect_the_preferred
from tidelog.types import BrokerId, TopicPartition

_GIVES_UP_S = (2.1, 3.5)
"""controller.socket.timeout.ms is 2 s: by then the controller has closed the connection that does not answer."""
_SETTLES_S = 6.0
_LATE_S = 8.5
"""Longer than bytes of a closed connection can be late."""
_KILL_CHANCE = 0.5
_LONE_S = 14.0
_PASSED_S = 10.0
_WRITE_S = 6.0


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


async def a_lone_controller(scene: Scene) -> None:
    """The controller reaches no other broker, but the store: so its session lives on, and with it its office."""
    controller = scene.cluster.controller
    if not controller:
        return
    scene.cluster.cut_off(controller)
    try:
        if await scene.until(lambda: scene.cluster.controller not in (0, controller), _LONE_S):
            scene.note("yields", f"b{controller}")
    finally:
        scene.cluster.heal(controller, reset=scene.chance.random() < 0.5)
    await scene.pause(2.0)


async def a_leader_of_yesterday(scene: Scene) -> None:
    """A leader is deposed by a preferred election while no broker reaches it. It keeps its session and does not know.

    Clients reach it, and in some runs other brokers hear it, too. The next leader commits what it does not have.
    """
    cluster, index = scene.cluster, scene.chance.choice(scene.partitions)
    old = await _leader_that_is_not_preferred(scene, index)
    if not old:
        return
    links = [(f"b{other}", f"b{old}") for other in cluster.brokers if other != old]
    is_heard = scene.chance.random() < 0.5
    for link in links:
        cluster.world.network.cut(*link, one_way=is_heard)
    try:
        await cluster.world.host("ambush").start(elect_the_preferred(cluster, TopicPartition(TOPIC, index)))
        if await scene.until(lambda: _has_been_passed(scene, old, index), _PASSED_S):
            scene.note("heard" if is_heard else "not heard", f"b{old}")
            await scene.pause(_WRITE_S, _WRITE_S / 2)
    finally:
        for link in links:
            cluster.world.network.heal(*link, reset=scene.chance.random() < 0.5)
    await scene.until(lambda: old in cluster.stored_isr(index), _PASSED_S)


async def _leader_that_is_not_preferred(scene: Scene, index: int) -> BrokerId:
    """0 if there is none: another saboteur may be at work."""
    cluster = scene.cluster

    def other_leader() -> BrokerId:
        leader, state = cluster.leader(index), cluster.stored_state(index)
        preferred = cluster.replicas(index)[leader].replicas[0] if leader else 0
        return leader if leader not in (0, preferred) and leader == state.leader and preferred in state.isr else 0

    leader = cluster.leader(index)
    if leader and not other_leader():
        cluster[leader].expire_session()
    return other_leader() if await scene.until(other_leader, _PASSED_S) else 0


def _has_been_passed(scene: Scene, old: BrokerId, index: int) -> bool:
    """Another leader has committed a record that this one does not have."""
    ends = scene.cluster.ends(index)
    leader = scene.cluster.stored_state(index).leader
    return old in ends and leader in ends and leader != old and ends[leader][1] > ends[old][0]


AMBUSHES = {"late requests": Ambush(late_requests, {"late_bytes": True, "saboteurs": ()})}
LONE_CONTROLLER = Ambush(a_lone_controller, {"saboteurs": ()})
LEADER_OF_YESTERDAY = Ambush(
    a_leader_of_yesterday,
    {
        "saboteurs": (),
        "partitions": 1,
        "filling": (0,),
        "segment_bytes": 100_000,
        "records": 30,
        "longest_rest_s": 1.0,
        "last_reads": True,
        "careless": False,
        "elections": False,
        "moves": False,
    },
)

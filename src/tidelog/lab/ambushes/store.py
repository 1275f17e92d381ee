"""Ambushes for the store: it restarts again and again, or one of its nodes cannot be read for a while."""

from __future__ import annotations

import asyncio

from tidelog.controller import nodes
from tidelog.coordination.port import CoordinationError
from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.lab.cluster import SESSION_MS, TOPIC
from tidelog.types import TopicPartition

_SESSION_S = SESSION_MS / 1e3
_OPERATOR_MS = 60_000
_TRIES = 5
_GARBLED_S = (5.0, 16.0)


async def restless_store(scene: Scene) -> None:
    """The store is away for longer than a session, and then again and again for a moment.

    Each time it comes back it gives all its sessions a new timeout, and stays for less than that.
    """
    store = scene.cluster.store
    for number in range(scene.chance.randrange(5, 9)):
        store.stop()
        await scene.pause(*((2 * _SESSION_S, _SESSION_S + 1) if number == 0 else (1.0, 0.1)))
        without = [one for one in scene.cluster.up if not scene.cluster[one].broker.is_current]
        store.start()
        if without:
            scene.note("without session", *without)
        await scene.pause(_SESSION_S - 0.5, 2.0)


async def garbled_topic(scene: Scene) -> None:
    """An operator spoils the node of the topic, and puts the old content back."""
    await _garble(scene, nodes.topic_path(TOPIC))


async def garbled_state(scene: Scene) -> None:
    """An operator spoils the state of one partition, and puts the old content back."""
    await _garble(scene, nodes.state_path(TopicPartition(TOPIC, scene.chance.choice(scene.partitions))))


async def _garble(scene: Scene, path: str) -> None:
    """Meanwhile the controller changes, and perhaps a broker starts anew."""
    tree, chance = scene.cluster.store.tree, scene.chance
    good = tree.get(path).data
    bad = chance.choice([b"", b"{}", b"[]", good[:-3], good.replace(b'"', b"", 1), b"\x00" * len(good)])
    for _ in range(_TRIES):
        if await _set(scene, path, good, bad):
            break
        good = tree.get(path).data
    else:
        return
    scene.note("garbled", path)
    await scene.pause(1.0)
    starting = [await _change_controller(scene)]
    await scene.pause(chance.choice(_GARBLED_S))
    if chance.random() < 0.3:
        starting.append(_restart(scene, chance.choice(list(scene.cluster.brokers))))
        await scene.pause(2.0)
    while tree.get(path).data == bad:
        await _set(scene, path, bad, good)
    scene.note("mended" if tree.get(path).data == good else "written over", path)
    await asyncio.gather(*filter(None, starting))
    await scene.pause(4.0)


async def _set(scene: Scene, path: str, old: bytes, new: bytes) -> bool:
    """True if the node held the old content and holds the new one now."""
    node = scene.cluster.store.tree.get(path)
    if node.data != old:
        return False
    try:
        session = await scene.cluster.store.connect(_OPERATOR_MS)
        try:
            await session.set(path, new, node.stat.version)
        finally:
            await session.close()
    except CoordinationError:
        await scene.pause(0.5, 0.1)
    return scene.cluster.store.tree.get(path).data == new


async def _change_controller(scene: Scene) -> asyncio.Future[None] | None:
    """It dies, or loses its session. A start that is under way then is returned."""
    cluster = scene.cluster
    former, starting = cluster.controller, None
    if not former:
        return None
    if scene.chance.random() < 0.3:
        starting = _restart(scene, former)
    else:
        cluster[former].expire_session()
    if await cluster.lookout.until(lambda: cluster.controller not in (0, former), _SESSION_S + 2, 0.2):
        scene.note("another controller", f"b{cluster.controller}")
    return starting


def _restart(scene: Scene, number: int) -> asyncio.Future[None]:
    """A start may need a controller, which may need the garbled node: so it is not waited for here."""

    async def start() -> None:
        await scene.pause(1.0)
        await scene.cluster[number].start_if_down(lambda: scene.pause(1))

    scene.cluster[number].kill()
    return asyncio.create_task(start())


AMBUSHES = {
    "restless store": Ambush(restless_store, {"store": "memory", "saboteurs": ()}),
    "garbled topic": Ambush(garbled_topic, {"store": "memory"}),
    "garbled state": Ambush(
        garbled_state, {"store": "memory", "partitions": 3, "saboteurs": (), "longest_rest_s": 3.0, "filling": (0,)}
    ),
}

"""Ambushes on the way from a leader to its followers: answers that wait, fetches without a life, and cold reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import NamedTuple

from tidelog.lab.ambushes.requests import VALUE_BYTES, call, end_of, put, replicas_of, value
from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.types import BrokerId
from tidelog.wire.messages.topics import ElectLeadersRequest

_ELECT_LEADERS = 2
_PATIENCE_S = 8.0


# An answer that waits in a socket while its leader is deposed


class _Cast(NamedTuple):
    """One broker leads two partitions, and a follower fetches both in one request."""

    small: int
    """The partition whose records wait behind a large record of the other one."""
    big: int
    old: BrokerId
    heir: BrokerId
    """Will lead the small one. It has no replica of the big one."""
    other: BrokerId
    """Will lead the big one."""
    follower: BrokerId


def _casts(scene: Scene) -> Iterator[_Cast]:
    for small, big in permutations(scene.partitions, 2):
        old = scene.cluster.leader(small)
        of_small, of_big = ([one for one in replicas_of(scene, index) if one != old] for index in (small, big))
        common = [one for one in of_small[1:] if one in of_big]
        if old and old == scene.cluster.leader(big) and common and of_small[0] not in of_big:
            other = next(one for one in of_big if one != common[0])
            yield _Cast(small, big, old, of_small[0], other, common[0])


async def _gathered(scene: Scene) -> _Cast | None:
    """All are in sync, in the roles that the assignment gives them, and the controller has none of two roles."""
    cluster = scene.cluster
    for _ in range(4):
        await call(scene, cluster.controller or 1, (ElectLeadersRequest(topic_partitions=None), _ELECT_LEADERS))
        await scene.until(lambda: next(_casts(scene), None), _PATIENCE_S)
        cast = next(_casts(scene), None)
        if cast is None or not await scene.until(partial(_is_whole, scene, cast), _PATIENCE_S):
            continue
        controller = cluster.controller
        if controller not in (0, cast.old, cast.follower):
            return cast
        if controller and cluster.is_running(controller):
            cluster[controller].expire_session()
            await scene.until(partial(_is_succeeded, scene, controller), _PATIENCE_S)
    return None


def _is_whole(scene: Scene, cast: _Cast) -> bool:
    return all(len(scene.cluster.isr(index)) > 2 for index in (cast.small, cast.big))


def _is_succeeded(scene: Scene, controller: BrokerId) -> bool:
    return scene.cluster.controller not in (0, controller)


async def _answer_that_waits(scene: Scene) -> None:
    """A follower's link stalls with an answer in it. Meanwhile its leader is deposed, and its log gets other records.

    All small records of a run are equal in size, those of writers as well: so what the next leader has fits in their
    places.
    """
    cluster, network = scene.cluster, scene.cluster.world.network
    cast = await _gathered(scene)
    if cast is None:
        return
    old, heir, follower, small = cast.old, cast.heir, cast.follower, cast.small
    pairs = [(f"b{follower}", f"b{one}") for one in cluster.brokers if one not in (old, follower)]
    ways = [(f"b{old}", f"b{heir}"), (f"b{old}", f"b{follower}"), *pairs]
    try:
        network.cut(*ways[0])
        await scene.pause(0.1)
        parted = scene.chance.randrange(1, 5)
        await put(scene, old, *({small: value(scene)} for _ in range(parted)))
        await scene.until(lambda: end_of(scene, follower, small) == end_of(scene, old, small), 0.5)
        await scene.pause(0.5, 0.1)
        network.cut(*ways[1])
        large = value(scene, scene.chance.randrange(600_000, 950_000))
        await put(scene, old, {cast.big: large, small: value(scene)})
        await scene.until(lambda: end_of(scene, cast.other, cast.big) == end_of(scene, old, cast.big), 0.7)
        for pair in pairs:
            network.cut(*pair)
        await _deposed(scene, cast, parted)
        network.heal(*ways[1])
        await scene.pause(1.0, 0.2)
    finally:
        for way in ways:
            network.heal(*way)
    # Large records that pile up would take longer to copy than the rules of time allow.
    await scene.until(lambda: end_of(scene, follower, cast.big) == end_of(scene, cast.other, cast.big), _PATIENCE_S)


async def _deposed(scene: Scene, cast: _Cast, parted: int) -> None:
    """Until the old leader has copied what the next one has, which is as long as what it had before, or longer."""
    cluster, small, before = scene.cluster, cast.small, end_of(scene, cast.old, cast.small)
    if not cluster.is_running(cast.old):
        return
    cluster[cast.old].expire_session()
    await scene.until(lambda: cluster.leader(small) not in (0, cast.old), _PATIENCE_S)
    heir = cluster.leader(small)
    cluster.world.network.heal(f"b{cast.old}", f"b{cast.heir}")
    if heir in (0, cast.old):
        return  # who is elected may be the follower, which no controller reaches now
    more = scene.chance.randrange(parted + 1, parted + 4)
    await put(scene, heir, *({small: value(scene)} for _ in range(more)))
    await scene.until(
        lambda: end_of(scene, heir, small) >= before and _has_all(scene, cast.old, heir, small), _PATIENCE_S
    )
    if _has_all(scene, cast.old, heir, small):
        scene.note("followed", f"b{heir}", "up to", end_of(scene, heir, small), "from", before)


def _has_all(scene: Scene, follower: BrokerId, leader: BrokerId, index: int) -> bool:
    one, other = scene.cluster.replica(follower, index), scene.cluster.replica(leader, index)
    if one is None or other is None or one.leader is not None:
        return False
    return one.leader_epoch == other.leader_epoch and one.log.log_end_offset == other.log.log_end_offset


# A follower that is a member no more and not again yet


async def _between_registrations(scene: Scene) -> None:
    """A follower loses its session and gets no other one; it catches up, loses power, and comes back with less."""
    cluster, network = scene.cluster, scene.cluster.world.network
    index = scene.chance.choice(scene.partitions)
    leader = cluster.leader(index)
    followers = [one for one in replicas_of(scene, index) if one != leader]
    if not leader or not followers:
        return
    follower = scene.chance.choice(followers)
    link, way = (f"b{leader}", f"b{follower}"), cluster[follower].way_to_store
    network.cut(*link)
    try:
        await scene.until(lambda: follower not in cluster.stored_isr(index), _PATIENCE_S)
        await scene.pause(2.0)
        if not cluster.is_running(follower) or not await scene.power.until_it_may(follower):
            return
        way.is_barred = True
        cluster[follower].expire_session()
        await scene.until(lambda: not _knows(scene, leader, follower), _PATIENCE_S)
        network.heal(*link, reset=True)
        await scene.pause(3.0, 0.5)
        if not await scene.power.until_it_may(follower):
            return
        scene.power.go_dark(follower)
        network.cut(*link)
        way.is_barred = False
        await asyncio.gather(scene.start(follower), _all_but(scene, follower, link))
    finally:
        way.is_barred = False
        network.heal(*link)
        await scene.start(follower)


def _knows(scene: Scene, broker: BrokerId, other: BrokerId) -> bool:
    return scene.cluster.is_running(broker) and other in scene.cluster[broker].broker.metadata.brokers


async def _all_but(scene: Scene, survivor: BrokerId, link: tuple[str, str]) -> None:
    """Every other process is killed, in any order, and stays away for longer than a session.

    The link is healed before they come back: a broker is not up before the controller has told it of the others.
    """
    await scene.pause(1.5, 0.3)
    others = [one for one in scene.cluster.brokers if one != survivor]
    scene.chance.shuffle(others)
    for other in others:
        scene.cluster[other].kill()
        await scene.pause(0.1)
    scene.note("alone", f"b{survivor}")
    await scene.pause(9.0, 4.0)
    scene.cluster.world.network.heal(*link)
    await asyncio.gather(*(scene.start(other) for other in others))


# A leader whose disk is slow


async def _cold_leader(scene: Scene) -> None:
    """A follower catches up by reads from a slow device, while another one is slow to copy another partition."""
    cluster = scene.cluster
    quiet, long = scene.chance.sample(list(scene.partitions), 2)
    leader = cluster.leader(quiet)
    followers = [one for one in replicas_of(scene, quiet) if one != leader]
    if not leader or cluster.leader(long) != leader or len(followers) < 2:
        return
    scene.chance.shuffle(followers)
    follower, other = followers[:2]
    cluster[follower].host.freeze()
    try:
        await put(scene, leader, *({long: value(scene, 300)} for _ in range(scene.chance.randrange(8, 16))))
        await put(scene, leader, {quiet: value(scene)})
        await scene.until(lambda: not {follower} & {*cluster.isr(quiet), *cluster.isr(long)}, 4.0)
        with _slow_device(scene, leader), _distant(scene, leader, other):
            await put(scene, leader, {quiet: value(scene)})
            await scene.pause(0.3)
            cluster[follower].host.thaw()
            await scene.pause(2.5, 1.5)
            if end_of(scene, follower, long) < end_of(scene, leader, long):
                scene.note("behind", f"b{follower}")
    finally:
        cluster[follower].host.thaw()
    await scene.pause(15.0, 8.0)


@contextlib.contextmanager
def _slow_device(scene: Scene, broker: BrokerId) -> Iterator[None]:
    """Its page cache holds nothing of its logs, and each read takes long."""
    disk = scene.cluster[broker].host.disk
    before = disk.cold_chance, disk.work.delay_ms
    disk.cold_chance, disk.work.delay_ms = 1.0, (100.0, 400.0)
    try:
        yield
    finally:
        disk.cold_chance, disk.work.delay_ms = before


@contextlib.contextmanager
def _distant(scene: Scene, one: BrokerId, other: BrokerId) -> Iterator[None]:
    """Packets between the two take a detour."""
    network, ends = scene.cluster.world.network, (f"b{one}", f"b{other}")
    link = network.link(*ends)
    before = link.latency_ms, link.jitter_ms
    network.set_latency(*ends, scene.chance.uniform(100.0, 400.0), 20.0)
    try:
        yield
    finally:
        network.set_latency(*ends, *before)


_QUIET = {"moves": False, "elections": False, "members": 0, "sides": False, "topics": False, "careless": False}

AMBUSHES = {
    "an answer that waits": Ambush(
        _answer_that_waits,
        {
            **_QUIET,
            "saboteurs": (),
            "brokers": 4,
            "partitions": 2,
            "assignments": ((1, 2, 3), (1, 4, 3)),
            "patient": True,
            "filling": (VALUE_BYTES,),
            "segment_bytes": 2_000_000,
            "records": 20,
            "longest_rest_s": 3.0,
        },
    ),
    "between registrations": Ambush(
        _between_registrations,
        {
            **_QUIET,
            "saboteurs": (),
            "segment_bytes": 100_000,
            "records": 30,
            "longest_rest_s": 3.0,
            "flush_each": False,
            "filling": (0,),
        },
    ),
    "a cold leader": Ambush(
        _cold_leader,
        {
            **_QUIET,
            "saboteurs": (),
            "partitions": 2,
            "cold": True,
            "segment_bytes": 1000,
            "records": 15,
            "longest_rest_s": 60.0,
            "filling": (0,),
        },
    ),
}

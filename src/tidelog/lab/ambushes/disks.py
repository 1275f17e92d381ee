"""Ambushes of disks and of power.

A sync fails, and what it left in the page cache is lost long after that, with the power. All replicas of a partition
die in one moment, one of them for want of power, and a controller elsewhere hears of one death after the other. All
followers of a dead leader lose power as one of them takes over: that does no harm if what they acknowledged is synced.
"""

from __future__ import annotations

from tidelog.controller.image import NO_LEADER
from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.types import BrokerId, Offset

_ROLL_S = 20.0
"""Within it a segment is full, and synced."""
_WRITE_S = 5.0
_CATCH_UP_S = 30.0
_SLOW_MS = (200.0, 1_000.0)
_CHECKPOINT_S = 6.0
"""Recovery points are written down every five seconds."""
_SESSIONS_S = 10.0
"""Within it the sessions of dead brokers are over."""
_BESIDE = ("slow", "session", "reset", "clock", "kill a client", "freeze a client")
"""What else happens while all replicas of a partition end: nothing that keeps one of them away for long."""


async def _fail_a_sync_and_lose_power(scene: Scene) -> None:
    """A sync fails; the broker is repaired, writes and syncs more, and then loses what its disk does not hold."""
    index = scene.chance.choice(scene.partitions)
    replicas = scene.cluster.replicas(index)
    if not replicas:
        return
    number = scene.chance.choice(sorted(replicas))
    log, disk = replicas[number].log, scene.cluster[number].host.disk
    disk.fail_next("sync", under=log.segments.active.file.path)
    has_failed = await scene.until(lambda: _has_failed(scene, number) or not scene.cluster.is_up(number), _ROLL_S)
    await scene.pause(1.0)
    if _has_failed(scene, number):
        scene.note("a sync failed", f"b{number}")
        scene.cluster[number].kill()
    disk.mend()
    await scene.start(number)
    if has_failed and await scene.until(lambda: _is_synced(scene, number, index, log.log_end_offset), _CATCH_UP_S):
        await _write_down(scene, number)
        await _lose_power(scene, number)


async def _fail_a_sync_in_a_stop(scene: Scene) -> None:
    """A leader stops while its disk is slow: who waits for a sync is sent away, and so nobody hears that it fails."""
    index = scene.chance.choice(scene.partitions)
    number = scene.cluster.leader(index)
    replica = scene.cluster.replica(number, index) if number else None
    if replica is None:
        return
    log, disk = replica.log, scene.cluster[number].host.disk
    usual_ms, disk.work.delay_ms = disk.work.delay_ms, _SLOW_MS
    if await scene.until(lambda: log.recovery_point < log.log_end_offset, _WRITE_S):
        disk.fail_next("sync", under=log.segments.active.file.path)
        await scene.cluster[number].stop()
        scene.note("stopped", f"b{number}")
    disk.work.delay_ms = usual_ms
    disk.mend()
    await scene.start(number)
    if await scene.until(lambda: _is_sealed(scene, number, index, log.log_end_offset), _CATCH_UP_S):
        await _write_down(scene, number)
        await _lose_power(scene, number)


async def _write_down(scene: Scene, number: BrokerId) -> None:
    """Its recovery points, by a checkpoint or by a stop in good order."""
    if scene.chance.random() < 0.5:
        await scene.cluster[number].stop()
        await scene.start(number)
    else:
        await scene.pause(2 * _CHECKPOINT_S, _CHECKPOINT_S)


async def _lose_power(scene: Scene, number: BrokerId) -> None:
    if await scene.power.until_it_may(number):
        scene.power.go_dark(number)
        await scene.pause(2.0)
        await scene.start(number)


def _has_failed(scene: Scene, number: BrokerId) -> bool:
    one = scene.cluster[number]
    return bool(one.is_up and (one.broker.failed.done() or one.broker.storage.is_partly_offline))


def _is_synced(scene: Scene, number: BrokerId, index: int, end: Offset) -> bool:
    """Later syncs vouch for all that was there when one failed."""
    replica = scene.cluster.replica(number, index)
    return replica is not None and replica.log.recovery_point > end


def _is_sealed(scene: Scene, number: BrokerId, index: int, end: Offset) -> bool:
    """All up to there is in segments that were closed since: after a crash they are not looked at again."""
    replica = scene.cluster.replica(number, index)
    return replica is not None and replica.log.segments.active.base_offset > end


async def _end_all_replicas(scene: Scene) -> None:
    """Two are killed and the third loses power, all within a session; a broker that has no replica is controller."""
    index = scene.chance.choice(scene.partitions)
    await scene.control_from_elsewhere(index)
    replicas = scene.cluster.assigned(index)
    whole = await scene.until(lambda: bool(replicas) and scene.cluster.stored_isr(index) == replicas, _CATCH_UP_S)
    dark = scene.chance.choice(replicas) if replicas else 0
    if not whole or not await scene.power.until_it_may(dark):
        return
    killed = [number for number in replicas if number != dark]
    scene.chance.shuffle(killed)
    for number in killed:
        scene.cluster[number].kill()
        await scene.pause(0.2)
    await scene.pause(2.0)
    has_lost = scene.power.may_lose_power(dark)
    if has_lost:
        scene.power.go_dark(dark)
        if await scene.until(lambda: scene.cluster.stored_state(index).leader == NO_LEADER, _SESSIONS_S):
            scene.note("nobody leads", f"b{dark}")
    await scene.pause(1.0)
    ended = [*killed, dark] if has_lost else killed
    scene.chance.shuffle(ended)
    for number in ended:
        await scene.start(number)
        await scene.pause(1.0)
    await scene.until(lambda: scene.cluster.leader(index), _CATCH_UP_S)


async def _lose_power_as_a_leader_takes_over(scene: Scene) -> None:
    """The leader dies for a while. The next one has slow disks, and all followers lose power as it begins to lead."""
    index = scene.chance.choice(scene.partitions)
    replicas = scene.cluster.assigned(index)
    is_whole = await scene.until(lambda: scene.cluster.stored_isr(index) == replicas, _CATCH_UP_S)
    dead = scene.cluster.leader(index)
    others = [number for number in replicas if number != dead]
    if not is_whole or not dead or not all(map(scene.power.may_lose_power, others)):
        return
    disks = [scene.cluster[number].host.disk for number in others]
    usual_ms = [disk.work.delay_ms for disk in disks]
    for disk in disks:
        disk.work.delay_ms = _SLOW_MS
    await scene.pause(2.0, 1.0)
    scene.cluster[dead].kill()
    is_led = await scene.until(lambda: scene.cluster.stored_state(index).leader in others, _SESSIONS_S)
    for number in others if is_led else ():
        scene.power.go_dark(number)
    for disk, delay_ms in zip(disks, usual_ms, strict=True):
        disk.work.delay_ms = delay_ms
    for number in others:
        await scene.start(number)
    if await scene.until(lambda: scene.cluster.leader(index), _SESSIONS_S) and is_led:
        scene.note("led by one that lost power", f"b{dead}")
    await scene.start(dead)
    await scene.until(lambda: scene.cluster.stored_isr(index) == replicas, _CATCH_UP_S)


FAILED_SYNC = Ambush(
    _fail_a_sync_and_lose_power, {"segment_bytes": 1000, "records": 30, "longest_rest_s": 3.0, "filling": (0,)}
)
SYNC_FAILS_IN_A_STOP = Ambush(
    _fail_a_sync_in_a_stop,
    {"saboteurs": (), "flush_each": True, "segment_bytes": 1000, "records": 30, "longest_rest_s": 1.0, "filling": (0,)},
)
ALL_REPLICAS_END = Ambush(
    _end_all_replicas,
    {
        "saboteurs": (_BESIDE,),
        "brokers": 4,
        "partitions": 1,
        "segment_bytes": 100_000,
        "filling": (0,),
        "flush_each": False,
        "records": 30,
        "longest_rest_s": 1.0,
        "members": 0,
        "sides": False,
        "topics": False,
    },
)

TAKEN_OVER = Ambush(
    _lose_power_as_a_leader_takes_over,
    {
        "saboteurs": (),
        "brokers": 3,
        "partitions": 1,
        "segment_bytes": 100_000,
        "filling": (0,),
        "flush_each": True,
        "records": 30,
        "longest_rest_s": 0.2,
        "members": 0,
        "sides": False,
        "topics": False,
        "moves": False,
    },
)

AMBUSHES = {
    "a failed sync": FAILED_SYNC,
    "all replicas end": ALL_REPLICAS_END,
    "a stop on a failing disk": SYNC_FAILS_IN_A_STOP,
}

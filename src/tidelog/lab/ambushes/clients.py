"""Ambushes of clients: what one of them writes, or is refused, in a bad moment."""

from __future__ import annotations

import asyncio
import contextlib

from tidelog.errors import TidelogError
from tidelog.lab.ambushes.scene import Ambush, Scene
from tidelog.lab.broker import PORT
from tidelog.lab.group_workload import GROUP, OFFSETS
from tidelog.net.calling import Connection
from tidelog.records.build import BatchFacts, build_batch
from tidelog.types import BrokerId
from tidelog.wire.messages.group_records import OffsetCommitKey
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.stored import encode_key

_PRODUCE_BY_NAME = 12
_COORDINATOR_S = 10.0
_ISR_S = 15.0
_TRICKLES = (600.0, 1_500.0, 4_000.0)
"""Bytes per second, of which the request of a small record has a hundred and fifty or so."""
_CALL_MS = 2_000.0
_OFFSET_KEY = encode_key(OffsetCommitKey(group=GROUP, topic="t", partition=0))
_BAD_RECORDS = (
    (b"\0", b"a key of one byte"),
    (b"\x7f\xff", b"a key of no known kind"),
    (b"\0\2\xff\xff\xff", b"a key that is cut off"),
    (b"\0\2\0\1\xff", b"a group's name that is not UTF-8"),
    (_OFFSET_KEY, b""),
    (_OFFSET_KEY, b"\xff\xff of a negative version"),
    (_OFFSET_KEY, b"\0\1\0\0"),
)
"""What no coordinator writes to its topic; a tool that copies topics, or an old backup, may."""


async def _damage_group_records(scene: Scene) -> None:
    """A tool writes records of no use into the topic of the coordinators, and then the coordinator changes."""
    if not await scene.until(lambda: _coordinator(scene), _COORDINATOR_S):
        return
    for _ in range(scene.chance.randrange(1, 3)):
        leader = _coordinator(scene)
        if leader and await scene.cluster.world.host("tool").start(_write_as_admin(scene, leader)):
            scene.note("bad records", f"b{leader}")
        await scene.pause(1.0)
    leader = _coordinator(scene)
    if leader:
        await _end_term(scene, leader)
    await scene.until(lambda: _coordinator(scene) not in (0, leader), _COORDINATOR_S)
    await scene.pause(4.0, 1.0)


async def _write_as_admin(scene: Scene, leader: BrokerId) -> bool:
    """By this name Kafka lets any client write to internal topics. Whether all replicas have it."""
    records = scene.chance.sample(_BAD_RECORDS, scene.chance.randrange(1, 4))
    batch = memoryview(bytearray(build_batch([(-1, key, value) for key, value in records], BatchFacts())))
    data = PartitionProduceData(index=OFFSETS.partition, records=batch)
    topic = TopicProduceData(name=OFFSETS.topic, partition_data=[data])
    with contextlib.suppress(TidelogError):
        connection = await Connection.open(f"b{leader}", PORT, client_id="__admin_client", connect_timeout_ms=300)
        try:
            request = ProduceRequest(acks=-1, timeout_ms=int(_CALL_MS), topic_data=[topic])
            answer = await connection.call(request, _PRODUCE_BY_NAME, timeout_ms=_CALL_MS)
        finally:
            connection.close()
        return bool(answer.responses[0].partition_responses[0].error_code == 0)
    return False


async def _end_term(scene: Scene, leader: BrokerId) -> None:
    way = scene.chance.choice(["kill", "stop", "session"])
    if way == "kill":
        scene.cluster[leader].kill()
    elif way == "stop":
        await scene.cluster[leader].stop()
    elif scene.cluster.is_running(leader):
        scene.cluster[leader].expire_session()
    await scene.pause(3.0)
    await scene.start(leader)


def _coordinator(scene: Scene) -> BrokerId:
    """The leader of the only partition in which coordinators write; 0 if there is none now."""
    replicas = {
        number: scene.cluster.replica(number, OFFSETS.partition, OFFSETS.topic) for number in scene.cluster.brokers
    }
    leading = {number: one.leader.epoch for number, one in replicas.items() if one is not None and one.leader}
    return max(leading, key=leading.__getitem__) if leading else 0


async def _refuse_the_first(scene: Scene) -> None:
    """While requests trickle in, the ISR gets large enough: the first one of a producer is refused, the next is not.

    The followers stop in good order: one that dies stays in the ISR for a while, and records that wait for it are in
    the log.
    """
    index = scene.chance.choice(scene.partitions)
    leader = scene.cluster.leader(index)
    if not leader:
        return
    ended = [number for number in scene.cluster.assigned(index) if number != leader]
    await asyncio.gather(*(scene.cluster[number].stop() for number in ended))
    is_alone = await scene.until(lambda: scene.cluster.isr(index) == [leader], _ISR_S)
    links = [(client, f"b{leader}") for client in scene.clients]
    for link in links:
        scene.cluster.world.network.set_bandwidth(*link, scene.chance.choice(_TRICKLES))
    if is_alone:
        await scene.pause(1.0)
    for number in ended:
        await scene.start(number)
    if await scene.until(lambda: len(scene.cluster.isr(index)) > 1, _ISR_S) and is_alone:
        scene.note("large enough again", f"b{leader}")
    await scene.pause(1.0)
    for link in links:
        scene.cluster.world.network.set_bandwidth(*link, None)


FIRST_IS_REFUSED = Ambush(
    _refuse_the_first, {"brief": True, "partitions": 3, "records": 30, "longest_rest_s": 1.0, "filling": (0,)}
)
BAD_GROUP_RECORDS = Ambush(_damage_group_records, {"members": 2})

AMBUSHES = {"bad group records": BAD_GROUP_RECORDS, "refused first": FIRST_IS_REFUSED}

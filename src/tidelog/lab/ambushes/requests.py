"""What an ambush asks of brokers as a client, and what it sees of their logs."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.errors import TidelogError
from tidelog.lab.ambushes.scene import Scene
from tidelog.lab.broker import PORT
from tidelog.lab.cluster import TOPIC
from tidelog.lab.workload import one_record
from tidelog.net.calling import Connection
from tidelog.types import BrokerId
from tidelog.wire import Message
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

_HOST = "ambush"
_PRODUCE_BY_NAME = 12
VALUE_BYTES = 24
"""Of a small record."""


async def call(scene: Scene, broker: BrokerId, *requests: tuple[Message, int]) -> None:
    """A client on a host of its own asks one broker, and takes whatever comes of it."""

    async def ask() -> None:
        try:
            connection = await Connection.open(f"b{broker}", PORT, client_id=_HOST, connect_timeout_ms=300)
            try:
                for request, version in requests:
                    await connection.call(request, version, timeout_ms=1_000)
            finally:
                connection.close()
        except TidelogError:
            pass

    await scene.cluster.world.host(_HOST).start(ask())


async def put(scene: Scene, broker: BrokerId, *batches: Mapping[int, bytes]) -> None:
    """Records with acks=1, which an election may drop: each mapping is a request with a record per partition."""
    requests: list[tuple[Message, int]] = []
    for values in batches:
        data = [PartitionProduceData(index=index, records=one_record(values[index], -1)) for index in values]
        topic = TopicProduceData(name=TOPIC, partition_data=data)
        requests.append((ProduceRequest(acks=1, topic_data=[topic], timeout_ms=1_000), _PRODUCE_BY_NAME))
    await call(scene, broker, *requests)


def value(scene: Scene, size: int = VALUE_BYTES) -> bytes:
    return f"ambush {scene.chance.randrange(10**9)}".encode().ljust(size)


def end_of(scene: Scene, broker: BrokerId, index: int) -> int:
    """Where the log of one replica ends; -1 if it is not there."""
    replica = scene.cluster.replica(broker, index)
    return -1 if replica is None else replica.log.log_end_offset


def replicas_of(scene: Scene, index: int) -> tuple[BrokerId, ...]:
    """In the order of the assignment; empty while there is no leader."""
    replica = scene.cluster.replica(scene.cluster.leader(index) or 1, index)
    return () if replica is None or replica.leader is None else replica.leader.replicas

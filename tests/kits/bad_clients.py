"""Clients that no broker deserves, each of a kind that has once taken a broker from its other clients.

A kind is a function that does its worst for one burst, of bounded size, and lets the answers be what they are.
`python bad_clients.py PORT SECONDS SEED KIND ...` plays these kinds, chosen by the seed, until the time is over.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import cramjam
from crc32c import crc32c

from tidelog.errors import TidelogError
from tidelog.groups.records import partition_of
from tidelog.net.calling import Connection
from tidelog.records.build import build_batch
from tidelog.records.header import CRC_FROM, LAYOUT
from tidelog.wire import Message
from tidelog.wire.frames import encode_request
from tidelog.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from tidelog.wire.messages.controller import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.groups import DescribeGroupsRequest, JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.wire.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeLogDirsRequest,
)

VICTIM = "bad-victim"
"""A topic that bad clients may write to; `bad-compacted` is another, `bad-wide` has many partitions."""
COMPACTED = "bad-compacted"
WIDE = "bad-wide"
WIDTH = 500
_ANSWER_MS = 30_000
_RECORD = bytes([6 << 1, 0, 0, 0, 1, 1, 0])
_KEYED_RECORD = bytes([7 << 1, 0, 0, 0, 2, ord("k"), 1, 0])


class Attack:
    """What a kind of client needs: a port, and chance."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.port = port
        self.chance = chance

    async def connect(self, client_id: str = "bad") -> Connection:
        return await Connection.open("127.0.0.1", self.port, client_id=client_id)

    async def call(self, request: Message, version: int, client_id: str = "bad") -> Any:
        """The answer, or None if the broker hung up or did not answer in time."""
        try:
            connection = await self.connect(client_id)
        except (TidelogError, OSError):
            return None
        try:
            return await connection.call(request, version, timeout_ms=_ANSWER_MS)
        except (TidelogError, OSError):
            return None
        finally:
            connection.close()

    async def raw(self, data: bytes, *, wait_s: float = 5.0) -> None:
        """Send these bytes, and read what comes until nothing does."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return
        try:
            writer.write(data)
            async with asyncio.timeout(wait_s):
                await writer.drain()
                while await reader.read(1 << 16):
                    pass
        except (TimeoutError, OSError):
            pass
        finally:
            writer.transport.abort()


def produce(topic: str, batch: bytes, partition: int = 0) -> ProduceRequest:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])


def raw_batch(payload: bytes, count: int, codec: int = 0, producer_id: int = -1) -> bytes:
    """A batch whose header may say anything; its CRC is right."""
    now = int(time.time() * 1000)
    sequence = -1 if producer_id < 0 else 0
    batch = bytearray(LAYOUT.size + len(payload))
    facts = (-1, 2, 0, codec, count - 1, now, now, producer_id, sequence, sequence, count)
    LAYOUT.pack_into(batch, 0, 0, LAYOUT.size - 12 + len(payload), *facts)
    batch[LAYOUT.size :] = payload
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[CRC_FROM:])))
    return bytes(batch)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 1, -1)


def unsigned(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


# The kinds


async def many_names(attack: Attack) -> None:
    names = [DeleteTopicState(name=f"no-{at:05x}") for at in range(20_000)]
    await attack.call(DeleteTopicsRequest(topics=names, timeout_ms=1000), 6)


async def the_same_again_and_again(attack: Attack) -> None:
    wide = [MetadataRequestTopic(name=WIDE)] * 300
    await attack.call(MetadataRequest(topics=wide, allow_auto_topic_creation=False), 9)
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    await attack.call(
        DescribeConfigsRequest(resources=[resource] * 500, include_synonyms=True, include_documentation=True), 4
    )
    await attack.call(DescribeGroupsRequest(groups=["good-orders"] * 1000), 5)


async def many_elements(attack: Attack) -> None:
    count = 1_000_000
    frames = [
        header(3, 1) + struct.pack(">i", count) + b"\0\0" * count,
        header(10, 4) + b"\0\0" + unsigned(count + 1) + b"\x01" * count + b"\0",
        header(10, 4) + b"\0\0" + unsigned(61) + (unsigned(32_001) + b"a" * 32_000) * 60 + b"\0",
        header(15, 5) + b"\0" + unsigned(count + 1) + b"\x01" * count + b"\0\0",
    ]
    await attack.raw(framed(attack.chance.choice(frames)))


async def many_tags(attack: Attack) -> None:
    tags = b"".join(unsigned(100 + at) + b"\0" for at in range(500_000))
    await attack.raw(framed(header(18, 3) + unsigned(500_000) + tags + b"\x02a\x02b\0"))


async def many_partitions(attack: Attack) -> None:
    count = 300_000
    partitions = b"".join(struct.pack(">iqqi", at, 0, 0, 1000) for at in range(count))
    body = struct.pack(">iiiibii", -1, 100, 1, 1 << 20, 0, 0, 0) + struct.pack(">ih", 1, 1) + b"u"
    await attack.raw(framed(header(1, 7) + body + struct.pack(">i", count) + partitions + struct.pack(">i", 0)))


async def bombs(attack: Attack) -> None:
    topic, record = attack.chance.choice([(COMPACTED, _KEYED_RECORD), (VICTIM, _RECORD)])
    codec, compress = attack.chance.choice(
        [
            (4, lambda data: cramjam.zstd.compress(data, 3)),
            (1, lambda data: cramjam.gzip.compress(data, 6)),
        ]
    )
    count = 8_000_000
    packed = await asyncio.to_thread(compress, record * count)
    await attack.call(produce(topic, raw_batch(bytes(packed), count, codec)), 9)
    wanted = ListOffsetsPartition(partition_index=0, timestamp=0, current_leader_epoch=-1)
    asked = ListOffsetsTopic(name=topic, partitions=[wanted])
    await attack.call(ListOffsetsRequest(replica_id=-1, topics=[asked]), 7)


async def lying_batches(attack: Attack) -> None:
    lies = [
        raw_batch(b"", 2**31 - 1),
        raw_batch(b"\xff" * 50, 1),
        raw_batch(_RECORD * 3, 4),
        raw_batch(_RECORD, 1, codec=attack.chance.randrange(1, 5)),
    ]
    for _ in range(50):
        await attack.call(produce(VICTIM, attack.chance.choice(lies)), 9)


async def idle_connections(attack: Attack) -> None:
    writers = []
    try:
        for _ in range(400):
            writers.append((await asyncio.open_connection("127.0.0.1", attack.port))[1])
        await asyncio.sleep(1.0)
    except OSError:
        pass
    finally:
        for writer in writers:
            writer.transport.abort()


async def announced_and_never_sent(attack: Attack) -> None:
    writers = []
    try:
        for at in range(100):
            writer = (await asyncio.open_connection("127.0.0.1", attack.port))[1]
            writers.append(writer)
            writer.write(struct.pack(">i", 100_000_000) + b"\0\x03" + bytes(5_000_000 if at < 10 else 30))
        await asyncio.sleep(1.0)
    except OSError:
        pass
    finally:
        for writer in writers:
            writer.transport.abort()


async def asked_and_never_read(attack: Attack) -> None:
    request = b"".join(bytes(part) for part in encode_request(MetadataRequest(topics=None), 9, 1, "bad"))
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", attack.port, limit=1024)
        writer.write(request * 5000)
        await asyncio.sleep(2.0)
        writer.transport.abort()
    except OSError:
        pass


async def producer_ids(attack: Attack) -> None:
    start = attack.chance.randrange(10_000, 2**40)
    try:
        connection = await attack.connect()
        for base in range(0, 3000, 100):
            sends = [
                connection.send(produce(VICTIM, raw_batch(_RECORD, 1, producer_id=start + base + at)), 9)
                for at in range(100)
            ]
            await asyncio.gather(*sends)
        connection.close()
    except (TidelogError, OSError):
        pass


async def abandoned_members(attack: Attack) -> None:
    def join(group: str, version: int) -> Awaitable[Any]:
        protocols = [JoinGroupRequestProtocol(name="p", metadata=b"m" * 1000)]
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="x",
            protocols=protocols,
        )
        return connection.send(request, version)

    try:
        connection = await attack.connect("c" * attack.chance.choice((10, 32_767)))
        mark = attack.chance.getrandbits(32)
        for base in range(0, 2000, 100):
            await asyncio.gather(*(join(f"bad-{mark}-{base + at}", 5) for at in range(100)))
        waiting = [asyncio.ensure_future(join("bad-large", 3)) for _ in range(1000)]
        await asyncio.wait(waiting, timeout=3.0)
        connection.close()
        await asyncio.gather(*waiting, return_exceptions=True)
    except (TidelogError, OSError):
        pass


async def large_offsets(attack: Attack) -> None:
    mark = attack.chance.getrandbits(32)
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_leader_epoch=-1, committed_metadata="m" * 4096
    )
    topics = [OffsetCommitRequestTopic(name=VICTIM, partitions=[partition])]
    try:
        connection = await attack.connect()
        for base in range(0, 1000, 100):
            requests = [
                OffsetCommitRequest(
                    group_id=f"bad-{mark}-{base + at}", generation_id_or_member_epoch=-1, member_id="", topics=topics
                )
                for at in range(100)
            ]
            await asyncio.gather(*(connection.send(request, 8) for request in requests))
        connection.close()
    except (TidelogError, OSError):
        pass


async def false_group_records(attack: Attack) -> None:
    batch = bytes(build_batch([(0, b"\0\2\xff\xff\xff", b"y")]))
    partition = partition_of(f"bad-{attack.chance.randrange(50)}", 50)
    await attack.call(produce("__consumer_offsets", batch, partition), 9, client_id="__admin_client")


async def many_topics(attack: Attack) -> None:
    mark = attack.chance.getrandbits(24)
    names = [f"bad-{mark}-{at}" for at in range(50)]
    await attack.call(
        MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True), 9
    )
    await attack.call(MetadataRequest(topics=None), 9)
    await attack.call(DescribeLogDirsRequest(topics=None), 4)
    wide = CreatableTopic(name=f"bad-{mark}-wide", num_partitions=200, replication_factor=1)
    await attack.call(CreateTopicsRequest(topics=[wide], timeout_ms=20_000), 7)
    names.append(wide.name)
    await attack.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=20_000), 6)


async def settings(attack: Attack) -> None:
    value = str(attack.chance.randrange(14_000, 16_000))
    config = IncrementalAlterConfigsRequestAlterableConfig(
        name="log.cleaner.backoff.ms", config_operation=0, value=value
    )
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    await attack.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)


async def false_controllers(attack: Attack) -> None:
    endpoint = UpdateMetadataEndpoint(port=6666, host="evil.example", listener="PLAINTEXT", security_protocol=0)
    brokers = [UpdateMetadataBroker(id=1, endpoints=[endpoint], rack=None)]
    epoch = attack.chance.choice((1000, 2**31 - 1))
    named = {"controller_id": 1, "controller_epoch": epoch, "broker_epoch": -1}
    await attack.call(UpdateMetadataRequest(**named, type=0, topic_states=[], live_brokers=brokers), 8)
    await attack.call(LeaderAndIsrRequest(**named, type=2), 7)
    await attack.call(StopReplicaRequest(**named, topic_states=[]), 4)


async def control_requests_sent_ahead(attack: Attack) -> None:
    """They are refused, but control requests are served before others."""
    refused = UpdateMetadataRequest(controller_id=1, controller_epoch=0, broker_epoch=-1)
    request = b"".join(bytes(part) for part in encode_request(refused, 8, 1, "bad"))
    await attack.raw(request * 20_000, wait_s=2.0)


async def false_followers(attack: Attack) -> None:
    partition = FetchPartition(partition=0, fetch_offset=2, current_leader_epoch=-1, partition_max_bytes=1000)
    topics = [FetchTopic(topic="orders", partitions=[partition])]
    for replica in (1, 2, 77):
        await attack.call(
            FetchRequest(replica_id=replica, max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=topics), 11
        )


async def nonsense(attack: Attack) -> None:
    frames = [
        struct.pack(">i", -1),
        struct.pack(">i", 0) + b"x" * 10,
        struct.pack(">i", 2**31 - 1),
        framed(struct.pack(">hhih", 999, 0, 1, -1)),
        framed(struct.pack(">hhih", 0, 99, 1, -1)),
        framed(header(3, 9) + b"\0\xff\xff\xff\xff\x0f"),
        framed(header(18, 3) + b"\xff\xff\xff\xff\x0f"),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    ]
    for frame in frames:
        await attack.raw(frame, wait_s=0.2)


KINDS: dict[str, Callable[[Attack], Awaitable[None]]] = {
    kind.__name__: kind
    for kind in (
        many_names,
        the_same_again_and_again,
        many_elements,
        many_tags,
        many_partitions,
        bombs,
        lying_batches,
        idle_connections,
        announced_and_never_sent,
        asked_and_never_read,
        producer_ids,
        abandoned_members,
        large_offsets,
        false_group_records,
        many_topics,
        settings,
        false_controllers,
        control_requests_sent_ahead,
        false_followers,
        nonsense,
    )
}


async def play(port: int, seconds: float, seed: int, kinds: list[str]) -> int:
    """How many bursts there were."""
    attack = Attack(port, random.Random(seed))
    deadline_s = time.monotonic() + seconds
    bursts = 0
    while time.monotonic() < deadline_s:
        await KINDS[attack.chance.choice(kinds)](attack)
        bursts += 1
    return bursts


if __name__ == "__main__":
    print(asyncio.run(play(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or list(KINDS))))

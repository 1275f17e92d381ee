"""Bad input: random and mutated frames, batches and names that cannot be, and a disk that takes no more.

TIDELOG_FUZZ_FRAMES is how many frames; 1000000 is the number of the issue, and TIDELOG_FUZZ_SEED makes other ones.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import uvloop

from tests.kits.fuzzkit import DELETE_TOPICS, Drive, FakeConnection, Frames
from tests.kits.logkit import batch
from tests.kits.processkit import BrokerProcess, broker_process
from tidelog.broker.apis import CONTROL_KEYS, SERVED
from tidelog.broker.broker import Broker
from tidelog.config.broker import BrokerConfig
from tidelog.coordination.memory import MemoryCoordination
from tidelog.errors import ErrorCode
from tidelog.host.machine import RealPorts
from tidelog.net.calling import Connection
from tidelog.net.channel import Call
from tidelog.net.connection import ServerConnection
from tidelog.wire.frames import encode_request
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidelog.wire.versions import Versions

T = TypeVar("T")

FRAMES = int(os.environ.get("TIDELOG_FUZZ_FRAMES", "100000"))
SEED = int(os.environ.get("TIDELOG_FUZZ_SEED", "4"))
SOCKET_FRAMES = FRAMES // 2
FETCH, METADATA = 1, 3
SACRIFICIAL = CONTROL_KEYS | {DELETE_TOPICS}
"""A valid one of these, from whoever sends it, takes topics away: they get a broker of their own."""
MOST_GROWTH_MB = 25.0
PATIENCE_S = 0.1
"""For an answer that may never come: nobody answers acks=0, and a fetch may wait for long."""


FUZZED = {
    "fuzz-a": {},
    "fuzz-compacted": {"cleanup.policy": "compact"},
    "fuzz-lz4": {"compression.type": "lz4"},
    "fuzz-time": {"message.timestamp.type": "LogAppendTime"},
    "fuzz-bounds": {"message.timestamp.before.max.ms": "1000"},
}
"""Topics and their settings: each makes a broker look at batches in another way."""


async def create_topic(
    connection: Connection, name: str, partitions: int = 2, configs: Mapping[str, str] | None = None
) -> bytes:
    settings = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
    answer: Any = await connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 7)
    assert answer.topics[0].error_code == 0, answer.topics[0]
    topic_id: bytes = answer.topics[0].topic_id
    return topic_id


async def produce(connection: Connection, topic: str, records: bytes | None, index: int = 0, acks: int = -1) -> Any:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=records)])
    answer: Any = await connection.call(ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[data]), 9)
    return answer.responses[0].partition_responses[0]


async def fetch(connection: Connection, topic: str, offset: int, index: int = 0) -> Any:
    wanted = FetchTopic(
        topic=topic,
        partitions=[FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)],
    )
    answer: Any = await connection.call(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[wanted]), 12)
    return answer.responses[0].partitions[0]


def served(*, sacrificial: bool) -> dict[int, Versions]:
    return {key: one.versions for key, one in SERVED.items() if (key in SACRIFICIAL) == sacrificial}


# In this process, without sockets: the most frames for the time


async def with_broker(directory: str, story: Callable[[Broker], Awaitable[T]], **settings: str) -> T:
    """Whatever goes wrong where nobody waits for it fails the test too."""
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(str(context)))
    ports = RealPorts(num_io_threads=2)
    config = BrokerConfig.load(
        {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": directory,
            "tidelog.coordination": "memory",
            "auto.create.topics.enable": "false",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    broker = Broker(config, ports, MemoryCoordination(ports.clock))
    try:
        await broker.start()
        told = await story(broker)
    finally:
        await broker.stop()
        ports.close()
    assert not faults
    return told


def own_rss_mb() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_mutated_frames_get_an_answer_or_the_end_of_their_connection(directory: str):
    async def story(broker: Broker) -> None:
        connection = await Connection.open("127.0.0.1", broker.ports_bound["PLAINTEXT"], client_id="good")
        topics = {name: await create_topic(connection, name, 2, configs) for name, configs in FUZZED.items()}
        await create_topic(connection, "good")
        frames = Frames(served(sacrificial=False), SEED, topics)
        drive = Drive(broker._dispatcher.handle)
        await drive.run(frames, FRAMES // 10)
        before_mb = own_rss_mb()
        await drive.run(frames, FRAMES - FRAMES // 10)
        assert own_rss_mb() - before_mb < MOST_GROWTH_MB
        assert min(drive.answered, drive.closed) > FRAMES // 5, "a good share of each, or the frames are not good ones"
        assert drive.given_up < FRAMES // 10
        assert set(broker.metadata.topics) >= {*FUZZED, "good"}
        assert len(broker.metadata.topics) < 100, "a CreateTopics with validate_only rarely loses that"
        assert (await produce(connection, "good", batch())).error_code == 0
        connection.close()

    uvloop.run(with_broker(directory, story, delete_topic_enable="false"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_mutated_control_requests_break_nothing_but_what_they_say(directory: str):
    async def story(broker: Broker) -> None:
        connection = await Connection.open("127.0.0.1", broker.ports_bound["PLAINTEXT"], client_id="good")
        topics = {name: await create_topic(connection, name, 2, configs) for name, configs in FUZZED.items()}
        drive = Drive(broker._dispatcher.handle)
        await drive.run(Frames(served(sacrificial=True), SEED, topics), FRAMES // 5)
        assert min(drive.answered, drive.closed) > FRAMES // 50
        assert os.listdir(directory) == ["data"]
        for _, folders, _ in os.walk(directory + "/data"):
            assert all(re.fullmatch(r"[a-zA-Z0-9._-]+-\d+(\.[0-9a-f]+-(delete|stray))?", folder) for folder in folders)
        assert not broker.failed.done()
        connection.close()

    uvloop.run(with_broker(directory + "/data", story))


@pytest.mark.long
def test_mutated_metadata_requests_create_topics_only_by_good_names(directory: str):
    async def story(broker: Broker) -> None:
        connection = await Connection.open("127.0.0.1", broker.ports_bound["PLAINTEXT"], client_id="good")
        await create_topic(connection, "good", 1)
        drive = Drive(broker._dispatcher.handle)
        await drive.run(Frames({METADATA: SERVED[METADATA].versions}, SEED, {"fuzz-a": bytes(16)}), FRAMES // 50)
        assert await broker.metadata.wait_until(lambda: len(broker.metadata.topics) > 3, 30.0)
        assert all(re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic) for topic in broker.metadata.topics)
        assert (await produce(connection, "good", batch())).error_code == 0
        connection.close()

    uvloop.run(with_broker(directory, story, auto_create_topics_enable="true"))


# Over sockets, against a process


class Fuzzer:
    """Sends frames over one connection after the other, and counts how each ended."""

    def __init__(self, port: int, frames: Frames, chance: random.Random) -> None:
        self._port = port
        self._frames = frames
        self._chance = chance
        self.sent = self.answers = self.connections = self.hangups = self.silences = 0

    async def run(self, count: int) -> None:
        while self.sent < count:
            await self._one_connection(min(count - self.sent, self._chance.choice((1, 1, 1, 2, 3, 20))))

    async def _one_connection(self, count: int) -> None:
        """All at once; then read until everything is answered, the broker hangs up, or nothing more comes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.connections += 1
        self.sent += count
        try:
            for _ in range(count):
                frame = self._frames.next()
                size = len(frame) if self._chance.random() > 0.02 else self._chance.getrandbits(32) - 2**31
                writer.write(struct.pack(">i", size) + frame)
            if self._chance.random() < 0.1:
                return  # leave without waiting
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    assert 4 <= size < 100_000_000
                    await reader.readexactly(size)
                    self.answers += 1
                    count -= 1
                    if not count:
                        return
        except TimeoutError:
            self.silences += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hangups += 1
        finally:
            writer.transport.abort()


class GoodClient:
    """Produces and reads back all the while; any error or long wait is somebody else's bad input getting through."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.slowest_s = 0.0
        self.count = 0
        self.is_told_to_stop = False

    async def run(self) -> None:
        connection = await Connection.open("127.0.0.1", self._port, client_id="good")
        offset = 0
        while not self.is_told_to_stop:
            began = time.monotonic()
            written = await produce(connection, "good", batch([b"%d" % self.count]))
            assert written.error_code == 0, ErrorCode(written.error_code)
            assert written.base_offset == offset
            read = await fetch(connection, "good", offset)
            assert read.error_code == 0, ErrorCode(read.error_code)
            assert read.high_watermark == offset + 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.count += 1
            offset += 1
        connection.close()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_frames_over_sockets_harm_no_other_client(tmp_path: Path):
    async def story(broker: BrokerProcess) -> None:
        connection = await Connection.open("127.0.0.1", broker.port, client_id="setup")
        await create_topic(connection, "good", 1)
        topics = {name: await create_topic(connection, name, 2, configs) for name, configs in FUZZED.items()}
        good = GoodClient(broker.port)
        going = asyncio.ensure_future(good.run())
        fuzzers = [
            Fuzzer(broker.port, Frames(served(sacrificial=False), SEED + n, topics), random.Random(n)) for n in range(6)
        ]
        await asyncio.gather(*(fuzzer.run(SOCKET_FRAMES // 20 // 6) for fuzzer in fuzzers))
        before_mb = broker.rss_mb
        await asyncio.gather(*(fuzzer.run(SOCKET_FRAMES // 6) for fuzzer in fuzzers))
        good.is_told_to_stop = True
        await going
        assert broker.is_alive
        assert broker.rss_mb - before_mb < MOST_GROWTH_MB
        assert good.count > 100
        assert good.slowest_s < 2.0
        connections = sum(fuzzer.connections for fuzzer in fuzzers)
        assert sum(fuzzer.answers for fuzzer in fuzzers) > connections // 5
        assert sum(fuzzer.hangups for fuzzer in fuzzers) > connections // 5
        assert sum(fuzzer.silences for fuzzer in fuzzers) < connections // 10
        closed = broker.lines("closing the connection")
        assert 0 < len(closed) <= connections
        assert not broker.lines("Traceback")
        assert not broker.lines(" ERROR ")
        assert (await produce(connection, "good", batch())).error_code == 0
        connection.close()

    with broker_process(tmp_path, delete_topic_enable="false") as broker:
        uvloop.run(story(broker))
        assert broker.stop() == 0


# What each kind of bad input is told


def told(story: Callable[[Connection], Coroutine[Any, Any, None]], directory: str) -> None:
    async def whole(broker: Broker) -> None:
        connection = await Connection.open("127.0.0.1", broker.ports_bound["PLAINTEXT"], client_id="good")
        await create_topic(connection, "orders", 1)
        await story(connection)
        assert (await produce(connection, "orders", batch())).error_code == 0
        connection.close()

    asyncio.run(with_broker(directory, whole))


def test_a_corrupt_batch_is_told_so_wherever_the_corruption_is(directory: str):
    async def story(connection: Connection) -> None:
        good = batch([b"value"] * 5)
        for at in range(16, len(good)):
            bad = bytearray(good)
            bad[at] ^= 0x10
            code = (await produce(connection, "orders", bytes(bad))).error_code
            expected = (ErrorCode.CORRUPT_MESSAGE,)
            if at == 16:  # the magic: perhaps a format that is not taken any more
                expected = (
                    ErrorCode.CORRUPT_MESSAGE,
                    ErrorCode.INVALID_RECORD,
                    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                )
            assert code in expected, (at, ErrorCode(code))
        assert (await fetch(connection, "orders", 0)).high_watermark == 0

    told(story, directory)


def test_a_batch_cut_anywhere_is_refused(directory: str):
    async def story(connection: Connection) -> None:
        good = batch([b"value"] * 5)
        for size in range(len(good)):
            code = ErrorCode((await produce(connection, "orders", good[:size])).error_code)
            assert code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD), (size, code)
        assert (await produce(connection, "orders", None)).error_code in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
        )
        assert (await fetch(connection, "orders", 0)).high_watermark == 0

    told(story, directory)


def test_too_large_unknown_and_badly_named(directory: str):
    async def story(connection: Connection) -> None:
        large = await produce(connection, "orders", batch([bytes(1_100_000)]))
        assert large.error_code == ErrorCode.MESSAGE_TOO_LARGE
        for topic, index in (("no-such", 0), ("orders", 1), ("orders", -1), ("", 0), ("a/b", 0)):
            code = (await produce(connection, topic, batch(), index)).error_code
            assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (topic, ErrorCode(code))
            code = (await fetch(connection, topic, 0, index)).error_code
            assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (topic, ErrorCode(code))
        for name in ("", ".", "..", "a/b", "a b", "ü", "x" * 250, "a\x00b"):
            topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            answer: Any = await connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
            assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, name

    told(story, directory)


def test_a_million_million_partitions_are_refused_at_once(directory: str):
    async def story(connection: Connection) -> None:
        for count in (2**31 - 1, 10_001, 0, -2):
            topic = CreatableTopic(name="many", num_partitions=count, replication_factor=1)
            answer: Any = await connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
            code = ErrorCode(answer.topics[0].error_code)
            assert code in (ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_PARTITIONS), (count, code)

    told(story, directory)


@pytest.mark.parametrize("turns", range(4))
def test_a_fetch_waits_no_longer_than_its_client(directory: str, turns: int):
    """However soon that goes: before it is parked, or after."""

    async def story(broker: Broker) -> None:
        connection = await Connection.open("127.0.0.1", broker.ports_bound["PLAINTEXT"], client_id="good")
        await create_topic(connection, "orders", 1)
        wanted = FetchTopic(topic="orders", partitions=[FetchPartition(partition=0, partition_max_bytes=1000)])
        request = FetchRequest(max_wait_ms=2**31 - 1, min_bytes=2**31 - 1, topics=[wanted])
        frame = b"".join(bytes(part) for part in encode_request(request, 12, 1, None))[4:]
        client = FakeConnection()
        call = client.call = Call(cast(ServerConnection, client), frame, FETCH, 0)
        broker._dispatcher.handle(call)
        assert broker._dispatcher._parked
        for _ in range(turns):
            await asyncio.sleep(0)
        client.close("gone")
        for _ in range(5):
            await asyncio.sleep(0)
        assert not broker._dispatcher._parked
        connection.close()

    asyncio.run(with_broker(directory, story))

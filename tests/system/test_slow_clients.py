"""Clients that ask for much and take nothing, or announce much and send nothing: they cost only themselves."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.kits.logkit import batch
from tests.kits.processkit import BrokerProcess, broker_process, wait_for
from tidelog.net.calling import Connection
from tidelog.wire.frames import encode_request
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.messages.topics import CreatableTopic, CreateTopicsRequest

STALLED = 500
MOST_GROWTH_MB = 100.0
RECEIVE_BUFFER_BYTES = 4096
"""Small, so that what is stalled waits in the broker and not in the kernel."""
SLOWEST_S = 2.0
BATCH_BYTES = 900_000
BATCHES = 40


@pytest.fixture(autouse=True)
def _descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("not enough file descriptors for so many clients")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))


def produce_request(topic: str, records: bytes) -> ProduceRequest:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])


def fetch_request(topic: str, offset: int, max_bytes: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )


def frame(request: Any, version: int) -> bytes:
    return b"".join(bytes(part) for part in encode_request(request, version, 1, "slow"))


async def prepare(broker: BrokerProcess) -> Connection:
    """Topics `large`, with some 36 MB in it, and `small`."""
    connection = await Connection.open("127.0.0.1", broker.port, client_id="good")
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("large", "small")]
    answer: Any = await connection.call(CreateTopicsRequest(topics=topics, timeout_ms=20_000), 7)
    assert all(topic.error_code == 0 for topic in answer.topics)
    large = batch([bytes(BATCH_BYTES)])
    for _ in range(BATCHES):
        written: Any = await connection.call(produce_request("large", large), 9)
        assert written.responses[0].partition_responses[0].error_code == 0
    return connection


async def goes_on(connection: Connection, rounds: int, slowest_s: float = SLOWEST_S) -> None:
    for _ in range(rounds):
        began = time.monotonic()
        written: Any = await connection.call(produce_request("small", batch()), 9)
        written = written.responses[0].partition_responses[0]
        assert written.error_code == 0
        read: Any = await connection.call(fetch_request("small", written.base_offset, 1 << 20), 12)
        assert read.responses[0].partitions[0].high_watermark > written.base_offset
        assert time.monotonic() - began < slowest_s


@contextmanager
def clients(port: int, count: int, first: bytes) -> Iterator[list[socket.socket]]:
    """So many connections that say this and then neither send nor read."""
    opened = []
    try:
        for _ in range(count):
            one = socket.socket()
            opened.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            one.connect(("127.0.0.1", port))
            one.sendall(first)
        yield opened
    finally:
        for one in opened:
            one.close()


def quiet(broker: BrokerProcess) -> float:
    """Its memory when that has stopped moving."""
    last, same = broker.rss_mb, 0

    def is_quiet() -> bool:
        nonlocal last, same
        now = broker.rss_mb
        same = same + 1 if abs(now - last) < 0.5 else 0
        last = now
        return same > 30

    wait_for(is_quiet, "the memory of the broker to stop moving")
    return last


def told(story: Callable[[BrokerProcess, Connection], Coroutine[Any, Any, None]], directory: Path) -> None:
    async def whole(broker: BrokerProcess) -> None:
        connection = await prepare(broker)
        await goes_on(connection, 50)
        await story(broker, connection)
        await goes_on(connection, 50)
        connection.close()

    with broker_process(directory, tidelog_metrics_port="0") as broker:
        uvloop.run(whole(broker))
        assert not broker.lines("Traceback")
        assert broker.stop() == 0


async def connection_count(broker: BrokerProcess) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports["metrics"])
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    page = (await reader.read(-1)).decode()
    writer.close()
    lines = [
        line for line in page.splitlines() if line.startswith("kafka_server_socket_server_metrics_connection_count")
    ]
    return round(sum(float(line.rpartition(" ")[2]) for line in lines))


async def gone(broker: BrokerProcess) -> None:
    """All but ours and the controller's own."""
    async with asyncio.timeout(30):
        while await connection_count(broker) > 2:
            await asyncio.sleep(0.02)


@pytest.mark.long
def test_five_hundred_stalled_consumers(tmp_path: Path):
    async def story(broker: BrokerProcess, connection: Connection) -> None:
        before_mb = quiet(broker)
        with clients(broker.port, STALLED, frame(fetch_request("large", 0, 50_000_000), 12)):
            await goes_on(connection, 100)
            stalled_mb = quiet(broker)
            await goes_on(connection, 100)
            assert stalled_mb - before_mb < MOST_GROWTH_MB
            assert await connection_count(broker) == STALLED + 2
        await gone(broker)

    told(story, tmp_path)


@pytest.mark.long
def test_stalled_consumers_that_ask_again_and_again(tmp_path: Path):
    """A few hundred fetches each, sent at once."""

    async def story(broker: BrokerProcess, connection: Connection) -> None:
        before_mb = quiet(broker)
        with clients(broker.port, STALLED // 5, frame(fetch_request("large", 0, 50_000_000), 12) * 300):
            await goes_on(connection, 100)
            assert quiet(broker) - before_mb < MOST_GROWTH_MB
        await gone(broker)

    told(story, tmp_path)


@pytest.mark.long
def test_silent_clients_that_announce_large_requests(tmp_path: Path):
    async def story(broker: BrokerProcess, connection: Connection) -> None:
        before_mb = quiet(broker)
        with clients(broker.port, STALLED, struct.pack(">i", 100_000_000) + bytes(100)):
            await goes_on(connection, 100)
            assert quiet(broker) - before_mb < 30.0
        await gone(broker)

    told(story, tmp_path)


@pytest.mark.long
def test_clients_that_ask_for_metadata_and_read_none(tmp_path: Path):
    """Answers of some 60 kB to requests of 20 bytes."""

    async def story(broker: BrokerProcess, connection: Connection) -> None:
        many = CreatableTopic(name="many", num_partitions=1000, replication_factor=1)
        answer: Any = await connection.call(CreateTopicsRequest(topics=[many], timeout_ms=60_000), 7, timeout_ms=60_000)
        assert answer.topics[0].error_code == 0
        before_mb = quiet(broker)
        with clients(broker.port, 10, frame(MetadataRequest(topics=None), 12) * 250):
            await goes_on(connection, 20, slowest_s=20.0)  # it stands in one queue with costly requests
            assert quiet(broker) - before_mb < MOST_GROWTH_MB / 2
        await gone(broker)

    told(story, tmp_path)


@pytest.mark.long
def test_fetches_that_wait_forever_end_with_their_clients(tmp_path: Path):
    """min_bytes that never come and a wait of weeks; then the clients go, wave after wave."""

    async def story(broker: BrokerProcess, connection: Connection) -> None:
        waiting = fetch_request("small", 0, 1000)
        waiting.max_wait_ms, waiting.min_bytes = 2**31 - 1, 2**31 - 1
        sizes = []
        for _ in range(6):
            with clients(broker.port, 50, frame(waiting, 12) * 200):
                await goes_on(connection, 10)
            await gone(broker)
            sizes.append(quiet(broker))
        assert sizes[-1] - sizes[1] < 10.0, sizes

    told(story, tmp_path)


@pytest.mark.long
def test_half_requests_go_with_their_clients(tmp_path: Path):
    """Not when Python next looks for cycles: that may be many half requests later."""

    async def story(broker: BrokerProcess, connection: Connection) -> None:
        before_mb = quiet(broker)
        half = struct.pack(">i", 100_000_000) + bytes(10_000_000)
        for _ in range(30):
            with clients(broker.port, 2, half):
                pass
            await goes_on(connection, 1)
        await gone(broker)
        assert quiet(broker) - before_mb < 30.0

    told(story, tmp_path)

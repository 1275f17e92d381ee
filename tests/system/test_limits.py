"""A broker with few file descriptors, and clients that take all they get of these or of its memory."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.kits.logkit import batch
from tests.kits.processkit import BrokerProcess, broker_process, wait_for
from tidelog.net.calling import Connection
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.messages.topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest

LIMIT = 256
IDLE = 300
FEW_DESCRIPTORS = ["bash", "-c", f'ulimit -n {LIMIT}; exec "$@"', "bash"]
MB = 1_000_000


@pytest.fixture(autouse=True)
def _descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1000:
        pytest.skip("not enough file descriptors for so many clients")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1000), hard))


@contextmanager
def connections(port: int, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    opened = []
    try:
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", port), timeout=20)
            opened.append(client)
            with suppress(ConnectionError):
                client.sendall(first)
        yield opened
    finally:
        for client in opened:
            client.close()


async def create(connection: Connection, name: str, replicas: Sequence[int] = (1,)) -> None:
    """Of the replicas the first leads."""
    assigned = [CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assigned)
    answer: Any = await connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 7, timeout_ms=30_000)
    assert answer.topics[0].error_code == 0, answer.topics[0]


async def produce(connection: Connection, name: str, records: bytes | None = None) -> int:
    data = TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=records or batch())])
    request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data])
    answer: Any = await connection.call(request, 9, timeout_ms=30_000)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.process.pid}/fd"))


def metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['metrics']}/metrics", timeout=20) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
    raise AssertionError(f"there is no {name}")


def told(broker: BrokerProcess, story: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        connection = await Connection.open("127.0.0.1", broker.port, client_id="victim")
        try:
            await create(connection, "orders")
            assert await produce(connection, "orders") == 0
            await story(connection)
        finally:
            connection.close()

    uvloop.run(whole())


def all_is_well(broker: BrokerProcess) -> None:
    assert broker.is_alive
    for words in ("offline", "CRITICAL", "ERROR", "Traceback", "Too many open files"):
        assert broker.lines(words) == []


def test_idle_connections_take_no_descriptor_that_the_broker_needs(tmp_path: Path) -> None:
    with broker_process(tmp_path, FEW_DESCRIPTORS, tidelog_metrics_port="0") as broker:

        async def story(connection: Connection) -> None:
            with connections(broker.port, IDLE):
                for number in range(20):
                    assert await produce(connection, "orders") == 0
                    await create(connection, f"topic-{number}")
                    assert await produce(connection, f"topic-{number}") == 0
                assert descriptors(broker) < LIMIT
                refused = await asyncio.to_thread(metric, broker, "tidelog_refused_connections_total")
                assert refused > IDLE - LIMIT
                assert 0 < len(broker.lines("connections are refused")) < 5
            assert await produce(connection, "orders") == 0

        told(broker, story)
        all_is_well(broker)
        assert broker.lines("clients may have", "connections")
        assert broker.stop() == 0


@pytest.mark.long
def test_idle_clients_make_room_for_others(tmp_path: Path) -> None:
    settings = {"tidelog_connections_replaceable_idle_ms": "0", "tidelog_metrics_port": "0"}
    with broker_process(tmp_path, FEW_DESCRIPTORS, **settings) as broker, connections(broker.port, IDLE):
        told(broker, lambda connection: produce_some(connection))
        assert metric(broker, "tidelog_replaced_connections_total") > 0
        all_is_well(broker)


async def produce_some(connection: Connection) -> None:
    for _ in range(10):
        assert await produce(connection, "orders") == 0


def test_another_broker_connects_while_clients_hold_all_they_may_have(tmp_path: Path) -> None:
    settings = {"tidelog_coordination_dir": str(tmp_path / "coordination"), "broker_id": "1"}
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with broker_process(tmp_path / "1", FEW_DESCRIPTORS, **settings) as first:

        async def story(connection: Connection) -> None:
            with (
                connections(first.port, IDLE),
                broker_process(tmp_path / "2", **settings | {"broker_id": "2"}) as second,
            ):
                await create(connection, "copied", replicas=(1, 2))
                for _ in range(20):
                    assert await produce(connection, "copied") == 0
                request = MetadataRequest(topics=[MetadataRequestTopic(name="copied")])
                async with asyncio.timeout(30):
                    while True:
                        answer: Any = await connection.call(request, 12)
                        if sorted(answer.topics[0].partitions[0].isr_nodes) == [1, 2]:
                            break
                        await asyncio.sleep(0.01)
                assert await produce(connection, "copied") == 0
                all_is_well(second)

        told(first, story)
        all_is_well(first)


@pytest.mark.long
def test_half_sent_requests_have_a_bound_and_a_deadline(tmp_path: Path) -> None:
    settings = {
        "socket_request_max_bytes": str(10 * MB),
        "queued_max_request_bytes": str(20 * MB),
        "tidelog_request_read_timeout_ms": "3000",
        "tidelog_metrics_port": "0",
    }
    used = "kafka_network_socketserver_memorypoolused"
    with broker_process(tmp_path, **settings) as broker:

        async def story(connection: Connection) -> None:
            before = broker.rss_mb
            announced = struct.pack(">i", 10 * MB) + b"\0\x03" + bytes(30)
            with connections(broker.port, 40, announced) as clients:
                for client in clients:
                    client.setblocking(False)
                loop = asyncio.get_running_loop()
                sending = [asyncio.ensure_future(loop.sock_sendall(client, bytes(5 * MB))) for client in clients]
                closed, most = "tidelog_slow_connections_closed_total", 0.0
                async with asyncio.timeout(60):
                    while await asyncio.to_thread(metric, broker, closed) < len(clients):
                        assert await produce(connection, "orders") == 0
                        most = max(most, await asyncio.to_thread(metric, broker, used))
                assert most <= 31 * MB
                assert broker.rss_mb - before < 60
                await asyncio.gather(*sending, return_exceptions=True)
            assert await produce(connection, "orders", batch([bytes(900_000)])) == 0

        told(broker, story)
        wait_for(lambda: metric(broker, used) == 0, "the memory of requests to be given back")
        assert broker.lines("tidelog.request.read.timeout.ms")
        all_is_well(broker)

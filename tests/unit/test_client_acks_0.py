"""Producing with acks=0, which brokers do not answer: what is lost on the way is sent again or told."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.kits.clientkit import P0, P1, simulate, values, written
from tests.kits.fake_admin import FakeAdminBroker, served_broker
from tests.kits.fake_broker import CLOSE, FakeCluster
from tests.unit.test_client_connection import next_frame, run
from tidelog.client.cluster import Cluster
from tidelog.client.errors import DeadlineError
from tidelog.client.produce import Producer
from tidelog.errors import ErrorCode
from tidelog.lab.world import World
from tidelog.net.calling import Connection, ConnectionClosedError, RequestTimedOutError
from tidelog.records.batch import decode
from tidelog.records.build import build_batch
from tidelog.spark.options import write_options
from tidelog.spark.writing import write_batches
from tidelog.types import TopicPartition
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE = 0
DEADLINE_S = 30
FROZEN_S = 10
LARGE = 2**20
"""More than a simulated connection takes while the broker does not read."""
HUGE = 64 * 2**20
"""More than the kernels of both sides take."""

FrozenStory = Callable[[Producer, FakeCluster, Callable[[], None]], Coroutine[Any, Any, None]]


def beside_a_frozen_broker(story: FrozenStory, delivery_timeout_ms: int = 120_000) -> FakeCluster:
    """The story begins when broker 1 has just been frozen; what it calls thaws the broker."""
    frozen, thawed = asyncio.Event(), asyncio.Event()

    async def client(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster, acks=0, delivery_timeout_ms=delivery_timeout_ms)
        await producer.send(P1, values(1))
        await producer.flush()
        await frozen.wait()
        await story(producer, fake, thawed.set)
        producer.close()

    async def freezer(world: World, fake: FakeCluster) -> None:
        while not fake.logs[P1]:
            await asyncio.sleep(0.1)
        world.host("b1").freeze()
        frozen.set()
        await thawed.wait()
        world.host("b1").thaw()

    return simulate(client, saboteur=freezer)


def padded(size: int) -> memoryview:
    return build_batch([(1, None, b"0" + b" " * size)])


@pytest.mark.parametrize("size", [0, LARGE])
def test_flush_waits_until_a_slow_broker_has_handled_all(size: int) -> None:
    async def story(producer: Producer, fake: FakeCluster, thaw: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        loop.call_later(FROZEN_S, thaw)
        producer.send(P0, padded(size))
        await producer.flush()
        assert written(fake, P0) == [0], "whoever closes the connection now loses nothing"
        assert loop.time() - began_s == pytest.approx(FROZEN_S, abs=1)

    beside_a_frozen_broker(story)


def test_a_batch_that_the_network_does_not_take_is_on_its_way() -> None:
    async def story(producer: Producer, fake: FakeCluster, thaw: Callable[[], None]) -> None:
        future = producer.send(P0, padded(LARGE))
        await asyncio.sleep(1)
        assert not future.done()
        assert producer.outstanding_bytes > LARGE
        thaw()
        assert (await future).base_offset == -1
        await producer.flush()

    assert written(beside_a_frozen_broker(story), P0) == [0]


def test_flush_fails_in_time_if_the_broker_stays_silent() -> None:
    async def story(producer: Producer, fake: FakeCluster, thaw: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await producer.send(P0, padded(0))
        with pytest.raises(ConnectionClosedError, match=r"sent with acks=0 .* unknown: .* within 20000 ms"):
            await producer.flush()
        assert loop.time() - began_s == pytest.approx(20, abs=0.1)
        thaw()

    beside_a_frozen_broker(story, delivery_timeout_ms=20_000)


def test_a_batch_that_a_silent_broker_does_not_take_fails_in_time() -> None:
    async def story(producer: Producer, fake: FakeCluster, thaw: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.raises(DeadlineError, match=r"orders-0: gave up after 20 s .* did not take Produce within"):
            await producer.send(P0, padded(LARGE))
        assert 20 <= loop.time() - began_s <= 51
        thaw()

    beside_a_frozen_broker(story, delivery_timeout_ms=20_000)


def test_a_batch_that_was_not_taken_whole_is_sent_again() -> None:
    begun = asyncio.Event()

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster, acks=0)
        begun.set()
        future = producer.send(P0, padded(LARGE))
        await producer.flush()
        assert (await future).base_offset == -1
        producer.close()

    async def tear(world: World, fake: FakeCluster) -> None:
        await begun.wait()
        world.network.cut("client", "b1")
        await asyncio.sleep(1)
        world.network.heal("client", "b1", reset=True)

    assert written(simulate(story, saboteur=tear), P0) == [0]


def test_flush_tells_once_of_a_connection_that_ended() -> None:
    """As a broker ends it that refuses a batch."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [CLOSE]
        producer = Producer(cluster, acks=0)
        await producer.send(P0, values(1))
        with pytest.raises(ConnectionClosedError, match="whether all batches that were sent with acks=0 are written"):
            await producer.flush()
        await producer.send(P0, values(1, 1))
        await producer.flush()
        await producer.flush()
        producer.close()

    assert written(simulate(story), P0) == [1]


def test_a_connection_that_ends_after_a_flush_is_no_failure() -> None:
    ended = asyncio.Event()

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster, acks=0)
        await producer.send(P0, values(1))
        await producer.flush()
        ended.set()
        await asyncio.sleep(1)
        await producer.flush()
        await producer.send(P0, values(1, 1))
        await producer.flush()
        producer.close()

    async def tear(world: World, fake: FakeCluster) -> None:
        await ended.wait()
        world.network.reset("client", "b1")

    assert written(simulate(story, saboteur=tear), P0) == [0, 1]


# The connection


def post(connection: Connection, size: int, **options: Any) -> asyncio.Future[None]:
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(size))])
    return connection.post(ProduceRequest(acks=0, topic_data=[data]), 9, **options)


@pytest.mark.parametrize("with_uvloop", [False, True])
def test_a_post_is_done_when_the_kernel_has_taken_all(with_uvloop: bool) -> None:
    wanted = asyncio.Event()
    received: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wanted.wait()
        for _ in range(2):
            received.append(len(await next_frame(reader)))
        await reader.read()

    async def story(connection: Connection) -> None:
        posts = [post(connection, HUGE, timeout_ms=DEADLINE_S * 1000), post(connection, 1)]
        await asyncio.sleep(0)
        assert not any(posted.done() for posted in posts)
        wanted.set()
        await asyncio.gather(*posts)
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() == 0
        while len(received) < 2:
            await asyncio.sleep(0.001)

    run(serve, story, with_uvloop=with_uvloop)
    assert received[0] > HUGE


def test_a_post_that_is_not_taken_in_time_ends_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def story(connection: Connection) -> None:
        posted, behind = post(connection, HUGE, timeout_ms=50), post(connection, 1)
        with pytest.raises(RequestTimedOutError, match="did not take Produce within 50 ms") as failure:
            await posted
        assert failure.value.code is ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(ConnectionClosedError):
            await behind
        assert connection.closed

    run(serve, story)


@pytest.mark.parametrize("with_uvloop", [False, True])
def test_a_post_that_the_kernel_refuses_fails(with_uvloop: bool) -> None:
    """The buffer of the transport is empty then too."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def story(connection: Connection) -> None:
        assert connection._transport is not None
        number = os.dup(connection._transport.get_extra_info("socket").fileno())
        with socket.socket(fileno=number) as same:
            same.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionClosedError):
            await post(connection, 1)

    run(serve, story, with_uvloop=with_uvloop)


def test_what_the_kernel_has_taken_of_posts_arrives_though_the_connection_is_given_up() -> None:
    """A later request may have timed out; the posts before it count as written."""
    wanted, received = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wanted.wait()
        await next_frame(reader)
        received.set()

    async def story(connection: Connection) -> None:
        await post(connection, 100)
        connection.abort()
        assert connection.closed
        wanted.set()
        await received.wait()

    run(serve, story)


# The sink


@pytest.fixture
def broker() -> Iterator[FakeAdminBroker]:
    with served_broker() as broker:
        broker.add_topic("orders", 1)
        yield broker


def test_a_task_of_the_sink_ends_when_a_slow_broker_has_handled_its_rows(
    broker: FakeAdminBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stops before it handles the first batch, and goes on when the task waits for an answer."""
    posted, thawed = threading.Event(), threading.Event()

    def freeze(request: ProduceRequest) -> None:
        thawed.wait(DEADLINE_S)
        broker._produce(request)

    def noted_post(connection: Connection, *args: Any, **options: Any) -> asyncio.Future[None]:
        future = real_post(connection, *args, **options)
        posted.set()
        return future

    async def noted_flush(producer: Producer) -> None:
        thawed.set()
        await real_flush(producer)

    real_post, real_flush = Connection.post, Producer.flush
    monkeypatch.setattr(Connection, "post", noted_post)
    monkeypatch.setattr(Producer, "flush", noted_flush)
    broker.script[PRODUCE] = [freeze]

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array([b"%d" % number for number in range(1000)])], ["value"])
        assert posted.wait(DEADLINE_S)

    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": "orders",
        "kafka.acks": "0",
        "kafka.linger.ms": "0",
    }
    try:
        assert write_batches(write_options(options), batches()).record_count == 1000
        found = [
            int(record.value or b"")
            for data in broker.cluster.logs[TopicPartition("orders", 0)]
            for record in decode(data)
        ]
        assert found == list(range(1000))
    finally:
        thawed.set()

"""Producing through brokers that lose answers, are not the leader any more, or refuse: nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.clientkit import P0, P1, sabotage, simulate, values, written
from tests.kits.fake_broker import CLOSE, CLOSE_AFTER, SILENCE, FakeCluster, record_counts
from tidelog.client.batching import Batcher, BatchingSettings
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError, DeadlineError
from tidelog.client.produce import Produced, Producer
from tidelog.errors import ErrorCode, InvalidRecordError
from tidelog.net.calling import ConnectionClosedError
from tidelog.records.batch import decode
from tidelog.records.header import Codec, read_header
from tidelog.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

PRODUCE, METADATA, INIT_PRODUCER_ID = 0, 3, 22


def refusal(code: ErrorCode, **more: Any) -> Callable[[ProduceRequest], ProduceResponse]:
    def answer(request: ProduceRequest) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1, **more)
                        for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    return answer


def test_batches_of_many_partitions_share_requests_and_keep_their_order() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        futures = [producer.send(partition, values(2, 2 * n)) for n in range(8) for partition in (P0, P1)]
        assert await futures[0] == Produced(P0, 0, last_offset=1)
        assert await futures[3] == Produced(P1, 2, last_offset=3)
        await producer.flush()
        assert producer.outstanding_bytes == 0
        producer.close()

    fake = simulate(story)
    assert written(fake, P0) == written(fake, P1) == list(range(16))
    requests = fake.brokers[1].of_key(PRODUCE)
    assert len(requests) == 8
    assert len(fake.brokers[1].of_key(INIT_PRODUCER_ID)) == 1
    assert {request.acks for request in requests} == {-1}


@pytest.mark.parametrize("mishap", [CLOSE, CLOSE_AFTER, SILENCE])
def test_a_lost_answer_is_tried_again_and_nothing_is_written_twice(mishap: object) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [None, mishap]
        producer = Producer(cluster)
        futures = [producer.send(P0, values(1, n)) for n in range(10)]
        await producer.flush()
        assert [(await future).base_offset for future in futures] == list(range(10))
        producer.close()

    assert written(simulate(story), P0) == list(range(10))


def test_a_broker_that_leads_no_more_makes_metadata_anew() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        await producer.send(P0, values(1))
        fake.leaders[P0] = 2
        fake.leader_epochs[P0] = 1
        futures = [producer.send(P0, values(1, n)) for n in range(1, 8)]
        await producer.flush()
        assert [(await future).base_offset for future in futures] == list(range(1, 8))
        assert cluster.metadata.leader(P0) == 2
        producer.close()

    fake = simulate(story, brokers=2)
    assert written(fake, P0) == list(range(8))
    assert len(fake.brokers[1].of_key(METADATA)) + len(fake.brokers[2].of_key(METADATA)) <= 5


def test_what_is_refused_fails_and_what_is_behind_it_gets_through() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [None, refusal(ErrorCode.MESSAGE_TOO_LARGE)]
        producer = Producer(cluster)
        futures = [producer.send(P0, values(1, n)) for n in range(5)]
        await producer.flush()
        with pytest.raises(BrokerError, match="produce to orders-0: MESSAGE_TOO_LARGE") as failure:
            await futures[1]
        assert failure.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert [(await futures[n]).base_offset for n in (0, 2, 3, 4)] == [0, 1, 2, 3]
        producer.close()

    fake = simulate(story)
    assert written(fake, P0) == [0, 2, 3, 4]
    epochs = [read_header(batch).producer_epoch for batch in fake.logs[P0]]
    assert epochs == [0, 1, 1, 1]


def test_an_error_names_the_first_records_that_are_refused() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        errors = [
            BatchIndexAndErrorMessage(batch_index=n, batch_index_error_message="no key") for n in range(3, 99, 10)
        ]
        told = refusal(ErrorCode.INVALID_RECORD, error_message="10 of 100", record_errors=errors)
        fake.brokers[1].script[PRODUCE] = [told]
        producer = Producer(cluster)
        with pytest.raises(BrokerError) as failure:
            await producer.send(P0, values(1, 0))
        assert failure.value.message == (
            "10 of 100; record 3: no key; record 13: no key; record 23: no key; and 7 more records"
        )
        producer.close()

    simulate(story)


def test_a_late_duplicate_counts_as_written() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [refusal(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)]
        producer = Producer(cluster)
        assert (await producer.send(P0, values(1))).base_offset == -1
        producer.close()

    simulate(story)


def test_what_does_not_succeed_in_time_is_given_up() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [refusal(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000
        producer = Producer(cluster, delivery_timeout_ms=20_000)
        began = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineError, match="gave up after 20 s"):
            await producer.send(P0, values(1))
        assert asyncio.get_running_loop().time() - began == pytest.approx(20, abs=2)
        fake.brokers[1].script[PRODUCE] = []
        assert (await producer.send(P0, values(1))).base_offset == 0
        producer.close()

    simulate(story)


def test_the_time_for_delivery_counts_from_the_first_record_that_was_handed_over() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [refusal(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000
        producer = Producer(cluster, delivery_timeout_ms=20_000)
        batcher = Batcher(cluster, producer, "orders", BatchingSettings(linger_ms=10_000))
        began = asyncio.get_running_loop().time()
        future = await batcher.add(1, b"k", b"v")
        with pytest.raises(DeadlineError, match=r"orders-\d: gave up after 20 s \(delivery.timeout.ms\)"):
            await future
        assert asyncio.get_running_loop().time() - began == pytest.approx(20, abs=2)
        producer.close()

    simulate(story)


def test_a_partition_without_a_leader_is_waited_for() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.leaders[P0] = -1
        await cluster.refresh_once(["orders"])
        producer = Producer(cluster)
        future = producer.send(P0, values(1))
        await asyncio.sleep(5)
        assert not future.done()
        fake.leaders[P0] = 1
        assert (await future).base_offset == 0
        producer.close()

    simulate(story)


def test_acks_0_is_done_when_it_is_sent_and_acks_1_is_not_idempotent() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        hasty = Producer(cluster, acks=0)
        assert (await hasty.send(P0, values(1))).base_offset == -1
        plain = Producer(cluster, acks=1)
        assert (await plain.send(P0, values(1, 1))).base_offset == 1
        hasty.close()
        plain.close()

    fake = simulate(story)
    assert written(fake, P0) == [0, 1]
    assert not fake.brokers[1].of_key(INIT_PRODUCER_ID)
    assert {read_header(batch).producer_id for batch in fake.logs[P0]} == {-1}


def test_closing_fails_what_is_outstanding() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [SILENCE]
        producer = Producer(cluster)
        future = producer.send(P0, values(1))
        await asyncio.sleep(1)
        producer.close()
        with pytest.raises(ConnectionClosedError):
            await future
        with pytest.raises(ConnectionClosedError):
            await producer.send(P0, values(1))

    simulate(story)


def test_single_records_become_batches_by_key_and_by_size() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        settings = BatchingSettings(batch_size=500, linger_ms=50, compression=Codec.LZ4)
        batcher = Batcher(cluster, producer, "orders", settings)
        for number in range(100):
            await batcher.add(1, b"21" if number % 2 else b"foobar", b"%d" % number)
        futures = {await batcher.add(1, None, b"%d" % number) for number in range(100, 200)}
        await batcher.add(1, b"k", b"1000", [("h", b"1")], partition=1)
        with pytest.raises(InvalidRecordError, match="orders has partitions 0 to 1, not 2"):
            await batcher.add(1, b"k", b"v", partition=2)
        await batcher.flush()
        assert all(future.done() for future in futures)
        assert {(await future).partition for future in futures} == {P0, P1}
        producer.close()

    fake = simulate(story)
    assert sorted(written(fake, P0) + written(fake, P1)) == [*range(200), 1000]
    assert written(fake, P1)[-1] == 1000
    assert max(record_counts(fake, P0)) > 5
    assert {read_header(batch).codec for batch in fake.logs[P0]} == {Codec.LZ4}
    keys = {record.key for batch in fake.logs[P0] for record in decode(batch)}
    assert keys - {None} == {b"21", b"foobar"}


def test_a_batch_goes_when_it_has_lingered() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        batcher = Batcher(cluster, producer, "orders", BatchingSettings(linger_ms=100))
        first = await batcher.add(1, b"k", b"1")
        second = await batcher.add(1, b"k", b"2")
        assert first is second
        assert (await first).base_offset == 0
        producer.close()

    simulate(story)


@pytest.mark.parametrize("seed", range(12))
def test_no_trouble_on_the_network_writes_anything_twice_or_out_of_order(seed: int) -> None:
    """Connections are torn, links cut, and leaders moved at random, while 300 batches are written."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        futures = []
        for number in range(150):
            futures += [producer.send(partition, values(2, 2 * number)) for partition in (P0, P1)]
            await asyncio.sleep(cluster.random.random() * 0.05)
        await producer.flush()
        for number, future in enumerate(futures):
            assert (await future).base_offset == number // 2 * 2
        producer.close()

    fake = simulate(story, brokers=2, seed=seed, saboteur=sabotage)
    assert written(fake, P0) == written(fake, P1) == list(range(300))

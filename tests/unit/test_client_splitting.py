"""Batches above the topic's max.message.bytes: they are written in pieces, in order, each record once."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.kits.clientkit import P0, P1, sabotage, simulate, written
from tests.kits.fake_broker import CLOSE_AFTER, FakeCluster
from tests.kits.logkit import plain_rules
from tests.unit.test_client_produce import refusal
from tidelog.broker.write_rules import WriteRules, check
from tidelog.client.batching import Batcher, BatchingSettings
from tidelog.client.cluster import Cluster
from tidelog.client.column_batching import ColumnBatcher
from tidelog.client.errors import BrokerError
from tidelog.client.produce import Produced, Producer
from tidelog.client.sending import PartlyWrittenError, SizeLimits
from tidelog.errors import ErrorCode, RecordTooLargeError
from tidelog.records.batch import decode_into
from tidelog.records.build import build_batch
from tidelog.records.columns import Columns
from tidelog.records.header import Codec, read_header

PRODUCE = 0
codecs = pytest.mark.parametrize("codec", list(Codec))


def padded(number: int, size: int) -> bytes:
    """A number that takes so many bytes, of which compression saves few."""
    noise = random.Random(number).randbytes(size)
    return b"%d" % number + bytes(0x20 if byte < 128 else 0x09 for byte in noise)


def batch(start: int, count: int, size: int = 100, codec: Codec = Codec.NONE) -> memoryview:
    return build_batch([(1, None, padded(number, size)) for number in range(start, start + count)], codec=codec)


@codecs
def test_a_batch_that_is_too_large_is_written_in_pieces(codec: Codec) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.max_message_bytes["orders"] = 1000
        producer = Producer(cluster)
        assert await producer.send(P0, batch(0, 100, codec=codec)) == Produced(P0, 0, last_offset=99)
        assert producer.outstanding_bytes == 0
        producer.close()

    fake = simulate(story)
    assert written(fake, P0) == list(range(100))
    assert {read_header(data).codec for data in fake.logs[P0]} == {codec}
    assert {read_header(data).producer_epoch for data in fake.logs[P0]} == {0}, "no new epoch: nothing was lost"
    assert min(len(data) for data in fake.logs[P0][:-1]) > 250


def test_a_producer_without_sequences_splits_too() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.max_message_bytes["orders"] = 1000
        producer = Producer(cluster, acks=1)
        assert (await producer.send(P0, batch(0, 100))).last_offset == 99
        producer.close()

    fake = simulate(story)
    assert written(fake, P0) == list(range(100))
    assert {read_header(data).producer_id for data in fake.logs[P0]} == {-1}


def test_what_was_sent_behind_it_keeps_its_place_and_its_sequence() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        await producer.send(P0, batch(0, 1))
        fake.max_message_bytes["orders"] = 1000
        began_s = asyncio.get_running_loop().time()
        futures = [producer.send(P0, batch(start, count)) for start, count in [(1, 20), (21, 1), (22, 20), (42, 2)]]
        await producer.flush()
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s < cluster.settings.retry_backoff_ms / 1000 / 2, "there was nothing to wait for"
        assert [(await future)[1::2] for future in futures] == [(1, 20), (21, 21), (22, 41), (42, 43)]
        producer.close()

    fake = simulate(story)
    assert written(fake, P0) == list(range(44))
    headers = [read_header(data) for data in fake.logs[P0]]
    assert {header.producer_epoch for header in headers} == {0}
    assert [header.base_sequence for header in headers] == [header.base_offset for header in headers]


def test_a_record_that_is_too_large_fails_and_the_others_are_written() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.max_message_bytes["orders"] = 1000
        producer = Producer(cluster)
        sizes = [100] * 10 + [1500] + [100] * 10
        records = [(1, None, padded(number, size)) for number, size in enumerate(sizes)]
        future = producer.send(P0, build_batch(records))
        behind = producer.send(P0, batch(21, 3))
        alone = producer.send(P1, batch(0, 1, 2000))
        await producer.flush()
        with pytest.raises(PartlyWrittenError, match="1 of the 21 records that were sent together") as failure:
            await future
        assert failure.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert failure.value.produced == Produced(P0, 0, last_offset=19)
        assert failure.value.lost_count == 1
        told = (
            r"produce to orders-0: MESSAGE_TOO_LARGE \(one record makes a batch of 157\d bytes, and max.message.bytes"
        )
        assert failure.match(told)
        with pytest.raises(BrokerError, match=r"produce to orders-1: .* of topic orders is less"):
            await alone
        assert (await behind).last_offset == 22
        producer.close()

    fake = simulate(story)
    assert written(fake, P0) == [number for number in range(24) if number != 10]
    assert written(fake, P1) == []


def test_what_waits_is_not_sent_to_be_refused() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.max_message_bytes["orders"] = 1000
        producer = Producer(cluster)
        for start in range(0, 1000, 50):
            producer.send(P0, batch(start, 50))
        await producer.flush()
        producer.close()

    fake = simulate(story)
    assert written(fake, P0) == list(range(1000))
    assert len(fake.refused_bytes) <= 4, "the first batch is halved until it fits; the others are halved at once"


@codecs
def test_later_batches_are_made_smaller(codec: Codec) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.max_message_bytes["orders"] = 2000
        settings = BatchingSettings(batch_size=20_000, compression=codec, linger_ms=1)
        producer = Producer(cluster)
        batcher = Batcher(cluster, producer, "orders", settings)
        columns = ColumnBatcher(producer, settings)
        sizes = []
        for start in range(0, 4000, 1000):
            for number in range(start, start + 500):
                await batcher.add(1, None, padded(number, 100), partition=0)
            await batcher.flush()
            rows = Columns()
            decode_into(rows, batch(start + 500, 500))
            columns.add(P0, rows.finish())
            await columns.flush()
            sizes.append(len(fake.refused_bytes))
        assert sizes[0] >= 2
        assert sizes == sizes[:1] * 4, "once the size is known, nothing is refused"
        producer.close()

    fake = simulate(story)
    assert written(fake, P0) == list(range(4000))
    assert max(len(data) for data in fake.logs[P0][:-20]) > 1000, "they are not made much smaller than they need be"


def test_limits_are_by_topic_and_only_fall() -> None:
    limits = SizeLimits()
    assert not limits.refuse("a", 10**9)
    limits.refused("a", 1000)
    limits.refused("a", 5000)
    limits.was_split("a", 3000)
    limits.was_split("a", 9000)
    assert (limits.refuse("a", 999), limits.refuse("a", 1000), limits.refuse("b", 1000)) == (False, True, False)
    assert (limits.batch_bytes("a", 5000), limits.batch_bytes("a", 100), limits.batch_bytes("b", 5000)) == (
        1500,
        100,
        5000,
    )


ZEROS = build_batch([(1, None, bytes(5_000_000))], codec=Codec.ZSTD)


def words_of(rules: WriteRules) -> str:
    """What a broker with these rules says of the zeros."""
    with pytest.raises(RecordTooLargeError) as failure:
        check(ZEROS, rules, 0)
    return str(failure.value)


@pytest.mark.parametrize(
    ("words", "told", "is_noted"),
    [
        (words_of(plain_rules()), r"; .* see tidelog.batch.max.uncompressed.bytes and tidelog.batch.max.exp", False),
        (words_of(plain_rules(max_message_bytes=100)), r", and max.message.bytes of topic orders is less; ", True),
        (None, r"; max.message.bytes of topic orders is less than that, or than what the broker makes of it\)", False),
    ],
)
def test_a_limit_is_noted_only_if_the_size_of_a_compressed_batch_is_refused(
    words: str | None, told: str, is_noted: bool
) -> None:
    """One record of zeros that decompresses too far must not make all later batches of the topic tiny."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[PRODUCE] = [refusal(ErrorCode.MESSAGE_TOO_LARGE, error_message=words)]
        producer = Producer(cluster)
        with pytest.raises(BrokerError, match=rf"\(one record makes a batch of {len(ZEROS)} bytes{told}") as failure:
            await producer.send(P0, memoryview(bytearray(ZEROS)))
        assert is_noted == producer.limits.refuse("orders", len(ZEROS))
        assert ("max.message.bytes" in str(failure.value)) == (words is None or is_noted)
        await producer.send(P0, batch(0, 100, codec=Codec.ZSTD))
        producer.close()

    assert (len(simulate(story).logs[P0]) > 1) == is_noted


def test_what_may_be_written_already_is_not_written_in_pieces() -> None:
    """The broker writes a batch and its answer is lost; then max.message.bytes is lowered below the batch's size."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        await producer.send(P0, batch(0, 1))
        fake.brokers[1].script[PRODUCE] = [CLOSE_AFTER]
        lost = producer.send(P0, batch(1, 100))
        await asyncio.sleep(0.05)
        assert written(fake, P0) == list(range(101))
        fake.max_message_bytes["orders"] = 1000
        with pytest.raises(BrokerError, match="whether it is written is unknown"):
            await lost
        assert (await producer.send(P0, batch(101, 1))).base_offset == 101
        producer.close()

    assert written(simulate(story), P0) == list(range(102))


def test_an_unanswered_attempt_alone_does_not_keep_a_batch_from_being_split() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.max_message_bytes["orders"] = 1000
        fake.brokers[1].script[PRODUCE] = [CLOSE_AFTER, CLOSE_AFTER]
        producer = Producer(cluster)
        assert (await producer.send(P0, batch(0, 30))).last_offset == 29
        producer.close()

    assert written(simulate(story), P0) == list(range(30))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_sizes_and_limits_each_record_is_written_once_in_order(seed: int) -> None:
    """Two partitions with batches of any size, a limit that changes, and half of the time a network in trouble."""
    chance = random.Random(seed)
    codec = chance.choice(list(Codec))
    largest = chance.choice([20, 200, 1000])

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.max_message_bytes["orders"] = 200 + largest + chance.randrange(largest)
        producer = Producer(cluster)
        numbers = {P0: 0, P1: 0}
        for _ in range(80):
            partition = chance.choice([P0, P1])
            count = chance.choice([1, 2, 10, 60])
            sizes = [chance.randrange(0, largest) for _ in range(count)]
            start = numbers[partition]
            numbers[partition] += count
            records = [(1, None, padded(start + place, size)) for place, size in enumerate(sizes)]
            producer.send(partition, build_batch(records, codec=codec))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.1)
            if chance.random() < 0.1 and seed % 2:
                fake.max_message_bytes["orders"] = 200 + largest + chance.randrange(largest)
        await producer.flush()
        for partition, count in numbers.items():
            assert written(fake, partition) == list(range(count))
        producer.close()

    fake = simulate(story, brokers=2, seed=seed, saboteur=None if seed % 2 else sabotage)
    assert fake.refused_bytes

"""Cases about records: what is written is what is stored and what is read."""

from __future__ import annotations

import random
from typing import Any

from cases import Case, Table
from driver import EARLIEST, MESSAGE_TOO_LARGE, UNKNOWN_TOPIC_OR_PARTITION, Reading, Record, Sending
from scene import Scene, now_ms
from stored import CODECS
from targets import AUTO_CREATE

TABLE = Table()
_HOUR_MS = 3_600_000


def some_records(count: int, size: int = 100) -> list[Record]:
    """With keys, values that compress, and no headers."""
    return [Record(b"key-%d" % index, (b"value-%d " % index).ljust(size, b".")) for index in range(count)]


def contents(records: list[Record]) -> list[Any]:
    return [record.content for record in records]


def round_trip(scene: Scene[Any], records: list[Record], sending: Sending, **config: str | int) -> list[Record]:
    """Written and read back by the client: the contents, the offsets and their order are right."""
    topic = scene.topic(**config)
    offsets = scene.client.produce(topic, records, sending)
    found: list[Record] = scene.client.consume([(topic, 0, EARLIEST)], len(records))
    assert contents(found) == contents(records)
    assert [record.offset for record in found] == list(range(len(records)))
    assert all(offset in (-1, index) for index, offset in enumerate(offsets)), offsets
    batches = scene.batches(topic)
    assert {batch.magic for batch in batches} == {2}
    assert {batch.codec for batch in batches} == {sending.codec}
    return found


def _codec(codec: str) -> Case:
    def play(scene: Scene[Any]) -> None:
        round_trip(scene, some_records(40), Sending(codec=codec))

    title = "not compressed" if codec == "none" else codec
    return Case(f"codec-{codec}", "Records", f"{title}: written, stored as such, read", play)


TABLE.cases += [_codec(codec) for codec in CODECS]


@TABLE.case("Records", "recompressed by the broker (compression.type)")
def broker_side_codec(scene: Scene[Any]) -> None:
    topic = scene.topic(compression_type="zstd")
    records = some_records(40)
    scene.client.produce(topic, records, Sending(codec="gzip"))
    assert contents(scene.client.consume([(topic, 0, EARLIEST)], 40)) == contents(records)
    assert {batch.codec for batch in scene.batches(topic)} == {"zstd"}


@TABLE.case("Records", "headers: several, repeated, in order")
def headers(scene: Scene[Any]) -> None:
    repeated = (("a", b"1"), ("b", b"two"), ("a", b"3"))
    round_trip(
        scene, [Record(b"k", b"v1", repeated), Record(b"k", b"v2"), Record(b"k", b"v3", (("c", b"4"),))], Sending()
    )


@TABLE.case("Records", "headers: null and empty values")
def null_header(scene: Scene[Any]) -> None:
    round_trip(scene, [Record(b"k", b"v", (("none", None), ("empty", b"")))], Sending())


@TABLE.case("Records", "null keys")
def null_keys(scene: Scene[Any]) -> None:
    round_trip(scene, [Record(None, b"one"), Record(None, b"two"), Record(b"key", b"three")], Sending())


@TABLE.case("Records", "null values (tombstones)")
def null_values(scene: Scene[Any]) -> None:
    round_trip(scene, [Record(b"key", None), Record(b"key", b"after")], Sending())


@TABLE.case("Records", "empty keys and values")
def empty_values(scene: Scene[Any]) -> None:
    round_trip(scene, [Record(b"key", b""), Record(b"", b"value"), Record(b"key", b"after")], Sending())


@TABLE.case("Records", "a record of 1 MB")
def one_megabyte(scene: Scene[Any]) -> None:
    value = random.Random(4).randbytes(1_000_000)
    round_trip(scene, [Record(None, value)], Sending())


@TABLE.case("Records", "a record of 1 MB, compressed")
def one_megabyte_zstd(scene: Scene[Any]) -> None:
    round_trip(scene, [Record(None, b"0123456789" * 100_000)], Sending(codec="zstd"))


@TABLE.case("Records", "5,000 records in many batches keep their order")
def many_batches(scene: Scene[Any]) -> None:
    topic = scene.topic()
    records = some_records(5000, size=60)
    scene.client.produce(topic, records, Sending(acks="1", linger_ms=0))
    found = scene.client.consume([(topic, 0, EARLIEST)], 5000)
    assert [record.offset for record in found] == list(range(5000))
    assert contents(found) == contents(records)


@TABLE.case("Records", "one producer and one consumer over 100 partitions")
def hundred_partitions(scene: Scene[Any]) -> None:
    topic = scene.topic(partitions=100)
    scene.client.produce(topic, [Record(b"k", b"in %d" % number, partition=number) for number in range(100)])
    found = scene.client.consume([(topic, number, EARLIEST) for number in range(100)], 100)
    assert sorted((record.partition, record.offset, record.value) for record in found) == [
        (number, 0, b"in %d" % number) for number in range(100)
    ]


@TABLE.case("Records", "many topics in one fetch")
def many_topics(scene: Scene[Any]) -> None:
    topics = [scene.name() for _ in range(20)]
    scene.create(topics, 2, {})
    for topic in topics:
        scene.feed(topic, [Record(None, topic.encode(), partition=number) for number in (0, 1)])
    places = [(topic, number, 0) for topic in topics for number in (0, 1)]
    found = scene.client.consume(places, 40)
    assert sorted((record.topic, record.partition) for record in found) == sorted(place[:2] for place in places)
    assert all(record.value == record.topic.encode() for record in found)


@TABLE.case("Timestamps", "CreateTime: as the client gave them")
def create_time(scene: Scene[Any]) -> None:
    base = now_ms() - _HOUR_MS
    given = [Record(b"k", b"v", timestamp=base + ms) for ms in (5, 9, 0, 7)]
    topic = scene.topic()
    scene.client.produce(topic, given)
    found = scene.client.consume([(topic, 0, EARLIEST)], 4)
    assert [record.timestamp for record in found] == [record.timestamp for record in given]
    assert not any(record.log_append_time for record in found)
    assert max(batch.max_timestamp for batch in scene.batches(topic)) == base + 9


@TABLE.case("Timestamps", "LogAppendTime: as the broker stored them")
def log_append_time(scene: Scene[Any]) -> None:
    topic = scene.topic(message_timestamp_type="LogAppendTime")
    before = now_ms()
    scene.client.produce(topic, [Record(b"k", b"v", timestamp=before - _HOUR_MS) for _ in range(3)])
    found = scene.client.consume([(topic, 0, EARLIEST)], 3)
    assert all(record.log_append_time for record in found)
    assert all(before <= record.timestamp <= now_ms() for record in found)
    assert all(batch.log_append_time for batch in scene.batches(topic))


def _acks(acks: str) -> Case:
    def play(scene: Scene[Any]) -> None:
        topic = scene.topic()
        offsets = scene.client.produce(topic, some_records(10), Sending(acks=acks))
        assert contents(scene.client.consume([(topic, 0, EARLIEST)], 10)) == contents(some_records(10))
        if acks != "0":
            assert offsets in ([-1] * 10, list(range(10)))
        assert {batch.producer_id for batch in scene.batches(topic)} == {-1}

    return Case(f"acks-{acks}", "Producing", f"acks={acks}", play)


TABLE.cases += [_acks(acks) for acks in ("0", "1", "all")]


@TABLE.case("Producing", "idempotent: one producer id, sequences without a gap")
def idempotent(scene: Scene[Any]) -> None:
    topic = scene.topic()
    records = some_records(300, size=1000)
    scene.client.produce(topic, records, Sending(idempotent=True, linger_ms=0))
    assert contents(scene.client.consume([(topic, 0, EARLIEST)], 300)) == contents(records)
    batches = scene.batches(topic)
    (producer_id,) = {batch.producer_id for batch in batches}
    assert producer_id >= 0
    assert {batch.producer_epoch for batch in batches} == {0}
    assert [batch.base_sequence for batch in batches] == [batch.base_offset for batch in batches]


@TABLE.case("Producing", "each idempotent producer has an id of its own")
def two_idempotent(scene: Scene[Any]) -> None:
    topic = scene.topic()
    for _ in range(2):
        scene.client.produce(topic, some_records(3), Sending(idempotent=True))
    assert len({batch.producer_id for batch in scene.batches(topic)}) == 2
    assert len(scene.client.consume([(topic, 0, EARLIEST)], 6)) == 6


@TABLE.case("Producing", "a topic is created by asking for it (auto.create.topics.enable)", server=AUTO_CREATE)
def auto_create(scene: Scene[Any]) -> None:
    topic = scene.name()
    scene.client.produce(topic, [Record(b"k", b"v", partition=2)])
    assert scene.leaders(topic) == [1, 1, 1]
    assert contents(scene.client.consume([(topic, 2, EARLIEST)], 1)) == [(b"k", b"v", ())]


@TABLE.case("Errors", "produce to an unknown topic")
def produce_to_unknown_topic(scene: Scene[Any]) -> None:
    scene.fails(UNKNOWN_TOPIC_OR_PARTITION, lambda: scene.client.produce("nobody-made-this", some_records(1)))
    assert scene.leaders("nobody-made-this") == []


@TABLE.case("Errors", "message too large")
def message_too_large(scene: Scene[Any]) -> None:
    topic = scene.topic(max_message_bytes=2000)
    value = random.Random(4).randbytes(10_000)
    scene.fails(MESSAGE_TOO_LARGE, lambda: scene.client.produce(topic, [Record(None, value)]))
    scene.client.produce(topic, some_records(1))
    assert contents(scene.client.consume([(topic, 0, 0)], 1, Reading())) == contents(some_records(1))

"""What a topic demands of batches, without a broker around it."""

from __future__ import annotations

import random

import pytest

from tests.kits.logkit import batch, marker, plain_rules
from tidelog.broker.topic_config import write_rules
from tidelog.broker.write_rules import UNBOUNDED_MS, HeavyBatchError, WriteRules, check, codec_of
from tidelog.config.broker import BrokerConfig
from tidelog.config.topic import topic_config
from tidelog.errors import CorruptBatchError, ErrorCode, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from tidelog.records.batch import decode
from tidelog.records.build import build_batch
from tidelog.records.header import Codec, read_header, seal
from tidelog.records.validate import MAX_RECORD_ERRORS, validate

NOW = 1_700_000_000_000
BROKER = BrokerConfig.load({"broker.id": "1", "log.dirs": "/data"})


def test_a_plain_topic_takes_a_batch_as_it_is() -> None:
    data = batch([b"a", b"b"])
    checked = check(data, plain_rules(), NOW)
    assert checked.batch is data
    assert checked.header.record_count == 2


@pytest.mark.parametrize("data", [None, b"", batch() + batch(), marker(1, abort=True), batch(base_offset=5)])
def test_invalid_records(data: bytes | None) -> None:
    with pytest.raises(InvalidRecordError):
        check(data, plain_rules(), NOW)


def test_corrupt_ones() -> None:
    for data in (b"x", batch()[:-1], batch()[:60]):
        with pytest.raises(CorruptBatchError):
            check(data, plain_rules(), NOW)


@pytest.mark.parametrize(
    ("timestamp", "is_taken"),
    [(NOW, True), (NOW - 100, True), (NOW - 101, False), (NOW + 50, True), (NOW + 51, False), (-1, True)],
)
def test_timestamps(timestamp: int, is_taken: bool) -> None:
    rules = plain_rules(timestamp_before_max_ms=100, timestamp_after_max_ms=50)
    if is_taken:
        check(batch(timestamp=timestamp), rules, NOW)
    else:
        with pytest.raises(InvalidTimestampError):
            check(batch(timestamp=timestamp), rules, NOW)


def test_no_bound_is_no_bound() -> None:
    rules = plain_rules(timestamp_before_max_ms=UNBOUNDED_MS, timestamp_after_max_ms=UNBOUNDED_MS, needs_keys=True)
    check(batch([b"v"], keys=[b"k"], timestamp=2**60), rules, NOW)
    check(batch([b"v"], keys=[b"k"], timestamp=0), rules, NOW)


def test_append_time_does_not_look_at_the_producers_times() -> None:
    rules = plain_rules(append_time=True, timestamp_before_max_ms=0, timestamp_after_max_ms=0)
    for data in (batch([b"a", b"b"], timestamp=0), bytearray(batch([b"a", b"b"], timestamp=0))):
        stamped = check(data, rules, NOW).stamped(NOW + 7)
        assert [record.timestamp for record in decode(stamped.batch)] == [NOW + 7, NOW + 7]
        assert validate(stamped.batch) == stamped.header, "its CRC is right again"
        assert stamped.header.uses_log_append_time


def test_append_time_leaves_bytes_that_are_not_ours_alone() -> None:
    data = batch([b"a"], timestamp=0)
    before = bytes(data)
    for kind in (data, memoryview(data)):
        check(kind, plain_rules(append_time=True), NOW).stamped(NOW)
    assert data == before


@pytest.mark.parametrize("wanted", list(Codec))
@pytest.mark.parametrize("sent", list(Codec))
def test_every_codec_to_every_other(sent: Codec, wanted: Codec) -> None:
    data = batch([b"v" * 50] * 4, keys=[b"k"] * 4, codec=sent, producer_id=3, producer_epoch=1, base_sequence=9)
    checked = check(data, plain_rules(codec=wanted, append_time=True, needs_keys=True), NOW).stamped(NOW)
    header = read_header(checked.batch)
    assert (header.codec, header.producer_id, header.producer_epoch, header.base_sequence) == (wanted, 3, 1, 9)
    assert validate(checked.batch).record_count == 4
    assert [record.value for record in decode(checked.batch)] == [b"v" * 50] * 4
    assert codec_of(checked.batch) is wanted


@pytest.mark.parametrize("sent", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("wanted", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_what_the_topics_own_codec_makes_too_large_is_refused_at_once(sent: Codec, wanted: Codec) -> None:
    """It is not kept until somebody tries to append it: a small batch may have become sixty megabytes."""
    data = batch([b"a repeated value " * 500, random.Random(1).randbytes(500)], codec=sent)
    size = len(check(data, plain_rules(codec=wanted), NOW).batch)
    limit = max(len(data), size)
    check(data, plain_rules(codec=wanted, max_message_bytes=limit), NOW)
    if size > len(data):
        with pytest.raises(RecordTooLargeError, match="the topic's compression"):
            check(data, plain_rules(codec=wanted, max_message_bytes=size - 1), NOW)


def noise(size: int, codec: Codec = Codec.NONE) -> bytes:
    """A batch of about so many bytes, compressed or not."""
    return batch([random.Random(1).randbytes(size)], codec=codec)


@pytest.mark.parametrize(
    ("data", "rules", "is_heavy"),
    [
        (noise(2_000_000), plain_rules(max_message_bytes=10**7), False),
        (noise(2_200_000), plain_rules(max_message_bytes=10**7), True),
        (noise(60_000, Codec.LZ4), plain_rules(), False),
        (noise(70_000, Codec.LZ4), plain_rules(), True),
        (noise(30_000, Codec.ZSTD), plain_rules(), False),
        (noise(40_000, Codec.ZSTD), plain_rules(), True),
        (noise(40_000, Codec.GZIP), plain_rules(), True),
        (batch([bytes(200_000)], codec=Codec.GZIP), plain_rules(), False),
        (batch([bytes(300_000)], codec=Codec.GZIP), plain_rules(), True),
        (noise(10_000), plain_rules(codec=Codec.ZSTD), False),
        (noise(20_000), plain_rules(codec=Codec.ZSTD), True),
        (noise(20_000), plain_rules(codec=Codec.NONE), False),
        (batch([bytes(10_000)], codec=Codec.LZ4), plain_rules(codec=Codec.ZSTD), False),
        (batch([bytes(20_000)], codec=Codec.LZ4), plain_rules(codec=Codec.ZSTD), True),
        (batch([bytes(200_000)], codec=Codec.LZ4), plain_rules(codec=Codec.NONE), False),
    ],
)
def test_what_takes_long_is_not_checked_on_the_loop(data: bytes, rules: WriteRules, is_heavy: bool) -> None:
    if is_heavy:
        with pytest.raises(HeavyBatchError):
            check(data, rules, NOW, on_loop=True)
    else:
        check(data, rules, NOW, on_loop=True)
    check(data, rules, NOW)


def test_a_batch_is_tried_with_little_room_first() -> None:
    data = batch([bytes(900_000)], codec=Codec.ZSTD)
    with pytest.raises(HeavyBatchError):
        check(data, plain_rules(), NOW, most_bytes=800_000)
    check(data, plain_rules(), NOW, most_bytes=1_000_000)
    with pytest.raises(RecordTooLargeError):
        check(data, plain_rules(max_message_bytes=1000, max_expansion_ratio=1), NOW, most_bytes=800_000)


def test_codec_of_something_short_or_strange() -> None:
    assert codec_of(b"x" * 22) is None
    assert codec_of(b"\x07" * 30) is None


def test_a_compacted_topic_needs_keys() -> None:
    rules = plain_rules(needs_keys=True)
    check(batch([b"v", None], keys=[b"k", b"k"]), rules, NOW)
    with pytest.raises(InvalidRecordError, match="1 of 2"):
        check(batch([b"v", b"v"], keys=[b"k", None]), rules, NOW)


def test_the_rules_of_a_topic() -> None:
    rules = write_rules(
        topic_config(
            BROKER,
            {
                "cleanup.policy": "compact",
                "compression.type": "gzip",
                "compression.gzip.level": "3",
                "message.timestamp.type": "LogAppendTime",
                "message.timestamp.before.max.ms": "5",
                "message.timestamp.after.max.ms": "6",
                "min.insync.replicas": "2",
            },
        )
    )
    assert rules == plain_rules(
        min_insync_replicas=2,
        needs_keys=True,
        append_time=True,
        codec=Codec.GZIP,
        compression_level=3,
        timestamp_before_max_ms=5,
        timestamp_after_max_ms=6,
        may_delete_records=False,
    )
    plain = write_rules(topic_config(BROKER, {}))
    assert (plain.codec, plain.needs_keys, plain.may_delete_records) == (None, False, True)
    both = write_rules(topic_config(BROKER, {"cleanup.policy": "compact,delete"}))
    assert (both.needs_keys, both.may_delete_records) == (True, True)


# Which records are refused


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_records_without_a_key_are_named(codec: Codec) -> None:
    lacking = [number for number in range(100) if number % 10 == 3]
    records = [(NOW, None if number in lacking else b"k", b"v") for number in range(100)]
    with pytest.raises(InvalidRecordError, match="10 of 100 records have no key") as refused:
        check(build_batch(records, codec=codec), plain_rules(needs_keys=True), NOW)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.value.record_errors] == lacking
    assert {error.message for error in refused.value.record_errors} == {
        "Compacted topic cannot accept message without key"
    }


@pytest.mark.parametrize(
    ("timestamps", "lacking"),
    [([NOW, NOW + 51, NOW - 101, -1], [1, 2]), ([NOW - 101, NOW - 100, NOW + 50], [0]), ([NOW, NOW + 10**15], [1])],
)
def test_the_records_out_of_time_are_named(timestamps: list[int], lacking: list[int]) -> None:
    rules = plain_rules(timestamp_before_max_ms=100, timestamp_after_max_ms=50)
    with pytest.raises(InvalidTimestampError) as refused:
        check(build_batch([(timestamp, b"k", b"v") for timestamp in timestamps]), rules, NOW)
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in refused.value.record_errors] == lacking
    number = lacking[0]
    assert refused.value.record_errors[0].message == (
        f"Timestamp {timestamps[number]} of message with offset {number} is out of range. "
        f"The timestamp should be within [{NOW - 100}, {NOW + 50}]"
    )


def test_a_batch_with_both_faults_names_both() -> None:
    """As in Kafka the code is INVALID_TIMESTAMP as soon as one of the records is out of time."""
    rules = plain_rules(timestamp_after_max_ms=50, needs_keys=True)
    with pytest.raises(InvalidTimestampError) as refused:
        check(build_batch([(NOW, None, b"v"), (NOW, b"k", b"v"), (NOW + 51, b"k", b"v")]), rules, NOW)
    assert [error.batch_index for error in refused.value.record_errors] == [0, 2]


def test_a_refusal_names_only_so_many_records() -> None:
    """A batch of a few kilobytes may hold millions of records, each of which would get a message."""
    count = MAX_RECORD_ERRORS + 5
    with pytest.raises(InvalidRecordError, match=f"{count} of {count} records") as refused:
        check(build_batch([(NOW, None, b"")] * count, codec=Codec.ZSTD), plain_rules(needs_keys=True), NOW)
    assert len(refused.value.record_errors) == MAX_RECORD_ERRORS


def with_header(data: bytes, place: int, value: int, size: int = 8) -> bytearray:
    """The batch with another number in its header, and the CRC of that."""
    changed = bytearray(data)
    changed[place : place + size] = value.to_bytes(size, "big", signed=True)
    seal(changed)
    return changed


@pytest.mark.parametrize("said", [NOW + 10**9, 0, -1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_the_largest_timestamp_is_that_of_the_records_whatever_the_header_says(codec: Codec, said: int) -> None:
    """As in Kafka: what a client writes there is not believed, and not refused."""
    data = with_header(build_batch([(NOW, b"k", b"v"), (NOW - 9, b"k", b"v")], codec=codec), 35, said)
    checked = check(data, plain_rules(timestamp_after_max_ms=50, timestamp_before_max_ms=50), NOW)
    assert validate(checked.batch) == checked.header
    assert checked.header.max_timestamp == NOW


def test_a_client_does_not_decide_that_a_topic_has_append_time() -> None:
    """Kafka refuses the flag where the topic has append time, and takes it away where it has not."""
    data = build_batch([(NOW - 5, b"k", b"v")], log_append_time_ms=NOW + 9)
    checked = check(data, plain_rules(), NOW)
    assert not validate(checked.batch).uses_log_append_time
    assert [record.timestamp for record in decode(checked.batch)] == [NOW - 5]
    data = build_batch([(NOW - 5, b"k", b"v")], log_append_time_ms=NOW + 9)
    with pytest.raises(InvalidTimestampError):
        check(data, plain_rules(append_time=True), NOW)

"""What a topic demands of batches, without a broker around it."""

from __future__ import annotations

import pytest

from tests.logkit import batch, marker
from tidelog.broker.topic_config import log_config, write_rules
from tidelog.broker.write_rules import UNBOUNDED_MS, InvalidTimestampError, WriteRules, check, codec_of
from tidelog.config.broker import BrokerConfig
from tidelog.config.topic import topic_config
from tidelog.errors import CorruptBatchError, InvalidRecordError
from tidelog.records.batch import decode
from tidelog.records.header import Codec, read_header

NOW = 1_700_000_000_000
BROKER = BrokerConfig.load({"broker.id": "1", "log.dirs": "/data"})


def test_a_plain_topic_takes_a_batch_as_it_is() -> None:
    data = batch([b"a", b"b"])
    checked = check(data, WriteRules(), NOW)
    assert checked.batch is data
    assert (checked.header.record_count, checked.append_time_ms) == (2, -1)
    assert WriteRules().is_plain


@pytest.mark.parametrize(
    "rules",
    [
        WriteRules(needs_keys=True),
        WriteRules(append_time=True),
        WriteRules(codec=Codec.NONE),
        WriteRules(timestamp_before_max_ms=1),
        WriteRules(timestamp_after_max_ms=1),
    ],
)
def test_rules_that_are_not_plain(rules: WriteRules) -> None:
    assert not rules.is_plain


@pytest.mark.parametrize("data", [None, b"", batch() + batch(), marker(1, abort=True), batch(base_offset=5)])
def test_invalid_records(data: bytes | None) -> None:
    with pytest.raises(InvalidRecordError):
        check(data, WriteRules(), NOW)


def test_corrupt_ones() -> None:
    for data in (b"x", batch()[:-1], batch()[:60]):
        with pytest.raises(CorruptBatchError):
            check(data, WriteRules(), NOW)


@pytest.mark.parametrize(
    ("timestamp", "is_taken"),
    [(NOW, True), (NOW - 100, True), (NOW - 101, False), (NOW + 50, True), (NOW + 51, False), (-1, True)],
)
def test_timestamps(timestamp: int, is_taken: bool) -> None:
    rules = WriteRules(timestamp_before_max_ms=100, timestamp_after_max_ms=50)
    if is_taken:
        check(batch(timestamp=timestamp), rules, NOW)
    else:
        with pytest.raises(InvalidTimestampError):
            check(batch(timestamp=timestamp), rules, NOW)


def test_no_bound_is_no_bound() -> None:
    rules = WriteRules(timestamp_before_max_ms=UNBOUNDED_MS, timestamp_after_max_ms=UNBOUNDED_MS, needs_keys=True)
    check(batch([b"v"], keys=[b"k"], timestamp=2**60), rules, NOW)
    check(batch([b"v"], keys=[b"k"], timestamp=0), rules, NOW)


def test_append_time_does_not_look_at_the_producers_times() -> None:
    rules = WriteRules(append_time=True, timestamp_before_max_ms=0, timestamp_after_max_ms=0)
    for data in (batch([b"a", b"b"], timestamp=0), bytearray(batch([b"a", b"b"], timestamp=0))):
        checked = check(data, rules, NOW)
        assert checked.append_time_ms == NOW
        assert [record.timestamp for record in decode(checked.batch)] == [NOW, NOW]
        assert check(checked.batch, WriteRules(), NOW).header.uses_log_append_time, "its CRC is right again"


def test_append_time_leaves_bytes_that_are_not_ours_alone() -> None:
    data = batch([b"a"], timestamp=0)
    before = bytes(data)
    check(data, WriteRules(append_time=True), NOW)
    check(memoryview(data), WriteRules(append_time=True), NOW)
    assert data == before


@pytest.mark.parametrize("wanted", list(Codec))
@pytest.mark.parametrize("sent", list(Codec))
def test_every_codec_to_every_other(sent: Codec, wanted: Codec) -> None:
    data = batch([b"v" * 50] * 4, keys=[b"k"] * 4, codec=sent, producer_id=3, producer_epoch=1, base_sequence=9)
    checked = check(data, WriteRules(codec=wanted, append_time=True, needs_keys=True), NOW)
    header = read_header(checked.batch)
    assert (header.codec, header.producer_id, header.producer_epoch, header.base_sequence) == (wanted, 3, 1, 9)
    assert check(checked.batch, WriteRules(), NOW).header.record_count == 4
    assert [record.value for record in decode(checked.batch)] == [b"v" * 50] * 4
    assert codec_of(checked.batch) is wanted


def test_codec_of_something_short_or_strange() -> None:
    assert codec_of(b"x" * 22) is None
    assert codec_of(b"\x07" * 30) is None


def test_a_compacted_topic_needs_keys() -> None:
    rules = WriteRules(needs_keys=True)
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
    assert rules == WriteRules(2, True, True, Codec.GZIP, 3, 5, 6, may_delete_records=False)
    plain = write_rules(topic_config(BROKER, {}))
    assert (plain.codec, plain.needs_keys, plain.may_delete_records) == (None, False, True)
    both = write_rules(topic_config(BROKER, {"cleanup.policy": "compact,delete"}))
    assert (both.needs_keys, both.may_delete_records) == (True, True)


def test_the_log_of_a_topic() -> None:
    config = log_config(
        topic_config(BROKER, {"retention.ms": "5", "segment.bytes": "1048577", "cleanup.policy": "compact"})
    )
    assert (config.retention_ms, config.segment_bytes) == (5, 1048577)
    assert (config.cleanup_compact, config.cleanup_delete) == (True, False)

"""Topics: what they override, what the broker gives, what they become for logs and writers."""

from __future__ import annotations

import pytest

from tidelog.broker.topic_config import write_rules
from tidelog.config.broker import BrokerConfig
from tidelog.config.errors import ConfigError
from tidelog.config.topic import NAMES, TopicConfig, default_topic, topic_config, validate_topic
from tidelog.records.header import Codec


def topic(overrides: dict[str, str] | None = None, **broker: str) -> TopicConfig:
    properties = {name.replace("_", "."): text for name, text in broker.items()}
    return topic_config(BrokerConfig.load({"broker.id": "1"} | properties), overrides or {})


def test_defaults() -> None:
    assert topic() == default_topic()
    assert write_rules(topic()).is_plain
    assert len(NAMES) == 36


@pytest.mark.parametrize(
    ("broker", "name", "value"),
    [
        ({}, "retention.ms", 604_800_000),
        ({"log_retention_hours": "1"}, "retention.ms", 3_600_000),
        ({"log_retention_hours": "1", "log_retention_minutes": "2"}, "retention.ms", 120_000),
        ({"log_retention_minutes": "2", "log_retention_ms": "3"}, "retention.ms", 3),
        ({"log_retention_hours": "-1"}, "retention.ms", -1),
        ({"log_roll_hours": "2"}, "segment.ms", 7_200_000),
        ({"log_roll_jitter_hours": "1", "log_roll_jitter_ms": "5"}, "segment.jitter.ms", 5),
        ({"log_flush_scheduler_interval_ms": "7"}, "flush.ms", 7),
        ({"log_flush_scheduler_interval_ms": "7", "log_flush_interval_ms": "8"}, "flush.ms", 8),
        ({"message_max_bytes": "9"}, "max.message.bytes", 9),
        ({"log_cleanup_policy": "compact,delete"}, "cleanup.policy", ("compact", "delete")),
        ({"min_insync_replicas": "2"}, "min.insync.replicas", 2),
    ],
)
def test_what_the_broker_gives(broker: dict[str, str], name: str, value: object) -> None:
    assert topic(**broker)[name] == value


def test_the_topic_comes_first_and_what_cannot_be_read_is_not_there() -> None:
    config = topic({"retention.ms": "5", "segment.bytes": "tiny", "unknown": "1"}, log_retention_ms="9")
    assert config.retention_ms == 5
    assert config.segment_bytes == 1 << 30


def test_what_a_log_and_a_writer_are_told() -> None:
    config = topic(
        {
            "cleanup.policy": "compact",
            "compression.type": "gzip",
            "compression.gzip.level": "4",
            "message.timestamp.type": "LogAppendTime",
            "message.timestamp.before.max.ms": "10",
            "min.insync.replicas": "2",
            "segment.bytes": "1000",
        },
        producer_id_expiration_ms="77",
        tidelog_batch_max_uncompressed_bytes="2000000",
        tidelog_batch_max_expansion_ratio="30",
    )
    assert (config.segment_bytes, config.compacted, config.deletes) == (1000, True, False)
    assert config.producer_id_expiration_ms == 77
    rules = write_rules(config)
    assert (rules.min_insync_replicas, rules.needs_keys, rules.append_time) == (2, True, True)
    assert (rules.codec, rules.compression_level, rules.timestamp_before_max_ms) == (Codec.GZIP, 4, 10)
    assert (rules.max_uncompressed_bytes, rules.max_expansion_ratio) == (2_000_000, 30)


@pytest.mark.parametrize(
    ("name", "codec", "level"),
    [
        ("producer", None, None),
        ("uncompressed", Codec.NONE, None),
        ("gzip", Codec.GZIP, None),
        ("snappy", Codec.SNAPPY, None),
        ("lz4", Codec.LZ4, 9),
        ("zstd", Codec.ZSTD, 3),
    ],
)
def test_codecs(name: str, codec: Codec | None, level: int | None) -> None:
    rules = write_rules(topic({"compression.type": name}))
    assert (rules.codec, rules.compression_level) == (codec, level)


def test_the_older_timestamp_bound_counts_where_the_newer_is_not_set() -> None:
    config = topic({"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "6"})
    assert (config.timestamp_before_max_ms, config.timestamp_after_max_ms) == (5, 6)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"cleanup.policy": ""},
        {"cleanup.policy": "compact,delete"},
        {"retention.ms": "-1"},
        {"leader.replication.throttled.replicas": "*"},
        {"message.format.version": "2.0"},
        {"remote.storage.enable": "false"},
    ],
)
def test_valid(overrides: dict[str, str]) -> None:
    validate_topic(overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"segment.bytes": "1"}, "Invalid value 1 for configuration segment.bytes: Value must be at least 14"),
        ({"nope": "1"}, "Unknown topic config name: nope"),
        (
            {"cleanup.policy": "x"},
            "Invalid value x for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        ({"retention.ms": "abc"}, "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
        ({"retention.ms": "-5"}, "Invalid value -5 for configuration retention.ms: Value must be at least -1"),
        (
            {"compression.type": "foo"},
            "Invalid value foo for configuration compression.type: "
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            {"preallocate": "maybe"},
            "Invalid value maybe for configuration preallocate: Expected value to be either true or false",
        ),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "3"},
            "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (3)",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        ),
    ],
)
def test_invalid_in_kafkas_words(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_topic(overrides)
    assert str(caught.value) == message


def test_lags_are_compared_with_what_the_broker_gives() -> None:
    broker = BrokerConfig.load({"broker.id": "1", "log.cleaner.max.compaction.lag.ms": "10"})
    with pytest.raises(ConfigError, match="conflict"):
        validate_topic({"min.compaction.lag.ms": "11"}, broker)


def test_unknown_name_has_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"retention\.msec \(did you mean retention\.ms\?\)"):
        validate_topic({"retention.msec": "1"})

"""The settings of one topic: what it overrides, and what its broker gives where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tidelog.config import settings
from tidelog.config.broker import BrokerConfig
from tidelog.config.errors import ConfigError
from tidelog.config.values import MAX_LONG, Value

_UNIT_MS = {"log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
_UNIT_MS |= {"log.roll.hours": 3_600_000, "log.roll.jitter.hours": 3_600_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Every setting of a topic, by Kafka's name with underscores."""

    cleanup_policy: tuple[str, ...]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_downconversion_enable: bool
    message_format_version: str
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_difference_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool
    producer_id_expiration_ms: int
    """Of the broker, the same for all topics; here because each log keeps its producers."""
    producer_ids_max: int
    batch_max_uncompressed_bytes: int
    batch_max_expansion_ratio: int
    """These two too are the broker's; here because they are part of what a topic takes."""

    def __getitem__(self, name: str) -> Any:
        """By Kafka's name: `config["retention.ms"]`."""
        return getattr(self, name.replace(".", "_"))

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether segments go when retention says so."""
        return "delete" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def timestamp_before_max_ms(self) -> int:
        """The bound to use: the older name for both counts where the newer one was left alone."""
        before_ms = self.message_timestamp_before_max_ms
        return before_ms if before_ms != MAX_LONG else self.message_timestamp_difference_max_ms

    @property
    def timestamp_after_max_ms(self) -> int:
        after_ms = self.message_timestamp_after_max_ms
        return after_ms if after_ms != MAX_LONG else self.message_timestamp_difference_max_ms


NAMES = tuple(name for field in fields(TopicConfig) if (name := field.name.replace("_", ".")) in settings.TOPIC)
"""Kafka's names of the settings that a topic has."""


def topic_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """What holds for a topic with these overrides. One that cannot be read is as if it were not there: it may have been
    stored by another release, and the topic must still be served. `validate_topic` is the strict face."""
    values: dict[str, Any] = {}
    for name in NAMES:
        value = _override(name, overrides)
        values[name.replace(".", "_")] = broker_value(broker, name) if value is None else value
    return TopicConfig(
        **values,
        producer_id_expiration_ms=broker["producer.id.expiration.ms"],
        producer_ids_max=broker["tidelog.partition.producer.ids.max"],
        batch_max_uncompressed_bytes=broker["tidelog.batch.max.uncompressed.bytes"],
        batch_max_expansion_ratio=broker["tidelog.batch.max.expansion.ratio"],
    )


def default_topic(**changes: Any) -> TopicConfig:
    """The default of every setting, but for these changes: for logs without a broker."""
    return replace(topic_config(BrokerConfig.defaults(), {}), **changes)


def _override(name: str, overrides: Mapping[str, str]) -> Value:
    if name not in overrides:
        return None
    try:
        return settings.TOPIC[name].read(overrides[name])
    except ConfigError:
        return None


def broker_value(broker: BrokerConfig, name: str) -> Value:
    """What the broker gives a topic setting: the first of its synonyms that has a value, else the default."""
    setting = settings.TOPIC[name]
    for synonym in setting.synonyms:
        value: Value = broker[synonym]
        if value is None:
            continue
        if synonym in _UNIT_MS:
            assert isinstance(value, int)
            value = value * _UNIT_MS[synonym] if value >= 0 else -1
        return value
    return setting.default


def validate_topic(overrides: Mapping[str, str | None], broker: BrokerConfig | None = None) -> None:
    """ConfigError, with Kafka's words, if a topic cannot have these. `broker` gives what they are compared with."""
    for name in overrides:
        if name not in settings.TOPIC:
            raise ConfigError(f"Unknown topic config name: {name}{_hint(name)}")
    nulls = [name for name, text in overrides.items() if text is None]
    if nulls:
        raise ConfigError(f"Null value not supported for topic configs: {','.join(nulls)}")
    values = {name: settings.TOPIC[name].read(text) for name, text in overrides.items() if text is not None}
    if values.get("remote.storage.enable"):
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    _check_compaction_lags(values, broker)


def _hint(name: str) -> str:
    near = settings.near_name(name, settings.TOPIC)
    return f" (did you mean {near}?)" if near else ""


def _check_compaction_lags(values: Mapping[str, Value], broker: BrokerConfig | None) -> None:
    def lag(name: str) -> Any:
        given = values.get(name)
        if given is not None:
            return given
        return broker_value(broker, name) if broker else settings.TOPIC[name].default

    low, high = lag("min.compaction.lag.ms"), lag("max.compaction.lag.ms")
    if low > high:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        )

"""What the settings of a topic mean to its logs and to those who write to it."""

from __future__ import annotations

from tidelog.broker.write_rules import WriteRules
from tidelog.config.topic import TopicConfig
from tidelog.log.config import LogConfig
from tidelog.records.header import Codec

_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_GZIP_DEFAULT = -1


def log_config(topic: TopicConfig) -> LogConfig:
    """For one log of the topic."""
    return LogConfig(
        segment_bytes=topic.segment_bytes,
        segment_ms=topic.segment_ms,
        segment_jitter_ms=topic.segment_jitter_ms,
        segment_index_bytes=topic.segment_index_bytes,
        index_interval_bytes=topic.index_interval_bytes,
        retention_bytes=topic.retention_bytes,
        retention_ms=topic.retention_ms,
        max_message_bytes=topic.max_message_bytes,
        flush_messages=topic.flush_messages,
        flush_ms=topic.flush_ms,
        file_delete_delay_ms=topic.file_delete_delay_ms,
        cleanup_delete="delete" in topic.cleanup_policy,
        cleanup_compact=topic.compacted,
        delete_retention_ms=topic.delete_retention_ms,
        min_cleanable_dirty_ratio=topic.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=topic.min_compaction_lag_ms,
        max_compaction_lag_ms=topic.max_compaction_lag_ms,
        producer_id_expiration_ms=topic.producer_id_expiration_ms,
        producer_ids_max=topic.producer_ids_max,
    )


def write_rules(topic: TopicConfig) -> WriteRules:
    """For a produce to the topic."""
    codec = _CODECS[topic.compression_type]
    levels = {
        Codec.GZIP: None if topic.compression_gzip_level == _GZIP_DEFAULT else topic.compression_gzip_level,
        Codec.LZ4: topic.compression_lz4_level,
        Codec.ZSTD: topic.compression_zstd_level,
    }
    return WriteRules(
        min_insync_replicas=topic.min_insync_replicas,
        needs_keys=topic.compacted,
        append_time=topic.log_append_time,
        codec=codec,
        compression_level=levels.get(codec) if codec is not None else None,
        timestamp_before_max_ms=topic.timestamp_before_max_ms,
        timestamp_after_max_ms=topic.timestamp_after_max_ms,
        may_delete_records="delete" in topic.cleanup_policy,
        max_message_bytes=topic.max_message_bytes,
        max_uncompressed_bytes=topic.batch_max_uncompressed_bytes,
        max_expansion_ratio=topic.batch_max_expansion_ratio,
    )

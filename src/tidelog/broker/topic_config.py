"""What the settings of a topic mean to those who write to it."""

from __future__ import annotations

from tidelog.broker.write_rules import WriteRules
from tidelog.config.topic import TopicConfig
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
        may_delete_records=topic.deletes,
        max_message_bytes=topic.max_message_bytes,
        max_uncompressed_bytes=topic.batch_max_uncompressed_bytes,
        max_expansion_ratio=topic.batch_max_expansion_ratio,
    )

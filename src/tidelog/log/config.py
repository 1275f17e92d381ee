"""The settings of one log, by Kafka's names; what a topic may override and what its broker gives."""

from __future__ import annotations

from dataclasses import dataclass

_MAX = 2**63 - 1
_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Defaults are Kafka's. `-1` means without limit where Kafka has it so."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    max_message_bytes: int = 1_048_588
    flush_messages: int = _MAX
    flush_ms: int = _MAX
    file_delete_delay_ms: int = 60_000
    cleanup_delete: bool = True
    cleanup_compact: bool = False
    delete_retention_ms: int = _DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _MAX
    producer_id_expiration_ms: int = _DAY_MS
    producer_ids_max: int = 20_000

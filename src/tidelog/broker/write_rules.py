"""What a topic demands of the batches written to it, and the few changes a leader makes to one.

Without demands of its own a topic's batches are looked at by their headers alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.errors import InvalidRecordError, InvalidTimestampError, UnsupportedMagicError
from tidelog.records.header import CODEC_MASK, LENGTH_END, BatchHeader, Codec, read_header, set_log_append_time
from tidelog.records.validate import recompress, refuse_from_client, refuse_records, require_keys, validate
from tidelog.types import NO_TIMESTAMP, Buffer

UNBOUNDED_MS = 2**63 - 1
_CODEC_PLACE = 22
"""Of the byte of the attributes that names the codec."""


@dataclass(frozen=True, slots=True)
class WriteRules:
    """The settings of a topic that a produce has to obey."""

    min_insync_replicas: int = 1
    needs_keys: bool = False
    append_time: bool = False
    codec: Codec | None = None
    """None keeps what the producer chose."""
    compression_level: int | None = None
    timestamp_before_max_ms: int = UNBOUNDED_MS
    timestamp_after_max_ms: int = UNBOUNDED_MS

    may_delete_records: bool = True
    """DeleteRecords is for topics whose cleanup.policy has delete in it."""
    is_plain: bool = field(init=False)
    """Nothing beyond what holds for every topic."""

    def __post_init__(self) -> None:
        is_plain = (
            not self.needs_keys
            and not self.append_time
            and self.codec is None
            and self.timestamp_before_max_ms == UNBOUNDED_MS
            and self.timestamp_after_max_ms == UNBOUNDED_MS
        )
        object.__setattr__(self, "is_plain", is_plain)


class Checked(NamedTuple):
    """A batch as it may be appended."""

    batch: Buffer
    header: BatchHeader
    append_time_ms: int = NO_TIMESTAMP


def codec_of(batch: Buffer) -> Codec | None:
    """What a batch says of itself, before anything else is known of it."""
    number = batch[_CODEC_PLACE] & CODEC_MASK if len(batch) > _CODEC_PLACE else -1
    return Codec(number) if 0 <= number <= Codec.ZSTD else None


def check(batch: Buffer | None, rules: WriteRules, now_ms: int) -> Checked:
    """Refuse what the topic does not take; change what the topic decides itself."""
    if not batch:
        raise InvalidRecordError("a produce without a record batch")
    try:
        header = validate(batch)
    except UnsupportedMagicError as failure:
        raise InvalidRecordError(str(failure)) from failure
    if header.length + LENGTH_END != len(batch):
        raise InvalidRecordError("a produce must hold exactly one record batch for each partition")
    refuse_from_client(header)
    if rules.is_plain:
        return Checked(batch, header)
    if not rules.append_time:
        _check_timestamps(batch, header, rules, now_ms)
    if rules.needs_keys:
        require_keys(batch, header)
    if rules.codec is not None and header.attributes & CODEC_MASK != rules.codec:
        batch = recompress(batch, header, 0, rules.codec, rules.compression_level)
        header = read_header(batch)
    if not rules.append_time:
        return Checked(batch, header)
    own = batch if isinstance(batch, bytearray | memoryview) and not memoryview(batch).readonly else bytearray(batch)
    set_log_append_time(own, 0, now_ms)
    return Checked(own, read_header(own), now_ms)


def _check_timestamps(batch: Buffer, header: BatchHeader, rules: WriteRules, now_ms: int) -> None:
    """By the header alone; only if that is out of range are the records looked at, to name those that are."""
    is_too_old = header.base_timestamp >= 0 and now_ms - header.base_timestamp > rules.timestamp_before_max_ms
    if not is_too_old and header.max_timestamp - now_ms <= rules.timestamp_after_max_ms:
        return
    earliest, latest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
    refuse_records(batch, header, needs_keys=rules.needs_keys, earliest=earliest, latest=latest)
    setting = "message.timestamp.before.max.ms" if is_too_old else "message.timestamp.after.max.ms"
    raise InvalidTimestampError(
        f"the batch's header says timestamps {header.base_timestamp} to {header.max_timestamp}; "
        f"{setting} allows {earliest} to {latest}"
    )

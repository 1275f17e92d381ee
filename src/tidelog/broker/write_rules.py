"""What a topic demands of the batches written to it, and the few changes a leader makes to one.

As in Kafka a leader reads every record of a client's batch before it appends it, compressed ones too: a batch that no
consumer could read would end each consumer of the partition. Followers do not look at records again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    TidelogError,
    UnsupportedMagicError,
)
from tidelog.records.compression import DEFAULT_LIMIT_BYTES, ExpandedTooFarError
from tidelog.records.header import (
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME,
    BatchHeader,
    Codec,
    read_header,
    set_create_time,
    set_log_append_time,
)
from tidelog.records.kernel import LONG_BYTES
from tidelog.records.record_walk import walk_records
from tidelog.records.validate import (
    MAX_INT64,
    MIN_INT64,
    Inspected,
    inspect_records,
    recompress,
    refuse_from_client,
    validate,
)
from tidelog.types import Buffer

UNBOUNDED_MS = 2**63 - 1
_CODEC_PLACE = 22
"""Of the byte of the attributes that names the codec."""
_QUICK_BYTES = (LONG_BYTES, 32 * 1024, 64 * 1024, 64 * 1024, 32 * 1024)
"""The largest batch that is looked at on the loop, by its codec. Hostile gzip and zstd takes up to 5 ms to decompress:
tables of codes in every few bytes."""
_QUICK_UNCOMPRESSED_BYTES = 256 * 1024
"""What it may decompress to there: a millisecond of gzip, the slowest."""
_QUICK_COMPRESSED_BYTES = 16 * 1024
"""How much the loop compresses anew: 3 ms of zstd's highest level, the slowest."""


class HeavyBatchError(TidelogError):
    """To check the batch takes more than the caller wants to spend on it. No client hears of this."""


@dataclass(frozen=True, slots=True)
class WriteRules:
    """The settings of a topic that a produce has to obey."""

    min_insync_replicas: int
    needs_keys: bool
    append_time: bool
    codec: Codec | None
    """None keeps what the producer chose."""
    compression_level: int | None
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int

    may_delete_records: bool
    """DeleteRecords is for topics whose cleanup.policy has delete in it."""
    max_message_bytes: int
    max_uncompressed_bytes: int
    max_expansion_ratio: int
    is_plain: bool = field(init=False)
    """Asks nothing of a record but that it can be read."""

    def __post_init__(self) -> None:
        is_plain = (
            not self.needs_keys
            and not self.append_time
            and self.codec is None
            and self.timestamp_before_max_ms == UNBOUNDED_MS
            and self.timestamp_after_max_ms == UNBOUNDED_MS
        )
        object.__setattr__(self, "is_plain", is_plain)

    def compresses(self, codec: int | None) -> bool:
        """Whether a batch with this codec is compressed anew."""
        return self.codec not in (None, Codec.NONE, codec)

    def expansion_limit(self, size: int) -> int:
        """To how many bytes a compressed batch of `size` bytes may decompress.

        What the topic would take uncompressed is taken however well it compresses. And a batch that our own readers
        could not decompress is not stored, whatever the settings say.
        """
        allowed = min(self.max_uncompressed_bytes, self.max_expansion_ratio * size)
        return min(max(allowed, self.max_message_bytes), DEFAULT_LIMIT_BYTES)


class Checked(NamedTuple):
    """A batch as it may be appended; where a topic has LogAppendTime, only as `stamped`."""

    batch: Buffer
    header: BatchHeader

    def stamped(self, now_ms: int) -> Checked:
        """The batch with the time of its append as the timestamp of its records."""
        own = _writable(self.batch)
        set_log_append_time(own, 0, now_ms)
        return Checked(own, read_header(own))


def codec_of(batch: Buffer) -> Codec | None:
    """What a batch says of itself, before anything else is known of it."""
    number = batch[_CODEC_PLACE] & CODEC_MASK if len(batch) > _CODEC_PLACE else -1
    return Codec(number) if 0 <= number <= Codec.ZSTD else None


def check(
    batch: Buffer | None, rules: WriteRules, now_ms: int, *, on_loop: bool = False, most_bytes: int | None = None
) -> Checked:
    """Refuse what the topic does not take; change what the topic decides itself.

    HeavyBatchError says that the batch is to be checked elsewhere: on the loop that this takes too long, and where
    `most_bytes` is given, that the records are more than that when they are decompressed, though the topic allows it.
    """
    if not batch:
        raise InvalidRecordError("a produce without a record batch")
    size = len(batch)
    if size > rules.max_message_bytes:
        raise RecordTooLargeError(f"a batch of {size} bytes is above max.message.bytes = {rules.max_message_bytes}")
    if on_loop and size > _QUICK_COMPRESSED_BYTES:
        _refuse_heavy(batch, rules)
    header = _header(batch)
    codec = header.attributes & CODEC_MASK
    if rules.is_plain and not header.attributes & (CODEC_MASK | LOG_APPEND_TIME):  # by far the most
        walk = walk_records(batch, HEADER_SIZE, header.record_count, header.base_timestamp, False, MIN_INT64, MAX_INT64)
        if walk.max_timestamp == header.max_timestamp:
            return Checked(batch, header)
    if on_loop:
        most_bytes = _QUICK_COMPRESSED_BYTES if rules.compresses(codec) else _QUICK_UNCOMPRESSED_BYTES
    inspected = (
        _inspect(batch, header, rules, now_ms, DEFAULT_LIMIT_BYTES)
        if codec == 0
        else _decompress_and_inspect(batch, header, rules, now_ms, most_bytes)
    )
    if rules.codec is not None and codec != rules.codec:
        batch = recompress(header, inspected.payload, rules.codec, rules.compression_level, rules.max_message_bytes)
        header = read_header(batch)
    if rules.append_time or (header.max_timestamp == inspected.max_timestamp and not header.uses_log_append_time):
        return Checked(batch, header)
    own = _writable(batch)
    set_create_time(own, 0, inspected.max_timestamp)
    return Checked(own, read_header(own))


def _refuse_heavy(batch: Buffer, rules: WriteRules) -> None:
    size = len(batch)
    codec = batch[_CODEC_PLACE] & CODEC_MASK
    if codec < len(_QUICK_BYTES) and (size > _QUICK_BYTES[codec] or rules.compresses(codec)):
        raise HeavyBatchError(f"a batch of {size} bytes is too large to be checked on the loop")


def _header(batch: Buffer) -> BatchHeader:
    try:
        header = validate(batch)
    except UnsupportedMagicError as failure:
        raise InvalidRecordError(str(failure)) from failure
    if header.length + LENGTH_END != len(batch):
        raise InvalidRecordError("a produce must hold exactly one record batch for each partition")
    refuse_from_client(header)
    return header


def _inspect(batch: Buffer, header: BatchHeader, rules: WriteRules, now_ms: int, limit_bytes: int) -> Inspected:
    earliest, latest = MIN_INT64, MAX_INT64
    if rules.append_time:
        if header.uses_log_append_time:
            raise InvalidTimestampError("a producer may not set the timestamp type LogAppendTime")
    else:
        if rules.timestamp_before_max_ms != UNBOUNDED_MS:
            earliest = max(now_ms - rules.timestamp_before_max_ms, MIN_INT64)
        if rules.timestamp_after_max_ms != UNBOUNDED_MS:
            latest = min(now_ms + rules.timestamp_after_max_ms, MAX_INT64)
    return inspect_records(batch, header, limit_bytes, rules.needs_keys, earliest, latest)


def _decompress_and_inspect(
    batch: Buffer, header: BatchHeader, rules: WriteRules, now_ms: int, most_bytes: int | None
) -> Inspected:
    allowed_bytes = rules.expansion_limit(len(batch))
    limit_bytes = allowed_bytes if most_bytes is None else min(allowed_bytes, most_bytes)
    try:
        return _inspect(batch, header, rules, now_ms, limit_bytes)
    except ExpandedTooFarError as failure:
        if limit_bytes < allowed_bytes:
            raise HeavyBatchError(str(failure)) from failure
        raise RecordTooLargeError(
            f"{failure}; see tidelog.batch.max.uncompressed.bytes and tidelog.batch.max.expansion.ratio"
        ) from failure


def _writable(batch: Buffer) -> bytearray | memoryview:
    """The batch itself if it may be changed, else a copy."""
    is_ours = isinstance(batch, bytearray | memoryview) and not memoryview(batch).readonly
    return batch if is_ours else bytearray(batch)  # type: ignore[return-value]

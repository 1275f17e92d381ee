"""What a topic demands of the batches written to it, and the few changes a leader makes to one.

As in Kafka a leader reads every record of a client's batch before it appends it, compressed ones too: a batch that no
consumer could read would end each consumer of the partition. Followers do not look at records again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.errors import (
    ErrorCode,
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
from tidelog.types import NO_TIMESTAMP, Buffer

UNBOUNDED_MS = 2**63 - 1
_CODEC_PLACE = 22
"""Of the byte of the attributes that names the codec."""
_QUICK_BYTES = 64 * 1024
"""The largest batch that is decompressed or compressed on the loop."""
_QUICK_UNCOMPRESSED_BYTES = 256 * 1024
"""What it may decompress to there: a millisecond of gzip, the slowest."""


class HeavyBatchError(TidelogError):
    """To check the batch takes too long for the loop. A client hears of it only if its partition got a leader while
    other batches of the same request were checked elsewhere; then it sends the batch again."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


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
    max_message_bytes: int = 1_048_588
    max_uncompressed_bytes: int = 64 * 1024 * 1024
    max_expansion_ratio: int = 1000
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

    def expansion_limit(self, size: int) -> int:
        """To how many bytes a compressed batch of `size` bytes may decompress.

        What the topic would take uncompressed is taken however well it compresses. And a batch that our own readers
        could not decompress is not stored, whatever the settings say.
        """
        allowed = min(self.max_uncompressed_bytes, self.max_expansion_ratio * size)
        return min(max(allowed, self.max_message_bytes), DEFAULT_LIMIT_BYTES)


class Checked(NamedTuple):
    """A batch as it may be appended."""

    batch: Buffer
    header: BatchHeader
    append_time_ms: int = NO_TIMESTAMP


def codec_of(batch: Buffer) -> Codec | None:
    """What a batch says of itself, before anything else is known of it."""
    number = batch[_CODEC_PLACE] & CODEC_MASK if len(batch) > _CODEC_PLACE else -1
    return Codec(number) if 0 <= number <= Codec.ZSTD else None


def may_be_heavy(batch: Buffer) -> bool:
    """Whether `check` on the loop may find that a batch is too heavy for it; told by a glance, for all topics."""
    return len(batch) > _QUICK_BYTES or (len(batch) > _CODEC_PLACE and batch[_CODEC_PLACE] & CODEC_MASK != 0)


def check(batch: Buffer | None, rules: WriteRules, now_ms: int, *, on_loop: bool = False) -> Checked:
    """Refuse what the topic does not take; change what the topic decides itself.

    On the loop HeavyBatchError says that it is to be checked by a disk thread instead.
    """
    if not batch:
        raise InvalidRecordError("a produce without a record batch")
    size = len(batch)
    if size > rules.max_message_bytes:
        raise RecordTooLargeError(f"a batch of {size} bytes is above max.message.bytes = {rules.max_message_bytes}")
    if on_loop and size > _QUICK_BYTES:
        _refuse_heavy(batch, rules)
    header = _header(batch)
    if rules.is_plain and not header.attributes & (CODEC_MASK | LOG_APPEND_TIME):  # by far the most
        walk = walk_records(
            memoryview(batch)[HEADER_SIZE:], header.record_count, header.base_timestamp, False, MIN_INT64, MAX_INT64
        )
        if walk.max_timestamp == header.max_timestamp:
            return Checked(batch, header)
    inspected = (
        _inspect(batch, header, rules, now_ms, DEFAULT_LIMIT_BYTES)
        if header.attributes & CODEC_MASK == 0
        else _decompress_and_inspect(batch, header, rules, now_ms, on_loop)
    )
    if rules.codec is not None and header.attributes & CODEC_MASK != rules.codec:
        batch = recompress(header, inspected.payload, rules.codec, rules.compression_level)
        header = read_header(batch)
    if rules.append_time:
        own = _writable(batch)
        set_log_append_time(own, 0, now_ms)
        return Checked(own, read_header(own), now_ms)
    if header.max_timestamp == inspected.max_timestamp and not header.uses_log_append_time:
        return Checked(batch, header)
    own = _writable(batch)
    set_create_time(own, 0, inspected.max_timestamp)
    return Checked(own, read_header(own))


def _refuse_heavy(batch: Buffer, rules: WriteRules) -> None:
    codec = codec_of(batch)
    is_squeezed = codec is not Codec.NONE or rules.codec not in (None, Codec.NONE)
    if is_squeezed or len(batch) > LONG_BYTES:
        raise HeavyBatchError(f"a batch of {len(batch)} bytes is too large to be checked on the loop")


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
    batch: Buffer, header: BatchHeader, rules: WriteRules, now_ms: int, on_loop: bool
) -> Inspected:
    limit_bytes = rules.expansion_limit(len(batch))
    quick_bytes = min(limit_bytes, _QUICK_UNCOMPRESSED_BYTES) if on_loop else limit_bytes
    try:
        return _inspect(batch, header, rules, now_ms, quick_bytes)
    except ExpandedTooFarError as failure:
        if quick_bytes < limit_bytes:
            raise HeavyBatchError(str(failure)) from failure
        raise RecordTooLargeError(
            f"{failure}; see tidelog.batch.max.uncompressed.bytes and tidelog.batch.max.expansion.ratio"
        ) from failure


def _writable(batch: Buffer) -> bytearray | memoryview:
    """The batch itself if it may be changed, else a copy."""
    is_ours = isinstance(batch, bytearray | memoryview) and not memoryview(batch).readonly
    return batch if is_ours else bytearray(batch)  # type: ignore[return-value]

"""Batches and logs for tests: short to write, the real thing underneath."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidelog.broker.topic_config import write_rules
from tidelog.broker.write_rules import WriteRules
from tidelog.config.topic import TopicConfig, default_topic
from tidelog.log.log import Log
from tidelog.log.producers import Producers
from tidelog.ports import Clock, Disk
from tidelog.records.batch import decode
from tidelog.records.build import BatchFacts, build_batch
from tidelog.records.control import ControlType, EndTxnMarker, build_marker
from tidelog.records.header import HEADER_SIZE, LAYOUT, LENGTH_END, Codec, headers, read_header, seal
from tidelog.records.kernel import Record
from tidelog.types import Buffer, TopicPartition

PARTITION = TopicPartition("orders", 0)
SMALL = default_topic(segment_bytes=500, index_interval_bytes=200, file_delete_delay_ms=0)
"""Segments of a handful of batches, so that a short test rolls often."""


class FixedClock(Clock):
    """A clock that a test moves by hand."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


def batch(
    values: Sequence[bytes | None] = (b"value",),
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamp: int = 1_700_000_000_000,
    **facts: object,
) -> bytes:
    """One batch; record i has timestamp + i."""
    keys = keys or [None] * len(values)
    records = [(timestamp + i, key, value) for i, (key, value) in enumerate(zip(keys, values, strict=True))]
    return bytes(build_batch(records, BatchFacts(**facts)))  # type: ignore[arg-type]


def batch_around(payload: bytes, count: int, codec: Codec = Codec.NONE) -> bytes:
    """A batch with a good header that says `count` records, around bytes that may be anything."""
    header = read_header(batch([None]))._replace(attributes=codec, last_offset_delta=count - 1, record_count=count)
    data = bytearray(LAYOUT.pack(*header._replace(length=HEADER_SIZE - LENGTH_END + len(payload)))) + payload
    seal(data)
    return bytes(data)


def idempotent(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, **facts: object) -> bytes:
    values = [b"%d" % (sequence + i) for i in range(count)]
    return batch(values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **facts)


def marker(producer_id: int, *, abort: bool, epoch: int = 0, coordinator_epoch: int = 0) -> bytes:
    kind = ControlType.ABORT if abort else ControlType.COMMIT
    return bytes(build_marker(EndTxnMarker(kind, coordinator_epoch), producer_id, epoch, 1_700_000_000_000))


def plain_rules(**changes: object) -> WriteRules:
    """What a topic without settings demands of a batch, but for these changes."""
    return replace(write_rules(default_topic()), **changes)  # type: ignore[arg-type]


def new_producers(max_ids: int = SMALL.producer_ids_max) -> Producers:
    """Of a log that nobody has written to."""
    return Producers(SMALL.producer_id_expiration_ms, max_ids)


async def open_log(
    disk: Disk, directory: str, config: TopicConfig = SMALL, *, clock: Clock | None = None, **options: object
) -> Log:
    path = f"{directory}/{PARTITION}"
    return await Log.open(disk, clock or FixedClock(), path, PARTITION, config, **options)  # type: ignore[arg-type]


def with_config(**changes: object) -> TopicConfig:
    return replace(SMALL, **changes)  # type: ignore[arg-type]


async def read_all(log: Log, offset: int | None = None, *, max_bytes: int = 1000) -> list[Record]:
    """Every record from an offset on, as a consumer would get them: fetch by fetch."""
    records: list[Record] = []
    position = log.log_start_offset if offset is None else offset
    while position < log.log_end_offset:
        data = await log.bytes_of(await log.read(position, max_bytes))
        if not data:
            break
        records += [record for record in decode(data) if record.offset >= position]
        position = whole_batches_end(data)
    return records


def whole_batches_end(data: Buffer) -> int:
    return [header.next_offset for _, header in headers(data)][-1]


async def values(log: Log, offset: int | None = None) -> list[bytes | None]:
    return [record.value for record in await read_all(log, offset)]

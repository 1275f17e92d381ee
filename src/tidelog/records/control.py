"""Control batches: the markers that end transactions, and the kinds that are only recognised."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from tidelog.errors import CorruptBatchError
from tidelog.records.batch import decode_batch
from tidelog.records.build import build_batch
from tidelog.records.header import BatchHeader
from tidelog.records.kernel import Record
from tidelog.types import NO_EPOCH, Buffer, Epoch, Offset, ProducerId

_KEY = struct.Struct(">hh")
_END_TXN_VALUE = struct.Struct(">hi")


class ControlType(IntEnum):
    """What a control batch says; the numbers stand in its record's key."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTxnMarker(NamedTuple):
    """A transaction ended here, in this way; the epoch is the coordinator's, so that an old one is told apart."""

    control_type: ControlType
    coordinator_epoch: Epoch


def control_type(buffer: Buffer, header: BatchHeader, position: int = 0) -> ControlType:
    """UNKNOWN for a batch that compaction has emptied, and for types from the future."""
    record = _record(buffer, header, position)
    return ControlType.UNKNOWN if record is None else _type_of(record)


def read_marker(buffer: Buffer, header: BatchHeader, position: int = 0) -> EndTxnMarker | None:
    """The end of a transaction, or None if the control batch is something else."""
    record = _record(buffer, header, position)
    kind = ControlType.UNKNOWN if record is None else _type_of(record)
    if record is None or kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if record.value is None or len(record.value) < _END_TXN_VALUE.size:
        raise CorruptBatchError(f"the transaction marker at offset {record.offset} has no coordinator epoch")
    version, coordinator_epoch = _END_TXN_VALUE.unpack_from(record.value)
    if version < 0:
        raise CorruptBatchError(f"the transaction marker at offset {record.offset} has version {version}")
    return EndTxnMarker(kind, coordinator_epoch)


def build_marker(
    marker: EndTxnMarker,
    producer_id: ProducerId,
    producer_epoch: int,
    timestamp_ms: int,
    *,
    base_offset: Offset = 0,
    partition_leader_epoch: Epoch = NO_EPOCH,
) -> memoryview:
    """The control batch by which a coordinator ends a producer's transaction."""
    key = _KEY.pack(0, marker.control_type)
    value = _END_TXN_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [(timestamp_ms, key, value)],
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def _record(buffer: Buffer, header: BatchHeader, position: int) -> Record | None:
    """A control batch has one record, or none after compaction."""
    assert header.is_control
    records = decode_batch(buffer, header, position)
    return records[0] if records else None


def _type_of(record: Record) -> ControlType:
    if record.key is None or len(record.key) < _KEY.size:
        raise CorruptBatchError(f"the control record at offset {record.offset} has no type")
    version, number = _KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptBatchError(f"the control record at offset {record.offset} has version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN

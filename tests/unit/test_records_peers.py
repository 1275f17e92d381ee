"""Batches that Kafka's Java producer, librdkafka and aiokafka wrote, and brokers 3.9.1 and 4.1.0 stored."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from tests.kits.records_lives import both_lives, rows_of
from tidelog.records.header import BatchHeader, Codec, assign, read_header
from tidelog.records.scan import scan

RECORDED = sorted((Path(__file__).parent / "fixtures" / "batches").glob("*.log"))
recorded = pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
codecs = pytest.mark.parametrize("codec", list(Codec))

EDGES = [
    (1_700_000_000_000, b"key", b"value", []),
    (1_700_000_000_001, None, b"no key", []),
    (1_699_999_000_000, b"tombstone", None, []),
    (1_700_000_000_002, b"", b"", [("h", b"v"), ("h", b""), ("schlüssel", b"\x00")]),
    (1_700_000_000_003, None, None, []),
    (1_700_000_000_003, b"k" * 200, b"v" * 70_000, []),
]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _expected(path: Path) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    facts = json.loads(path.with_suffix(".json").read_text())
    rows = [
        (
            row["offset"],
            row["timestamp"],
            _bytes(row["key"]),
            _bytes(row["value"]),
            tuple((key, _bytes(value)) for key, value in row["headers"]),
        )
        for row in facts["committed_records"]
    ]
    return facts, rows


def _rows(records: list[Any]) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


def _facts(life: Any, header: BatchHeader) -> Any:
    return life.build.BatchFacts(
        base_offset=header.base_offset,
        codec=header.codec,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        delete_horizon_ms=header.delete_horizon_ms,
        last_offset_delta=header.last_offset_delta,
    )


def test_there_are_recordings() -> None:
    assert len(RECORDED) > 40


@recorded
def test_headers_are_what_kafka_prints(path: Path) -> None:
    facts, _ = _expected(path)
    found = scan(path.read_bytes())
    assert found.reason is None
    assert len(found.batches) == len(facts["batches"])
    for (position, header), printed in zip(found.batches, facts["batches"], strict=True):
        names = ("base_offset", "last_offset", "base_sequence", "producer_id", "producer_epoch", "max_timestamp", "crc")
        for name in (*names, "partition_leader_epoch", "is_transactional", "is_control", "delete_horizon_ms"):
            assert getattr(header, name) == printed[name], name
        assert (position, header.size_bytes) == (printed["position"], printed["size"])
        assert header.record_count == printed["count"]
        assert header.codec.name.lower() == printed["codec"]
        assert header.uses_log_append_time == (printed["timestamp_type"] == "LogAppendTime")


@recorded
@both_lives
def test_records_are_what_was_sent(life: Any, path: Path) -> None:
    facts, expected = _expected(path)
    log = path.read_bytes()
    committed: list[Any] = []
    pending: list[Any] = []
    markers = []
    for position, header in scan(log).batches:
        records = life.batch.decode_batch(log, header, position)
        if not header.is_transactional:
            committed += records
        elif not header.is_control:
            pending += records
        else:
            marker = life.control.read_marker(log, header, position)
            markers.append((header.base_offset, marker.control_type.name, marker.coordinator_epoch))
            committed += pending if marker.control_type is life.control.ControlType.COMMIT else []
            pending.clear()
    assert _rows(committed) == expected
    assert markers == [(m["offset"], m["type"], m["coordinator_epoch"]) for m in facts["control_records"]]


@recorded
@both_lives
def test_a_leader_takes_what_clients_wrote(life: Any, path: Path) -> None:
    log = path.read_bytes()
    for position, header in scan(log).batches:
        if not header.is_control and header.last_offset_delta == header.record_count - 1:  # else it was compacted
            batch = log[position : position + header.size_bytes]
            assert life.validate.inspect_records(batch, header).max_timestamp <= header.max_timestamp


@recorded
@both_lives
def test_columns_are_the_records(life: Any, path: Path) -> None:
    log = path.read_bytes()
    columns = life.columns.Columns()
    records = life.batch.decode(log, control=True)
    assert life.batch.decode_into(columns, log, control=True) == len(records)
    assert rows_of(columns.finish()) == _rows(records)


@recorded
@both_lives
def test_uncompressed_batches_are_written_byte_for_byte(life: Any, path: Path) -> None:
    """Java's encoder, librdkafka's, aiokafka's, and Kafka's compaction with its delete horizons: all are ours."""
    log = path.read_bytes()
    for position, header in scan(log).batches:
        if header.codec is not Codec.NONE or header.uses_log_append_time:
            continue
        written = log[position : position + header.size_bytes]
        records = life.batch.decode_batch(log, header, position)
        if header.base_timestamp == records[0].timestamp or header.delete_horizon_ms is not None:
            assert bytes(life.build.build_batch(records, _facts(life, header))) == written
        columns = life.columns.Columns()
        columns.append(life.batch.open_batch(log, header, position))
        writer = life.encoder.RecordWriter(header.base_offset, header.base_timestamp)
        writer.append_rows(life.column_source.ColumnSource(columns.finish(), True), 0, 2**31 - 1)
        assert bytes(writer.take()[61:]) == written[61:]


@codecs
@both_lives
def test_aiokafka_reads_what_is_built(life: Any, codec: Codec) -> None:
    facts = life.build.BatchFacts(
        codec=codec, producer_id=77, producer_epoch=3, base_sequence=5, transactional=True, partition_leader_epoch=2
    )
    theirs = DefaultRecordBatch(bytes(life.build.build_batch(EDGES, facts)))
    assert theirs.validate_crc()
    assert theirs.compression_type == codec
    assert theirs.is_transactional
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (77, 3, 5)
    read = [(r.timestamp, r.key, r.value, r.headers) for r in theirs]
    assert read == EDGES


@codecs
@both_lives
def test_what_aiokafka_builds_is_read(life: Any, codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(2, int(codec), False, -1, -1, -1, 1 << 30)
    for offset, (timestamp, key, value, headers) in enumerate(EDGES):
        builder.append(offset, timestamp, key, value, headers)
    theirs = bytearray(builder.build())
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in life.batch.decode(theirs)] == EDGES
    if codec is Codec.NONE:
        ours = life.build.build_batch(EDGES)
        assign(theirs, 0, 0, read_header(ours).partition_leader_epoch)  # the one field they fill differently
        assert ours == theirs

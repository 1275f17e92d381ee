"""Records, whatever they are: both lives of the kernel agree with each other, with aiokafka and with a model."""

from __future__ import annotations

import contextlib
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kits.records_lives import LIVES, compiled, rows_of
from tidelog.errors import CorruptBatchError, ErrorCode, TidelogError
from tidelog.records.arrow import from_arrow, to_arrow
from tidelog.records.build import build_batch
from tidelog.records.compression import decompress
from tidelog.records.header import Codec, assign, read_header, seal
from tidelog.records.scan import scan

steady = settings(deadline=None, derandomize=True, database=None)
thorough = settings(steady, max_examples=300)

fields = st.none() | st.binary(max_size=200)
timestamps = st.integers(-1, 2**63 - 1) | st.integers(1_600_000_000_000, 1_800_000_000_000)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)
record = st.tuples(timestamps, fields, fields, headers)
records = st.lists(record, min_size=1, max_size=20)
keys = st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"a longer key than eight bytes"])


def _rows(decoded: list[Any]) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in decoded]


@steady
@given(records, st.sampled_from(list(Codec)), st.integers(0, 2**62))
def test_round_trip(sent: list[Any], codec: Codec, base_offset: int) -> None:
    expected = [(base_offset + n, *row) for n, row in enumerate(sent)]
    built = [bytes(life.build.build_batch(sent, base_offset=base_offset, codec=codec)) for life in LIVES]
    assert len(set(built)) == 1
    for life in LIVES:
        life.validate.validate(built[0])
        assert _rows(life.batch.decode(built[0])) == expected
        columns = life.columns.Columns()
        life.batch.decode_into(columns, built[0])
        assert rows_of(columns.finish()) == expected


@steady
@given(records, st.data())
def test_slices_of_arrow_round_trip(sent: list[Any], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sent) - 1))
    length = data.draw(st.integers(1, len(sent) - start))
    for life in LIVES:
        columns = life.columns.Columns()
        life.batch.decode_into(columns, life.build.build_batch(sent))
        piece = from_arrow(to_arrow(columns.finish()).slice(start, length))
        again = life.build.build_from_columns(piece, codec=Codec.NONE)
        assert bytes(again) == bytes(life.build.build_batch(sent[start : start + length]))


bytes_headers = st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=8)), max_size=3)


@steady
@given(st.lists(st.tuples(st.integers(0, 2**41), fields, fields, bytes_headers), min_size=1, max_size=10))
def test_aiokafka_writes_and_reads_the_same_bytes(sent: list[Any]) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for offset, (timestamp, key, value, pairs) in enumerate(sent):
        builder.append(offset, timestamp, key, value, pairs)
    theirs = bytearray(builder.build())
    for life in LIVES:
        ours = life.build.build_batch(sent)
        assert [(r.timestamp, r.key, r.value, r.headers) for r in DefaultRecordBatch(bytes(ours))] == sent
        assign(theirs, 0, 0, -1)
        assert ours == theirs


def _outcome(life: Any, payload: bytes, count: int) -> Any:
    """All a reader can say about a payload, or that it is corrupt."""
    decoded: list[Any] = []
    columns = life.columns.Columns()
    try:
        life.kernel.read_records(life.kernel.Cursor(payload, count, 7, 1000), decoded)
    except CorruptBatchError:
        try:
            columns.append(life.kernel.Cursor(payload, count, 7, 1000))
        except CorruptBatchError:
            return "corrupt"
        raise AssertionError("columns took what records did not") from None
    columns.append(life.kernel.Cursor(payload, count, 7, 1000))
    rows = _rows(decoded)
    assert rows_of(columns.finish()) == rows
    return rows


@thorough
@given(records, st.data())
def test_damaged_payloads_never_do_worse_than_one_error(sent: list[Any], data: st.DataObject) -> None:
    payload = bytearray(LIVES[0].build.build_batch(sent)[61:])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(payload) - 1))
        payload[place] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))]) if data.draw(st.booleans()) else bytes(payload)
    outcomes = [_outcome(life, cut, len(sent)) for life in LIVES]
    assert all(outcome == outcomes[0] for outcome in outcomes)


@thorough
@given(st.binary(max_size=300), st.integers(-1, 5))
def test_noise_is_refused_or_read_alike(noise: bytes, count: int) -> None:
    def outcome(life: Any) -> Any:
        try:
            return _outcome(life, noise, count)
        except CorruptBatchError:
            return "corrupt"

    outcomes = [outcome(life) for life in LIVES]
    assert all(each == outcomes[0] for each in outcomes)


@steady
@given(st.binary(max_size=300), st.sampled_from([Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]), st.booleans())
def test_noise_does_not_decompress_into_trouble(noise: bytes, codec: Codec, framed: bool) -> None:
    magic = {
        Codec.GZIP: b"\x1f\x8b\x08\x00",
        Codec.SNAPPY: b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1",
        Codec.LZ4: b"\x04\x22\x4d\x18",
        Codec.ZSTD: b"\x28\xb5\x2f\xfd",
    }[codec]
    with contextlib.suppress(CorruptBatchError):
        assert len(decompress(codec, magic + noise if framed else noise, 100_000)) <= 100_000


@steady
@given(st.lists(st.lists(st.tuples(keys, fields), min_size=1, max_size=6), min_size=1, max_size=6), st.booleans())
def test_compaction_keeps_what_a_dict_would(batches: list[list[Any]], drop: bool) -> None:
    for life in LIVES:
        offsets = life.compaction.OffsetMap(24 * 100, bytes(16))
        log, latest, next_offset = [], {}, 0
        for pairs in batches:
            batch = life.build.build_batch([(n, *pair) for n, pair in enumerate(pairs)], base_offset=next_offset)
            log.append(batch)
            assert life.compaction.index_batch(offsets, batch, read_header(batch))
            latest.update({key: next_offset + n for n, (key, _) in enumerate(pairs)})
            next_offset += len(pairs)
        kept = []
        for batch in log:
            rest = life.compaction.compact_batch(
                offsets, batch, read_header(batch), drop_tombstones=drop, delete_horizon_ms=5
            )
            if rest.batch is not None:
                decoded = life.batch.decode(rest.batch)
                assert len(decoded) == rest.record_count == rest.header.record_count
                assert rest.header.max_timestamp == max(r.timestamp for r in decoded)
                assert sum(r.value is None for r in decoded) == rest.tombstones
                assert (rest.header.delete_horizon_ms is not None) == (rest.tombstones > 0)
                kept += decoded
        rows = [(n, key, value) for n, (key, value) in enumerate(pair for pairs in batches for pair in pairs)]
        model = [
            row for row in rows if row[1] is not None and latest[row[1]] == row[0] and not (drop and row[2] is None)
        ]
        assert [(r.offset, r.key, r.value) for r in kept] == model


@thorough
@given(st.lists(records, max_size=4), st.binary(max_size=100), st.data())
def test_scanning_noise_never_raises(batches: list[list[Any]], noise: bytes, data: st.DataObject) -> None:
    log, offset = bytearray(), 0
    for sent in batches:
        log += LIVES[-1].build.build_batch(sent, base_offset=offset)
        offset += len(sent)
    whole = len(log)
    log += noise
    found = scan(log)
    assert found.end == whole
    if whole:
        place = data.draw(st.integers(0, whole - 1))
        log[place] ^= 0xFF
        damaged = scan(log)
        assert damaged.end <= whole
        for position, header in damaged.batches:
            assert position + header.size_bytes <= len(log)


@steady
@given(st.binary(min_size=61, max_size=200))
def test_validate_raises_only_our_errors(noise: bytes) -> None:
    for forced in (noise, noise[:16] + b"\x02" + noise[17:]):
        try:
            LIVES[-1].validate.validate(forced)
        except TidelogError:
            continue
        raise AssertionError("noise was taken for a batch")


# What a leader takes of its clients


def _inspected(life: Any, batch: bytes) -> Any:
    """What a leader says of a batch: its largest timestamp, or that it is refused."""
    try:
        header = life.validate.validate(batch)
        inspected = life.validate.inspect_records(batch, header)
    except TidelogError as failure:
        return failure.code
    return header, inspected.max_timestamp


@steady
@given(records, st.sampled_from(list(Codec)))
def test_a_leader_takes_every_batch_of_our_encoder(sent: list[Any], codec: Codec) -> None:
    batch = bytes(build_batch(sent, codec=codec))
    for life in LIVES:
        header, max_timestamp = _inspected(life, batch)
        assert max_timestamp == header.max_timestamp == max(-1, *(row[0] for row in sent))


@thorough
@given(records, st.sampled_from(list(Codec)), st.data())
def test_what_a_leader_takes_of_a_damaged_batch_can_be_read(sent: list[Any], codec: Codec, data: st.DataObject) -> None:
    """One byte is another one, and the CRC is right again: a client that means it. Refused, or our reader reads it."""
    batch = bytearray(build_batch(sent, codec=codec))
    place = data.draw(st.integers(21, len(batch) - 1))
    batch[place] ^= data.draw(st.integers(1, 255))
    seal(batch)
    outcomes = [_inspected(life, bytes(batch)) for life in LIVES]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    if isinstance(outcomes[0], ErrorCode):
        assert outcomes[0] in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
        return
    header, max_timestamp = outcomes[0]
    decoded = compiled.batch.decode_batch(bytes(batch), header)
    assert [row.offset for row in decoded] == list(range(header.record_count))
    if not header.uses_log_append_time:
        assert max(-1, *(row.timestamp for row in decoded)) == max_timestamp

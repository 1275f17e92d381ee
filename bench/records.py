"""Records: the kernel against the bars of the issue, and beside aiokafka's Cython code."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from bench.table import Row, alternate
from tidelog.records.batch import decode, decode_into
from tidelog.records.build import build_batch
from tidelog.records.column_source import ColumnSource
from tidelog.records.columns import Columns
from tidelog.records.encoder import RecordWriter
from tidelog.records.kernel import COMPILED

VALUE = bytes(100)
TIMESTAMP = 1_700_000_000_000
SMALL_BATCH = 150  # records: 16 kB
LARGE_BATCH = 5_000
ANSWER = 30_000
"""Records of one fetch answer, 3 MB; a consumer reads many, one after the other."""

ANSWERS = 10
DECODE_BAR = 8.0
ENCODE_BAR = 5.0


def rows() -> list[Row]:
    assert COMPILED, "the kernel runs as plain Python"
    keyed, keyless = b"k" * 8, None
    return [
        _decode_columns("16 kB batches, no key", SMALL_BATCH, keyless),
        _decode_columns("16 kB batches, 8 B key", SMALL_BATCH, keyed),
        _decode_columns("0.5 MB batches, 8 B key", LARGE_BATCH, keyed),
        _encode_columns("16 kB batches, no key", 16_384, keyless),
        _encode_columns("1 MB batches, 8 B key", 1 << 20, keyed),
        _decode_records("no key", keyless),
        _decode_records("8 B key", keyed),
        _encode_records("no key", keyless),
        _encode_records("8 B key", keyed),
    ]


def _batch(count: int, key: bytes | None, base_offset: int = 0) -> bytes:
    return bytes(build_batch([(TIMESTAMP + n, key, VALUE) for n in range(count)], base_offset=base_offset))


def _answer(per_batch: int, key: bytes | None) -> bytes:
    return b"".join(_batch(per_batch, key, start) for start in range(0, ANSWER, per_batch))


def _core_seconds(work: Callable[[], None], rounds: int = 9) -> float:
    """Median time on the core: the bars are per core, so what other processes take of it does not count."""
    work()
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def _against_bar(what: str, records: int, seconds: float, bar: float) -> Row:
    millions = records / seconds / 1e6
    return Row(what, f"{millions:.1f} M records/s", f"bar {bar:g} M/s", millions / bar, 1.0)


def _beside(what: str, records: int, ours: float, peer: float) -> Row:
    speed = f"{records / ours / 1e6:.1f} M records/s"
    return Row(what, speed, f"aiokafka {records / peer / 1e6:.1f} M/s", peer / ours, 1.0)


def _decode_columns(what: str, per_batch: int, key: bytes | None) -> Row:
    """CRC check included. The columns are handed over after each answer, as a consumer takes them."""
    answer = _answer(per_batch, key)
    columns = Columns()

    def work() -> None:
        for _ in range(ANSWERS):
            assert decode_into(columns, answer) == ANSWER
            columns.finish()

    seconds = _core_seconds(work)
    return _against_bar(f"records: decode into columns, {what}", ANSWER * ANSWERS, seconds, DECODE_BAR)


def _encode_columns(what: str, limit_bytes: int, key: bytes | None) -> Row:
    columns = Columns()
    decode_into(columns, _answer(LARGE_BATCH, key))
    source = ColumnSource(columns.finish())

    def work() -> None:
        for _ in range(ANSWERS):
            row = 0
            while row < ANSWER:
                row = RecordWriter(capacity_bytes=limit_bytes).append_rows(source, row, limit_bytes)

    seconds = _core_seconds(work)
    return _against_bar(f"records: encode from columns, {what}", ANSWER * ANSWERS, seconds, ENCODE_BAR)


def _decode_records(what: str, key: bytes | None) -> Row:
    batch = _batch(SMALL_BATCH, key)
    rounds = 1000

    def ours() -> None:
        for _ in range(rounds):
            decode(batch)

    def peer() -> None:
        for _ in range(rounds):
            theirs = DefaultRecordBatch(batch)
            assert theirs.validate_crc()
            list(theirs)

    return _beside(f"records: decode to Python records, {what}", SMALL_BATCH * rounds, *alternate(ours, peer))


def _encode_records(what: str, key: bytes | None) -> Row:
    rounds = 1000
    stamps = range(TIMESTAMP, TIMESTAMP + SMALL_BATCH)

    def ours() -> None:
        for _ in range(rounds):
            writer = RecordWriter()
            for timestamp in stamps:
                writer.append(timestamp, key, VALUE)
            writer.take()

    def peer() -> None:
        for _ in range(rounds):
            builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
            for offset, timestamp in enumerate(stamps):
                builder.append(offset, timestamp, key, VALUE, [])

    return _beside(f"records: encode from Python records, {what}", SMALL_BATCH * rounds, *alternate(ours, peer))

"""Cutting a batch that is too large in two: what a producer does when a broker refuses its size."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.records.batch import open_batch
from tidelog.records.build import BatchFacts, finish_batch
from tidelog.records.column_source import ColumnSource
from tidelog.records.columns import Columns
from tidelog.records.encoder import RecordWriter
from tidelog.records.header import HEADER_SIZE, BatchHeader
from tidelog.types import Buffer

_NO_LIMIT_BYTES = 2**31 - 1


class Halves(NamedTuple):
    """A batch cut in two."""

    first: memoryview
    second: memoryview
    uncompressed_bytes: int
    """The size of the batch that was cut, had it not been compressed."""


def split_batch(batch: Buffer, header: BatchHeader) -> Halves:
    """Two batches with the records of this one, in order and compressed alike; about half of the bytes are in each.

    The batch has at least two records. Each half gets at least one, so a record that is too large by itself is alone
    after some cuts. The producer fields of the halves are not set.
    """
    if header.record_count < 2:
        raise ValueError(f"a batch of {header.record_count} records cannot be split")
    cursor = open_batch(batch, header)
    payload_bytes = len(cursor.payload)
    columns = Columns()
    columns.append(cursor)
    source = ColumnSource(columns.finish())
    facts = BatchFacts(codec=header.codec, transactional=header.is_transactional)
    half_bytes = HEADER_SIZE + payload_bytes // 2
    first, second = RecordWriter(capacity_bytes=half_bytes), RecordWriter(capacity_bytes=half_bytes)
    row = first.append_rows(source, 0, half_bytes)
    second.append_rows(source, row, _NO_LIMIT_BYTES)
    return Halves(finish_batch(first, facts), finish_batch(second, facts), HEADER_SIZE + payload_bytes)

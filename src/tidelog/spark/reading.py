"""What a task does to read: answers of brokers decoded into Arrow batches, until the end of its range.

No Python object is made for a record: fetch gives whole batches of records, the kernel reads them into columns, and
Arrow wraps these. Where the batches come from is `Fetched`'s business; another source of them fits in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tidelog.client.cluster import Cluster
from tidelog.client.committed import visible_batches
from tidelog.client.errors import BrokerError, UnknownTopicError
from tidelog.client.fetch import Fetched, Fetcher
from tidelog.client.offsets import EARLIEST, list_offsets
from tidelog.errors import ErrorCode
from tidelog.records.batch import open_batch
from tidelog.records.columns import Columns
from tidelog.records.header import check_crc
from tidelog.spark.connected import Connected
from tidelog.spark.errors import DataLossError
from tidelog.spark.offsets import OffsetRange
from tidelog.spark.options import ReadOptions
from tidelog.spark.rows import RowMaker
from tidelog.types import Offset

_ROWS = 64 * 1024
_BYTES = 8 * 1024 * 1024
"""An Arrow batch is handed on when it has so many rows or bytes of keys, values and headers."""


def read_range(options: ReadOptions, one: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in order of their offsets. Ends when all before its end is read, gaps or not."""
    with Connected(options.addresses, options.client) as connected:
        decoder = Decoder(one, options.include_headers)
        source = RangeFetch(options, one)
        try:
            while (fetched := connected.run(source.next)) is not None:
                yield from decoder.decode(fetched)
            yield from decoder.rest()
        finally:
            source.close()


class RangeFetch:
    """Fetches one range from the leader of its partition, a little ahead of who asks."""

    def __init__(self, options: ReadOptions, one: OffsetRange) -> None:
        self._options = options
        self._range = one
        self._position: Offset = one.start
        self._fetcher: Fetcher | None = None

    async def next(self, cluster: Cluster) -> Fetched | None:
        """None at the end of the range. DataLossError if a part of it is gone, unless that is allowed."""
        while self._position < self._range.end:
            try:
                async with asyncio.timeout(self._options.poll_timeout_ms / 1000):
                    (fetched,) = await (await self._begun(cluster)).next()
            except TimeoutError:
                waited = f"{self._range.partition} gave nothing at offset {self._position}"
                self._lost(f"{waited} in {self._options.poll_timeout_ms} ms, though it ended at {self._range.end}")
                return None
            except UnknownTopicError:
                self._lost(f"{self._range.partition} is gone, and {self._position} was to be read next")
                return None
            except BrokerError as failure:
                if failure.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                await self._skip(cluster)
                continue
            self._position = fetched.next_offset
            if self._position >= self._range.end:
                self.close()
            return fetched
        return None

    async def _begun(self, cluster: Cluster) -> Fetcher:
        if self._fetcher is None:
            partition, _, end = self._range
            await cluster.topic(partition.topic)
            self._fetcher = Fetcher(cluster, {partition: self._position}, self._options.fetch, until={partition: end})
        return self._fetcher

    async def _skip(self, cluster: Cluster) -> None:
        """What was to be read next lies before the log's start, or behind its end."""
        self.close()
        partition, start, end = self._range
        found = (await list_offsets(cluster, {partition: EARLIEST}))[partition].offset
        if found > self._position:
            self._lost(f"{partition} begins at offset {found}, and {self._position} was to be read next")
            self._position = found
        else:
            self._lost(
                f"{partition} ends before offset {self._position}, which was to be read next of {start} to {end}"
            )
            self._position = end

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(what)

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None


class Decoder:
    """Batches of records in, Arrow batches out: those records that are within the range and count."""

    def __init__(self, one: OffsetRange, include_headers: bool) -> None:
        self._range = one
        self._rows = RowMaker(one.partition, include_headers)
        self._columns = Columns()
        self._types: list[tuple[int, int]] = []
        """Runs of rows with the same timestamp type: how many, and which."""

    def decode(self, fetched: Fetched) -> Iterator[pa.RecordBatch]:
        """What has become full. Aborted transactions and markers are left out; the CRC of the rest is checked."""
        records = memoryview(fetched.records)
        for position, header in visible_batches(records, fetched.aborted, fetched.fetch_offset):
            if header.base_offset >= self._range.end:
                break
            check_crc(header, records, position)
            added = self._columns.append(open_batch(records, header, position), fetched.fetch_offset)
            self._add_type(int(header.uses_log_append_time), added)
            if len(self._columns) >= _ROWS or self._columns.size_bytes >= _BYTES:
                yield self._taken()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if len(self._columns):
            yield self._taken()

    def _add_type(self, kind: int, rows: int) -> None:
        if self._types and self._types[-1][1] == kind:
            self._types[-1] = self._types[-1][0] + rows, kind
        else:
            self._types.append((rows, kind))

    def _taken(self) -> pa.RecordBatch:
        runs: list[pa.Array[Any]] = [pa.repeat(pa.scalar(kind, pa.int32()), rows) for rows, kind in self._types]
        self._types.clear()
        batch = self._rows.rows(self._columns.finish(), runs[0] if len(runs) == 1 else pa.concat_arrays(runs))
        return self._before_end(batch)

    def _before_end(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Only the last batch of records can reach over the end of the range, or hold more than was asked for."""
        offsets = batch.column("offset")
        count = batch.num_rows
        if count == 0 or offsets[count - 1].as_py() < self._range.end:
            return batch
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if offsets[middle].as_py() < self._range.end:
                low = middle + 1
            else:
                high = middle
        return batch.slice(0, low)

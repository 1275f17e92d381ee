"""What a task does to read: batches of records decoded into Arrow batches, until the end of its range.

No Python object is made for a record: a fetch or a leader's file gives whole batches of records, the kernel reads them
into columns, and Arrow wraps these.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tidelog.client.addresses import NONE_KNOWN, KnownBrokers
from tidelog.client.cluster import Cluster
from tidelog.client.committed import visible_batches
from tidelog.client.direct_read import DirectRead
from tidelog.client.direct_read_files import CannotReadFilesError
from tidelog.client.errors import BrokerError, UnknownTopicError
from tidelog.client.fetch import Fetched, Fetcher
from tidelog.client.offsets import start_and_end
from tidelog.errors import ErrorCode, TidelogError
from tidelog.records.batch import open_batch
from tidelog.records.columns import Columns
from tidelog.records.header import check_crc
from tidelog.spark.connected import Connected
from tidelog.spark.errors import OptionError, ReadTimeoutError
from tidelog.spark.losses import Loss, check_losses
from tidelog.spark.offsets import OffsetRange
from tidelog.spark.options import DirectReading, ReadOptions
from tidelog.spark.rows import RowMaker
from tidelog.types import Offset
from tidelog.wire.uuids import ZERO_UUID

_ROWS = 64 * 1024
_BYTES = 8 * 1024 * 1024
"""An Arrow batch is handed on when it has so many rows or bytes of keys, values and headers."""


def read_range(
    options: ReadOptions, one: OffsetRange, known: KnownBrokers = NONE_KNOWN, topic_id: bytes | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in order of their offsets. Ends when all before its end is read, gaps or not.

    `known` is what the driver knows: the bootstrap broker may be away, or of another cluster, when the task runs.
    `topic_id` is that of the topic that the range was planned for, if it is known.
    """
    with Connected(options.addresses, options.client, known) as connected:
        decoder = Decoder(one, options.include_headers)
        source = RangeFetch(options, one, topic_id)
        try:
            while (fetched := connected.run(source.next)) is not None:
                yield from decoder.decode(fetched)
            yield from decoder.rest()
        finally:
            source.close()


class RangeFetch:
    """Brings the batches of one range, from the files of the partition's leader or by fetches, a little ahead.

    Always: they are of the topic with that id, or else of the one that was there when the fetches began. If it is
    deleted and made again, other records are at the same offsets.
    """

    def __init__(self, options: ReadOptions, one: OffsetRange, topic_id: bytes | None = None) -> None:
        self._options = options
        self._range = one
        self._topic_id = topic_id
        self._position: Offset = one.start
        self._fetcher: Fetcher | None = None
        self._direct: DirectRead | None = None
        self._refused = 0
        """How often the leader said that the position is outside of its log."""
        self._fetch_until: Offset = one.end if options.direct_read is DirectReading.OFF else one.start
        """Up to here it is fetched, whatever the files may hold."""

    async def next(self, cluster: Cluster) -> Fetched | None:
        """None at the end of the range. DataLossError if a part of it is gone, unless that is allowed."""
        while self._position < self._range.end:
            fetched = await self._from_files(cluster) if self._position >= self._fetch_until else None
            fetched = fetched or await self._from_broker(cluster)
            if fetched is None:
                continue
            self._position = fetched.next_offset
            if self._position >= self._fetch_until:
                self._end_fetches()
            return fetched
        self.close()
        return None

    async def _from_files(self, cluster: Cluster) -> Fetched | None:
        """None if what comes next is to be fetched."""
        try:
            if self._direct is None:
                if not await self._is_led(cluster):
                    self._fetch_until = self._position + 1
                    return None
                self._direct = await DirectRead.open(cluster, self._range.partition, self._options.fetch.isolation)
            found = await self._direct.next(self._position, self._range.end)
        except CannotReadFilesError as failure:
            if self._options.direct_read is DirectReading.ON and self._position == self._range.start:
                raise OptionError("directRead", str(failure)) from failure
            self._fetch_until = self._range.end
            return None
        except TidelogError:
            # Whatever it is, the fetch that comes next will meet it too, and knows what to do about it.
            self._fetch_until = self._position + 1
            return None
        if self._direct.ended:
            self._end_direct_read()
        if isinstance(found, Fetched):
            return found
        self._fetch_until = self._range.end if found.until is None else min(found.until, self._range.end)
        return None

    async def _from_broker(self, cluster: Cluster) -> Fetched | None:
        """None if the position has moved without anything to read; at the end of the range all is over."""
        try:
            async with asyncio.timeout(self._options.poll_timeout_ms / 1000):
                (fetched,) = await (await self._begun(cluster)).next()
        except TimeoutError:
            waited = f"{self._range.partition} gave nothing at offset {self._position}"
            missing = f"{waited} in {self._options.poll_timeout_ms} ms, though it ended at {self._range.end}"
            if not await self._has_moved(cluster):
                raise ReadTimeoutError(missing) from None
        except UnknownTopicError:
            self._lost(self._range.end, self._why_gone(cluster))
        except BrokerError as failure:
            self._refused += 1
            if failure.code != ErrorCode.OFFSET_OUT_OF_RANGE or self._refused > self._options.offset_attempts:
                raise
            self._end_fetches()
            await self._has_moved(cluster)
        else:
            return fetched
        return None

    async def _begun(self, cluster: Cluster) -> Fetcher:
        if self._fetcher is None:
            partition = self._range.partition
            until = {partition: self._fetch_until}
            # A broker that has just started may not know the topic yet. The fetcher has the patience for that.
            with contextlib.suppress(UnknownTopicError):
                await cluster.topic(partition.topic)
            self._pin_topic(cluster)
            ids = {} if self._topic_id is None else {partition.topic: self._topic_id}
            positions = {partition: self._position}
            self._fetcher = Fetcher(cluster, positions, self._options.fetch, until=until, topic_ids=ids)
        return self._fetcher

    # The topic

    def _pin_topic(self, cluster: Cluster) -> None:
        """If no id was given, the topic that metadata has now is the one that is read."""
        found = cluster.metadata.topic_id(self._range.partition.topic)
        if self._topic_id is None and found != ZERO_UUID:
            self._topic_id = found

    def _is_another(self, cluster: Cluster) -> bool:
        """Whether metadata has another topic of this name."""
        found = cluster.metadata.topic_id(self._range.partition.topic)
        return self._topic_id is not None and found not in (ZERO_UUID, self._topic_id)

    async def _is_led(self, cluster: Cluster) -> bool:
        """Whether metadata has the topic, and a leader of its partition."""
        partition = self._range.partition
        if cluster.metadata.leader(partition) is None:
            await cluster.refresh_once([partition.topic])
        self._pin_topic(cluster)
        return cluster.metadata.leader(partition) is not None and not self._is_another(cluster)

    async def _is_made_anew(self, cluster: Cluster) -> bool:
        """Whether every broker that is asked has another topic of this name; a single one may know the past only."""
        for attempt in range(self._options.offset_attempts):
            if not self._is_another(cluster):
                return False
            await asyncio.sleep(self._options.offset_interval_ms / 1000 if attempt else 0)
            await cluster.refresh_once([self._range.partition.topic], elsewhere=True)
        return self._is_another(cluster)

    def _why_gone(self, cluster: Cluster) -> str:
        partition, position = self._range.partition, self._position
        made_again = f"topic {partition.topic} was deleted and made again"
        what = made_again if self._is_another(cluster) else f"{partition} is gone"
        return f"{what}, and {position} was to be read next"

    # Losses

    async def _has_moved(self, cluster: Cluster) -> bool:
        """Whether the position was outside of the log, so that what lies there is lost, and has moved behind that.

        It is not if the leader does not answer. An end before the position may be an answer of the past, from a broker
        that has just begun to lead, so it is asked for again.
        """
        partition, start, end = self._range
        for attempt in range(self._options.offset_attempts):
            await asyncio.sleep(self._options.offset_interval_ms / 1000 if attempt else 0)
            try:
                async with asyncio.timeout(self._options.client.request_timeout_ms / 1000):
                    found = await self._start_and_end(cluster)
            except (TidelogError, TimeoutError):
                return False
            if found is None:
                self._lost(end, self._why_gone(cluster))
                return True
            first, after = found
            if first > self._position:
                why = f"{partition} begins at offset {first}, and {self._position} was to be read next"
                self._lost(min(first, end), why)
                return True
            if after > self._position:
                return False
        where = f"{partition} ends before offset {self._position}, which was to be read next of {start} to {end}"
        self._lost(end, f"{where}: its log ends at {after}")
        return True

    async def _start_and_end(self, cluster: Cluster) -> tuple[Offset, Offset] | None:
        """Of the partition; None if its topic was made again, so that those offsets are another's."""
        if await self._is_made_anew(cluster):
            return None
        partition = self._range.partition
        found = await start_and_end(cluster, [partition], isolation=self._options.fetch.isolation)
        return found[partition]

    def _lost(self, until: Offset, why: str) -> None:
        """Go on behind it, unless that ends the query."""
        check_losses([Loss(self._range.partition, self._position, until, why)], self._options.fail_on_data_loss)
        self._end_fetches()
        self._position = until

    def close(self) -> None:
        self._end_fetches()
        self._end_direct_read()

    def _end_fetches(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None

    def _end_direct_read(self) -> None:
        if self._direct is not None:
            self._direct.close()
            self._direct = None


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

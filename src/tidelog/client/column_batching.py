"""Columns into batches: rows of many partitions, each encoded by the kernel into its partition's open batch."""

from __future__ import annotations

import asyncio

from tidelog.client.batching import DEFAULT_BATCHING, BatchingSettings
from tidelog.client.produce import Produced, Producer
from tidelog.records.buffers import ColumnBuffers
from tidelog.records.build import BatchFacts, finish_batch
from tidelog.records.column_source import ColumnSource
from tidelog.records.encoder import RecordWriter
from tidelog.types import TopicPartition

_LEAST_CAPACITY_BYTES = 64 * 1024


class _Open:
    """A batch that still takes rows, since when, and what sends it if no more come."""

    __slots__ = ("limit_bytes", "since_s", "timer", "writer")

    def __init__(self, limit_bytes: int, since_s: float, timer: asyncio.TimerHandle) -> None:
        self.writer = RecordWriter(capacity_bytes=min(limit_bytes, _LEAST_CAPACITY_BYTES))
        self.limit_bytes = limit_bytes
        self.since_s = since_s
        self.timer = timer


class ColumnBatcher:
    """Hands batches to the producer when they are full or have lingered; the rest goes with `flush`.

    Always: the rows of a partition are written in the order they were added. The first failure, of a batch that was
    given up or could not be made, is what `add`, `room` and `flush` raise from then on, without waiting for others.
    Nothing is sent after it.
    """

    def __init__(self, producer: Producer, settings: BatchingSettings = DEFAULT_BATCHING) -> None:
        self.record_count = 0
        self._producer = producer
        self._settings = settings
        self._facts = BatchFacts(codec=settings.compression)
        self._loop = asyncio.get_running_loop()
        self._open: dict[TopicPartition, _Open] = {}
        self._unheard = 0
        """Batches that were sent and whose outcome has not come here yet."""
        self._quiet = asyncio.Event()
        """Set when the last outcome has come, and with the first failure."""
        self._failure: BaseException | None = None
        self._waiting: asyncio.Task[None] | None = None

    def add(self, partition: TopicPartition, columns: ColumnBuffers) -> None:
        """All rows, to one partition. ValueError if a row cannot be written."""
        source = ColumnSource(columns)
        row = 0
        while row < columns.row_count:
            self._raise_failure()
            batch = self._open.get(partition) or self._begin(partition)
            row = batch.writer.append_rows(source, row, batch.limit_bytes)
            if row < columns.row_count or batch.writer.size_bytes >= batch.limit_bytes:
                self._send(partition)
        self.record_count += columns.row_count

    async def room(self) -> None:
        """Wait while too much is on its way."""
        if self._failure is None and self._producer.outstanding_bytes >= self._settings.buffer_memory:
            await self._wait_for_room()
        self._raise_failure()

    async def flush(self) -> None:
        """Send all that is open, and wait until all is written.

        This waits for the outcome of each batch. The producer's own flush does not: it has nothing outstanding as soon
        as it gives up the last batch, a moment before that batch's failure comes here.
        """
        for partition in list(self._open):
            self._send(partition)
        while self._unheard and self._failure is None:
            await self._quiet.wait()
        self._raise_failure()
        await self._producer.flush()

    async def _wait_for_room(self) -> None:
        """Or until a batch is given up."""
        self._waiting = self._loop.create_task(self._producer.room(self._settings.buffer_memory))
        try:
            await self._waiting
        except asyncio.CancelledError:
            if self._failure is None:
                raise
        finally:
            self._waiting = None

    def _begin(self, partition: TopicPartition) -> _Open:
        limit_bytes = self._producer.limits.batch_bytes(partition.topic, self._settings.batch_size)
        now_s = self._loop.time()
        timer = self._loop.call_at(now_s + self._settings.linger_ms / 1000, self._send, partition)
        batch = self._open[partition] = _Open(limit_bytes, now_s, timer)
        return batch

    def _send(self, partition: TopicPartition) -> None:
        """Its errors are kept, not raised: a timer has no caller who would hear of them, and the rows are counted."""
        batch = self._open.pop(partition)
        batch.timer.cancel()
        if self._failure is not None:
            return
        try:
            data = finish_batch(batch.writer, self._facts)
            sent = self._producer.send(partition, data, batch.since_s)
            self._unheard += 1
            self._quiet.clear()
            sent.add_done_callback(self._hear)
        except BaseException as failure:
            self._fail(failure)
            if not isinstance(failure, Exception):
                raise

    def _hear(self, done: asyncio.Future[Produced]) -> None:
        self._unheard -= 1
        if not self._unheard:
            self._quiet.set()
        failure = done.exception()
        if failure is not None:
            self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        """Only the first failure counts. Whatever waits ends."""
        if self._failure is None:
            self._failure = failure
            self._quiet.set()
            if self._waiting is not None:
                self._waiting.cancel()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

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


class ColumnBatcher:
    """Hands full batches to the producer; the rest goes with `flush`. There is no linger: rows come in bulk.

    Always: the rows of a partition are written in the order they were added. The first batch that was given up is
    what `room` and `flush` raise, and nothing is sent after it.
    """

    def __init__(self, producer: Producer, settings: BatchingSettings = DEFAULT_BATCHING) -> None:
        self.record_count = 0
        self._producer = producer
        self._settings = settings
        self._facts = BatchFacts(codec=settings.compression)
        self._open: dict[TopicPartition, RecordWriter] = {}
        self._failure: BaseException | None = None

    def add(self, partition: TopicPartition, columns: ColumnBuffers) -> None:
        """All rows, to one partition. ValueError if a row cannot be written."""
        source = ColumnSource(columns)
        row = 0
        while row < columns.row_count:
            writer = self._open.get(partition)
            if writer is None:
                capacity_bytes = min(self._settings.batch_size, _LEAST_CAPACITY_BYTES)
                writer = self._open[partition] = RecordWriter(capacity_bytes=capacity_bytes)
            row = writer.append_rows(source, row, self._settings.batch_size)
            if row < columns.row_count or writer.size_bytes >= self._settings.batch_size:
                self._send(partition, self._open.pop(partition))
        self.record_count += columns.row_count

    async def room(self) -> None:
        """Wait while too much is on its way."""
        await self._producer.room(self._settings.buffer_memory)
        self._check()

    async def flush(self) -> None:
        """Send all that is open, and wait until all is written."""
        for partition, writer in self._open.items():
            self._send(partition, writer)
        self._open.clear()
        await self._producer.flush()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _send(self, partition: TopicPartition, writer: RecordWriter) -> None:
        if self._failure is None:
            self._producer.send(partition, finish_batch(writer, self._facts)).add_done_callback(self._sent)

    def _sent(self, done: asyncio.Future[Produced]) -> None:
        self._failure = self._failure or done.exception()

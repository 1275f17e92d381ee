"""Single records into batches: by partition, until a batch is full or has waited long enough."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.partitioner import StickyPartition, partition_of_key
from tidelog.client.produce import Produced, Producer
from tidelog.errors import InvalidRecordError
from tidelog.records.build import BatchFacts, Headers, finish_batch
from tidelog.records.encoder import RecordWriter
from tidelog.records.header import Codec
from tidelog.types import Buffer, TopicPartition

_RECORD_OVERHEAD_BYTES = 32
"""Lengths, deltas and attributes of one record, at most."""


class BatchingSettings(NamedTuple):
    """By Kafka's names; its defaults but for the batch size, which suits a pipe better than many small batches."""

    batch_size: int = 256 * 1024
    linger_ms: float = 5
    buffer_memory: int = 32 * 1024 * 1024
    compression: Codec = Codec.NONE


DEFAULT_BATCHING = BatchingSettings()


class _Open:
    """A batch that still takes records; its future ends as its batch's does."""

    __slots__ = ("future", "limit_bytes", "since_s", "timer", "writer")

    def __init__(
        self, future: asyncio.Future[Produced], limit_bytes: int, since_s: float, timer: asyncio.TimerHandle
    ) -> None:
        self.writer = RecordWriter()
        self.future = future
        self.limit_bytes = limit_bytes
        self.since_s = since_s
        self.timer = timer


class Batcher:
    """Collects the records of one topic, whose metadata is known, and hands full batches to the producer.

    Always: the future of each record is done when its batch is written, is given up, or could not be made.
    """

    def __init__(
        self, cluster: Cluster, producer: Producer, topic: str, settings: BatchingSettings = DEFAULT_BATCHING
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._topic = topic
        self._settings = settings
        self._facts = BatchFacts(codec=settings.compression)
        self._loop = asyncio.get_running_loop()
        self._sticky = StickyPartition(cluster.random)
        self._open: dict[int, _Open] = {}
        self._last_count = len(cluster.metadata.topics[topic].partitions)

    async def add(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> asyncio.Future[Produced]:
        """The future of the batch that the record is in; waits while too much is on its way."""
        await self._producer.room(self._settings.buffer_memory)
        number = self._choose(key) if partition is None else self._checked(partition)
        size_bytes = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        size_bytes += sum(2 * len(name) + len(data or b"") + 10 for name, data in headers)
        batch = self._open.get(number)
        if batch is not None and batch.writer.size_bytes + size_bytes > batch.limit_bytes:
            self._finish(number)
            if key is None and partition is None:
                self._sticky.move_on(self._available())
                number = self._choose(None)
            batch = self._open.get(number)
        if batch is None:
            batch = self._begin(number)
        batch.writer.append(timestamp, key, value, headers)
        return batch.future

    async def flush(self) -> None:
        """Send all that is open, and wait until nothing is on its way."""
        for number in list(self._open):
            self._finish(number)
        await self._producer.flush()

    def _available(self) -> list[int]:
        metadata = self._cluster.metadata
        numbers = range(self._partition_count())
        led = [number for number in numbers if metadata.leader(TopicPartition(self._topic, number)) is not None]
        return led or list(numbers)

    def _partition_count(self) -> int:
        """The last that was heard of: the topic may be gone from metadata for a moment."""
        topic = self._cluster.metadata.topics.get(self._topic)
        if topic is not None:
            self._last_count = len(topic.partitions)
        return self._last_count

    def _choose(self, key: Buffer | None) -> int:
        if key is None:
            return self._sticky.current(self._available())
        return partition_of_key(key, self._partition_count())

    def _checked(self, partition: int) -> int:
        count = self._partition_count()
        if not 0 <= partition < count:
            raise InvalidRecordError(f"topic {self._topic} has partitions 0 to {count - 1}, not {partition}")
        return partition

    def _begin(self, number: int) -> _Open:
        limit_bytes = self._producer.limits.batch_bytes(self._topic, self._settings.batch_size)
        now_s = self._loop.time()
        timer = self._loop.call_at(now_s + self._settings.linger_ms / 1000, self._finish, number)
        batch = self._open[number] = _Open(self._loop.create_future(), limit_bytes, now_s, timer)
        return batch

    def _finish(self, number: int) -> None:
        batch = self._open.pop(number)
        batch.timer.cancel()
        try:
            data = finish_batch(batch.writer, self._facts)
            done = self._producer.send(TopicPartition(self._topic, number), data, batch.since_s)
            done.add_done_callback(lambda done: _hand_on(done, batch.future))
        except BaseException as failure:
            if not batch.future.done():
                batch.future.set_exception(failure)
            if not isinstance(failure, Exception):
                raise


def _hand_on(done: asyncio.Future[Produced], future: asyncio.Future[Produced]) -> None:
    if future.done():
        return
    failure = done.exception()
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(done.result())

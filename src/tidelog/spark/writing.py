"""What a task does to write: Arrow batches encoded by partition and sent, each batch of records once.

Spark's rows are pulled on the thread that Spark calls, and may come slowly. The network has a thread of its own, which
never waits for them. The thread that pulls waits while more than buffer.memory is on its way, and hears of a failure
with the next rows that it hands over.

The task ends when all is written: at least once, because Spark may run a task again. The message it leaves says what
it wrote, and the driver's commit, which has nothing to do yet, is where a transaction would end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.client.addresses import NONE_KNOWN, KnownBrokers
from tidelog.client.cluster import Cluster
from tidelog.client.column_batching import ColumnBatcher
from tidelog.client.errors import UnknownTopicError
from tidelog.client.partitioner import StickyPartition
from tidelog.client.produce import Producer
from tidelog.host.clock import SystemClock
from tidelog.host.loop_thread import LoopThread
from tidelog.ports import Clock
from tidelog.records.arrow import from_arrow
from tidelog.records.key_partitions import key_partitions
from tidelog.spark.connected import Connected
from tidelog.spark.errors import OptionError
from tidelog.spark.options import WriteOptions
from tidelog.spark.sink_columns import by_topic, records_of
from tidelog.types import TopicPartition


class Written(NamedTuple):
    """What one task has written."""

    record_count: int


def write_batches(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], known: KnownBrokers = NONE_KNOWN
) -> Written:
    """Returns when every row is acknowledged, with acks=0 handled by its leader; raises the first failure.

    `known` is what the driver has learnt: the bootstrap broker may be away, or of another cluster, when the task runs.
    """
    settings = options.producer

    async def begin(cluster: Cluster) -> tuple[Producer, RowWriter]:
        producer = Producer(cluster, acks=settings.acks, delivery_timeout_ms=settings.delivery_timeout_ms)
        return producer, RowWriter(cluster, ColumnBatcher(producer, settings.batching), options.topic, SystemClock())

    async def end(cluster: Cluster) -> None:
        producer.close()

    def hand_over(batch: pa.RecordBatch) -> None:
        connected.run(lambda cluster: writer.write(batch))

    with Connected(options.addresses, options.client, known, runner=LoopThread("tidelog-sender")) as connected:
        producer, writer = connected.run(begin)
        try:
            for batch in batches:
                hand_over(batch)
            return connected.run(lambda cluster: writer.finish())
        finally:
            connected.run(end)


class RowWriter:
    """Deals rows out to partitions: by their column, by their key, or, without both, a bunch at a time by chance."""

    def __init__(self, cluster: Cluster, batcher: ColumnBatcher, topic: str | None, clock: Clock) -> None:
        self._cluster = cluster
        self._batcher = batcher
        self._topic = topic
        self._clock = clock
        self._sticky: dict[str, StickyPartition] = {}

    async def write(self, batch: pa.RecordBatch) -> None:
        """Encodes all rows; returns when there is room for more."""
        for topic, rows in by_topic(batch, self._topic):
            count = await self._partition_count(topic)
            records = records_of(rows, self._clock.wall_ms())
            self._add(topic, records, self._numbers(topic, rows, records, count))
        await self._batcher.room()

    async def finish(self) -> Written:
        await self._batcher.flush()
        return Written(self._batcher.record_count)

    async def _partition_count(self, topic: str) -> int:
        try:
            return len((await self._cluster.topic(topic)).partitions)
        except UnknownTopicError as failure:
            raise OptionError("topic", f"topic {topic} does not exist") from failure

    def _numbers(self, topic: str, rows: pa.RecordBatch, records: pa.RecordBatch, count: int) -> pa.Array[Any]:
        """The partition of each row."""
        given = rows.column("partition") if "partition" in rows.schema.names else None
        if given is not None:
            _check_partitions(topic, given, count)
            if not given.null_count:
                return given
        sticky = self._sticky.setdefault(topic, StickyPartition(self._cluster.random))
        keyless = sticky.current(range(count))
        sticky.move_on(range(count))
        found = key_partitions(from_arrow(records).keys, rows.num_rows, count, keyless)
        chosen: pa.Array[Any] = pa.Array.from_buffers(pa.int32(), rows.num_rows, [None, pa.py_buffer(found)], 0)
        return chosen if given is None else pc.coalesce(given, chosen)

    def _add(self, topic: str, records: pa.RecordBatch, numbers: pa.Array[Any]) -> None:
        """Sorted by partition, stably, so that each partition's rows lie together and in order."""
        if not records.num_rows:
            return
        counts = [(one["values"].as_py(), one["counts"].as_py()) for one in pc.value_counts(numbers)]
        if len(counts) > 1:
            records = records.take(pc.array_sort_indices(numbers))
        start = 0
        for number, count in sorted(counts):
            self._batcher.add(TopicPartition(topic, number), from_arrow(records.slice(start, count)))
            start += count


def _check_partitions(topic: str, given: pa.Array[Any], count: int) -> None:
    bounds = pc.min_max(given)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and not 0 <= low <= high < count:
        wrong = low if low < 0 else high
        raise OptionError("partition", f"the column of this name has {wrong}; topic {topic} has 0 to {count - 1}")

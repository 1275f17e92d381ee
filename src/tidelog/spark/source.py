"""format("tidelog"): what Spark sees of it. Batch reading and writing; `stream` has the streaming source."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidelog.client.addresses import NONE_KNOWN, KnownBrokers
from tidelog.client.cluster import Cluster
from tidelog.errors import TidelogError
from tidelog.spark.connected import Connected
from tidelog.spark.errors import OptionError
from tidelog.spark.limits import split
from tidelog.spark.offsets import OffsetRange, TopicIds
from tidelog.spark.options import ReadOptions, WriteOptions, includes_headers, read_options, write_options
from tidelog.spark.planning import ALL, batch_ranges, topic_ids

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.spark.stream import TidelogStreamReader

log = logging.getLogger(__name__)

NAME = "tidelog"
_LEARN_MS = 5_000
"""A sink's tasks can do without what the driver knows, so it does not wait for longer."""


class TidelogDataSource(DataSource):
    """Found by Spark itself, through the package pyspark_tidelog. Options are checked when a query is planned."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        from tidelog.spark.rows import ddl

        return ddl(includes_headers(self.options))

    def reader(self, schema: StructType) -> TidelogReader:
        options = read_options(self.options, streaming=False)
        check_schema(schema, options.include_headers)
        return TidelogReader(options)

    def streamReader(self, schema: StructType) -> TidelogStreamReader:  # noqa: N802
        from tidelog.spark.stream import TidelogStreamReader

        options = read_options(self.options, streaming=True)
        check_schema(schema, options.include_headers)
        return TidelogStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> TidelogWriter:
        if overwrite:
            raise OptionError("mode", "a topic cannot be overwritten; write with mode append")
        options = _checked_sink(self.options, schema)
        return TidelogWriter(options, known_brokers(options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:  # noqa: N802
        options = _checked_sink(self.options, schema)
        return TidelogStreamWriter(options, known_brokers(options))


def check_schema(schema: StructType, include_headers: bool) -> None:
    """The columns are fixed: what a topic holds is bytes, whoever reads them says what they mean."""
    from tidelog.spark.rows import ddl

    columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    text = ", ".join(f"{name} {kind}" for name, kind in columns)
    if text.replace(" ", "") != ddl(include_headers).replace(" ", ""):
        raise OptionError("schema", f"the columns are fixed: {ddl(include_headers)}; not {text}")


def _checked_sink(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    from tidelog.spark.sink_columns import check_columns

    checked = write_options(options)
    check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], checked.topic)
    return checked


class RangePartition(InputPartition):
    """The share of one task, the cluster and brokers that the driver knows, and the id of the topic it planned for."""

    def __init__(self, one: OffsetRange, known: KnownBrokers = NONE_KNOWN, topic_id: bytes | None = None) -> None:
        super().__init__(one)
        self.range = one
        self.known = known
        self.topic_id = topic_id


class TidelogReader(DataSourceReader):
    """A batch read: where it ends is fixed when it is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._narrowing = ALL

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        from tidelog.spark.filters import narrowed

        self._narrowing, rest = narrowed(filters)
        return rest

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Connected(options.addresses, options.client) as connected:
            ranges, ids = connected.run(self._planned)
            known = connected.known
        parts = split(ranges, options.min_partitions, options.max_records)
        return [RangePartition(part, known, ids.get(part.partition.topic)) for part in parts]

    async def _planned(self, cluster: Cluster) -> tuple[list[OffsetRange], TopicIds]:
        ranges = await batch_ranges(cluster, self._options, self._narrowing)
        return ranges, topic_ids(cluster, [one.partition for one in ranges])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Where there are no partitions, Spark makes one up, of which nothing is read."""
    from tidelog.spark.reading import read_range

    if not isinstance(partition, RangePartition):
        return iter(())
    return read_range(options, partition.range, partition.known, partition.topic_id)


class WrittenMessage(WriterCommitMessage):
    """What a task has written; it is written whether or not the query commits."""

    def __init__(self, record_count: int) -> None:
        self.record_count = record_count


def known_brokers(options: WriteOptions) -> KnownBrokers:
    """What the driver tells the tasks of a sink. If no broker answers soon, nothing: they will look for themselves."""
    client = options.client
    impatient = client._replace(
        request_timeout_ms=min(client.request_timeout_ms, _LEARN_MS),
        default_api_timeout_ms=min(client.default_api_timeout_ms, _LEARN_MS),
        socket_connection_setup_timeout_ms=min(client.socket_connection_setup_timeout_ms, _LEARN_MS),
    )
    try:
        with Connected(options.addresses, impatient) as connected:
            connected.run(Cluster.refresh_once)
            return connected.known
    except TidelogError as failure:
        log.warning("tasks of the sink know no broker but those of kafka.bootstrap.servers: %s", failure)
        return NONE_KNOWN


def _write(options: WriteOptions, known: KnownBrokers, batches: Iterator[pa.RecordBatch]) -> WrittenMessage:
    from tidelog.spark.writing import write_batches

    return WrittenMessage(write_batches(options, batches, known).record_count)


class TidelogWriter(DataSourceArrowWriter):
    """At least once: a task that fails has written a part, and writes it again when Spark runs it again."""

    def __init__(self, options: WriteOptions, known: KnownBrokers = NONE_KNOWN) -> None:
        self._options = options
        self._known = known

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return _write(self._options, self._known, iterator)


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """The same for each micro-batch."""

    def __init__(self, options: WriteOptions, known: KnownBrokers = NONE_KNOWN) -> None:
        self._options = options
        self._known = known

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return _write(self._options, self._known, iterator)

"""format("tidelog") on tidelog beside Spark's own connector on Apache Kafka 4.1.0: one Spark, same data, in turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench import broker_servers, broker_start, spark_data
from bench.broker_servers import Kafka, Server, Tidelog
from bench.log import scratch
from bench.spark_data import PARTITIONS, TOPIC
from bench.table import Row, seconds
from bench.turns import Pair, create_topic, delete_topic, in_turns, more
from peers import spark_connector
from peers.process import PeerFailedError

MASTER = "local[2]"
SPARK: Mapping[str, str] = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
_WRITTEN, _WINDOWS = "written", "windows"
_VALUE_BYTES = 100
_MICRO_BATCHES = 3
_DEADLINE_S = 600


@dataclass(frozen=True)
class Scale:
    """How often and how much; one turn of each goes before those that count."""

    rounds: int = 3
    records: int = 6_000_000
    written: int = 5_000_000


FULL = Scale()
QUICK = Scale(rounds=1, records=300_000, written=100_000)


def settings() -> dict[str, str]:
    """What was run, for the reader of the table."""
    return broker_servers.settings() | {
        "Spark": f"{_spark_version()}, {MASTER}, {' '.join(f'{name}={value}' for name, value in SPARK.items())}",
        "peer": "Spark's own connector: " + ", ".join(jar.name for jar in spark_connector.jars()),
        "records read": f"values of {spark_data.SMALL_BYTES} B, every {spark_data.LARGE_EVERY}th of "
        f"{spark_data.LARGE_BYTES} B, without keys, in batches of {spark_data.BATCH_RECORDS}, over {PARTITIONS} "
        f"partitions, segment.bytes={spark_data.SEGMENT_BYTES}; the same bytes to both brokers",
        "batch read": "count(*) and sum(length(value))",
        "stream": f"Trigger.AvailableNow in {_MICRO_BATCHES} micro-batches, whose time counts, not the start of the "
        "query; count and sum(length(value)) by window of a minute",
        "batch write": "rows made by Spark: key of 8 B, value of 100 B",
        "amounts of a full run": str(FULL),
    }


def _spark_version() -> str:
    import pyspark

    return f"PySpark {pyspark.__version__}"


def rows(scale: Scale = FULL) -> list[Row]:
    with scratch() as name, ExitStack() as stack:
        directory = Path(name)
        pair = Pair[Server](Tidelog(directory / "ours"), Kafka(directory / "kafka"))
        for server in pair:
            server.prepare()
            stack.callback(server.stop)
            broker_start.start(server)
        data = _Data(spark_data.rounded(scale.records), *{spark_data.fill(server, scale.records) for server in pair})
        spark = stack.enter_context(_session(directory))
        readers = _Readers(spark, data, directory)

        def row(what: str, records: int, took_s: _TookS, bar: float, around: _Around = _nothing) -> Row:
            def rate(server: Server) -> float:
                with around(server), server.cpu_counted():
                    return records / took_s(server)

            for server in pair:
                rate(server)
            return more(what, *in_turns(pair, scale.rounds, rate), bar)

        return [
            row(
                "batch read by fetch, 100 B and 1 kB records, count and sum of lengths",
                data.records,
                lambda server: readers.batch(server, directRead="false"),
                2.0,
            ),
            row("the same with directRead", data.records, lambda server: readers.batch(server, directRead="true"), 3.0),
            row("streaming read to a windowed aggregate", data.records, readers.stream, 1.5),
            row(
                f"batch write of {scale.written:,} rows",
                scale.written,
                lambda server: seconds(lambda: _write(spark, server, scale.written)),
                1.0,
                _new_topic,
            ),
        ]


_TookS = Callable[[Server], float]
_Around = Callable[[Server], AbstractContextManager[None]]
"""What is made before each turn and removed after it, out of the measured time."""


def _nothing(server: Server) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _session(directory: Path) -> Iterator[Any]:
    import tidelog.spark

    builder = tidelog.spark.session("bench", MASTER).config("spark.local.dir", str(directory / "spark"))
    for name, value in SPARK.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.jars", ",".join(map(str, spark_connector.jars())))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


class _Data(NamedTuple):
    """What is in the topic, and so what every read must find."""

    records: int
    length_sum: int


def _format(server: Server) -> str:
    return "tidelog" if isinstance(server, Tidelog) else "kafka"


class _Readers:
    """Reads that check what they have read. Options of ours mean nothing to the peer, which passes over them."""

    def __init__(self, spark: Any, data: _Data, directory: Path) -> None:
        self._spark = spark
        self._data = data
        self._checkpoints = (directory / "checkpoints" / str(number) for number in itertools.count())

    def batch(self, server: Server, **ours: str) -> float:
        """How long it took."""
        reader = self._spark.read.format(_format(server)).options(**self._options(server, ours))
        return seconds(lambda: self._check(reader.load().selectExpr("count(*)", "sum(length(value))").first()))

    def stream(self, server: Server) -> float:
        """How long the micro-batches took, all that a query does for each of them; not the start of the query."""
        share = self._data.records // _MICRO_BATCHES + PARTITIONS  # rounded up in each partition: nothing is left over
        limit = {"maxOffsetsPerTrigger": str(share), "startingOffsets": "earliest"}
        frame = self._spark.readStream.format(_format(server)).options(**self._options(server, {}), **limit).load()
        frame = frame.selectExpr("window(timestamp, '1 minute') minute", "length(value) length")
        windows = frame.groupBy("minute").agg({"*": "count", "length": "sum"})
        writer = windows.writeStream.format("memory").queryName(_WINDOWS).outputMode("complete")
        query = writer.option("checkpointLocation", str(next(self._checkpoints))).trigger(availableNow=True).start()
        if not query.awaitTermination(_DEADLINE_S):
            raise PeerFailedError(f"a streaming query on {server.name} did not end in {_DEADLINE_S} s")
        self._check(self._spark.table(_WINDOWS).selectExpr("sum(`count(1)`)", "sum(`sum(length)`)").first())
        progress = query.recentProgress
        assert len(progress) == _MICRO_BATCHES, f"{len(progress)} micro-batches"
        return sum(float(one["durationMs"]["triggerExecution"]) for one in progress) / 1000

    def _options(self, server: Server, ours: Mapping[str, str]) -> dict[str, str]:
        common = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": TOPIC}
        return {**common, **(ours if isinstance(server, Tidelog) else {})}

    def _check(self, found: Any) -> None:
        assert tuple(found) == tuple(self._data), f"{tuple(found)} was read, {self._data} was written"


@contextmanager
def _new_topic(server: Server) -> Iterator[None]:
    """To write to; its files are gone when it is left."""
    create_topic(server, _WRITTEN, PARTITIONS, 1)
    yield
    delete_topic(server, _WRITTEN)


def _write(spark: Any, server: Server, count: int) -> None:
    frame = spark.range(count).selectExpr("cast(id + 10000000 as string) key", f"repeat('v', {_VALUE_BYTES}) value")
    writer = frame.write.format(_format(server)).option("kafka.bootstrap.servers", server.bootstrap)
    writer.option("topic", _WRITTEN).mode("append").save()

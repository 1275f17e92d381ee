"""A Spark driver that is told what to do: `python -m tests.kits.spark_driver MASTER DIRECTORY SERVERS`.

It reads [job, arguments] in JSON, a line each, and answers each with a line of JSON. Its query writes the totals of
every micro-batch to totals.json in the directory, so that they outlive it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for a minute is not worth the second compiler."""

_HELD_S = 120.0
_QUERY_S = 120
_NUMBER = "cast(trim(cast(value as string)) as long)"
"""What a record of tests/kits/loadkit.py says."""


def totals_by_partition(frame: Any) -> Any:
    """Columns partition, count, sum and xor of the numbers: one lost or counted twice changes them."""
    from pyspark.sql import functions as f

    numbers = frame.selectExpr("partition", f"{_NUMBER} number").groupBy("partition")
    return numbers.agg(f.count("number"), f.sum("number"), f.bit_xor("number"))


def totals_of(rows: Iterable[Any]) -> dict[int, list[int]]:
    return {row[0]: list(row[1:]) for row in rows}


def write_totals(path: Path, batch: int, totals: dict[int, list[int]]) -> None:
    """Whole or not at all, whenever the process is killed."""
    made = path.with_suffix(".new")
    made.write_text(json.dumps({"batch": batch, "totals": totals}))
    os.replace(made, path)


def held(gate: str, batches: Iterable[Any]) -> Iterator[Any]:
    """In a task: the first one that finds the gate waits in it, after its first rows, until it is killed."""
    for batch in batches:
        yield batch
        try:
            with open(f"{gate}/held", "x") as file:
                file.write(f"{os.getpid()}\n")
        except OSError:  # no gate yet, or another task is in it
            continue
        time.sleep(_HELD_S)
        raise RuntimeError("nobody killed the task")


class Driver:
    """The jobs. Every option but the needed ones is as a user has it."""

    def __init__(self, master: str, directory: Path, servers: str) -> None:
        import tidelog.spark

        self._directory = directory
        self._servers = {"kafka.bootstrap.servers": servers}
        self._spark = (
            tidelog.spark.session("driver", master)
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "512m")
            .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
            .config("spark.executor.extraJavaOptions", JAVA_OPTIONS)
            .config("spark.executor.memory", "512m")
            .config("spark.ui.enabled", "false")
            .config("spark.local.dir", str(directory / "local"))
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        self._query: Any = None

    def _stream(self, topic: str, **options: str) -> Any:
        reader = self._spark.readStream.format("tidelog").options(**self._servers).options(**options)
        return reader.option("subscribe", topic).option("startingOffsets", "earliest").load()

    def _checkpoint(self, name: str) -> dict[str, str]:
        return {"checkpointLocation": str(self._directory / name)}

    def write(self, topic: str, count: int, tasks: int) -> None:
        frame = self._spark.range(0, count, 1, tasks).selectExpr("cast(id as string) key", "cast(id as string) value")
        frame.write.format("tidelog").options(**self._servers).option("topic", topic).mode("append").save()

    def read(self, topic: str, **options: str) -> dict[int, list[int]]:
        reader = self._spark.read.format("tidelog").options(**self._servers).options(**options)
        return totals_of(totals_by_partition(reader.option("subscribe", topic).load()).collect())

    def places(self, topic: str) -> list[str]:
        """The working directories of the tasks that read it."""
        reader = self._spark.read.format("tidelog").options(**self._servers).option("subscribe", topic)
        rdd = reader.load().rdd.mapPartitions(lambda rows: [os.getcwd() for _ in [sum(1 for _ in rows)]])
        return sorted(set(rdd.collect()))

    def copy(self, topic: str, target: str) -> int:
        """By a stream with a checkpoint, all that is there now; how many micro-batches that were."""
        writer = self._stream(topic, maxOffsetsPerTrigger="200").writeStream.format("tidelog")
        writer = writer.options(**self._servers, **self._checkpoint("copy")).option("topic", target)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(_QUERY_S), "the query did not end"
        return sum(1 for one in query.recentProgress if one["numInputRows"])

    def start(self, topic: str, hold_batch: int = -1, gate: str | None = None) -> None:
        """A query whose totals are written down. After those of `hold_batch` it waits to be killed, or in the gate."""

        def take(rows: Any, batch: int) -> None:
            write_totals(self._directory / "totals.json", batch, totals_of(rows.collect()))
            if batch == hold_batch:
                time.sleep(_HELD_S)
                raise RuntimeError("nobody killed the query")

        source = self._stream(topic)
        if gate is not None:
            source = source.mapInArrow(lambda batches: held(gate, batches), source.schema)
        writer = totals_by_partition(source).writeStream.outputMode("complete").foreachBatch(take)
        self._query = writer.options(**self._checkpoint("checkpoint")).start()

    def finish(self) -> None:
        """All that is there now is in the totals."""
        self._query.processAllAvailable()
        self._query.stop()


def main() -> None:
    """The answers have the output for themselves; what Java prints goes to the errors."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    driver = Driver(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    for line in sys.stdin:
        job, arguments = json.loads(line)
        try:
            answer = {"result": getattr(driver, job)(**arguments)}
        except Exception as failure:
            answer = {"error": str(failure)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

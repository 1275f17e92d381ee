"""What Spark reads and writes while something is killed: a leader, an executor, the query itself.

A load writes with acks=all all the while, and what it was told is there must be counted once.
"""

from __future__ import annotations

import functools
import operator
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kits.loadkit import Load, read_all
from tests.kits.processclusterkit import (
    ASSIGNMENTS,
    BROKERS,
    LEADER,
    LED_BY_LEADER,
    PARTITIONS,
    TOPIC,
    ProcessCluster,
    started,
)
from tests.kits.spark_driver import totals_by_partition, totals_of, write_totals
from tests.kits.sparkclusterkit import (
    WORKERS,
    MarkedProcess,
    SparkCluster,
    read_totals,
    spark_cluster,
    spark_driver,
    wait_for_spark,
)
from tests.kits.sparkkit import Topics

pytestmark = [pytest.mark.jvm, pytest.mark.long]

COPY = "copy"
GROUP = "totals"


class GroupCluster(ProcessCluster):
    """Three brokers whose topic of offsets is small and has a replica on each."""

    def own_settings(self, number: int) -> dict[str, str]:
        offsets = {"offsets_topic_num_partitions": "3", "offsets_topic_replication_factor": "3"}
        return {**super().own_settings(number), **offsets}

    def create_copy(self) -> None:
        """A topic like the one of the load."""
        copy = NewTopic(COPY, num_partitions=len(ASSIGNMENTS), replica_assignment=ASSIGNMENTS)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([copy])[COPY].result(30)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[GroupCluster]:
    made = GroupCluster(tmp_path, "embedded")
    with started(made):
        yield made


@contextmanager
def _load(servers: str, topic: str, partitions: range) -> Iterator[Load]:
    load = Load(servers, topic, partitions)
    try:
        yield load
    finally:
        load.abandon()


def _expected(load: Load) -> dict[int, list[int]]:
    """Count, sum and xor of what was acknowledged; nothing else was written."""
    assert not load.failures, load.failures[:3]
    return {
        partition: [len(numbers), sum(numbers), functools.reduce(operator.xor, numbers, 0)]
        for partition, numbers in load.offsets.items()
    }


def _stream(spark: Any, servers: str, **options: str) -> Any:
    reader = spark.readStream.format("tidelog").option("kafka.bootstrap.servers", servers).options(**options)
    return reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()


class Query:
    """A query of the local session, and how many micro-batches it has done."""

    def __init__(self, writer: Any, checkpoint: Path) -> None:
        self._query = writer.option("checkpointLocation", str(checkpoint)).start()
        self._commits = checkpoint / "commits"

    @property
    def batches(self) -> int:
        return max((int(path.name) + 1 for path in self._commits.glob("[0-9]*")), default=0)

    def wait_for_more(self, batches: int) -> None:
        goal = self.batches + batches

        def are_done() -> bool:
            assert self._query.isActive, self._query.exception()
            return self.batches >= goal

        wait_for_spark(are_done, f"{batches} more micro-batches")

    def finish(self) -> None:
        self._query.processAllAvailable()

    def stop(self) -> None:
        self._query.stop()


@contextmanager
def _running(writer: Any, checkpoint: Path) -> Iterator[Query]:
    query = Query(writer, checkpoint)
    try:
        yield query
    finally:
        query.stop()


def _kill_the_leader(cluster: ProcessCluster, query: Query, load: Load) -> None:
    """While there is something to read before and after."""
    query.wait_for_more(2)
    load.wait_for_more(20)
    cluster.kill(LEADER)
    cluster.wait_for_leader(LEADER, LED_BY_LEADER)
    load.wait_for_more(50)
    query.wait_for_more(2)


def test_a_leader_is_killed_under_a_query(spark: Any, cluster: GroupCluster, tmp_path: Path) -> None:
    result = tmp_path / "totals.json"
    totals = totals_by_partition(_stream(spark, cluster.bootstrap, group=GROUP))
    writer = totals.writeStream.outputMode("complete").foreachBatch(
        lambda rows, batch: write_totals(result, batch, totals_of(rows.collect()))
    )
    with _running(writer, tmp_path / "checkpoint") as query:
        load = cluster.load()
        _kill_the_leader(cluster, query, load)
        load.stop()
        query.finish()
        assert read_totals(result)[1] == _expected(load)
    cluster.restart(LEADER)
    cluster.check(load)


def test_a_leader_is_killed_under_a_sink(spark: Any, cluster: GroupCluster, tmp_path: Path) -> None:
    """At least once: nothing is lost, and what is there twice was in a task that Spark ran again."""
    cluster.create_copy()
    rows = _stream(spark, cluster.bootstrap, maxOffsetsPerTrigger="4000").select("value", "partition")
    sink = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": COPY}
    with _running(rows.writeStream.format("tidelog").options(**sink), tmp_path / "checkpoint") as query:
        load = cluster.load()
        _kill_the_leader(cluster, query, load)
        load.stop()
        query.finish()
    cluster.restart(LEADER)
    cluster.wait_for_isr(BROKERS)
    written = read_all(cluster.bootstrap, COPY, PARTITIONS)
    for partition in PARTITIONS:
        counts = Counter(int(value) for value in written[partition])
        assert not set(load.offsets[partition]) - set(counts), f"records of {partition} are lost"
        assert set(counts) == set(load.offsets[partition])
    cluster.check(load)


_RATE = """
import sys
import tidelog.spark

servers, topic, directory = sys.argv[1:]
# Every task has a process of its own, which has met no broker.
builder = tidelog.spark.session("rate", "local[2]").config("spark.python.worker.reuse", "false")
spark = builder.config("spark.driver.memory", "700m").config("spark.local.dir", directory).getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load().selectExpr("cast(value as string) as value")
sink = {"kafka.bootstrap.servers": servers, "topic": topic, "kafka.default.api.timeout.ms": "40000"}
query = rows.writeStream.format("tidelog").options(**sink).option("checkpointLocation", directory + "/c").start()
query.awaitTermination()
"""


@pytest.mark.minutes
def test_the_only_bootstrap_broker_is_killed_under_a_sink_whose_source_is_another(
    cluster: GroupCluster, tmp_path: Path
) -> None:
    """The driver has told the sink's tasks of the other brokers: no task of this source connects to any."""
    cluster.create_copy()
    servers = f"127.0.0.1:{cluster.ports[LEADER]}"
    commits = tmp_path / "c" / "commits"
    run = MarkedProcess([sys.executable, "-c", _RATE, servers, COPY, str(tmp_path)], tmp_path, "rate")

    def wait_for_more(batches: int) -> None:
        goal = len(list(commits.glob("[0-9]*"))) + batches

        def are_done() -> bool:
            assert run.process.poll() is None, run.log[-4000:]
            return len(list(commits.glob("[0-9]*"))) >= goal

        wait_for_spark(are_done, f"{batches} more micro-batches")

    try:
        wait_for_more(3)
        cluster.kill(LEADER)
        cluster.wait_for_leader(LEADER, LED_BY_LEADER)
        # The tasks of the first one may have begun before the kill.
        wait_for_more(3)
    finally:
        run.kill()
    numbers = sorted(
        int(value) for values in read_all(cluster.bootstrap, COPY, PARTITIONS).values() for value in values
    )
    assert set(numbers) == set(range(numbers[-1] + 1)), "rows are lost"


_FREEZE_S = 10.0


@contextmanager
def _loaded(cluster: ProcessCluster, loads: list[Load]) -> Iterator[Load]:
    """Something is written all the while, and all of it is acknowledged in the end."""
    load = cluster.load()
    loads.append(load)
    load.wait_for_more(5)
    yield load
    load.wait_for_more(20)
    load.stop()
    assert not load.failures, load.failures[:3]


@pytest.mark.minutes
@pytest.mark.timeout(900)
def test_each_broker_goes_in_turn_under_a_query_with_one_bootstrap_address(
    spark: Any, cluster: GroupCluster, tmp_path: Path
) -> None:
    """Each is killed, one is frozen for ten seconds, and each is restarted in good order. Every row comes once."""
    rows: list[tuple[int, int, bytes]] = []
    servers = f"127.0.0.1:{cluster.ports[LEADER]}"
    writer = (
        _stream(spark, servers, group=GROUP)
        .select("partition", "offset", "value")
        .writeStream.foreachBatch(
            lambda found, _: rows.extend((row.partition, row.offset, bytes(row.value)) for row in found.collect())
        )
    )
    loads: list[Load] = []
    with _running(writer, tmp_path / "checkpoint") as query:
        for number in BROKERS:
            with _loaded(cluster, loads):
                query.wait_for_more(1)
                cluster.kill(number)
                query.wait_for_more(2)
            cluster.restart(number)
            cluster.wait_for_isr(BROKERS)
        with _loaded(cluster, loads):
            cluster.freeze(LEADER)
            time.sleep(_FREEZE_S)  # the fault itself, not a wait for something
            cluster.thaw(LEADER)
            query.wait_for_more(1)
        cluster.wait_for_isr(BROKERS)
        for number in BROKERS:
            with _loaded(cluster, loads):
                assert cluster[number].stop() == 0
                query.wait_for_more(1)
                cluster.restart(number)
            cluster.wait_for_isr(BROKERS)
        query.finish()
    written = read_all(cluster.bootstrap, TOPIC, PARTITIONS)
    assert sorted(rows) == [
        (partition, offset, value) for partition in PARTITIONS for offset, value in enumerate(written[partition])
    ]
    assert len(rows) == sum(len(numbers) for load in loads for numbers in load.offsets.values())


@pytest.mark.minutes
def test_an_executor_is_killed(topics: Topics, name: str, tmp_path: Path) -> None:
    """In the midst of a task, which has given rows already. Its shuffle files and its state are gone with it."""
    topics.create(name, 4)
    with (
        spark_cluster(tmp_path) as cluster,
        spark_driver(tmp_path / "driver", cluster.master, topics.servers) as driver,
    ):
        gate = tmp_path / "gate"
        driver.call("start", topic=name, gate=str(gate))
        with _load(topics.servers, name, range(4)) as load:
            driver.wait_for_batch(0)
            killed = _executor_in_a_task(cluster, gate)
            batch, before = driver.totals
            cluster.kill_executor(killed)
            driver.wait_for_batch(batch + 1)
            wait_for_spark(lambda: len(cluster.executors()) == WORKERS, "another executor")
            load.stop()
            driver.call("finish")
            assert driver.totals[1] == _expected(load) != before


def _executor_in_a_task(cluster: SparkCluster, gate: Path) -> int:
    """The task waits there to be killed."""
    gate.mkdir()
    held = gate / "held"
    wait_for_spark(lambda: held.exists() and held.read_text().endswith("\n"), "a task in the gate")
    return cluster.executor_of(int(held.read_text()))


@pytest.mark.minutes
def test_a_query_is_killed_and_goes_on(topics: Topics, name: str, tmp_path: Path) -> None:
    """After it gave a result and before it wrote down that it did, which is where it hurts."""
    topics.create(name, 2)
    directory = tmp_path / "driver"
    with spark_driver(directory, "local[2]", topics.servers) as driver:
        driver.call("start", topic=name, hold_batch=1)
        with _load(topics.servers, name, range(2)) as load:
            driver.wait_for_batch(1)
            before = driver.totals[1]
            driver.kill()
            assert _logged(directory / "checkpoint", "offsets") == ["0", "1"]
            assert _logged(directory / "checkpoint", "commits") == ["0"]
            (directory / "totals.json").unlink()
            with spark_driver(directory, "local[2]", topics.servers) as again:
                again.call("start", topic=name)
                again.wait_for_batch(1)
                load.stop()
                again.call("finish")
                assert again.totals[1] == _expected(load) != before


def _logged(checkpoint: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (checkpoint / kind).glob("[0-9]*"))

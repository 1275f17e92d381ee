"""A query tells no lies: beside Spark's own connector, each through the same trouble, from the same topics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from peers import spark_connector
from tests.kits.processkit import BrokerProcess, broker_process, free_port
from tests.kits.sparkclusterkit import wait_for_spark
from tests.kits.sparkkit import Topics
from tidelog.types import TopicPartition

pytestmark = pytest.mark.jvm

FORMATS = ("kafka", "tidelog")
DEADLINE_S = 120


@pytest.fixture(autouse=True)
def _connector() -> None:
    assert spark_connector.jars()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """To be paused and stopped; it keeps its port."""
    directory = tmp_path / "own"
    directory.mkdir()
    with broker_process(directory, listeners=f"PLAINTEXT://127.0.0.1:{free_port()}") as running:
        yield running


def _stream(spark: Any, servers: str, form: str, topic: str, **options: str) -> Any:
    reader = spark.readStream.format(form).option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    return reader.options(**options).load()


def _start(frame: Any, checkpoint: Path, take: Any, **trigger: Any) -> Any:
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def _fail(rows: Any, batch: int) -> None:
    raise RuntimeError("the sink is not there yet")


class Offsets:
    """Of what a query gave, in order; a micro-batch that ran twice counts twice."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __call__(self, rows: Any, batch: int) -> None:
        self.read += sorted(row.offset for row in rows.select("offset").collect())


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_edge_39_a_query_whose_first_batch_failed_reads_what_came_since(
    spark: Any, topics: Topics, name: str, tmp_path: Path, fail_on_data_loss: str
) -> None:
    for form in FORMATS:
        topic = topics.create(f"{name}-{form}", 1)
        topics.fill(topic, {0: 100})
        frame = _stream(spark, topics.servers, form, topic, failOnDataLoss=fail_on_data_loss)
        with pytest.raises(Exception, match="the sink is not there yet"):
            _start(frame, tmp_path / form, _fail).awaitTermination(DEADLINE_S)
        topics.fill(topic, {0: 50}, start=100)
        offsets = Offsets()
        query = _start(frame, tmp_path / form, offsets)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert offsets.read == list(range(100, 150)), form


def test_edge_39_rows_of_a_first_batch_that_failed_are_read_again(
    spark: Any, topics: Topics, name: str, tmp_path: Path
) -> None:
    """The first micro-batch has rows here: the query begins at offsets that its options no longer say."""
    for form in FORMATS:
        topic = topics.create(f"{name}-{form}", 1)
        topics.fill(topic, {0: 100})
        first = json.dumps({topic: {"0": 40}})
        frame = _stream(spark, topics.servers, form, topic, startingOffsets=first, maxOffsetsPerTrigger="25")
        with pytest.raises(Exception, match="the sink is not there yet"):
            _start(frame, tmp_path / form, _fail, availableNow=True).awaitTermination(DEADLINE_S)
        offsets = Offsets()
        frame = _stream(spark, topics.servers, form, topic, startingOffsets="latest", maxOffsetsPerTrigger="25")
        assert _start(frame, tmp_path / form, offsets, availableNow=True).awaitTermination(DEADLINE_S)
        assert offsets.read == list(range(40, 100)), form


def test_edge_39_a_broker_that_pauses_makes_no_rows_vanish(
    spark: Any, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    """For longer than a task waits, with failOnDataLoss=false: the query fails, and goes on when it is started again.

    It is paused when the first rows of the micro-batch have come out of the task.
    """
    topics = Topics(own_broker)
    for form in FORMATS:
        topic = topics.create(f"paused-{form}", 1, max_message_bytes="2000000")
        for start in range(0, 12_000, 200):
            records = [(1_700_000_000_000, None, b"v" * 500) for _ in range(start, start + 200)]
            topics.produce(topic, 0, records)
        patience = {"kafkaConsumer.pollTimeoutMs": "2000", "kafka.request.timeout.ms": "2000", "directRead": "false"}
        sizes = {"kafka.max.partition.fetch.bytes": "200000", "kafka.default.api.timeout.ms": "3000"}
        options = {**patience, **sizes, "failOnDataLoss": "false", "startingOffsets": "earliest"}
        if form == "kafka":
            del options["directRead"]
        gate = tmp_path / f"gate-{form}"
        frame = _stream(spark, f"127.0.0.1:{own_broker.port}", form, topic, **options)
        held = frame.select("offset").mapInArrow(_pausing(own_broker.process.pid, str(gate)), "offset bigint")
        offsets = Offsets()
        failed = False
        try:
            _start(held, tmp_path / form, offsets, availableNow=True).awaitTermination(DEADLINE_S)
        except Exception:
            failed = True
        finally:
            own_broker.process.send_signal(signal.SIGCONT)
        assert gate.exists(), "the broker was not paused"
        assert failed or offsets.read == list(range(12_000)), f"{form}: rows have vanished"
        if failed:
            assert offsets.read == [], form
            assert _start(held, tmp_path / form, offsets, availableNow=True).awaitTermination(DEADLINE_S)
        assert offsets.read == list(range(12_000)), form


def _pausing(pid: int, gate: str) -> Any:
    """In a task: pauses the broker once, when the first rows come."""

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            try:
                os.close(os.open(gate, os.O_CREAT | os.O_EXCL))
                os.kill(pid, signal.SIGSTOP)
            except FileExistsError:
                pass
            yield batch

    return hold


def test_a_broker_that_is_stopped_for_a_moment_ends_no_query(
    spark: Any, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    """It is the only one: tasks and driver wait for it."""
    topics = Topics(own_broker)
    topic = topics.create("bounced", 1)
    topics.fill(topic, {0: 1_000})
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    for form in FORMATS:
        offsets = Offsets()
        frame = _stream(spark, f"127.0.0.1:{own_broker.port}", form, topic, **options)
        query = _start(frame, tmp_path / form, offsets)
        try:
            wait_for_spark(lambda offsets=offsets: len(offsets.read) > 40, "the first micro-batches")  # type: ignore[misc]
            own_broker.stop()
            assert len(offsets.read) < 1_000, "all was read before the broker went"
            # It stays away for long enough that tasks and driver meet that.
            back = threading.Timer(4, own_broker.start_again)
            back.start()
            back.join()
            query.processAllAvailable()
        finally:
            query.stop()
        assert offsets.read == list(range(1_000)), form


def test_somebody_joins_the_group_of_a_query(spark: Any, topics: Topics, name: str, tmp_path: Path) -> None:
    import confluent_kafka

    topic, group = topics.create(name, 1), f"{name}-shown"
    topics.fill(topic, {0: 5})
    offsets = Offsets()
    frame = _stream(spark, topics.servers, "tidelog", topic, startingOffsets="earliest", group=group)
    query = _start(frame, tmp_path / "c", offsets)
    member = confluent_kafka.Consumer({"bootstrap.servers": topics.servers, "group.id": group})
    try:
        query.processAllAvailable()
        wait_for_spark(lambda: topics.lag(group) == {TopicPartition(topic, 0): 0}, "the progress in the group")
        member.subscribe([topic])
        wait_for_spark(lambda: member.poll(0.1) is None and bool(member.assignment()), "a member")
        topics.fill(topic, {0: 5}, start=5)
        query.processAllAvailable()
        assert offsets.read == list(range(10))
        assert query.isActive
        member.close()
        wait_for_spark(lambda: topics.lag(group) == {TopicPartition(topic, 0): 0}, "the progress, without new records")
    finally:
        query.stop()
        member.close()


def _write(frame: Any, servers: str, form: str, topic: str, **settings: str) -> None:
    options = {f"kafka.{name.replace('_', '.')}": value for name, value in settings.items()}
    writer = frame.write.format(form).option("kafka.bootstrap.servers", servers).option("topic", topic)
    writer.options(**options).mode("append").save()


def _values(spark: Any, topics: Topics, topic: str) -> tuple[int, int]:
    """How many records, and how many different ones."""
    reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", topics.servers)
    found = reader.option("subscribe", topic).load().selectExpr("count(*)", "count(distinct value)").first()
    return found[0], found[1]


_PAUSE_S = 4.0


def _slowly() -> Any:
    """In a task: rows that take longer to come than a delivery may take."""
    pause_s = _PAUSE_S

    def pull(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number:
                time.sleep(pause_s)  # the fault itself, not a wait for something
            yield batch

    return pull


@pytest.mark.long
def test_edge_40_rows_that_come_slowly_are_written(spark: Any, topics: Topics, name: str) -> None:
    """What a sink has been given is on its way while the task waits for more."""
    rows = spark.range(30_000, numPartitions=1).selectExpr("rpad(cast(id as string), 100, '.') as value")
    for form in FORMATS:
        topic = topics.create(f"{name}-{form}", 1)
        slow = rows.mapInArrow(_slowly(), "value string")
        _write(slow, topics.servers, form, topic, request_timeout_ms="2000", delivery_timeout_ms="3000")
        assert _values(spark, topics, topic) == (30_000, 30_000), form


@pytest.mark.long
def test_a_topic_whose_limit_is_below_the_size_of_batches_is_written(spark: Any, topics: Topics, name: str) -> None:
    """By default ours are larger than Kafka's, and above this limit. A row that is above it alone fails the query."""
    rows = spark.range(10_000, numPartitions=2).selectExpr("concat(cast(id as string), uuid(), uuid()) as value")
    too_large = spark.range(1).selectExpr("repeat('x', 120000) as value")
    for form in FORMATS:
        topic = topics.create(f"{name}-{form}", 2, max_message_bytes="100000")
        _write(rows, topics.servers, form, topic)
        assert _values(spark, topics, topic) == (10_000, 10_000), form
        with pytest.raises(Exception, match=r"max\.message\.bytes|RecordTooLargeException"):
            _write(too_large, topics.servers, form, topic)
        assert _values(spark, topics, topic) == (10_000, 10_000), form


_SESSION = """
import tidelog.spark
spark = tidelog.spark.session("own", "local[1]").config("spark.driver.memory", "512m").getOrCreate()
system = spark.sparkContext._jvm.java.lang.System
names = ("users.driver", "admins.driver", "arrow.enable_unsafe_memory_access")
print("JVM", *(system.getProperty(name) for name in names))
print("EXECUTOR", *(spark.conf.get(f"spark.executor.{kind}JavaOptions") for kind in ("extra", "default")))
spark.stop()
"""


@pytest.mark.parametrize("where", ["the environment", "spark-defaults.conf", "spark-submit"])
def test_the_users_java_options_stay(tmp_path: Path, where: str) -> None:
    """Those that a user adds, and those that an administrator gives as defaults, beside ours."""
    options = {
        "spark.driver.extraJavaOptions": "-Dusers.driver=1",
        "spark.driver.defaultJavaOptions": "-Dadmins.driver=1",
        "spark.executor.extraJavaOptions": "-Dusers.own=1",
        "spark.executor.defaultJavaOptions": "-Dadmins.own=1",
    }
    environment = dict(os.environ)
    told = [part for name, value in options.items() for part in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-c", _SESSION]
    if where == "the environment":
        environment["PYSPARK_SUBMIT_ARGS"] = f"{' '.join(told)} pyspark-shell"
    elif where == "spark-defaults.conf":
        (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        environment["SPARK_CONF_DIR"] = str(tmp_path)
    else:
        (tmp_path / "session.py").write_text(_SESSION)
        environment["PYSPARK_PYTHON"] = sys.executable
        local = ["--master", "local[1]", "--driver-memory", "512m", "--conf", "spark.driver.host=127.0.0.1"]
        submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]
        command = [*submit, *local, "--conf", "spark.driver.bindAddress=127.0.0.1", *told, "session.py"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    # The JVM of spark-submit runs before the session is made.
    fast = "None" if where == "spark-submit" else "true"
    assert f"JVM 1 1 {fast}" in done.stdout, done.stdout + done.stderr[-2000:]
    # Spark adds options of its own, before the user's.
    (executor,) = [line.split() for line in done.stdout.splitlines() if line.startswith("EXECUTOR ")]
    assert {"-Dusers.own=1", "-Dadmins.own=1", "-Darrow.enable_unsafe_memory_access=true"} <= set(executor)

"""Queries and sinks stay with their cluster, whoever has its addresses by now, and find it without their bootstrap."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

import tidelog.spark.met as met_module
import tidelog.spark.source as source_module
from tests.kits.clientkit import P0, P1
from tests.kits.processkit import free_port
from tests.unit.test_spark_stream import Brokers
from tidelog.client.addresses import NONE_KNOWN, KnownBrokers
from tidelog.spark.errors import OptionError
from tidelog.spark.offsets import from_json, position_of
from tidelog.spark.options import read_options, write_options
from tidelog.spark.source import TidelogDataSource, TidelogStreamWriter, TidelogWriter
from tidelog.spark.stream import TidelogStreamReader
from tidelog.spark.writing import write_batches

ALL = ReadAllAvailable()
VALUE = StructType([StructField("value", BinaryType())])


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Brokers]]:
    """Starts clusters, by their ids, with broker 1 and a topic of the same name."""
    monkeypatch.setattr(met_module, "_MET", {})
    running: list[Brokers] = []

    def cluster(cluster_id: str, port: int = 0) -> Brokers:
        running.append(Brokers(cluster_id))
        running[-1].fake.leaders = {P0: 1, P1: 1}
        running[-1].start(1, port)
        return running[-1]

    yield cluster
    for one in running:
        one.close()


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What comes next is another process, which has met no broker."""
    return lambda: monkeypatch.setattr(met_module, "_MET", {})


def _address(brokers: Brokers, number: int = 1) -> tuple[str, int]:
    return "127.0.0.1", brokers.fake.brokers[number].port


def _servers(*addresses: tuple[str, int]) -> dict[str, str]:
    return {"kafka.bootstrap.servers": ",".join(f"{host}:{port}" for host, port in addresses)}


def _rows(count: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_arrays([pa.array([b"v"] * count, pa.binary())], ["value"])


def _written(brokers: Brokers) -> int:
    return brokers.fake.end(P0) + brokers.fake.end(P1)


# Sinks


def test_a_task_writes_to_the_cluster_that_the_driver_met(
    start: Callable[..., Brokers], forget: Callable[[], None]
) -> None:
    """The user's address belongs to another cluster by now, which has a topic of the same name."""
    ours, others = start("ours"), start("others")
    options = write_options({**_servers(_address(others)), "topic": "orders"})
    assert write_batches(options, _rows(3), KnownBrokers((_address(ours),), "ours")).record_count == 3
    assert (_written(ours), _written(others)) == (3, 0)
    forget()
    with pytest.raises(OptionError, match=r"option 'kafka.bootstrap.servers'.* of cluster others, not of ours"):
        write_batches(options, _rows(3), KnownBrokers((), "ours"))
    assert _written(others) == 0


def test_the_users_addresses_go_before_brokers_that_the_process_has_met(start: Callable[..., Brokers]) -> None:
    """A broker of the cluster leaves, and another cluster takes its address: it was met, and is not asked."""
    ours = start("ours")
    port = ours.start(2)
    options = write_options({**_servers(_address(ours)), "topic": "orders"})
    write_batches(options, _rows(1))
    assert met_module._MET[tuple(options.addresses)].cluster_id == "ours"
    ours.stop(2)
    others = start("others", port)
    for _ in range(12):
        write_batches(options, _rows(1))
    assert (_written(ours), _written(others), others.fake.brokers[1].requests) == (13, 0, [])


def test_a_process_goes_with_the_users_addresses_to_another_cluster(start: Callable[..., Brokers]) -> None:
    """A new query, and the user's name for the cluster leads elsewhere now; the old cluster still runs."""
    ours = start("ours")
    port = ours.fake.brokers[1].port
    ours.start(2)
    options = write_options({**_servers(_address(ours)), "topic": "orders"})
    write_batches(options, _rows(1))
    ours.stop(1)
    others = start("others", port)
    write_batches(options, _rows(1))
    assert (_written(ours), _written(others)) == (1, 1)


@pytest.mark.parametrize("kind", [TidelogWriter, TidelogStreamWriter])
def test_a_sinks_tasks_find_the_cluster_without_the_bootstrap_broker(
    start: Callable[..., Brokers], forget: Callable[[], None], kind: type[Any]
) -> None:
    ours = start("ours")
    ours.start(2)
    source = TidelogDataSource({**_servers(_address(ours)), "topic": "orders"})
    made = source.writer(VALUE, False) if kind is TidelogWriter else source.streamWriter(VALUE, False)
    assert isinstance(made, kind)
    writer = pickle.loads(pickle.dumps(made))
    ours.call(lambda: ours.fake.leaders.update({P0: 2, P1: 2}))
    ours.stop(1)
    forget()
    assert writer.write(_rows(5)).record_count == 5
    assert _written(ours) == 5


def test_a_writer_that_is_made_after_the_bootstrap_broker_died_finds_the_cluster(
    start: Callable[..., Brokers], forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark makes one for each micro-batch, in a process that may be new. What others met is in Spark's directory."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},{tmp_path}/other")
    ours = start("ours")
    port = ours.start(2)
    source = TidelogDataSource({**_servers(_address(ours)), "topic": "orders"})
    source.streamWriter(VALUE, False)
    ours.call(lambda: ours.fake.leaders.update({P0: 2, P1: 2}))
    ours.stop(1)
    forget()
    writer: Any = pickle.loads(pickle.dumps(source.streamWriter(VALUE, False)))
    assert (writer._known.addresses[0], writer._known.cluster_id) == (("127.0.0.1", port), "ours")
    forget()
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert writer.write(_rows(5)).record_count == 5


def test_what_was_met_is_kept_in_a_file_as_well_as_it_can_be(
    forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forget()
    addresses, known = [("h", 1), ("::1", 2)], KnownBrokers((("a", 1), ("b", 2)), None)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "none"))
    met_module.remember(addresses, known)
    forget()
    assert met_module.remembered(addresses) == NONE_KNOWN
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    met_module.remember(addresses, known)
    forget()
    assert met_module.remembered(addresses) == known
    assert met_module.remembered(addresses[:1]) == NONE_KNOWN
    (file,) = tmp_path.iterdir()
    file.write_text("torn")
    assert met_module.remembered(addresses) == NONE_KNOWN


def test_a_sink_is_planned_without_brokers_and_its_tasks_look_for_them(
    start: Callable[..., Brokers], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(source_module, "_LEARN_MS", 200)
    port = free_port()
    options = {**_servers(("127.0.0.1", port)), "topic": "orders"}
    writer = TidelogDataSource(options).writer(VALUE, False)
    assert writer._known == NONE_KNOWN
    assert "know no broker but those of kafka.bootstrap.servers" in caplog.text
    ours = start("ours", port)
    assert writer.write(_rows(2)).record_count == 2  # type: ignore[attr-defined]
    assert _written(ours) == 2


# Streams


def _reader(*addresses: tuple[str, int], **options: str) -> TidelogStreamReader:
    given = {**_servers(*addresses), "subscribe": "orders", "startingOffsets": "earliest", **options}
    return TidelogStreamReader(read_options(given, streaming=True))


def _through_text(offsets: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offsets))
    return found


@pytest.fixture
def checkpoint(start: Callable[..., Brokers]) -> tuple[Brokers, dict[str, Any]]:
    """A cluster, and the offsets of a query that has read ten records there."""
    ours = start("ours")
    ours.fill(10)
    reader = _reader(_address(ours))
    end = _through_text(reader.latestOffset(reader.initialOffset(), ALL))
    assert position_of(end).cluster_id == "ours"
    parts = reader.partitions(reader.initialOffset(), end)
    assert {part.known.cluster_id for part in parts} == {"ours"}  # type: ignore[attr-defined]
    reader.stop()
    return ours, end


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_query_does_not_take_another_clusters_topic_for_one_that_was_made_again(
    start: Callable[..., Brokers], checkpoint: tuple[Brokers, dict[str, Any]], fail_on_data_loss: str
) -> None:
    _, end = checkpoint
    others = start("others")
    others.fake.renewals["orders"] = 1
    others.fill(20)
    reader = _reader(_address(others), failOnDataLoss=fail_on_data_loss)
    try:
        told = r"option 'kafka.bootstrap.servers'.* is a broker of cluster others, not of ours"
        with pytest.raises(OptionError, match=told):
            reader.latestOffset(end, ALL)
        with pytest.raises(OptionError, match=told):
            reader.partitions(end, end)
    finally:
        reader.stop()


def test_a_query_finds_its_cluster_among_the_users_addresses(
    start: Callable[..., Brokers], checkpoint: tuple[Brokers, dict[str, Any]], forget: Callable[[], None]
) -> None:
    """Trigger.AvailableNow asks for its target before Spark tells the checkpoint, and may have asked the other one."""
    ours, end = checkpoint
    others = start("others")
    others.fill(99)
    ours.fill(5)
    for _ in range(6):
        forget()
        reader = _reader(_address(others), _address(ours))
        try:
            reader.prepareForTriggerAvailableNow()
            assert from_json(reader.latestOffset(end, ALL)) == {P0: 15, P1: 0}
        finally:
            reader.stop()


def test_a_running_query_stays_with_its_cluster(
    start: Callable[..., Brokers], checkpoint: tuple[Brokers, dict[str, Any]]
) -> None:
    """Its only broker is away, and another cluster has the address: that is told with both ids."""
    ours, end = checkpoint
    port = ours.fake.brokers[1].port
    reader = _reader(_address(ours))
    try:
        assert reader.latestOffset(end, ALL) == end
        ours.call(lambda: ours.fake.brokers[1].drop_connections())
        ours.stop(1)
        others = start("others", port)
        others.fill(30)
        with pytest.raises(Exception, match="is a broker of cluster others, not of ours"):
            reader.latestOffset(end, ALL)
    finally:
        reader.stop()


def test_checkpoints_without_a_cluster_id_and_brokers_without_one_work(start: Callable[..., Brokers]) -> None:
    old = start("")
    old.fill(10)
    reader = _reader(_address(old))
    try:
        end = _through_text(reader.latestOffset({"orders": {"0": 4, "1": 0}}, ALL))
        assert position_of(end).cluster_id is None
        assert from_json(end) == {P0: 10, P1: 0}
        noted = {**end, "cluster id ours": {}}
        assert from_json(reader.latestOffset(noted, ALL)) == from_json(end)
        (part,) = reader.partitions({"orders": {"0": 4, "1": 0}}, end)
        assert sum(batch.num_rows for batch in reader.read(part)) == 6
    finally:
        reader.stop()

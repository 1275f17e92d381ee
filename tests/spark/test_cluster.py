"""A Spark cluster of processes, a master and two workers: format("tidelog") there, found without registration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.processkit import BrokerProcess
from tests.kits.sparkclusterkit import SparkCluster, SparkDriver, spark_cluster, spark_driver
from tests.kits.sparkkit import Topics

pytestmark = [pytest.mark.jvm, pytest.mark.long, pytest.mark.minutes]

_COUNT = 5_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    pytest.importorskip("pyspark")
    with spark_cluster(tmp_path_factory.mktemp("spark-cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def driver(
    cluster: SparkCluster, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkDriver]:
    with spark_driver(tmp_path_factory.mktemp("driver"), cluster.master, f"127.0.0.1:{broker.port}") as running:
        yield running


def _sum(totals: dict[str, list[int]]) -> tuple[int, int]:
    """Count and sum over all partitions."""
    return sum(one[0] for one in totals.values()), sum(one[1] for one in totals.values())


_ALL = (_COUNT, sum(range(_COUNT)))


def test_written_and_read_by_both_workers(
    topics: Topics, name: str, cluster: SparkCluster, driver: SparkDriver
) -> None:
    topics.create(name, 4)
    driver.call("write", topic=name, count=_COUNT, tasks=4)
    assert sum(topics.ends(name).values()) == _COUNT
    assert _sum(driver.call("read", topic=name)) == _ALL
    assert len(cluster.executors()) == 2
    assert len({Path(place).parents[1] for place in driver.call("places", topic=name)}) == 2


def test_a_range_is_split_over_the_cluster(topics: Topics, name: str, driver: SparkDriver) -> None:
    topics.create(name, 1)
    driver.call("write", topic=name, count=_COUNT, tasks=1)
    assert _sum(driver.call("read", topic=name, minPartitions="5")) == _ALL


def test_a_stream_goes_on_from_its_checkpoint(topics: Topics, name: str, driver: SparkDriver) -> None:
    copy = f"{name}-copy"
    topics.create(name, 2)
    topics.create(copy, 3)
    driver.call("write", topic=name, count=500, tasks=2)
    assert driver.call("copy", topic=name, target=copy) == 3
    assert _sum(driver.call("read", topic=copy)) == (500, sum(range(500)))
    driver.call("write", topic=name, count=100, tasks=1)
    assert driver.call("copy", topic=name, target=copy) == 1
    assert _sum(driver.call("read", topic=copy)) == (600, sum(range(500)) + sum(range(100)))

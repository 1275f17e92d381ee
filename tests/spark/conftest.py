"""One broker process and one Spark session for all tests here, both small."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peers import home, spark_connector
from tests.kits.processkit import BrokerProcess, broker_process
from tests.kits.sparkkit import Topics

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "offsets_topic_num_partitions": "2",
        "offsets_topic_replication_factor": "1",
        "group_initial_rebalance_delay_ms": "0",
    }
    with broker_process(tmp_path_factory.mktemp("broker"), **settings) as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("pyspark")
    import tidelog.spark

    builder = (
        tidelog.spark.session("tests", "local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(tmp_path_factory.mktemp("spark")))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    )
    with contextlib.suppress(home.PeersMissingError):  # only tests beside Spark's own connector need it
        builder = builder.config("spark.jars", ",".join(map(str, spark_connector.jars())))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def topics(broker: BrokerProcess) -> Topics:
    return Topics(broker)


@pytest.fixture(params=["fetched", "from files"])
def directly(request: pytest.FixtureRequest, topics: Topics) -> dict[str, str]:
    """For a module whose tests hold for both ways to read: it makes this its `reading`."""
    if request.param == "fetched":
        return {"directRead": "false"}
    topics.in_small_segments()
    return {"directRead": "true"}


@pytest.fixture
def name() -> str:
    """Of a topic that no other test has."""
    return f"topic{next(_NUMBERS)}"


@pytest.fixture
def reading() -> dict[str, str]:
    """Options that all reads of a test have; a module may have others."""
    return {}


@pytest.fixture
def batch(spark: Any, topics: Topics, reading: dict[str, str]) -> Callable[..., Any]:
    """A batch read by these options."""

    def read(**options: str) -> Any:
        reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", topics.servers)
        return reader.options(**reading).options(**options).load()

    return read


@pytest.fixture
def stream(spark: Any, topics: Topics, reading: dict[str, str]) -> Callable[..., Any]:
    """A streaming read by these options."""

    def read(**options: str) -> Any:
        reader = spark.readStream.format("tidelog").option("kafka.bootstrap.servers", topics.servers)
        return reader.options(**reading).options(**options).load()

    return read

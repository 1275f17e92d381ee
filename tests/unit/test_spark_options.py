"""The options of format("tidelog"): what they become, and what is refused under which name."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest

from peers import home
from tidelog.client.offsets import EARLIEST, LATEST, Isolation
from tidelog.records.header import Codec
from tidelog.spark import client_names
from tidelog.spark.errors import DataLossError, OptionError, ReadTimeoutError
from tidelog.spark.offsets import AtOffsets, AtTimestamp, AtTimestamps, Everywhere
from tidelog.spark.options import DirectReading, ReadOptions, Subscription, read_options, write_options
from tidelog.spark.settings import _REFUSED as NOT_SUPPORTED
from tidelog.spark.settings import ClientOptions
from tidelog.types import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "a:1,b:2"}
BASE = {**SERVERS, "subscribe": "t"}
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def _read(streaming: bool = False, **options: str) -> ReadOptions:
    return read_options({**BASE, **options}, streaming=streaming)


def test_defaults() -> None:
    batch, stream = _read(), _read(streaming=True)
    assert batch.addresses == [("a", 1), ("b", 2)]
    assert batch.start == Everywhere("startingOffsets", EARLIEST)
    assert stream.start == Everywhere("startingOffsets", LATEST)
    assert batch.end == stream.end == Everywhere("endingOffsets", LATEST)
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert not batch.latest_if_no_match
    assert batch.fetch.isolation is Isolation.READ_UNCOMMITTED
    assert (batch.max_offsets, batch.min_offsets, batch.min_partitions, batch.max_records) == (None,) * 4
    assert batch.max_delay_ms == 15 * 60 * 1000
    assert batch.group is None
    assert batch.direct_read is DirectReading.AUTO


@pytest.mark.parametrize(
    ("text", "expected"),
    [("auto", DirectReading.AUTO), ("TRUE", DirectReading.ON), ("false", DirectReading.OFF)],
)
def test_direct_reading(text: str, expected: DirectReading) -> None:
    assert _read(directRead=text).direct_read is expected


def test_bootstrap_servers_with_and_without_prefix() -> None:
    assert read_options({"bootstrap.servers": "c:3", "subscribe": "t"}, streaming=False).addresses == [("c", 3)]
    assert write_options({"bootstrap.servers": "c"}).addresses == [("c", 9092)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": " b, a ,,b"}, Subscription("subscribe", topics=("a", "b"))),
        ({"subscribePattern": "t.*"}, Subscription("subscribePattern", pattern="t.*")),
        ({"assign": '{"t": [1, 0]}'}, Subscription("assign", partitions=(P0, P1))),
        ({"ASSIGN": '{"t": [1]}'}, Subscription("assign", partitions=(P1,))),
    ],
)
def test_subscriptions(options: dict[str, str], expected: Subscription) -> None:
    assert read_options({**SERVERS, **options}, streaming=True).subscription == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "EARLIEST"}, Everywhere("startingOffsets", EARLIEST)),
        ({"startingoffsets": '{"t": {"0": 5, "1": -2}}'}, AtOffsets("startingOffsets", {P0: 5, P1: EARLIEST})),
        ({"startingTimestamp": " 12 "}, AtTimestamp("startingTimestamp", 12)),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 5}}', "startingOffsets": "latest"},
            AtTimestamps("startingOffsetsByTimestamp", {P0: 5}),
        ),
        (
            {"startingTimestamp": "1", "startingOffsetsByTimestamp": '{"t": {"0": 5}}'},
            AtTimestamp("startingTimestamp", 1),
        ),
    ],
)
def test_where_to_begin(options: dict[str, str], expected: Any) -> None:
    assert _read(streaming=True, **options).start == expected


def test_numbers_times_and_flags() -> None:
    read = _read(
        streaming=True,
        maxOffsetsPerTrigger="100",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="2h",
        minPartitions="8",
        maxRecordsPerPartition="1000",
        failOnDataLoss="FALSE",
        includeHeaders="true",
        startingOffsetsByTimestampStrategy="latest",
        groupIdPrefix="mine",
        group="dashboard",
        **{"kafka.isolation.level": "read_committed", "kafka.fetch.max.bytes": "5000", "kafka.request.timeout.ms": "7"},
    )
    assert (read.max_offsets, read.min_offsets, read.min_partitions, read.max_records) == (100, 10, 8, 1000)
    assert read.max_delay_ms == 2 * 3600 * 1000
    assert read.include_headers
    assert read.latest_if_no_match
    assert not read.fail_on_data_loss
    assert read.fetch.isolation is Isolation.READ_COMMITTED
    assert read.fetch.fetch_max_bytes == 5000
    assert read.client.request_timeout_ms == 7
    assert read.client.client_id == "mine"
    assert read.group == "dashboard"


@pytest.mark.parametrize(
    ("text", "expected"), [("5", 5), ("20ms", 20), ("3s", 3000), ("15m", 900_000), ("1h", 3_600_000), ("1 min", 60_000)]
)
def test_times_as_spark_writes_them(text: str, expected: int) -> None:
    assert _read(maxTriggerDelay=text).max_delay_ms == expected


def test_a_sinks_settings() -> None:
    settings = {"topic": "t", "kafka.compression.type": "ZSTD", "kafka.acks": "1", "kafka.batch.size": "99"}
    written = write_options({**SERVERS, **settings})
    assert written.topic == "t"
    assert written.producer.acks == 1
    assert written.producer.batching.compression is Codec.ZSTD
    assert written.producer.batching.batch_size == 99
    assert written.producer.batching.linger_ms == 100
    assert write_options({**SERVERS, "topic": "t", "kafka.linger.ms": "0"}).producer.batching.linger_ms == 0
    with pytest.raises(OptionError, match=r"option 'kafka.linger.ms': 500 is not below delivery.timeout.ms = 500"):
        write_options({**SERVERS, "topic": "t", "kafka.linger.ms": "500", "kafka.delivery.timeout.ms": "500"})


REFUSED: list[tuple[str, dict[str, str]]] = [
    ("subscribe", {"subscribe": ", ,"}),
    ("assign", {"assign": "{}"}),
    ("startingOffsets", {"startingOffsets": "soon"}),
    ("startingOffsets", {"startingOffsets": '{"t": {"0": "5"}}'}),
    ("startingOffsets", {"startingOffsets": '{"t": {"zero": 5}}'}),
    ("startingOffsets", {"startingOffsets": '{"t": {"0": -3}}'}),
    ("startingOffsets", {"startingOffsets": '{"t": 5}'}),
    ("startingOffsets", {"startingOffsets": "{}"}),
    ("startingOffsets", {"startingOffsets": "{"}),
    ("startingOffsetsByTimestamp", {"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}),
    ("startingTimestamp", {"startingTimestamp": "-5"}),
    ("startingOffsetsByTimestampStrategy", {"startingOffsetsByTimestampStrategy": "guess"}),
    ("maxOffsetsPerTrigger", {"maxOffsetsPerTrigger": "0"}),
    ("minOffsetsPerTrigger", {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}),
    ("maxTriggerDelay", {"maxTriggerDelay": "3 weeks"}),
    ("minPartitions", {"minPartitions": "-1"}),
    ("maxRecordsPerPartition", {"maxRecordsPerPartition": "many"}),
    ("failOnDataLoss", {"failOnDataLoss": "no"}),
    ("includeHeaders", {"includeHeaders": "1"}),
    ("group", {"group": " "}),
    ("directRead", {"directRead": "maybe"}),
    ("kafka.isolation.level", {"kafka.isolation.level": "chaos"}),
    ("kafka.fetch.max.bytes", {"kafka.fetch.max.bytes": "1MB"}),
    ("kafka.bootstrap.servers", {"kafka.bootstrap.servers": "host:port"}),
    ("kafka.security.protocol", {"kafka.security.protocol": "SASL_SSL"}),
    ("kafka.auto.offset.reset", {"kafka.auto.offset.reset": "earliest"}),
    ("kafka.enable.auto.commit", {"kafka.enable.auto.commit": "true"}),
    ("kafka.key.deserializer", {"kafka.key.deserializer": "x"}),
    ("kafka.value.deserializer", {"kafka.value.deserializer": "x"}),
    ("kafka.interceptor.classes", {"kafka.interceptor.classes": "x"}),
    ("failondatalos", {"failOnDataLos": "true"}),
    ("maxoffsetpertrigger", {"maxOffsetPerTrigger": "5"}),
]


@pytest.mark.parametrize(("option", "options"), REFUSED)
@pytest.mark.parametrize("streaming", [False, True])
def test_refused_by_name(option: str, options: dict[str, str], streaming: bool) -> None:
    base = SERVERS if option in ("assign",) else BASE
    with pytest.raises(OptionError) as refusal:
        read_options({**base, **options}, streaming=streaming)
    assert refusal.value.option == option
    assert str(refusal.value).startswith(f"option '{option}': ")


def test_one_of_three_says_what_is_read() -> None:
    with pytest.raises(OptionError, match="one of subscribe, subscribePattern and assign"):
        read_options(SERVERS, streaming=False)
    with pytest.raises(OptionError, match="'subscribePattern': only one of"):
        _read(subscribePattern="t.*")
    with pytest.raises(OptionError, match="'subscribePattern': '\\(' is not a regular expression"):
        read_options({**SERVERS, "subscribePattern": "("}, streaming=False)
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers.*must be given"):
        read_options({"subscribe": "t"}, streaming=False)


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    with pytest.raises(OptionError, match=f"'{option}': a streaming query has no end"):
        _read(streaming=True, **{option: "latest"})


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("startingOffsets", {"startingOffsets": "latest"}),
        ("startingOffsets", {"startingOffsets": '{"t": {"0": -1}}'}),
        ("endingOffsets", {"endingOffsets": "earliest"}),
        ("endingOffsets", {"endingOffsets": '{"t": {"0": -2}}'}),
        ("endingOffsets", {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": 4}}'}),
        ("endingOffsets", {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"1": 9}}'}),
        (
            "endingOffsetsByTimestamp",
            {"startingOffsetsByTimestamp": '{"t": {"0": 5}}', "endingOffsetsByTimestamp": '{"t": {"0": 4}}'},
        ),
    ],
)
def test_what_a_batch_cannot_mean(option: str, options: dict[str, str]) -> None:
    with pytest.raises(OptionError) as refusal:
        _read(**options)
    assert refusal.value.option == option


def test_options_of_others_are_let_be() -> None:
    assert _read(path="x", checkpointLocation="y")


def test_settings_of_kafka_without_an_effect_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    client_names.tell_unused.cache_clear()
    for _ in range(2):
        assert _read(**{"kafka.Session.Timeout.ms": "5", "kafka.group.id": "g", "kafka.fetch.max.bytes": "1"})
        assert write_options({**SERVERS, "kafka.linger.ms": "5", "kafka.max.block.ms": "5"})
    told = [record.getMessage() for record in caplog.records]
    assert [text.split("'")[1] for text in told] == ["kafka.session.timeout.ms", "kafka.group.id", "kafka.max.block.ms"]


def _told(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """What was logged since: the options, and what they have no effect on."""
    found = dict(record.getMessage().removeprefix("option ").split(" has no effect on ") for record in caplog.records)
    caplog.clear()
    client_names.tell_unused.cache_clear()
    return {option.strip("'"): doing for option, doing in found.items()}


def test_what_has_no_effect_on_this_side_is_told_and_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    client_names.tell_unused.cache_clear()
    writing = {f"kafka.{name}": "nonsense" for name in client_names.WRITING.used - client_names.READING.used}
    reading = {f"kafka.{name}": "nonsense" for name in client_names.READING.used - client_names.WRITING.used}
    assert {"kafka.acks", "kafka.linger.ms"} <= set(writing)
    assert {"kafka.isolation.level", "kafka.fetch.max.bytes"} <= set(reading)
    for streaming in (True, False):
        assert _read(streaming=streaming, topic="t", **writing)
        assert _told(caplog) == dict.fromkeys([*writing, "topic"], "reading")
    assert write_options({**SERVERS, "topic": "t", "StartingOffsets": "bogus", "group": "g", **reading})
    assert _told(caplog) == dict.fromkeys([*reading, "startingOffsets", "group"], "writing")
    for name in (*reading, "startingOffsets"):
        with pytest.raises(OptionError, match=name):
            _read(**{name: "nonsense"})
    for name in writing:
        with pytest.raises(OptionError, match=name):
            write_options({**SERVERS, name: "nonsense"})


def test_options_of_streams_have_no_effect_on_a_batch_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    client_names.tell_unused.cache_clear()
    given = {"maxOffsetsPerTrigger": "9", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "1s", "group": "g"}
    assert _read(streaming=True, **given)
    assert _told(caplog) == {}
    assert _read(**given, includeHeaders="true", minPartitions="3")
    assert _told(caplog) == dict.fromkeys(given, "reading a batch")


def test_deliveries_must_last_longer_than_batches_linger() -> None:
    for given, named in (
        ({"kafka.delivery.timeout.ms": "100"}, "kafka.delivery.timeout.ms"),
        ({"kafka.linger.ms": "120000"}, "kafka.linger.ms"),
        ({"kafka.linger.ms": "50", "kafka.delivery.timeout.ms": "50"}, "kafka.linger.ms"),
    ):
        with pytest.raises(OptionError) as refusal:
            write_options({**SERVERS, **given})
        assert refusal.value.option == named
    assert write_options({**SERVERS, "kafka.delivery.timeout.ms": "101"}).producer.delivery_timeout_ms == 101
    assert write_options({**SERVERS, "kafka.delivery.timeout.ms": "9", "kafka.linger.ms": "8"})


def test_settings_with_a_name_of_the_users_own(caplog: pytest.LogCaptureFixture) -> None:
    """Those of config.providers are taken, and told of, as config.providers itself is."""
    client_names.tell_unused.cache_clear()
    given = {
        "kafka.config.providers": "file",
        "kafka.config.providers.file.class": "x",
        "kafka.config.providers.file.param.secrets.path": "y",
        "kafka.metrics.context.region": "north",
    }
    assert _read(**given)
    assert [record.getMessage().split("'")[1] for record in caplog.records] == list(given)
    for name in ("kafka.config.providers.file", "kafka.config.providers..class", "kafka.config.providers.file.clas"):
        with pytest.raises(OptionError, match="no client of Kafka has"):
            _read(**{name: "x"})


def test_no_setting_that_is_read_is_called_unused() -> None:
    class Asked(dict[str, str]):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            self.names = {"security.protocol"}

        def get(self, name: str, usual: Any = None) -> Any:
            self.names.add(name)
            return super().get(name, usual)

    for side in (client_names.READING, client_names.WRITING):
        options = ClientOptions(SERVERS, side)
        asked = options._options = Asked(options._options)
        own = options.fetch if side is client_names.READING else options.producer
        for read in (lambda: options.addresses(None), lambda: options.client("c"), own):  # noqa: B023
            assert read()
        assert asked.names == side.used
        assert not side.used & client_names.UNUSED


def test_ends_may_be_asked_for_again_at_once() -> None:
    assert _read(**{"fetchOffset.retryIntervalMs": "0"}).offset_interval_ms == 0
    for wrong in ("-1", "soon"):
        with pytest.raises(OptionError, match=r"'fetchOffset.retryIntervalMs': .* is not a number from 0 on"):
            _read(**{"fetchOffset.retryIntervalMs": wrong})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("kafka.fetch.max.byte", "kafka.fetch.max.bytes"),
        ("kafka.isolation.levle", "kafka.isolation.level"),
        ("kafka.default.api.timeout", "kafka.default.api.timeout.ms"),
        ("kafka.compression", "kafka.compression.type"),
    ],
)
def test_a_name_that_is_no_setting_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    for refused in (lambda: _read(**{name: "1"}), lambda: write_options({**SERVERS, name: "1"})):
        with pytest.raises(OptionError, match=f"no client of Kafka has.*the nearest is '{nearest}'") as refusal:
            refused()
        assert refusal.value.option == name


_ASK = """
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;

public class Names {
    public static void main(String[] arguments) {
        ConsumerConfig.configNames().forEach(System.out::println);
        ProducerConfig.configNames().forEach(System.out::println);
        AdminClientConfig.configNames().forEach(System.out::println);
    }
}
"""


@pytest.mark.jvm
@pytest.mark.parametrize("version", home.VERSIONS)
def test_every_setting_of_kafkas_clients_is_known(tmp_path: Path, version: str) -> None:
    source = tmp_path / "Names.java"
    source.write_text(_ASK)
    command = [home.program("java"), "-cp", f"{home.libs(version)}/*", str(source)]
    names = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert len(names) > 100
    assert names <= client_names.READING.used | client_names.WRITING.used | client_names.UNUSED | set(NOT_SUPPORTED)


def test_errors_cross_processes() -> None:
    for failure in (
        OptionError("group", "it: is wrong"),
        DataLossError("t-0 is gone"),
        ReadTimeoutError("t-0 is slow"),
    ):
        assert str(pickle.loads(pickle.dumps(failure))) == str(failure)

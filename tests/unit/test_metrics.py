"""Counters, gauges and summaries as Prometheus reads them; and what a broker shows."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.kits.brokerkit import Kit, follower_request, run
from tests.kits.metricskit import Page, parse, value
from tidelog.broker.counts import TopicCounts
from tidelog.errors import ErrorCode
from tidelog.host.process_metrics import add_process_metrics
from tidelog.metrics import Metrics, Summary
from tidelog.metrics.registry import PIECE
from tidelog.metrics.summary import BOUNDS_MS, SLICE_NS, SLICES, quantiles


class FakeNow:
    def __init__(self) -> None:
        self.ns = 10**18

    def __call__(self) -> int:
        return self.ns


def test_the_text() -> None:
    metrics = Metrics()
    things = metrics.counters("b_total", "Things, by topic.", "topic")
    things.of("t").add(3)
    things.of("u")
    metrics.gauge("a", "A level.", lambda: 1.5)
    metrics.counters("c_total", "Nothing was counted.", "topic")
    assert metrics.text().splitlines() == [
        "# HELP a A level.",
        "# TYPE a gauge",
        "a 1.5",
        "# HELP b_total Things, by topic.",
        "# TYPE b_total counter",
        'b_total{topic="t"} 3',
        'b_total{topic="u"} 0',
    ]
    assert [family.name for family in metrics.families] == ["a", "b_total", "c_total"]


def test_the_same_name_is_the_same_metric() -> None:
    metrics = Metrics()
    metrics.counter("c_total", "Things.").add()
    metrics.counter("c_total", "Things.").add()
    assert value(metrics, "c_total") == 2
    metrics.gauge("g", "A level.", lambda: 1)
    metrics.gauge("g", "A level.", lambda: 2)
    assert value(metrics, "g") == 2
    with pytest.raises(AssertionError):
        metrics.gauge("c_total", "Things.", lambda: 1)
    with pytest.raises(AssertionError):
        metrics.counters("c_total", "Things.", "topic")


@pytest.mark.parametrize(("name", "help_text"), [("a-b", "A level."), ("1a", "A level."), ("a", ""), ("a", "x\ny")])
def test_a_name_that_would_spoil_the_page_is_a_fault(name: str, help_text: str) -> None:
    with pytest.raises(AssertionError):
        Metrics().gauge(name, help_text, lambda: 1)


def test_a_long_page_is_made_in_pieces() -> None:
    metrics = Metrics()
    walked: list[int] = []

    def walk() -> None:
        walked.append(1)

    metrics.before_reading(walk)
    metrics.before_reading(lambda: iter((None, None)))
    metrics.series("s", "Many.", ("n",), lambda: (((str(n),), n) for n in range(1, 2 * PIECE)))
    pieces = list(metrics.pieces())
    assert [len(piece) for piece in pieces] == [0, 0, 0, 0, 2 + PIECE, PIECE - 1]
    assert walked == [1]
    assert parse(metrics.text())["s"].samples[-1] == ("s", {"n": str(2 * PIECE - 1)}, 2 * PIECE - 1)


def test_what_is_looked_at_and_not_shown_is_counted_as_well() -> None:
    """Forty thousand lags of partitions whose leader is gone are forty thousand looks and no line."""
    metrics = Metrics()
    metrics.series("s", "Few of many.", ("n",), lambda: ((("1",), 1) if n == PIECE else None for n in range(3 * PIECE)))
    metrics.series("t", "None of many.", ("n",), lambda: (None for _ in range(2 * PIECE)))
    assert [len(piece) for piece in metrics.pieces()] == [0, 3, 0, 0, 0]
    assert list(parse(metrics.text())) == ["s"]


def test_quantiles_are_of_the_last_minute() -> None:
    now = FakeNow()
    summary = Summary(now)
    assert all(map(math.isnan, quantiles([summary])))
    summary.observe_all([float(ms) for ms in range(1, 1001)])
    for quantile, found in zip((0.5, 0.75, 0.95, 0.98, 0.99, 0.999), quantiles([summary]), strict=True):
        assert found == pytest.approx(quantile * 1000, rel=0.06)
    now.ns += SLICE_NS * (SLICES - 1)
    assert quantiles([summary])[0] == pytest.approx(500, rel=0.05)
    summary.observe_all([2.0] * 3000)
    assert quantiles([summary])[0] == pytest.approx(2, rel=0.05)
    now.ns += SLICE_NS
    assert quantiles([summary])[-1] == pytest.approx(2, rel=0.05), "the first slice is forgotten"
    now.ns += SLICE_NS * SLICES
    assert all(map(math.isnan, quantiles([summary])))
    assert (summary.count, summary.total) == (4000, 506_500)


@pytest.mark.parametrize(("observed", "shown"), [(0.0, 0.0), (-1.0, 0.0), (1e9, round(BOUNDS_MS[-1], 4))])
def test_the_buckets_have_ends(observed: float, shown: float) -> None:
    summary = Summary(FakeNow())
    summary.observe(observed)
    assert quantiles([summary]) == [shown] * 6


def test_a_summary_has_quantiles_a_sum_and_a_count() -> None:
    metrics = Metrics()
    metrics.summaries("t", "Time.", "request", now_ns=FakeNow()).of("Fetch").observe_all([1.0, 1.5])
    page = parse(metrics.text())
    assert page["t"].kind == "summary"
    labels = [sample.labels for sample in page["t"].samples]
    assert labels[0] == {"request": "Fetch", "quantile": "0.50"}
    assert [(sample.name, sample.value) for sample in page["t"].samples[-2:]] == [("t_sum", 2.5), ("t_count", 2)]


def test_summaries_that_are_shown_together() -> None:
    metrics = Metrics()
    times = metrics.summaries("t", "Time.", "request", now_ns=FakeNow())
    times.together([("a",), ("b",)], "both")
    times.of("a").observe_all([1.0] * 30)
    times.of("b").observe_all([100.0] * 10)
    shown = {(one.name, *one.labels.values()): one.value for one in parse(metrics.text())["t"].samples}
    assert [shown["t", name, "0.50"] for name in ("both", "a")] == [pytest.approx(1, rel=0.05)] * 2
    assert shown["t", "both", "0.99"] == pytest.approx(100, rel=0.05)
    assert (shown["t_sum", "both"], shown["t_count", "both"]) == (1030, 40)


def test_labels_are_escaped_and_empty_ones_left_out() -> None:
    metrics = Metrics()
    things = metrics.counters("c_total", "Things.", "label")
    things.of('a"b\\c\nd')
    things.of("")
    assert 'c_total{label="a\\"b\\\\c\\nd"} 0' in metrics.text()
    assert [sample.labels for sample in parse(metrics.text())["c_total"].samples] == [{"label": 'a"b\\c\nd'}, {}]


@pytest.mark.parametrize(
    ("number", "shown"),
    [(123_456_789, "123456789"), (12_345_678.0, "12345678"), (0.1, "0.1"), (math.nan, "NaN"), (math.inf, "+Inf")],
)
def test_values_keep_their_digits(number: float, shown: str) -> None:
    metrics = Metrics()
    metrics.gauge("level", "A level.", lambda: number)
    assert metrics.text().splitlines()[-1] == f"level {shown}"


def test_counts_by_topic() -> None:
    metrics = Metrics()
    counts = TopicCounts(metrics)
    counts.written("t", 100, 3)
    counts.written("u", 50, 1)
    counts.read("t", 70, 0)
    counts.read_by_follower("t", 30, 0)
    counts.refused("t", ErrorCode.NOT_ENOUGH_REPLICAS)
    counts.refused(None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    counts.read(None, 0, ErrorCode.OFFSET_OUT_OF_RANGE)
    counts.read("t", 0, ErrorCode.UNKNOWN_SERVER_ERROR)
    counts.copied(7)
    expected = {
        "messagesin": (4, 3),
        "bytesin": (150, 100),
        "bytesout": (70, 70),
        "totalproducerequests": (4, 2),
        "failedproducerequests": (1, 1),
        "totalfetchrequests": (4, 3),
        "failedfetchrequests": (1, 1),
    }
    prefix = "kafka_server_brokertopicmetrics_"
    for name, (total, of_topic) in expected.items():
        assert value(metrics, f"{prefix}{name}_total") == total, name
        assert value(metrics, f'{prefix}{name}_total{{topic="t"}}') == of_topic, name
    assert value(metrics, prefix + "replicationbytesin_total") == 7
    assert value(metrics, prefix + "replicationbytesout_total") == 30
    counts.forget("t")
    counts.forget("t")
    assert 'topic="t"' not in metrics.text()
    assert value(metrics, prefix + "messagesin_total") == 4, "totals never fall"


def test_this_process() -> None:
    metrics = Metrics()
    add_process_metrics(metrics)
    page = parse(metrics.text())
    shown = {name: family.samples[0].value for name, family in page.items()}
    assert shown["process_resident_memory_bytes"] > 5e6
    assert shown["process_virtual_memory_bytes"] >= shown["process_resident_memory_bytes"]
    assert shown["process_cpu_seconds_total"] > 0
    assert 3 <= shown["process_open_fds"] <= shown["process_max_fds"]
    assert 1.7e9 < shown["process_start_time_seconds"] < 5e9
    assert page["python_info"].samples[0].labels["implementation"] == "CPython"


# A broker


def _shown(page: Page, name: str, **labels: str) -> float:
    (found,) = [sample.value for sample in page[name].samples if labels == sample.labels]
    return found


async def _get(kit: Kit, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("b1", kit.broker.ports_bound["metrics"])
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def test_the_page() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        await kit.fetch()
        answer = (await _get(kit, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).decode()
        head, _, body = answer.partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 200 OK")
        assert f"Content-Length: {len(body.encode())}" in head
        page = parse(body)
        assert _shown(page, "kafka_server_replicamanager_partitioncount") == 1
        assert _shown(page, "kafka_server_replicamanager_leadercount") == 1
        assert _shown(page, "kafka_server_replicamanager_atminisrpartitioncount") == 1
        assert _shown(page, "kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert _shown(page, "kafka_controller_kafkacontroller_globaltopiccount") == 1
        assert _shown(page, "kafka_server_kafkaserver_brokerstate") == 3
        assert _shown(page, "kafka_server_brokertopicmetrics_messagesin_total", topic="t") == 1
        assert _shown(page, "kafka_server_brokertopicmetrics_totalfetchrequests_total", topic="t") == 1
        log, one = kit.partition().log, {"topic": "t", "partition": "0"}
        assert _shown(page, "kafka_log_log_size", **one) == log.size_bytes > 0
        assert _shown(page, "kafka_log_log_numlogsegments", **one) == 1
        assert _shown(page, "kafka_log_log_logstartoffset", **one) == 0
        assert _shown(page, "kafka_log_log_logendoffset", **one) == 1
        assert _shown(page, "kafka_topic_partition_current_offset", **one) == 1
        assert _shown(page, "kafka_cluster_partition_underreplicated", **one) == 0
        assert _shown(page, "kafka_topic_partitions", topic="t") == 1
        assert _shown(page, "kafka_network_requestmetrics_requests_total", request="Produce", version="12") == 1
        times = page["kafka_network_requestmetrics_totaltimems"].samples
        counts = {one.labels["request"]: one.value for one in times if one.name.endswith("_count")}
        assert counts["Produce"] == counts["Fetch"] == counts["FetchConsumer"] == 1
        assert counts["FetchFollower"] == 0
        assert (await _get(kit, b"HEAD / HTTP/1.0\n\n")).endswith(b"\r\n\r\n")
        assert b"404" in await _get(kit, b"GET /x HTTP/1.1\r\n\r\n")
        assert b"405" in await _get(kit, b"POST /metrics HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionError):
            await _get(kit, b"x" * 10_000)

    run(story, tidelog_metrics_port="9404", tidelog_metrics_host="b1")


def test_what_is_not_in_sync_is_shown() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(min_insync_replicas="2")
        topic_id = kit.partition().topic_id
        kit.registered(2, 77)
        assert await kit.lead_and_isr(isr=[1], replicas=[1, 2], leader_epoch=1) == 0
        assert await kit.produce(acks=1) is not None
        await kit.call(follower_request(topic_id, {0: 0}, follower=2, broker_epoch=77), 18)
        page = parse(kit.broker.metrics.text())
        prefix = "kafka_server_replicamanager_"
        shown = [_shown(page, prefix + name) for name in ("underreplicatedpartitions", "underminisrpartitioncount")]
        assert shown == [1, 1]
        assert _shown(page, prefix + "atminisrpartitioncount") == 0
        one = {"topic": "t", "partition": "0"}
        assert _shown(page, "kafka_cluster_partition_underminisr", **one) == 1
        assert _shown(page, "kafka_topic_partition_replicas", **one) == 2
        assert _shown(page, "kafka_topic_partition_leader", **one) == 1
        assert _shown(page, "kafka_cluster_partition_replicascount", **one) == 2
        assert _shown(page, "kafka_cluster_partition_insyncreplicascount", **one) == 1
        assert _shown(page, prefix + "reassigningpartitions") == 0
        assert _shown(page, "kafka_topic_partition_in_sync_replica", **one) == 1
        assert _shown(page, "kafka_topic_partition_under_replicated_partition", **one) == 1
        copied = _shown(page, "kafka_server_brokertopicmetrics_replicationbytesout_total")
        assert copied == kit.partition().log.size_bytes
        assert _shown(page, "kafka_server_brokertopicmetrics_bytesout_total") == 0
        refused = await kit.produce()
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        page = parse(kit.broker.metrics.text())
        assert _shown(page, "kafka_server_brokertopicmetrics_failedproducerequests_total", topic="t") == 1

    run(story)


def test_partitions_that_are_reassigned_are_counted_by_their_leader() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        name, one = "kafka_server_replicamanager_reassigningpartitions", {"topic": "t", "partition": "0"}
        assert await kit.lead_and_isr(isr=[1], replicas=[1, 2], leader_epoch=1, adding=[2]) == 0
        assert _shown(parse(kit.broker.metrics.text()), name) == 1
        assert await kit.lead_and_isr(leader=2, isr=[1, 2], replicas=[1, 2], leader_epoch=2, removing=[1]) == 0
        page = parse(kit.broker.metrics.text())
        assert _shown(page, name) == 0
        assert _shown(page, "kafka_cluster_partition_replicascount", **one) == 0
        assert _shown(page, "kafka_cluster_partition_insyncreplicascount", **one) == 0
        assert await kit.lead_and_isr(isr=[1, 2], replicas=[1, 2], leader_epoch=3) == 0
        assert _shown(parse(kit.broker.metrics.text()), name) == 0

    run(story)


def test_a_name_that_no_topic_has_is_no_label() -> None:
    async def story(kit: Kit) -> None:
        assert (await kit.produce(topic="nobody")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await kit.fetch(topic="nobody")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        text = kit.broker.metrics.text()
        assert "nobody" not in text
        assert value(kit.broker.metrics, "kafka_server_brokertopicmetrics_totalproducerequests_total") == 1
        assert value(kit.broker.metrics, "kafka_server_brokertopicmetrics_totalfetchrequests_total") == 1

    run(story)


def test_a_broker_says_why_it_is_not_ready() -> None:
    async def story(kit: Kit) -> None:
        assert kit.broker.why_not_ready() == ""
        assert b"\r\n\r\nok\n" in await _get(kit, b"GET /readyz HTTP/1.1\r\n\r\n")
        await kit.broker.session.close()
        assert kit.broker.why_not_ready()
        answer = await _get(kit, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert answer.endswith(b"\n")
        assert b"coordination store" in answer
        assert (await _get(kit, b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        await kit.broker.stop()
        assert kit.broker.why_not_ready() == "the broker stops"

    run(story, tidelog_metrics_port="9404", tidelog_metrics_host="b1")

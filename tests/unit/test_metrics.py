"""Counters, gauges and histograms as Prometheus reads them; and the page that shows them."""

from __future__ import annotations

import asyncio

import pytest

from tests.brokerkit import Kit, run
from tidelog.broker.counts import TopicCounts
from tidelog.metrics import Histogram, Metrics


def test_the_text() -> None:
    metrics = Metrics()
    metrics.counter("b_total", topic="t").add(3)
    metrics.counter("b_total", topic="u")
    metrics.gauge("a", lambda: 1.5)
    assert metrics.text().splitlines() == [
        "# TYPE a gauge",
        "a 1.5",
        "# TYPE b_total counter",
        'b_total{topic="t"} 3',
        'b_total{topic="u"} 0',
    ]


def test_the_same_name_is_the_same_metric() -> None:
    metrics = Metrics()
    metrics.counter("c", x="1").add()
    metrics.counter("c", x="1").add()
    assert 'c{x="1"} 2' in metrics.text()
    metrics.gauge("g", lambda: 1)
    metrics.gauge("g", lambda: 2)
    assert "g 2" in metrics.text()
    with pytest.raises(AssertionError):
        metrics.histogram("c", x="1")


def test_histograms_are_cumulative() -> None:
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 5.0, 100.0):
        histogram.observe(value)
    assert histogram.lines("h", (("r", "x"),)) == [
        'h_bucket{r="x",le="1"} 2',
        'h_bucket{r="x",le="10"} 3',
        'h_bucket{r="x",le="+Inf"} 4',
        'h_sum{r="x"} 106.5',
        'h_count{r="x"} 4',
    ]
    assert histogram.count == 4


def test_labels_are_escaped() -> None:
    metrics = Metrics()
    metrics.counter("c", label='a"b\\c\nd')
    assert 'c{label="a\\"b\\\\c\\nd"} 0' in metrics.text()


def test_large_values_keep_their_digits() -> None:
    metrics = Metrics()
    metrics.gauge("bytes", lambda: 123_456_789)
    assert "bytes 123456789" in metrics.text()
    histogram = Histogram((1.0,))
    histogram.observe(12_345_678.0)
    assert "h_sum 12345678" in histogram.lines("h", ())[2]


def test_removing() -> None:
    metrics = Metrics()
    metrics.counter("c", x="1")
    metrics.counter("c", x="2")
    metrics.remove("c", x="1")
    assert 'x="1"' not in metrics.text()
    metrics.remove("c", x="2")
    metrics.remove("c", x="3")
    assert metrics.text().strip() == ""


def test_counts_by_topic() -> None:
    metrics = Metrics()
    counts = TopicCounts(metrics)
    counts.written("t", 100, 3)
    counts.written("t", 50, 1)
    counts.read("t", 70)
    text = metrics.text()
    prefix = "kafka_server_broker_topic_metrics_"
    for line in (f'{prefix}bytes_in_total{{topic="t"}} 150', f'{prefix}messages_in_total{{topic="t"}} 4'):
        assert line in text
    assert f'{prefix}bytes_out_total{{topic="t"}} 70' in text
    counts.forget("t")
    counts.forget("t")
    assert "topic=" not in metrics.text()


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
        for line in (
            "kafka_server_replica_manager_partition_count 1",
            "kafka_server_replica_manager_leader_count 1",
            "kafka_controller_kafka_controller_active_controller_count 1",
            'kafka_server_broker_topic_metrics_messages_in_total{topic="t"} 1',
            'kafka_network_request_metrics_total_time_ms_count{request="Produce"} 1',
        ):
            assert line in body, line
        assert (await _get(kit, b"HEAD / HTTP/1.0\n\n")).endswith(b"\r\n\r\n")
        assert b"404" in await _get(kit, b"GET /x HTTP/1.1\r\n\r\n")
        assert b"405" in await _get(kit, b"POST /metrics HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionError):
            await _get(kit, b"x" * 10_000)

    run(story, tidelog_metrics_port="9404", tidelog_metrics_host="b1")

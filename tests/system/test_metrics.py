"""Metrics as an operator meets them: `tidelog up` says where they are, and the dashboard of docs/grafana finds them."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import cast

import pytest

from tests.kits.docskit import ROOT
from tests.kits.metricskit import Page, parse, read_page
from tests.kits.processkit import wait_for
from tests.kits.promqlkit import missing, queries, selectors
from tests.system.test_up import Up
from tidelog.metrics import Metrics

DASHBOARD = ROOT / "docs" / "grafana" / "tidelog.json"
ADDRESS = re.compile(r"^metrics of broker 1: http://127\.0\.0\.1:(\d+)/metrics$", re.MULTILINE)
MIBI = 1024 * 1024


class Seen:
    """A cluster of one broker that has had some traffic and a group, and its page."""

    def __init__(self, up: Up) -> None:
        self.output = up.output
        found = ADDRESS.search(self.output)
        assert found, self.output
        self.port = int(found[1])
        up.run("topics", "create", "orders", "--partitions", "2")
        up.run("produce", "orders", stdin="a\nb\nc\n")
        read = up.run("consume", "orders", "--group", "billing", "--max-messages", "2")
        assert len(read.splitlines()) == 2
        wait_for(lambda: "kafka_consumergroup_lag" in read_page(self.port), "a lag")
        self.page: Page = parse(read_page(self.port))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    up = Up(tmp_path_factory.mktemp("metrics"))
    try:
        up.wait_ready()
        yield Seen(up)
    finally:
        up.stop()


def get(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        answer = cast(HTTPResponse, urllib.request.urlopen(request, timeout=20))
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    with answer:
        return answer.status, answer.read()


def test_up_says_where_the_metrics_are_and_whether_the_broker_is_ready(seen: Seen) -> None:
    assert get(seen.port, "/healthz") == (200, b"ok\n")
    assert get(seen.port, "/readyz") == (200, b"ok\n")
    for path in ("/healthz", "/readyz", "/metrics"):
        assert get(seen.port, path, "HEAD") == (200, b"")
    assert get(seen.port, "/health") == (404, b"there are /metrics, /healthz and /readyz\n")


def test_the_names_that_dashboards_query(seen: Seen) -> None:
    """One of each kind, written out: a change of a name breaks dashboards that are not ours."""
    kinds = {
        "kafka_server_replicamanager_underreplicatedpartitions": "gauge",
        "kafka_server_replicamanager_isrshrinks_total": "counter",
        "kafka_server_brokertopicmetrics_messagesin_total": "counter",
        "kafka_controller_kafkacontroller_activecontrollercount": "gauge",
        "kafka_controller_kafkacontroller_offlinepartitionscount": "gauge",
        "kafka_network_requestmetrics_requests_total": "counter",
        "kafka_network_requestmetrics_totaltimems": "summary",
        "kafka_network_requestchannel_requestqueuesize": "gauge",
        "kafka_server_replicafetchermanager_maxlag": "gauge",
        "kafka_log_log_size": "gauge",
        "kafka_coordinator_group_groupmetadatamanager_numgroups": "gauge",
        "kafka_consumergroup_lag": "gauge",
        "kafka_consumergroup_lag_sum": "gauge",
        "kafka_cluster_partition_insyncreplicascount": "gauge",
        "kafka_cluster_partition_replicascount": "gauge",
        "kafka_server_replicamanager_reassigningpartitions": "gauge",
        "kafka_topic_partition_leader": "gauge",
        "kafka_topic_partitions": "gauge",
        "kafka_topic_partition_in_sync_replica": "gauge",
        "kafka_topic_partition_under_replicated_partition": "gauge",
        "process_cpu_seconds_total": "counter",
        "process_resident_memory_bytes": "gauge",
        "python_info": "gauge",
    }
    assert {name: seen.page[name].kind for name in kinds} == kinds


def test_what_the_page_says_is_true(seen: Seen) -> None:
    def shown(name: str, **labels: str) -> float:
        return sum(one.value for one in seen.page[name].samples if labels.items() <= one.labels.items())

    assert shown("kafka_server_brokertopicmetrics_messagesin_total", topic="orders") == 3
    assert shown("kafka_topic_partition_current_offset", topic="orders") == 3
    assert shown("kafka_topic_partitions", topic="orders") == 2
    committed = shown("kafka_consumergroup_current_offset", consumergroup="billing")
    assert committed + shown("kafka_consumergroup_lag", consumergroup="billing") == shown(
        "kafka_log_log_logendoffset", topic="orders"
    )
    assert shown("process_resident_memory_bytes") > 20 * MIBI


def test_every_query_of_the_dashboard_finds_a_series(seen: Seen) -> None:
    asked = list(queries(DASHBOARD))
    assert len(asked) > 50
    lacking = {f"{title}: {lack}" for title, query, labels in asked for lack in missing(seen.page, query, labels)}
    assert not lacking


def test_a_metric_that_is_renamed_is_missed(seen: Seen) -> None:
    """Each of those that the dashboard names, and each label that it shows."""
    for title, query, labels in queries(DASHBOARD):
        for metric in {selector.metric for selector in selectors(query)}:
            family = next(name for name in seen.page if metric in (name, f"{name}_sum", f"{name}_count"))
            without = {name: shown for name, shown in seen.page.items() if name != family}
            assert missing(without, query, labels), f"{title}: {query} does not miss {metric}"
        assert missing(seen.page, query, labels | {"shard"}), title


def test_the_dashboard_has_its_rows_and_variables() -> None:
    board = json.loads(DASHBOARD.read_text())
    rows = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
    assert rows == ["Cluster health", "Traffic", "Requests", "Replication", "Groups", "Logs", "Process"]
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "instance", "group"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}", panel["title"]


def test_queries_are_read_as_prometheus_reads_them() -> None:
    page_of = Metrics()
    page_of.counters("a_total", "Things.", "topic").of("t")
    page_of.counters("a_total", "Things.", "topic").of("")
    page = parse(page_of.text())
    there = ('sum by (topic) (rate(a_total{topic!="", instance=~"$i"}[5m]))', 'a_total{topic=""}', "a_total / 2")
    assert [missing(page, query, set()) for query in there] == [[], [], []]
    not_there = ('a_total{topic="u"}', 'a_total{topic=~"u|v"}', "b_total", "a_total + b_total", 'a_total{other=~"$x"}')
    assert [len(missing(page, query, set())) for query in not_there] == [1] * len(not_there)

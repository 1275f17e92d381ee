"""What a broker shows of its state, read when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import tidelog
from tidelog.broker.control.stats import ControlFacts, facts_of
from tidelog.broker.group.gauges import add_group_gauges
from tidelog.broker.partition_gauges import add_partition_gauges
from tidelog.controller.image import Image
from tidelog.metrics import Found

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def add_gauges(broker: Broker) -> None:
    metrics = broker.metrics
    add_partition_gauges(metrics, broker.replicas)
    _add_log_gauges(broker)
    _add_controller_gauges(broker)
    add_group_gauges(broker)
    metrics.gauge(
        "kafka_server_kafkaserver_brokerstate",
        "The state of this broker: 1 it starts, 3 it runs, 7 it shuts down.",
        lambda: broker.state,
    )
    metrics.gauge(
        "kafka_brokers", "Living brokers of the cluster, as this broker knows.", lambda: len(broker.metadata.brokers)
    )
    metrics.gauge(
        "tidelog_session_is_current",
        "1 if the session with the coordination store is surely alive; else this broker acknowledges nothing.",
        lambda: int(broker.is_current),
    )
    metrics.gauge(
        "tidelog_remembered_refusals",
        "Refused batches that their producers will send again.",
        lambda: len(broker.refusals),
    )
    metrics.gauges(
        "tidelog_broker_info", "1, with the version and the names of this broker.", "version", "broker", "cluster"
    ).add(lambda: 1, tidelog.__version__, str(broker.id), broker.cluster_id)


def _add_log_gauges(broker: Broker) -> None:
    gauge, storage = broker.metrics.gauge, broker.storage
    gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories that have failed.",
        lambda: sum(directory.offline is not None for directory in storage.directories),
    )
    offline = broker.metrics.gauges(
        "kafka_log_logmanager_logdirectoryoffline", "1 if this log directory has failed.", "logDirectory"
    )
    for directory in storage.directories:
        offline.add(lambda directory=directory: directory.offline is not None, directory.path)  # type: ignore[misc]
    gauge("tidelog_stray_log_count", "Logs that the cluster no longer names here.", lambda: len(storage.strays))
    gauge(
        "tidelog_stray_log_bytes",
        "Bytes of logs that the cluster no longer names here.",
        lambda: sum(stray.size_bytes for stray in storage.strays),
    )


def _add_controller_gauges(broker: Broker) -> None:
    """Zero on all brokers but the controller."""
    metrics, stats = broker.metrics, broker.controller.stats
    facts = facts_of(None)

    def look() -> None:
        nonlocal facts
        facts = broker.controller.facts

    metrics.before_reading(look)
    elections = metrics.summaries(
        "kafka_controller_controllerstats_leaderelectionrateandtimems",
        "Time in ms of the events in which this broker, as controller, elected leaders.",
        now_ns=broker.clock.monotonic_ns,
    )
    stats.on_election = elections.of().observe
    metrics.total(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "Partitions that this broker, as controller, gave a leader that was not in sync.",
        lambda: stats.unclean_elections,
    )
    metrics.total(
        "tidelog_leader_elections_total",
        "Partitions that this broker, as controller, gave another leader.",
        lambda: stats.elections,
    )
    _add_cluster_gauges(broker, lambda: facts)


def _add_cluster_gauges(broker: Broker, facts: Callable[[], ControlFacts]) -> None:
    """What the controller knows of the cluster."""
    metrics, prefix = broker.metrics, "kafka_controller_kafkacontroller_"
    metrics.gauge(
        prefix + "activecontrollercount",
        "1 on the broker that is controller, 0 on the others.",
        lambda: int(broker.controller.is_active),
    )
    metrics.gauge(
        prefix + "globaltopiccount",
        "Topics of the cluster; 0 on brokers that are not controller.",
        lambda: facts().global_topic_count,
    )
    metrics.gauge(
        prefix + "globalpartitioncount",
        "Partitions of the cluster; 0 on brokers that are not controller.",
        lambda: facts().global_partition_count,
    )
    metrics.series(
        "kafka_topic_partitions",
        "Partitions of a topic, shown by the controller.",
        ("topic",),
        lambda: _partitions(broker.controller.image),
    )
    metrics.gauge(
        prefix + "offlinepartitionscount",
        "Partitions of the cluster that have no leader; 0 on brokers that are not controller.",
        lambda: facts().offline_partitions_count,
    )
    metrics.gauge(
        prefix + "preferredreplicaimbalancecount",
        "Partitions whose leader is not their preferred replica; 0 on brokers that are not controller.",
        lambda: facts().preferred_replica_imbalance_count,
    )
    metrics.gauge(
        "tidelog_reassigning_partitions",
        "Partitions of the cluster that are being moved; 0 on brokers that are not controller.",
        lambda: facts().reassigning_partitions,
    )


def _partitions(image: Image | None) -> Iterator[Found]:
    for topic in [] if image is None else list(image.standing()):
        yield (topic.name,), len(topic.assignments)

"""What a broker shows of its state, read when somebody looks."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from tidelog.groups import GroupState

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def add_gauges(broker: Broker) -> None:
    gauge, replicas = broker.metrics.gauge, broker.replicas
    gauge("kafka_server_replica_manager_partition_count", lambda: len(replicas.partitions))
    gauge("kafka_server_replica_manager_leader_count", lambda: replicas.leader_count)
    gauge(
        "kafka_server_replica_manager_offline_replica_count",
        lambda: sum(partition.log.failed is not None for partition in replicas.partitions.values()),
    )
    gauge(
        "kafka_server_replica_manager_under_replicated_partitions",
        lambda: sum(
            partition.leader is not None and len(partition.isr) < len(partition.replicas)
            for partition in replicas.partitions.values()
        ),
    )
    gauge(
        "kafka_server_replica_manager_under_min_isr_partition_count",
        lambda: sum(
            partition.leader is not None and not partition.leader.has_enough_replicas()
            for partition in replicas.partitions.values()
        ),
    )
    gauge(
        "kafka_server_replica_fetcher_manager_max_lag",
        lambda: max((replicas.lag(partition) for partition in replicas.partitions.values()), default=0),
    )
    gauge("tidelog_producer_ids", lambda: replicas.producer_count)
    gauge("tidelog_remembered_refusals", lambda: len(broker.refusals))
    _add_controller_gauges(broker)
    _add_group_gauges(broker)
    gauge(
        "kafka_log_log_manager_offline_log_directory_count",
        lambda: sum(directory.offline is not None for directory in broker.storage.directories),
    )
    gauge("kafka_log_log_manager_stray_log_count", lambda: len(broker.storage.strays))
    gauge("kafka_log_log_manager_stray_log_bytes", lambda: sum(stray.size_bytes for stray in broker.storage.strays))
    gauge("kafka_server_socket_server_metrics_connection_count", lambda: broker.server.connection_count)
    gauge("kafka_server_kafka_server_broker_state", lambda: broker.state)
    gauge("kafka_server_session_is_current", lambda: int(broker.is_current))


def _add_controller_gauges(broker: Broker) -> None:
    """Zero on all brokers but the controller."""
    gauge, prefix = broker.metrics.gauge, "kafka_controller_kafka_controller_"
    gauge(prefix + "active_controller_count", lambda: int(broker.controller.is_active))
    for name in (
        "global_topic_count",
        "global_partition_count",
        "offline_partitions_count",
        "preferred_replica_imbalance_count",
    ):
        gauge(prefix + name, lambda name=name: getattr(broker.controller.facts, name))  # type: ignore[misc]
    stats = "kafka_controller_controller_stats_"
    gauge(stats + "leader_elections_total", lambda: broker.controller.stats.elections)
    gauge(stats + "unclean_leader_elections_total", lambda: broker.controller.stats.unclean_elections)


def _add_group_gauges(broker: Broker) -> None:
    """Of the groups that are coordinated here."""
    gauge, prefix = broker.metrics.gauge, "kafka_coordinator_group_group_metadata_manager_num_groups"

    counted: Counter[GroupState] = Counter()

    def count() -> None:
        counted.clear()
        for shard in broker.groups.shards.values():
            if shard.is_active:
                counted.update(shard.groups.states())

    broker.metrics.before_reading(count)
    gauge(prefix, counted.total)
    usage = broker.groups.usage
    gauge("tidelog_group_pending_member_ids", lambda: usage.pending_ids)
    gauge("tidelog_group_evicted_pending_member_ids_total", lambda: usage.evicted_ids)
    gauge("tidelog_group_member_bytes", lambda: usage.member_bytes)
    gauge("tidelog_group_committed_offsets", lambda: usage.offsets)
    gauge("tidelog_group_offset_metadata_bytes", lambda: usage.metadata_bytes)
    gauge("tidelog_group_refused_for_bounds_total", lambda: usage.refused)
    for state in GroupState:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", state.value).lower()
        gauge(f"{prefix}_{name}", lambda state=state: counted[state])  # type: ignore[misc]

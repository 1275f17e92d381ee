"""What a broker shows of its replicas: counted over all of them, and of each one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.metrics import Found, Metrics

_AT_ONCE = 250
_PARTITION = ("topic", "partition")
_Read: TypeAlias = Callable[[Partition], int]


def add_partition_gauges(metrics: Metrics, replicas: Replicas) -> None:
    walk = _Walk(replicas)
    metrics.before_reading(walk.count)
    _add_counts(metrics, walk)
    of_each = _OfEach(metrics, replicas)
    for name, help_text, read in _OF_EACH:
        of_each.add(name, help_text, read)
    for name, help_text, read in _OF_EACH_LED:
        of_each.add(name, help_text, read, led_only=True)


def _is_under_replicated(partition: Partition) -> bool:
    return partition.leader is not None and len(partition.isr) < len(partition.replicas)


def _is_under_min_isr(partition: Partition) -> bool:
    return partition.leader is not None and not partition.leader.has_enough_replicas()


def _is_at_min_isr(partition: Partition) -> bool:
    return partition.leader is not None and len(partition.leader.isr) == partition.leader.needed_replicas


_OF_EACH: tuple[tuple[str, str, _Read], ...] = (
    ("kafka_log_log_size", "Bytes of the segments of a replica here.", lambda one: one.log.size_bytes),
    ("kafka_log_log_numlogsegments", "Segments of a replica here.", lambda one: len(one.log.segments)),
    ("kafka_log_log_logstartoffset", "First offset of a replica here.", lambda one: one.log.log_start_offset),
    ("kafka_log_log_logendoffset", "Next offset of a replica here.", lambda one: one.log.log_end_offset),
    (
        "kafka_cluster_partition_underreplicated",
        "1 if this broker leads the partition and a replica is not in sync.",
        _is_under_replicated,
    ),
    (
        "kafka_cluster_partition_underminisr",
        "1 if this broker leads the partition and fewer replicas are in sync than min.insync.replicas.",
        _is_under_min_isr,
    ),
    (
        "kafka_cluster_partition_atminisr",
        "1 if this broker leads the partition and just min.insync.replicas are in sync.",
        _is_at_min_isr,
    ),
    (
        "kafka_cluster_partition_replicascount",
        "Replicas that the partition should have if this broker leads it, else 0.",
        lambda one: 0 if one.leader is None else len(one.replicas),
    ),
    (
        "kafka_cluster_partition_insyncreplicascount",
        "Replicas that are in sync if this broker leads the partition, else 0.",
        lambda one: 0 if one.leader is None else len(one.isr),
    ),
)
"""By name, with the help and what is read of a replica here."""

_OF_EACH_LED: tuple[tuple[str, str, _Read], ...] = (
    (
        "kafka_topic_partition_leader",
        "Number of the broker that leads the partition, shown by it.",
        lambda one: one.leader_id,
    ),
    (
        "kafka_topic_partition_current_offset",
        "High watermark, shown by the leader of the partition.",
        lambda one: one.log.high_watermark,
    ),
    (
        "kafka_topic_partition_oldest_offset",
        "First offset, shown by the leader of the partition.",
        lambda one: one.log.log_start_offset,
    ),
    (
        "kafka_topic_partition_replicas",
        "Replicas that the partition should have, shown by its leader.",
        lambda one: len(one.replicas),
    ),
    (
        "kafka_topic_partition_in_sync_replica",
        "Replicas that are in sync, shown by the leader of the partition.",
        lambda one: len(one.isr),
    ),
    (
        "kafka_topic_partition_under_replicated_partition",
        "1 if a replica is not in sync, shown by the leader of the partition.",
        _is_under_replicated,
    ),
)
"""Of those that lead, by the names of kafka_exporter."""


@dataclass(slots=True)
class _Counted:
    """Over all replicas of this broker."""

    replicas: int = 0
    leaders: int = 0
    offline: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    reassigning: int = 0
    max_lag: int = 0
    producers: int = 0


class _Walk:
    """One walk over all replicas before each page."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self.found = _Counted()

    def count(self) -> Iterator[None]:
        found = _Counted()
        for partition in list(self._replicas.partitions.values()):
            found.replicas += 1
            found.leaders += partition.leader is not None
            found.offline += partition.log.failed is not None
            found.under_replicated += _is_under_replicated(partition)
            found.under_min_isr += _is_under_min_isr(partition)
            found.at_min_isr += _is_at_min_isr(partition)
            found.reassigning += partition.leader is not None and partition.is_reassigned
            found.max_lag = max(found.max_lag, self._replicas.lag(partition))
            found.producers += len(partition.log.producers)
            if found.replicas % _AT_ONCE == 0:
                yield
        self.found = found


def _add_counts(metrics: Metrics, walk: _Walk) -> None:
    gauge, prefix = metrics.gauge, "kafka_server_replicamanager_"
    gauge(prefix + "partitioncount", "Replicas on this broker.", lambda: walk.found.replicas)
    gauge(prefix + "leadercount", "Replicas on this broker that lead.", lambda: walk.found.leaders)
    gauge(
        prefix + "offlinereplicacount",
        "Replicas on this broker whose log directory has failed.",
        lambda: walk.found.offline,
    )
    gauge(
        prefix + "underreplicatedpartitions",
        "Partitions led here that have a replica that is not in sync.",
        lambda: walk.found.under_replicated,
    )
    gauge(
        prefix + "underminisrpartitioncount",
        "Partitions led here with fewer replicas in sync than min.insync.replicas.",
        lambda: walk.found.under_min_isr,
    )
    gauge(
        prefix + "atminisrpartitioncount",
        "Partitions led here with just min.insync.replicas replicas in sync.",
        lambda: walk.found.at_min_isr,
    )
    gauge(
        prefix + "reassigningpartitions",
        "Partitions led here that get or lose replicas.",
        lambda: walk.found.reassigning,
    )
    metrics.gauges(
        "kafka_server_replicafetchermanager_maxlag",
        "Records that the slowest copy here is behind what its leader last said is committed.",
        "clientId",
    ).add(lambda: walk.found.max_lag, "Replica")
    gauge("tidelog_producer_ids", "Producer ids that the replicas here remember.", lambda: walk.found.producers)


class _OfEach:
    """Metrics with a series for each replica here whose log can be read."""

    def __init__(self, metrics: Metrics, replicas: Replicas) -> None:
        self._metrics = metrics
        self._replicas = replicas

    def add(self, name: str, help_text: str, read: _Read, *, led_only: bool = False) -> None:
        def find() -> Iterator[Found]:
            for (topic, index), partition in list(self._replicas.partitions.items()):
                if partition.log.failed is None and (partition.leader is not None or not led_only):
                    yield (topic, str(index)), read(partition)

        self._metrics.series(name, help_text, _PARTITION, find)

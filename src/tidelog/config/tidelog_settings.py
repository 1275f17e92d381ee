"""Our own settings, and the ones Kafka knows only as dynamic."""

from __future__ import annotations

from tidelog.config.setting import CLUSTER_WIDE, HIGH, int_, long, string
from tidelog.config.validators import NonEmpty, at_least, between, one_of
from tidelog.config.values import MAX_LONG

OWN = "tidelog"

SETTINGS = (
    string(
        "tidelog.coordination",
        "embedded",
        "Where the cluster agrees; when not set, `zookeeper` if zookeeper.connect is.",
        HIGH,
        one_of("embedded", "memory", "zookeeper"),
        release=OWN,
    ),
    string(
        "tidelog.coordination.dir",
        None,
        "Directory of the embedded coordination, the same for all brokers; unset: beside the first log directory.",
        HIGH,
        NonEmpty(),
        release=OWN,
    ),
    string("tidelog.metrics.host", "127.0.0.1", "Address of the HTTP port for metrics.", NonEmpty(), release=OWN),
    int_(
        "tidelog.metrics.port",
        -1,
        "HTTP port on which Prometheus reads metrics: -1 for none, 0 for any free one.",
        between(-1, 65535),
        release=OWN,
    ),
)

THROTTLES = tuple(
    long(name, MAX_LONG, documentation, CLUSTER_WIDE, at_least(0))
    for name, documentation in (
        ("leader.replication.throttled.rate", "Most bytes per second sent to throttled followers."),
        ("follower.replication.throttled.rate", "Most bytes per second fetched by throttled followers."),
        ("replica.alter.log.dirs.io.max.bytes.per.second", "Most bytes per second moved between directories."),
    )
)
"""Set through AlterConfigs only: a file cannot hold them, and they are shown only where they are set."""

"""Our own settings, and the ones Kafka knows only as dynamic."""

from __future__ import annotations

from tidelog.config.setting import CLUSTER_WIDE, HIGH, int_, long, string
from tidelog.config.validators import NonEmpty, at_least, between, one_of
from tidelog.config.values import MAX_LONG

OWN = "tidelog"
MAX_ELEMENTS = 100_000
SLOW_REQUEST_MS = 1_000

SETTINGS = (
    int_(
        "tidelog.batch.max.expansion.ratio",
        1000,
        "To how many times its size a compressed batch may decompress; up to max.message.bytes it always may.",
        CLUSTER_WIDE,
        at_least(1),
        release=OWN,
    ),
    int_(
        "tidelog.batch.max.uncompressed.bytes",
        64 * 1024 * 1024,
        "To how many bytes a compressed batch may decompress; up to max.message.bytes it always may.",
        CLUSTER_WIDE,
        between(1024 * 1024, 256 * 1024 * 1024),
        release=OWN,
    ),
    int_(
        "tidelog.connections.replaceable.idle.ms",
        10_000,
        "A client that was idle this long makes room for another when clients have all the open files they may have.",
        at_least(0),
        release=OWN,
    ),
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
    int_(
        "tidelog.partition.producer.ids.max",
        20_000,
        "Most producer ids that a partition remembers. If none was silent for 7 minutes, new ones have to wait.",
        at_least(1),
        release=OWN,
    ),
    int_(
        "tidelog.broker.producer.ids.max",
        200_000,
        "Most producer ids that the partitions of a broker remember together before new ones have to wait.",
        at_least(1),
        release=OWN,
    ),
    int_(
        "tidelog.broker.groups.max",
        100_000,
        "Most groups that a broker coordinates. A request that would make one more hears COORDINATOR_NOT_AVAILABLE.",
        at_least(1),
        release=OWN,
    ),
    int_(
        "tidelog.broker.pending.members.max",
        50_000,
        "Most member ids that a broker has given out and that were not used to join yet. The oldest make room.",
        at_least(1),
        release=OWN,
    ),
    int_(
        "tidelog.group.pending.members.max",
        10_000,
        "Most member ids of one group that were given out and not used to join yet. The oldest make room.",
        at_least(1),
        release=OWN,
    ),
    long(
        "tidelog.broker.members.max.bytes",
        128 << 20,
        "Most bytes that members of groups take, with their protocols and assignments. Silent members make room.",
        at_least(0),
        release=OWN,
    ),
    int_(
        "tidelog.broker.offsets.max",
        1_000_000,
        "Most committed offsets that a broker keeps. One more is refused with INVALID_COMMIT_OFFSET_SIZE.",
        at_least(1),
        release=OWN,
    ),
    long(
        "tidelog.broker.offset.metadata.max.bytes",
        64 << 20,
        "Most bytes of metadata that a broker keeps with committed offsets; more are INVALID_COMMIT_OFFSET_SIZE.",
        at_least(0),
        release=OWN,
    ),
    int_(
        "tidelog.fetch.session.partitions.max",
        500_000,
        "Most partitions in the fetch sessions of all clients of a broker. Who would add more gets no session.",
        at_least(0),
        release=OWN,
    ),
    int_(
        "tidelog.slow.request.ms",
        SLOW_REQUEST_MS,
        "A request that waited in the queue and was handled for longer than this has a line in the broker's log.",
        CLUSTER_WIDE,
        at_least(1),
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
    int_(
        "tidelog.request.max.elements",
        MAX_ELEMENTS,
        "Most elements of arrays and tagged fields in one request, all of them together.",
        at_least(1_000),
        release=OWN,
    ),
    int_(
        "tidelog.request.read.timeout.ms",
        30_000,
        "A request of which no MiB more came in this time, nor its end, has its connection closed; -1 for never.",
        at_least(-1),
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

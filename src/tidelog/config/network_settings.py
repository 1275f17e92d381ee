"""Broker settings of the network: listeners, connections, the request path, quotas and metrics."""

from __future__ import annotations

from tidelog.config.setting import CLUSTER_WIDE, HIGH, LOW, PER_BROKER, boolean, class_, int_, list_, long, string
from tidelog.config.validators import at_least
from tidelog.config.values import MAX_INT, MAX_LONG

SETTINGS = (
    string(
        "advertised.listeners",
        None,
        "The addresses clients and brokers are told to use; unset means the listeners.",
        HIGH,
        PER_BROKER,
    ),
    int_(
        "alter.log.dirs.replication.quota.window.num",
        11,
        "Samples kept for the quota of moves between directories.",
        LOW,
        at_least(1),
    ),
    int_(
        "alter.log.dirs.replication.quota.window.size.seconds",
        1,
        "Length of a sample for the quota of moves between directories.",
        LOW,
        at_least(1),
    ),
    boolean("auto.include.jmx.reporter", True, "Whether the JMX reporter is added by itself; tidelog has no JMX.", LOW),
    int_("background.threads", 10, "Threads for background work of all kinds.", HIGH, CLUSTER_WIDE, at_least(1)),
    class_("client.quota.callback.class", None, "A Java class that decides client quotas.", LOW),
    int_(
        "connection.failed.authentication.delay.ms",
        100,
        "How long a failed authentication waits for its answer.",
        LOW,
        at_least(0),
    ),
    long("connections.max.idle.ms", 600_000, "A connection without traffic for this long is closed."),
    long("connections.max.reauth.ms", 0, "How long a SASL session lasts; 0 for no limit."),
    string("control.plane.listener.name", None, "The listener that is kept for the controller's requests.", HIGH),
    int_(
        "delete.records.purgatory.purge.interval.requests",
        1,
        "Completed DeleteRecords after which the purgatory is swept.",
    ),
    string("early.start.listeners", None, "KRaft: listeners that open before the authorizer is ready.", HIGH),
    int_("fetch.max.bytes", 57_671_680, "Most bytes a fetch is answered with.", at_least(1024)),
    int_("fetch.purgatory.purge.interval.requests", 1000, "Completed fetches after which the purgatory is swept."),
    string("inter.broker.listener.name", None, "The listener on which brokers talk to each other."),
    int_(
        "kafka.metrics.polling.interval.secs", 10, "How often old-style metrics reporters are asked.", LOW, at_least(1)
    ),
    list_("kafka.metrics.reporters", (), "Java classes of old-style metrics reporters.", LOW),
    string(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Which security protocol each listener name speaks.",
        LOW,
        PER_BROKER,
    ),
    string(
        "listeners",
        "PLAINTEXT://:9092",
        "Where the broker listens: NAME://HOST:PORT, separated by commas.",
        HIGH,
        PER_BROKER,
    ),
    int_("max.connection.creation.rate", MAX_INT, "Most new connections per second.", CLUSTER_WIDE, at_least(0)),
    string(
        "max.connections.per.ip.overrides",
        "",
        "Other limits for single addresses: HOST:COUNT, separated by commas.",
        CLUSTER_WIDE,
    ),
    int_("max.connections.per.ip", MAX_INT, "Most connections of one address.", CLUSTER_WIDE, at_least(0)),
    int_("max.connections", MAX_INT, "Most connections at one time.", CLUSTER_WIDE, at_least(0)),
    int_("max.incremental.fetch.session.cache.slots", 1000, "Most fetch sessions kept.", at_least(0)),
    int_(
        "max.request.partition.size.limit",
        2000,
        "Most partitions one DescribeTopicPartitions answer lists.",
        at_least(1),
    ),
    list_("metric.reporters", (), "Java classes of metrics reporters.", LOW, CLUSTER_WIDE),
    int_("metrics.num.samples", 2, "Samples kept for a metric.", LOW, at_least(1)),
    string("metrics.recording.level", "INFO", "How much is measured: INFO, DEBUG or TRACE.", LOW),
    long("metrics.sample.window.ms", 30000, "Length of one sample of a metric.", LOW, at_least(1)),
    int_("num.io.threads", 8, "Threads for blocking disk work.", HIGH, CLUSTER_WIDE, at_least(1)),
    int_(
        "num.network.threads",
        3,
        "Network workers of each listener; they share the event loop.",
        HIGH,
        CLUSTER_WIDE,
        at_least(1),
    ),
    int_(
        "producer.purgatory.purge.interval.requests",
        1000,
        "Completed produce requests after which the purgatory is swept.",
    ),
    long(
        "queued.max.request.bytes",
        0,
        "Most bytes of requests that are being read or wait; 0 for an eighth of the memory, -1 for no limit.",
    ),
    int_(
        "queued.max.requests",
        500,
        "Most requests that wait for a handler before sockets are read no more.",
        HIGH,
        at_least(1),
    ),
    int_("quota.window.num", 11, "Samples kept for client quotas.", LOW, at_least(1)),
    int_("quota.window.size.seconds", 1, "Length of a sample for client quotas.", LOW, at_least(1)),
    int_("replication.quota.window.num", 11, "Samples kept for replication quotas.", LOW, at_least(1)),
    int_("replication.quota.window.size.seconds", 1, "Length of a sample for replication quotas.", LOW, at_least(1)),
    int_("request.timeout.ms", 30000, "How long the broker's own requests wait for an answer.", HIGH),
    long("server.max.startup.time.ms", MAX_LONG, "Longest time a start may take.", at_least(0), internal=True),
    long("socket.connection.setup.timeout.max.ms", 30000, "Most the time to connect grows to after failures."),
    long("socket.connection.setup.timeout.ms", 10000, "How long to wait for a connection to another broker."),
    int_("socket.listen.backlog.size", 50, "Connections the kernel holds until they are accepted.", at_least(1)),
    int_("socket.receive.buffer.bytes", 102_400, "SO_RCVBUF of accepted sockets; -1 leaves the system's.", HIGH),
    int_(
        "socket.request.max.bytes",
        104_857_600,
        "Largest request that is read; above it the connection is closed.",
        HIGH,
        at_least(1),
    ),
    int_("socket.send.buffer.bytes", 102_400, "SO_SNDBUF of accepted sockets; -1 leaves the system's.", HIGH),
    int_("telemetry.max.bytes", 1_048_576, "Largest metrics push that is taken from a client.", LOW, at_least(1)),
    boolean(
        "unstable.api.versions.enable", False, "Whether API versions under development are served.", HIGH, internal=True
    ),
    boolean(
        "unstable.feature.versions.enable",
        False,
        "Whether feature levels under development are allowed.",
        HIGH,
        internal=True,
    ),
)

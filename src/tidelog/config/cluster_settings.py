"""Broker settings of the cluster: identity, topics, replication, elections, the controller."""

from __future__ import annotations

from tidelog.config.setting import CLUSTER_WIDE, HIGH, LOW, boolean, class_, int_, long, string
from tidelog.config.validators import KafkaVersion, at_least

SETTINGS = (
    class_("alter.config.policy.class.name", None, "A Java class that judges changes of topic settings.", LOW),
    boolean("auto.create.topics.enable", True, "Whether asking for an unknown topic makes it.", HIGH),
    boolean(
        "auto.leader.rebalance.enable", True, "Whether leadership goes back to preferred replicas by itself.", HIGH
    ),
    boolean(
        "broker.id.generation.enable", True, "Whether a broker without a number is given one; tidelog wants broker.id."
    ),
    int_("broker.id", -1, "The broker's number in the cluster; node.id is the same.", HIGH),
    string("broker.rack", None, "The rack of the broker, for placing replicas."),
    boolean("controlled.shutdown.enable", True, "Whether a stopping broker hands its leaderships over first."),
    int_("controlled.shutdown.max.retries", 3, "How often a controlled shutdown is tried."),
    long("controlled.shutdown.retry.backoff.ms", 5000, "Pause between two tries of a controlled shutdown."),
    int_("controller.quota.window.num", 11, "Samples kept for the quota of topic changes.", LOW, at_least(1)),
    int_(
        "controller.quota.window.size.seconds",
        1,
        "Length of a sample for the quota of topic changes.",
        LOW,
        at_least(1),
    ),
    int_("controller.socket.timeout.ms", 30000, "How long the controller's requests to brokers wait for an answer."),
    class_("create.topic.policy.class.name", None, "A Java class that judges new topics.", LOW),
    int_("default.replication.factor", 1, "Replicas of topics that are made without saying how many."),
    boolean("delete.topic.enable", True, "Whether topics can be deleted.", HIGH),
    string(
        "inter.broker.protocol.version", "3.9-IV0", "Kafka's version of the requests between brokers.", KafkaVersion()
    ),
    long(
        "leader.imbalance.check.interval.seconds",
        300,
        "How often it is checked whether leadership is uneven.",
        HIGH,
        at_least(1),
    ),
    int_(
        "leader.imbalance.per.broker.percentage",
        10,
        "Share of misplaced leaderships of a broker from which they are moved.",
        HIGH,
    ),
    int_(
        "min.insync.replicas",
        1,
        "Fewest in-sync replicas with which acks=all is accepted.",
        HIGH,
        CLUSTER_WIDE,
        at_least(1),
    ),
    int_("node.id", -1, "The broker's number in the cluster; broker.id is the same.", HIGH),
    int_("num.partitions", 1, "Partitions of topics that are made without saying how many.", at_least(1)),
    int_("num.replica.alter.log.dirs.threads", None, "Threads that move replicas between directories.", HIGH),
    int_("num.replica.fetchers", 1, "Fetchers per leader broker.", HIGH, CLUSTER_WIDE),
    int_("replica.fetch.backoff.ms", 1000, "Pause of a fetcher after an error.", at_least(0)),
    int_("replica.fetch.max.bytes", 1_048_576, "Bytes a follower asks for per partition.", at_least(0)),
    int_("replica.fetch.min.bytes", 1, "Bytes a follower waits for.", HIGH),
    int_("replica.fetch.response.max.bytes", 10_485_760, "Bytes a follower asks for in one fetch.", at_least(0)),
    int_("replica.fetch.wait.max.ms", 500, "Longest time a follower's fetch waits for data.", HIGH),
    long("replica.high.watermark.checkpoint.interval.ms", 5000, "How often high watermarks are written down.", HIGH),
    long("replica.lag.time.max.ms", 10000, "A follower that has not caught up for this long leaves the ISR.", HIGH),
    string("replica.selector.class", None, "A Java class that picks the replica a consumer reads from."),
    int_("replica.socket.receive.buffer.bytes", 65536, "SO_RCVBUF of a fetcher's socket.", HIGH),
    int_("replica.socket.timeout.ms", 30000, "How long a fetcher waits for an answer.", HIGH),
    int_("reserved.broker.max.id", 1000, "Largest number that is never generated for a broker.", at_least(0)),
    boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica outside the ISR may lead when no other is alive; may lose records.",
        HIGH,
        CLUSTER_WIDE,
    ),
    string("zookeeper.clientCnxnSocket", None, "Java class of the client's socket to ZooKeeper."),
    int_(
        "zookeeper.connection.timeout.ms",
        None,
        "How long to wait for a connection to ZooKeeper; unset means the session timeout.",
        HIGH,
    ),
    string(
        "zookeeper.connect",
        None,
        "The ZooKeeper servers, HOST:PORT separated by commas, with an optional /chroot.",
        HIGH,
    ),
    int_(
        "zookeeper.max.in.flight.requests",
        10,
        "Requests to ZooKeeper that may be unanswered at a time.",
        HIGH,
        at_least(1),
    ),
    boolean("zookeeper.metadata.migration.enable", False, "Whether metadata moves from ZooKeeper to KRaft.", HIGH),
    int_(
        "zookeeper.metadata.migration.min.batch.size",
        200,
        "Least records in a batch of that migration.",
        at_least(1),
        internal=True,
    ),
    int_(
        "zookeeper.session.timeout.ms",
        18000,
        "How long a coordination session lives without renewal, in every home.",
        HIGH,
    ),
    boolean("zookeeper.set.acl", False, "Whether nodes are made with access lists.", HIGH),
)

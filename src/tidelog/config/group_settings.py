"""Broker settings of consumer groups and their offsets."""

from __future__ import annotations

from tidelog.config.setting import HIGH, boolean, int_, list_, long, short, string
from tidelog.config.validators import OneOf, at_least, one_of
from tidelog.config.values import MAX_INT

SETTINGS = (
    list_(
        "group.consumer.assignors",
        (
            "org.apache.kafka.coordinator.group.assignor.UniformAssignor",
            "org.apache.kafka.coordinator.group.assignor.RangeAssignor",
        ),
        "Assignors of the consumer protocol that run in the broker.",
    ),
    int_(
        "group.consumer.heartbeat.interval.ms",
        5000,
        "Heartbeat interval given to members of consumer groups.",
        at_least(1),
    ),
    int_(
        "group.consumer.max.heartbeat.interval.ms",
        15000,
        "Largest heartbeat interval of a consumer group.",
        at_least(1),
    ),
    int_("group.consumer.max.session.timeout.ms", 60000, "Largest session timeout of a consumer group.", at_least(1)),
    int_("group.consumer.max.size", MAX_INT, "Most members of a consumer group.", at_least(1)),
    string(
        "group.consumer.migration.policy",
        "disabled",
        "Whether groups change between the classic and the consumer protocol.",
        OneOf(("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"), any_case=True),
        internal=True,
    ),
    int_(
        "group.consumer.min.heartbeat.interval.ms",
        5000,
        "Smallest heartbeat interval of a consumer group.",
        at_least(1),
    ),
    int_("group.consumer.min.session.timeout.ms", 45000, "Smallest session timeout of a consumer group.", at_least(1)),
    int_(
        "group.consumer.regex.refresh.interval.ms",
        600_000,
        "How often subscribed patterns are matched again.",
        at_least(10000),
        internal=True,
        release="4.1",
    ),
    int_(
        "group.consumer.session.timeout.ms",
        45000,
        "Time without heartbeat after which a consumer group's member is out.",
        at_least(1),
    ),
    int_("group.coordinator.append.linger.ms", 10, "How long the coordinator gathers writes.", at_least(0)),
    boolean("group.coordinator.new.enable", False, "Whether Kafka's newer coordinator runs.", internal=True),
    list_(
        "group.coordinator.rebalance.protocols",
        ("classic",),
        "Group protocols that are served.",
        one_of("consumer", "classic", "share", "unknown"),
    ),
    int_("group.coordinator.threads", 1, "Threads of the group coordinator.", at_least(1)),
    int_("group.initial.rebalance.delay.ms", 3000, "How long a new group waits for more members."),
    int_("group.max.session.timeout.ms", 1_800_000, "Largest session timeout a classic member may ask for."),
    int_("group.max.size", MAX_INT, "Most members of a classic group.", at_least(1)),
    int_("group.min.session.timeout.ms", 6000, "Smallest session timeout a classic member may ask for."),
    int_("offset.metadata.max.bytes", 4096, "Longest text that goes with a committed offset.", HIGH),
    short("offsets.commit.required.acks", -1, "Acknowledgements a commit waits for.", HIGH),
    int_("offsets.commit.timeout.ms", 5000, "How long a commit waits for its replicas.", HIGH, at_least(1)),
    int_(
        "offsets.load.buffer.size",
        5_242_880,
        "Bytes read at a time when committed offsets are loaded.",
        HIGH,
        at_least(1),
    ),
    long(
        "offsets.retention.check.interval.ms", 600_000, "How often expired offsets are looked for.", HIGH, at_least(1)
    ),
    int_(
        "offsets.retention.minutes",
        10080,
        "Minutes after which the offsets of an empty group expire.",
        HIGH,
        at_least(1),
    ),
    int_("offsets.topic.compression.codec", 0, "Codec number of the batches in the offsets topic.", HIGH),
    int_("offsets.topic.num.partitions", 50, "Partitions of the offsets topic.", HIGH, at_least(1)),
    short("offsets.topic.replication.factor", 3, "Replicas of the offsets topic.", HIGH, at_least(1)),
    int_("offsets.topic.segment.bytes", 104_857_600, "Segment size of the offsets topic.", HIGH, at_least(1)),
)

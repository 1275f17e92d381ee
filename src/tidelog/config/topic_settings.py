"""Topic settings, each with the broker settings that give it its value where the topic does not."""

from __future__ import annotations

from tidelog.config.setting import LOW, topic
from tidelog.config.validators import GzipLevel, KafkaVersion, ThrottledReplicas, at_least, between, one_of
from tidelog.config.values import MAX_LONG

SETTINGS = (
    topic.list_(
        "cleanup.policy",
        ("delete",),
        "What happens to old segments: `delete`, `compact` or both.",
        one_of("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    ),
    topic.int_(
        "compression.gzip.level",
        -1,
        "Level for gzip when the broker itself compresses; -1 is the codec's own choice.",
        GzipLevel(),
        synonyms=("compression.gzip.level",),
    ),
    topic.int_(
        "compression.lz4.level",
        9,
        "Level for lz4 when the broker itself compresses.",
        between(1, 17),
        synonyms=("compression.lz4.level",),
    ),
    topic.string(
        "compression.type",
        "producer",
        "Codec in which batches are stored; `producer` keeps what was sent.",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=("compression.type",),
    ),
    topic.int_(
        "compression.zstd.level",
        3,
        "Level for zstd when the broker itself compresses.",
        between(-131_072, 22),
        synonyms=("compression.zstd.level",),
    ),
    topic.long(
        "delete.retention.ms",
        86_400_000,
        "How long tombstones stay in a compacted log.",
        at_least(0),
        synonyms=("log.cleaner.delete.retention.ms",),
    ),
    topic.long(
        "file.delete.delay.ms",
        60000,
        "Time between the end of a segment and the removal of its files.",
        at_least(0),
        synonyms=("log.segment.delete.delay.ms",),
    ),
    topic.long(
        "flush.messages",
        MAX_LONG,
        "The log is synced after this many records; 1 syncs each batch before it is acknowledged.",
        at_least(1),
        synonyms=("log.flush.interval.messages",),
    ),
    topic.long(
        "flush.ms",
        MAX_LONG,
        "The log is synced when records have waited this long.",
        at_least(0),
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    topic.list_(
        "follower.replication.throttled.replicas",
        (),
        "Replicas throttled as followers: PARTITION:BROKER, or * for all.",
        ThrottledReplicas(),
    ),
    topic.int_(
        "index.interval.bytes",
        4096,
        "Bytes of log between two index entries.",
        at_least(0),
        synonyms=("log.index.interval.bytes",),
    ),
    topic.int_(
        "internal.segment.bytes", None, "Segment size below the usual minimum, for tests.", internal=True, release="4.1"
    ),
    topic.list_(
        "leader.replication.throttled.replicas",
        (),
        "Replicas throttled as leaders: PARTITION:BROKER, or * for all.",
        ThrottledReplicas(),
    ),
    topic.long(
        "local.retention.bytes",
        -2,
        "Tiered storage: bytes kept locally; -2 means retention.bytes.",
        at_least(-2),
        synonyms=("log.local.retention.bytes",),
    ),
    topic.long(
        "local.retention.ms",
        -2,
        "Tiered storage: time kept locally; -2 means retention.ms.",
        at_least(-2),
        synonyms=("log.local.retention.ms",),
    ),
    topic.long(
        "max.compaction.lag.ms",
        MAX_LONG,
        "A record is compacted at the latest this long after it was written.",
        at_least(1),
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    ),
    topic.int_(
        "max.message.bytes",
        1_048_588,
        "Largest record batch that is taken.",
        at_least(0),
        synonyms=("message.max.bytes",),
    ),
    topic.boolean(
        "message.downconversion.enable",
        True,
        "Whether old message formats are made for old consumers; tidelog makes none.",
        LOW,
        synonyms=("log.message.downconversion.enable",),
    ),
    topic.string(
        "message.format.version",
        "3.0-IV1",
        "Of no effect since Kafka 3.0: batches are v2.",
        KafkaVersion(),
        synonyms=("log.message.format.version",),
    ),
    topic.long(
        "message.timestamp.after.max.ms",
        MAX_LONG,
        "How far a record's timestamp may lie in the future of the broker's clock.",
        at_least(0),
        synonyms=("log.message.timestamp.after.max.ms",),
    ),
    topic.long(
        "message.timestamp.before.max.ms",
        MAX_LONG,
        "How far a record's timestamp may lie in the past of the broker's clock.",
        at_least(0),
        synonyms=("log.message.timestamp.before.max.ms",),
    ),
    topic.long(
        "message.timestamp.difference.max.ms",
        MAX_LONG,
        "Older name for both timestamp bounds; used where those are not set.",
        at_least(0),
        synonyms=("log.message.timestamp.difference.max.ms",),
    ),
    topic.string(
        "message.timestamp.type",
        "CreateTime",
        "Whether a record's time is its producer's or that of its append.",
        one_of("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    ),
    topic.double(
        "min.cleanable.dirty.ratio",
        0.5,
        "Share of uncleaned bytes from which the log is worth cleaning.",
        between(0, 1),
        synonyms=("log.cleaner.min.cleanable.ratio",),
    ),
    topic.long(
        "min.compaction.lag.ms",
        0,
        "A record stays uncompacted at least this long.",
        at_least(0),
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    ),
    topic.int_(
        "min.insync.replicas",
        1,
        "Fewest in-sync replicas with which acks=all is accepted.",
        at_least(1),
        synonyms=("min.insync.replicas",),
    ),
    topic.boolean(
        "preallocate",
        False,
        "Whether a new segment file is given its full size at once.",
        synonyms=("log.preallocate",),
    ),
    topic.boolean("remote.log.copy.disable", False, "Tiered storage: whether no more segments are copied out."),
    topic.boolean(
        "remote.log.delete.on.disable", False, "Tiered storage: whether remote data goes when it is switched off."
    ),
    topic.boolean("remote.storage.enable", False, "Tiered storage: whether the topic uses it."),
    topic.long(
        "retention.bytes",
        -1,
        "Size above which the oldest segments of a partition go; -1 for no limit.",
        synonyms=("log.retention.bytes",),
    ),
    topic.long(
        "retention.ms",
        604_800_000,
        "Age at which segments go; -1 for no limit.",
        at_least(-1),
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    topic.int_(
        "segment.bytes", 1_073_741_824, "Size at which a segment rolls.", at_least(14), synonyms=("log.segment.bytes",)
    ),
    topic.int_(
        "segment.index.bytes",
        10_485_760,
        "Size at which an index is full and its segment rolls.",
        at_least(4),
        synonyms=("log.index.size.max.bytes",),
    ),
    topic.long(
        "segment.jitter.ms",
        0,
        "Largest random cut from the roll time.",
        at_least(0),
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    topic.long(
        "segment.ms",
        604_800_000,
        "Age at which a segment rolls.",
        at_least(1),
        synonyms=("log.roll.ms", "log.roll.hours"),
    ),
    topic.boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica outside the ISR may lead when no other is alive; may lose records.",
        synonyms=("unclean.leader.election.enable",),
    ),
)

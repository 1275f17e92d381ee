"""Broker settings of transactions and idempotent producers."""

from __future__ import annotations

from tidelog.config.setting import CLUSTER_WIDE, HIGH, LOW, boolean, int_, short
from tidelog.config.validators import at_least

SETTINGS = (
    int_(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "Longest pause before a transaction's partition is added again.",
        HIGH,
        at_least(0),
        release="4.1",
    ),
    int_(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "First pause before a transaction's partition is added again.",
        HIGH,
        at_least(1),
        release="4.1",
    ),
    int_(
        "producer.id.expiration.check.interval.ms",
        600_000,
        "How often expired producers are looked for.",
        LOW,
        at_least(1),
        internal=True,
    ),
    int_(
        "producer.id.expiration.ms",
        86_400_000,
        "How long the sequence of an idle producer is remembered.",
        LOW,
        CLUSTER_WIDE,
        at_least(1),
    ),
    int_(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10000,
        "How often transactions past their timeout are aborted.",
        LOW,
        at_least(1),
    ),
    int_(
        "transaction.max.timeout.ms", 900_000, "Longest transaction timeout a producer may ask for.", HIGH, at_least(1)
    ),
    boolean(
        "transaction.partition.verification.enable",
        True,
        "Whether a write is checked to belong to an open transaction.",
        LOW,
        CLUSTER_WIDE,
    ),
    int_(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often expired transactional ids are removed.",
        LOW,
        at_least(1),
    ),
    int_(
        "transaction.state.log.load.buffer.size",
        5_242_880,
        "Bytes read at a time when transactions are loaded.",
        HIGH,
        at_least(1),
    ),
    int_("transaction.state.log.min.isr", 2, "min.insync.replicas of the transaction topic.", HIGH, at_least(1)),
    int_("transaction.state.log.num.partitions", 50, "Partitions of the transaction topic.", HIGH, at_least(1)),
    short("transaction.state.log.replication.factor", 3, "Replicas of the transaction topic.", HIGH, at_least(1)),
    int_(
        "transaction.state.log.segment.bytes", 104_857_600, "Segment size of the transaction topic.", HIGH, at_least(1)
    ),
    boolean(
        "transaction.two.phase.commit.enable",
        False,
        "Whether transactions may take part in a two-phase commit.",
        LOW,
        release="4.1",
    ),
    int_(
        "transactional.id.expiration.ms",
        604_800_000,
        "Idle time after which a transactional id is forgotten.",
        HIGH,
        at_least(1),
    ),
)

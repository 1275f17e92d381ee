"""What tidelog does with each setting: acts on it, takes it without effect, or refuses to start with it.

A setting that would make the broker safer and is not served is refused: nobody shall believe to be protected.
"""

from __future__ import annotations

from tidelog.config.setting import Scope, Setting

SERVED = frozenset(
    """
    advertised.listeners auto.create.topics.enable auto.leader.rebalance.enable broker.id broker.rack
    compression.gzip.level compression.lz4.level compression.type compression.zstd.level connections.max.idle.ms
    controlled.shutdown.enable controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms
    controller.socket.timeout.ms default.replication.factor delete.topic.enable fetch.max.bytes
    group.initial.rebalance.delay.ms group.max.session.timeout.ms group.max.size group.min.session.timeout.ms
    inter.broker.listener.name leader.imbalance.check.interval.seconds leader.imbalance.per.broker.percentage
    listener.security.protocol.map listeners log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size
    log.cleaner.delete.retention.ms log.cleaner.enable log.cleaner.max.compaction.lag.ms
    log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms log.cleanup.policy log.dir log.dirs
    log.flush.interval.messages log.flush.interval.ms log.flush.offset.checkpoint.interval.ms
    log.flush.scheduler.interval.ms log.index.interval.bytes log.index.size.max.bytes
    log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms log.message.timestamp.difference.max.ms
    log.message.timestamp.type log.retention.bytes log.retention.check.interval.ms log.retention.hours
    log.retention.minutes log.retention.ms log.roll.hours log.roll.jitter.hours log.roll.jitter.ms log.roll.ms
    log.segment.bytes log.segment.delete.delay.ms max.connections max.connections.per.ip
    max.connections.per.ip.overrides max.incremental.fetch.session.cache.slots max.request.partition.size.limit
    message.max.bytes min.insync.replicas node.id num.io.threads num.network.threads num.partitions
    num.replica.fetchers offset.metadata.max.bytes offsets.commit.timeout.ms offsets.load.buffer.size
    offsets.retention.check.interval.ms offsets.retention.minutes offsets.topic.compression.codec
    offsets.topic.num.partitions offsets.topic.replication.factor offsets.topic.segment.bytes
    producer.id.expiration.check.interval.ms producer.id.expiration.ms queued.max.request.bytes queued.max.requests
    replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes
    replica.fetch.wait.max.ms replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms
    replica.socket.timeout.ms request.timeout.ms security.inter.broker.protocol socket.listen.backlog.size
    socket.request.max.bytes tidelog.batch.max.expansion.ratio tidelog.batch.max.uncompressed.bytes
    tidelog.broker.groups.max tidelog.broker.members.max.bytes tidelog.broker.offset.metadata.max.bytes
    tidelog.broker.offsets.max tidelog.broker.pending.members.max tidelog.broker.producer.ids.max
    tidelog.connections.replaceable.idle.ms tidelog.coordination tidelog.coordination.dir
    tidelog.fetch.session.partitions.max tidelog.group.pending.members.max tidelog.metrics.host tidelog.metrics.port
    tidelog.partition.producer.ids.max tidelog.request.max.elements tidelog.request.read.timeout.ms
    tidelog.slow.request.ms
    transaction.state.log.min.isr transaction.state.log.num.partitions transaction.state.log.replication.factor
    transaction.state.log.segment.bytes unclean.leader.election.enable zookeeper.connect
    zookeeper.connection.timeout.ms zookeeper.max.in.flight.requests zookeeper.session.timeout.ms
    """.split()  # noqa: SIM905 - a list of words reads better so
)
"""Broker settings that something reads. tests/unit/test_config_support.py holds this list to the code: a name without
a reader would take away the warning that it has no effect."""

_TOPIC_WITHOUT_EFFECT = frozenset(
    """
    follower.replication.throttled.replicas internal.segment.bytes leader.replication.throttled.replicas
    local.retention.bytes local.retention.ms message.downconversion.enable message.format.version preallocate
    remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable
    """.split()  # noqa: SIM905 - a list of words reads better so
)

_KRAFT = "tidelog has no KRaft quorum: the cluster agrees through tidelog.coordination"
_SECURITY = "tidelog does not serve TLS, SASL, tokens or access lists yet and does not start open instead"
_POLICY = "tidelog cannot load Java classes, and without this one would do what the class may forbid"
_TIERED = "tidelog has no tiered storage"
_ZOOKEEPER_SECURITY = "tidelog speaks to ZooKeeper without TLS and access lists"

_REFUSED_PREFIXES = (
    ("controller.quorum.", _KRAFT),
    ("ssl.", _SECURITY),
    ("sasl.", _SECURITY),
    ("delegation.token.", _SECURITY),
    ("zookeeper.ssl.", _ZOOKEEPER_SECURITY),
)
_REFUSED = {
    "process.roles": _KRAFT,
    "controller.listener.names": _KRAFT,
    "metadata.log.dir": _KRAFT,
    "zookeeper.metadata.migration.enable": _KRAFT,
    "authorizer.class.name": _SECURITY,
    "principal.builder.class": _SECURITY,
    "security.inter.broker.protocol": _SECURITY,
    "security.providers": _SECURITY,
    "connections.max.reauth.ms": _SECURITY,
    "alter.config.policy.class.name": _POLICY,
    "create.topic.policy.class.name": _POLICY,
    "client.quota.callback.class": _POLICY,
    "remote.log.storage.system.enable": _TIERED,
    "zookeeper.set.acl": _ZOOKEEPER_SECURITY,
}
FIXED_AT_START = frozenset({"listeners", "advertised.listeners", "listener.security.protocol.map"})
"""Kafka changes these while it runs; tidelog reads them at its start."""


def is_served(setting: Setting) -> bool:
    if setting.scope is Scope.TOPIC:
        return setting.name not in _TOPIC_WITHOUT_EFFECT
    return setting.name in SERVED


def refusal(name: str) -> str | None:
    """Why a value of this setting other than its default cannot be used, if so."""
    for prefix, reason in _REFUSED_PREFIXES:
        if name.startswith(prefix):
            return reason
    return _REFUSED.get(name)

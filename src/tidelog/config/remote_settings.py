"""Broker settings of tiered storage, which tidelog does not have; names that files and tools may hold."""

from __future__ import annotations

from tidelog.config.setting import CLUSTER_WIDE, LOW, boolean, double, int_, long, string
from tidelog.config.validators import NonEmpty, at_least, between
from tidelog.config.values import MAX_LONG

SETTINGS = (
    int_("remote.fetch.max.wait.ms", 500, "Longest time a fetch waits for remote data.", CLUSTER_WIDE, at_least(1)),
    long(
        "remote.list.offsets.request.timeout.ms",
        30000,
        "Longest time ListOffsets waits for remote data.",
        CLUSTER_WIDE,
        at_least(1),
        release="4.1",
    ),
    long(
        "remote.log.index.file.cache.total.size.bytes",
        1_073_741_824,
        "Disk space for cached remote indexes.",
        LOW,
        CLUSTER_WIDE,
        at_least(1),
    ),
    int_("remote.log.manager.copier.thread.pool.size", -1, "Threads that copy segments out."),
    long(
        "remote.log.manager.copy.max.bytes.per.second",
        MAX_LONG,
        "Most bytes copied out per second.",
        CLUSTER_WIDE,
        at_least(1),
    ),
    int_("remote.log.manager.copy.quota.window.num", 11, "Samples kept for the copy quota.", at_least(1)),
    int_("remote.log.manager.copy.quota.window.size.seconds", 1, "Length of a sample for the copy quota.", at_least(1)),
    int_("remote.log.manager.expiration.thread.pool.size", -1, "Threads that remove expired remote segments."),
    long(
        "remote.log.manager.fetch.max.bytes.per.second",
        MAX_LONG,
        "Most bytes fetched from remote per second.",
        CLUSTER_WIDE,
        at_least(1),
    ),
    int_("remote.log.manager.fetch.quota.window.num", 11, "Samples kept for the fetch quota.", at_least(1)),
    int_(
        "remote.log.manager.fetch.quota.window.size.seconds", 1, "Length of a sample for the fetch quota.", at_least(1)
    ),
    long("remote.log.manager.task.interval.ms", 30000, "How often remote work is looked for.", LOW, at_least(1)),
    long(
        "remote.log.manager.task.retry.backoff.max.ms",
        30000,
        "Longest pause after failed remote work.",
        LOW,
        at_least(1),
        internal=True,
    ),
    long(
        "remote.log.manager.task.retry.backoff.ms",
        500,
        "First pause after failed remote work.",
        LOW,
        at_least(1),
        internal=True,
    ),
    double(
        "remote.log.manager.task.retry.jitter", 0.2, "Random part of that pause.", LOW, between(0, 0.5), internal=True
    ),
    int_("remote.log.manager.thread.pool.size", 10, "Threads for remote work.", at_least(1)),
    int_(
        "remote.log.metadata.custom.metadata.max.bytes",
        128,
        "Largest metadata a storage plugin may add to a segment.",
        LOW,
        at_least(0),
    ),
    string(
        "remote.log.metadata.manager.class.name",
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        "Java class that keeps the metadata of remote segments.",
        NonEmpty(),
    ),
    string("remote.log.metadata.manager.class.path", None, "Class path of that class."),
    string(
        "remote.log.metadata.manager.impl.prefix",
        "rlmm.config.",
        "Prefix of the settings handed to that class.",
        NonEmpty(),
    ),
    string("remote.log.metadata.manager.listener.name", None, "Listener that class connects to.", NonEmpty()),
    int_("remote.log.reader.max.pending.tasks", 100, "Most remote reads that wait.", at_least(1)),
    int_("remote.log.reader.threads", 10, "Threads that read remote data.", at_least(1)),
    string("remote.log.storage.manager.class.name", None, "Java class of the remote storage.", NonEmpty()),
    string("remote.log.storage.manager.class.path", None, "Class path of that class."),
    string(
        "remote.log.storage.manager.impl.prefix",
        "rsm.config.",
        "Prefix of the settings handed to that class.",
        NonEmpty(),
    ),
    boolean("remote.log.storage.system.enable", False, "Whether tiered storage is on."),
)

"""Settings of Kafka's own quorum, KRaft. tidelog agrees through coordination: the quorum's own are refused."""

from __future__ import annotations

from tidelog.config.setting import HIGH, LOW, boolean, int_, list_, long, string
from tidelog.config.validators import at_least, one_of

SETTINGS = (
    int_("broker.heartbeat.interval.ms", 2000, "KRaft: time between heartbeats to the controller."),
    int_("broker.session.timeout.ms", 9000, "KRaft: time without heartbeat after which a broker is fenced."),
    string("controller.listener.names", None, "KRaft: the listeners of the controllers.", HIGH),
    long(
        "controller.performance.always.log.threshold.ms",
        2000,
        "KRaft: controller events slower than this are logged.",
        at_least(0),
        internal=True,
        release="4.1",
    ),
    long(
        "controller.performance.sample.period.ms",
        60000,
        "KRaft: how often controller speed is logged.",
        at_least(100),
        internal=True,
        release="4.1",
    ),
    int_("controller.quorum.append.linger.ms", 25, "KRaft: how long the leader gathers writes before it flushes."),
    list_("controller.quorum.bootstrap.servers", (), "KRaft: where to find the quorum.", HIGH),
    int_("controller.quorum.election.backoff.max.ms", 1000, "KRaft: longest pause before a new election.", HIGH),
    int_("controller.quorum.election.timeout.ms", 1000, "KRaft: how long to wait for votes.", HIGH),
    int_(
        "controller.quorum.fetch.timeout.ms",
        2000,
        "KRaft: time without a good fetch after which a voter stands for election.",
        HIGH,
    ),
    int_("controller.quorum.request.timeout.ms", 2000, "KRaft: how long a quorum request waits for its answer."),
    int_("controller.quorum.retry.backoff.ms", 20, "KRaft: pause before a quorum request is sent again.", LOW),
    list_("controller.quorum.voters", (), "KRaft: the voters of the quorum.", HIGH),
    boolean("eligible.leader.replicas.enable", False, "KRaft: whether eligible leader replicas are tracked.", HIGH),
    int_("initial.broker.registration.timeout.ms", 60000, "KRaft: how long a first registration may take."),
    long(
        "internal.metadata.delete.delay.millis",
        60000,
        "KRaft: time until old metadata files are removed.",
        LOW,
        internal=True,
        release="4.1",
    ),
    int_(
        "internal.metadata.log.segment.bytes",
        None,
        "KRaft: size of a metadata segment, for tests.",
        LOW,
        internal=True,
        release="4.1",
    ),
    int_(
        "internal.metadata.max.batch.size.in.bytes",
        8_388_608,
        "KRaft: largest batch in the metadata log.",
        LOW,
        internal=True,
        release="4.1",
    ),
    int_(
        "internal.metadata.max.fetch.size.in.bytes",
        8_388_608,
        "KRaft: largest fetch of the metadata log.",
        LOW,
        internal=True,
        release="4.1",
    ),
    string("metadata.log.dir", None, "KRaft: the directory of the metadata log.", HIGH),
    long(
        "metadata.log.max.record.bytes.between.snapshots",
        20_971_520,
        "KRaft: bytes of metadata between two snapshots.",
        HIGH,
        at_least(1),
    ),
    long(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        "KRaft: longest time between two snapshots.",
        HIGH,
        at_least(0),
    ),
    int_(
        "metadata.log.segment.bytes", 1_073_741_824, "KRaft: size of a segment of the metadata log.", HIGH, at_least(12)
    ),
    int_(
        "metadata.log.segment.min.bytes",
        8_388_608,
        "KRaft: smallest size of a segment of the metadata log.",
        HIGH,
        at_least(12),
        internal=True,
    ),
    long("metadata.log.segment.ms", 604_800_000, "KRaft: age at which a segment of the metadata log rolls.", HIGH),
    int_("metadata.max.idle.interval.ms", 500, "KRaft: how often an idle controller writes a no-op.", LOW, at_least(0)),
    long(
        "metadata.max.retention.bytes",
        104_857_600,
        "KRaft: size of the metadata log and its snapshots above which old ones go.",
        HIGH,
    ),
    long("metadata.max.retention.ms", 604_800_000, "KRaft: age at which metadata segments and snapshots go.", HIGH),
    list_(
        "process.roles",
        (),
        "KRaft: whether the process is broker, controller or both.",
        HIGH,
        one_of("broker", "controller"),
    ),
    long(
        "unclean.leader.election.interval.ms",
        300_000,
        "KRaft: how often unclean elections are looked for.",
        at_least(1),
        internal=True,
    ),
)

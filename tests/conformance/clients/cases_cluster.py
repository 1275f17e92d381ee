"""Cases for Kafka's tools on three brokers: topics, configurations and log directories."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from cases import Table
from cluster_scenes import cluster, described, described_whole, json_lines, parsed, placed, places, stopped
from driver import Record
from driver_shell import Tools
from scene import Scene, eventually
from targets import CLUSTER
from tool_runs import ok, refused

from peers.tools import ReplicaVerification

TABLE = Table()
_VICTIM = 3
_UNHEALTHY = (
    "--under-replicated-partitions",
    "--at-min-isr-partitions",
    "--under-min-isr-partitions",
    "--unavailable-partitions",
)


@TABLE.case("kafka-topics", "--create, --describe: three replicas, leaders on all brokers", CLUSTER)
def cluster_topics_create(scene: Scene[Tools]) -> None:
    topic = scene.name()
    options = ["--partitions", "6", "--replication-factor", "3", "--config", "min.insync.replicas=2"]
    assert f"Created topic {topic}." in ok(scene, "kafka-topics", "--create", "--topic", topic, *options)
    printed = described_whole(scene, topic, 6)
    head, *_ = printed.splitlines()
    expected = rf"Topic: {topic}\tTopicId: \S{{22}}\tPartitionCount: 6\tReplicationFactor: 3\tConfigs: (\S*)\s*"
    assert (found := re.fullmatch(expected, head)), head
    assert found[1] == "min.insync.replicas=2"
    lines = parsed(printed)[topic]
    assert [line.partition for line in lines] == list(range(6))
    for line in lines:
        assert sorted(line.replicas.split(",")) == ["1", "2", "3"]
        assert (line.leader, sorted(line.isr), line.elr) == (line.replicas[0], ["1", "2", "3"], "")
    assert sorted(line.leader for line in lines) == ["1", "1", "2", "2", "3", "3"]


@TABLE.case("kafka-topics", "--create --replica-assignment", CLUSTER)
def cluster_topics_assignment(scene: Scene[Tools]) -> None:
    topic = placed(scene, "3,1", "2,3", "1,2")
    assert [line.replicas for line in described(scene, topic)[topic]] == ["3,1", "2,3", "1,2"]


@TABLE.case("kafka-topics", "--alter --partitions, with and without --replica-assignment", CLUSTER)
def cluster_topics_alter(scene: Scene[Tools]) -> None:
    topic = placed(scene, "2,3,1")
    alter = ("kafka-topics", "--alter", "--topic", topic, "--partitions")
    ok(scene, *alter, "2", "--replica-assignment", "1:2:3,3:2:1")
    everywhere = [1, 2, 3]
    eventually(lambda: places(scene, topic) == [("2", "2,3,1", everywhere), ("3", "3,2,1", everywhere)])
    ok(scene, *alter, "4")
    eventually(lambda: [isr for _, _, isr in places(scene, topic)] == [everywhere] * 4)


@TABLE.case("kafka-topics", "--delete: gone from every broker", CLUSTER)
def cluster_topics_delete(scene: Scene[Tools]) -> None:
    topic = placed(scene, "1,2,3", "2,3,1")
    directories = [node.log_dir / f"{topic}-{number}" for node in cluster(scene).nodes.values() for number in (0, 1)]
    eventually(lambda: all(directory.is_dir() for directory in directories))
    ok(scene, "kafka-topics", "--delete", "--topic", topic)
    eventually(lambda: topic not in ok(scene, "kafka-topics", "--list").split())
    eventually(lambda: not any(directory.exists() for directory in directories))


@TABLE.case("kafka-topics", "errors: more replicas than brokers, unknown and repeated brokers", CLUSTER)
def cluster_topics_errors(scene: Scene[Tools]) -> None:
    create = ("kafka-topics", "--create", "--topic", scene.name())
    failed = "Error while executing topic command : "
    refused(scene, failed, *create, "--partitions", "1", "--replication-factor", "4")
    refused(scene, failed, *create, "--replica-assignment", "1:2:9")
    refused(scene, "Partition replica lists may not contain duplicate entries", *create, "--replica-assignment", "1:1")
    refused(scene, "has different replication factor", *create, "--replica-assignment", "1:2,3")
    topic = placed(scene, "1,2")
    alter = ("kafka-topics", "--alter", "--topic", topic, "--partitions", "2", "--replica-assignment")
    refused(scene, failed, *alter, "1:2,2:9")


@TABLE.case("kafka-topics", "--describe: what is unhealthy while a broker is down, and after", CLUSTER)
def cluster_topics_unhealthy(scene: Scene[Tools]) -> None:
    at_minimum = placed(scene, "1,2,3", min_insync_replicas=2)
    below_minimum = placed(scene, "3,1,2", min_insync_replicas=3)
    alone = placed(scene, f"{_VICTIM}")
    healthy = placed(scene, "1,2")
    several, own = {at_minimum, below_minimum, healthy}, {at_minimum, below_minimum, healthy, alone}

    def unhealthy(option: str) -> set[str]:
        return set(described(scene, f"{scene.case}-.*", option)) & own

    with stopped(scene, _VICTIM):
        eventually(lambda: places(scene, at_minimum) == [("1", "1,2,3", [1, 2])])
        eventually(lambda: places(scene, below_minimum) == [("1", "3,1,2", [1, 2])])
        eventually(lambda: [leader for leader, _, _ in places(scene, alone)] == ["none"])
        assert places(scene, healthy) == [("1", "1,2", [1, 2])]
        expected = [{at_minimum, below_minimum}, {at_minimum}, {below_minimum}, set()]
        assert [unhealthy(option) & several for option in _UNHEALTHY] == expected
        assert unhealthy("--unavailable-partitions") == {alone}
    eventually(lambda: places(scene, at_minimum) == [("1", "1,2,3", [1, 2, 3])])
    eventually(lambda: places(scene, below_minimum) == [("1", "3,1,2", [1, 2, 3])])
    eventually(lambda: places(scene, alone) == [("3", "3", [3])])
    # Who has to have all its replicas has never more than it must.
    assert [unhealthy(option) & several for option in _UNHEALTHY] == [set(), {below_minimum}, set(), set()]
    assert unhealthy("--unavailable-partitions") == set()


@TABLE.case("kafka-configs", "brokers: one broker's, all brokers', and what then holds", CLUSTER)
def cluster_configs_brokers(scene: Scene[Tools]) -> None:
    brokers = ("--entity-type", "brokers")
    name = "log.cleaner.backoff.ms"
    own, default = f"{name}=14001", f"{name}=14002"
    layers = f"DYNAMIC_BROKER_CONFIG:{own}, DYNAMIC_DEFAULT_BROKER_CONFIG:{default}, DEFAULT_CONFIG:{name}=15000"

    def shown(broker: str, *options: str) -> list[str]:
        lines = ok(scene, "kafka-configs", "--describe", *brokers, "--entity-name", broker, *options).splitlines()
        return [line.strip() for line in lines if line.strip().startswith(f"{name}=")]

    alter = ("kafka-configs", "--alter", *brokers)
    assert "Completed updating config for broker 2." in ok(scene, *alter, "--entity-name", "2", "--add-config", own)
    assert "Completed updating default config for brokers in the cluster." in ok(
        scene, *alter, "--entity-default", "--add-config", default
    )
    eventually(lambda: shown("2", "--all") == [f"{own} sensitive=false synonyms={{{layers}}}"])
    eventually(lambda: [line.partition(" ")[0] for line in shown("3", "--all")] == [default])
    assert [len(shown(broker)) for broker in "123"] == [0, 1, 0]
    assert default in ok(scene, "kafka-configs", "--describe", *brokers, "--entity-default")
    everything = ok(scene, "kafka-configs", "--describe", *brokers)
    assert re.findall(r"configs for (broker \d|brokers)", everything) == ["broker 1", "broker 2", "broker 3", "brokers"]
    assert (everything.count(f"  {own} "), everything.count(f"  {default} ")) == (1, 1)
    ok(scene, *alter, "--entity-name", "2", "--delete-config", name)
    ok(scene, *alter, "--entity-default", "--delete-config", name)
    eventually(
        lambda: [line.partition(" ")[0] for one in "123" for line in shown(one, "--all")] == [f"{name}=15000"] * 3
    )


@TABLE.case("kafka-configs", "topics: --alter, --describe, --describe --all", CLUSTER)
def cluster_configs_topic(scene: Scene[Tools]) -> None:
    topic = placed(scene, "2,3,1")
    entity = ("--entity-type", "topics", "--entity-name", topic)
    throttles = "leader.replication.throttled.replicas=[0:2,0:3],follower.replication.throttled.replicas=*"
    ok(scene, "kafka-configs", "--alter", *entity, "--add-config", f"retention.ms=123456,{throttles}")

    def has(text: str, *options: str) -> bool:
        return text in ok(scene, "kafka-configs", "--describe", *entity, *options)

    eventually(lambda: has("  retention.ms=123456 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=123456"))
    eventually(lambda: has("  leader.replication.throttled.replicas=0:2,0:3 "))
    eventually(lambda: has("  follower.replication.throttled.replicas=* ", "--all"))
    names = "retention.ms,leader.replication.throttled.replicas,follower.replication.throttled.replicas"
    ok(scene, "kafka-configs", "--alter", *entity, "--delete-config", names)
    eventually(lambda: not has("replicas=") and not has("retention.ms"))


@TABLE.case("kafka-configs", "broker-loggers: of one broker", CLUSTER)
def cluster_configs_loggers(scene: Scene[Tools]) -> None:
    def level(broker: str) -> list[str]:
        out = ok(scene, "kafka-configs", "--describe", "--entity-type", "broker-loggers", "--entity-name", broker)
        return re.findall(r"^  root=(\w+) ", out, re.MULTILINE)

    alter = ("kafka-configs", "--alter", "--entity-type", "broker-loggers", "--entity-name", "2", "--add-config")
    assert level("2") == ["INFO"]
    try:
        assert "Completed updating config for broker-logger 2." in ok(scene, *alter, "root=ERROR")
        assert (level("2"), level("1")) == (["ERROR"], ["INFO"])
    finally:
        ok(scene, *alter, "root=INFO")
    refused(scene, "", *alter, "root=LOUD")


@TABLE.case("kafka-log-dirs", "--describe: sizes and lag on every broker, by broker and by topic", CLUSTER)
def cluster_log_dirs(scene: Scene[Tools]) -> None:
    topic, other = placed(scene, "1,2", "2,3"), placed(scene, "3")
    scene.feed(topic, [Record(None, b"v" * 100, partition=number % 2) for number in range(20)])

    def found(*options: str) -> dict[tuple[int, str], tuple[int, int, bool]]:
        (answer,) = json_lines(ok(scene, "kafka-log-dirs", "--describe", *options))
        directories = {one["broker"]: one["logDirs"] for one in answer["brokers"]}
        logs = {broker: node.log_dir for broker, node in cluster(scene).nodes.items()}
        assert all(
            [(one["logDir"], one["error"]) for one in of] == [(str(logs[broker]), None)]
            for broker, of in directories.items()
        )
        return {
            (broker, one["partition"]): (one["size"], one["offsetLag"], one["isFuture"])
            for broker, of in directories.items()
            for one in of[0]["partitions"]
        }

    def size(broker: int, partition: str) -> int:
        return (cluster(scene).nodes[broker].log_dir / partition / f"{0:020}.log").stat().st_size

    first, second = f"{topic}-0", f"{topic}-1"
    eventually(lambda: size(1, first) == size(2, first) and size(2, second) == size(3, second))
    replicas = [(1, first), (2, first), (2, second), (3, second)]
    of_topic = {replica: (size(*replica), 0, False) for replica in replicas}
    eventually(lambda: found("--topic-list", topic) == of_topic)
    assert min(size for size, _, _ in of_topic.values()) > 1000
    of_one = {replica: shown for replica, shown in of_topic.items() if replica[0] == 3}
    of_other = {(3, f"{other}-0"): (0, 0, False)}
    assert found("--topic-list", f"{topic},{other}", "--broker-list", "3") == of_one | of_other
    assert (of_topic | of_other).items() <= found().items()
    refused(scene, "The given brokers do not exist", "kafka-log-dirs", "--describe", "--broker-list", "1,9")


@TABLE.case("kafka-replica-verification", "replicas are equal", CLUSTER)
def cluster_replica_verification(scene: Scene[Tools]) -> None:
    topic = placed(scene, "1,2,3", "3,1,2")
    scene.feed(topic, [Record(b"k", b"v%d" % number, partition=number % 2) for number in range(100)])
    with tempfile.TemporaryDirectory() as directory:
        tool = ReplicaVerification(scene.client.kafka, Path(directory), scene.bootstrap, topic)
        with tool:
            tool.wait_for_line(rf"max lag is 0 for partition {topic}-\d at offset 50 among 2 partitions")
        assert "match" not in tool.output()

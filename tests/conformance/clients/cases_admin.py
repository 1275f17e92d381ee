"""Cases about topics, configurations and the cluster, and about what is refused."""

from __future__ import annotations

from typing import Any

from cases import Table
from cases_records import some_records
from driver import (
    EARLIEST,
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_REPLICATION_FACTOR,
    INVALID_TOPIC,
    LATEST,
    OFFSET_OUT_OF_RANGE,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    Partition,
    Setting,
)
from scene import Scene, eventually

TABLE = Table()
TOPIC, BROKER, DEFAULT = 1, 2, 5
STATIC_BROKER = 4
TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def _one(number: int) -> Partition:
    return Partition(number, leader=1, replicas=(1,), isr=(1,))


@TABLE.case("Topics", "create and describe")
def create_topic(scene: Scene[Any]) -> None:
    topic = scene.name()
    scene.client.create_topic(topic, partitions=4)
    eventually(lambda: scene.is_ready(topic, 4))
    assert scene.client.describe_topic(topic) == [_one(number) for number in range(4)]


@TABLE.case("Topics", "create with the broker's number of partitions")
def default_partitions(scene: Scene[Any]) -> None:
    topic = scene.name()
    scene.client.create_topic(topic, partitions=-1, replication_factor=-1)
    eventually(lambda: scene.is_ready(topic, 3))


@TABLE.case("Topics", "create: only validate")
def validate_only(scene: Scene[Any]) -> None:
    topic = scene.name()
    scene.client.create_topic(topic, validate_only=True)
    assert topic not in scene.client.list_topics()
    scene.fails(
        INVALID_REPLICATION_FACTOR, lambda: scene.client.create_topic(topic, replication_factor=3, validate_only=True)
    )


@TABLE.case("Topics", "list")
def list_topics(scene: Scene[Any]) -> None:
    topics = {scene.topic(), scene.topic()}
    assert topics <= set(scene.client.list_topics())


@TABLE.case("Topics", "delete")
def delete_topic(scene: Scene[Any]) -> None:
    topic = scene.topic()
    scene.feed(topic, some_records(3))
    scene.client.delete_topic(topic)
    eventually(lambda: scene.leaders(topic) == [])
    assert topic not in scene.client.list_topics()


@TABLE.case("Topics", "delete and create again: the new one is empty")
def create_again(scene: Scene[Any]) -> None:
    topic = scene.topic()
    scene.feed(topic, some_records(3))
    scene.client.delete_topic(topic)
    eventually(lambda: scene.leaders(topic) == [])
    scene.client.create_topic(topic, partitions=2)
    eventually(lambda: scene.is_ready(topic, 2))
    assert scene.client.list_offsets(topic, 0, LATEST).offset == 0


@TABLE.case("Topics", "add partitions")
def create_partitions(scene: Scene[Any]) -> None:
    topic = scene.topic(partitions=2)
    scene.feed(topic, some_records(3))
    scene.client.create_partitions(topic, 5)
    eventually(lambda: scene.is_ready(topic, 5))
    assert scene.client.describe_topic(topic) == [_one(number) for number in range(5)]
    assert scene.client.list_offsets(topic, 0, LATEST).offset == 3


@TABLE.case("Topics", "delete records")
def delete_records(scene: Scene[Any]) -> None:
    topic = scene.topic()
    scene.feed(topic, some_records(10))
    assert scene.client.delete_records(topic, 0, 4) == 4
    assert scene.client.list_offsets(topic, 0, EARLIEST).offset == 4
    assert scene.client.delete_records(topic, 0, -1) == 10
    assert scene.client.list_offsets(topic, 0, EARLIEST).offset == 10


@TABLE.case("Configurations", "a topic's: all of Kafka's names, values and where they come from")
def describe_topic_configs(scene: Scene[Any]) -> None:
    topic = scene.topic(retention_ms=123456, cleanup_policy="compact,delete")
    found = scene.client.describe_configs("topic", topic)
    assert found["retention.ms"] == Setting("123456", TOPIC)
    assert found["cleanup.policy"] == Setting("compact,delete", TOPIC)
    expected = {name: Setting(value, DEFAULT) for name, value in TOPIC_DEFAULTS.items()}
    changed = ("retention.ms", "cleanup.policy")
    wrong = {name: found.get(name) for name in expected if found.get(name) != expected[name] and name not in changed}
    assert wrong == {}


@TABLE.case("Configurations", "a broker's")
def describe_broker_configs(scene: Scene[Any]) -> None:
    found = scene.client.describe_configs("broker", "1")
    assert found["num.partitions"] == Setting("3", STATIC_BROKER)
    assert found["log.retention.hours"] == Setting("168", DEFAULT)
    assert found["log.dirs"] == Setting(str(scene.stage.log_dir), STATIC_BROKER)


@TABLE.case("Configurations", "incremental: set and delete")
def incremental_alter_configs(scene: Scene[Any]) -> None:
    topic = scene.topic(retention_ms=123456)
    scene.client.alter_configs("topic", topic, [("SET", "max.message.bytes", "5000"), ("SET", "segment.ms", "70000")])
    eventually(lambda: scene.client.describe_configs("topic", topic)["segment.ms"] == Setting("70000", TOPIC))
    found = scene.client.describe_configs("topic", topic)
    assert found["max.message.bytes"] == Setting("5000", TOPIC)
    assert found["retention.ms"] == Setting("123456", TOPIC)
    scene.client.alter_configs("topic", topic, [("DELETE", "max.message.bytes", None)])
    eventually(
        lambda: scene.client.describe_configs("topic", topic)["max.message.bytes"] == Setting("1048588", DEFAULT)
    )


@TABLE.case("Configurations", "incremental: append and subtract")
def append_and_subtract_configs(scene: Scene[Any]) -> None:
    topic = scene.topic()
    scene.client.alter_configs("topic", topic, [("APPEND", "cleanup.policy", "compact")])
    policy = "cleanup.policy"
    eventually(lambda: scene.client.describe_configs("topic", topic)[policy] == Setting("delete,compact", TOPIC))
    scene.client.alter_configs("topic", topic, [("SUBTRACT", "cleanup.policy", "delete")])
    eventually(lambda: scene.client.describe_configs("topic", topic)[policy] == Setting("compact", TOPIC))


@TABLE.case("Configurations", "replaced as a whole (AlterConfigs)")
def replace_configs(scene: Scene[Any]) -> None:
    topic = scene.topic(retention_ms=123456)
    scene.client.replace_configs("topic", topic, {"segment.ms": "70000"})
    eventually(lambda: scene.client.describe_configs("topic", topic)["segment.ms"] == Setting("70000", TOPIC))
    assert scene.client.describe_configs("topic", topic)["retention.ms"] == Setting("604800000", DEFAULT)


@TABLE.case("Configurations", "a broker's, changed while it runs: topics follow")
def alter_broker_config(scene: Scene[Any]) -> None:
    topic = scene.topic()
    name, mine = "log.segment.delete.delay.ms", "file.delete.delay.ms"
    scene.client.alter_configs("broker", "1", [("SET", name, "54321")])
    try:
        eventually(lambda: scene.client.describe_configs("broker", "1")[name] == Setting("54321", BROKER))
        eventually(lambda: scene.client.describe_configs("topic", topic)[mine] == Setting("54321", BROKER))
    finally:
        scene.client.alter_configs("broker", "1", [("DELETE", name, None)])
    eventually(lambda: scene.client.describe_configs("topic", topic)[mine] == Setting("60000", DEFAULT))


@TABLE.case("Cluster", "describe: id, controller, brokers")
def describe_cluster(scene: Scene[Any]) -> None:
    found = scene.client.describe_cluster()
    host, _, port = scene.bootstrap.partition(":")
    assert found.controller == 1
    assert found.brokers == ((1, host, int(port)),)
    assert len(found.cluster_id) == 22, found.cluster_id


@TABLE.case("Cluster", "log directories and the sizes in them")
def log_dirs(scene: Scene[Any]) -> None:
    topic = scene.topic()
    scene.feed(topic, some_records(10))
    found = scene.client.log_dirs()
    assert list(found) == [str(scene.stage.log_dir)]
    file = scene.stage.log_dir / f"{topic}-0" / f"{0:020}.log"
    assert found[str(scene.stage.log_dir)][f"{topic}-0"] == file.stat().st_size


@TABLE.case("Errors", "create: the topic exists")
def topic_exists(scene: Scene[Any]) -> None:
    topic = scene.topic()
    scene.fails(TOPIC_ALREADY_EXISTS, lambda: scene.client.create_topic(topic))


@TABLE.case("Errors", "create: invalid name")
def invalid_topic_name(scene: Scene[Any]) -> None:
    scene.fails(INVALID_TOPIC, lambda: scene.client.create_topic("not/a name"))
    scene.fails(INVALID_TOPIC, lambda: scene.client.create_topic("n" * 250))


@TABLE.case("Errors", "create: a name that collides (. and _)")
def colliding_topic_name(scene: Scene[Any]) -> None:
    topic = scene.name()
    scene.client.create_topic(f"{topic}.of")
    eventually(lambda: scene.is_ready(f"{topic}.of", 1))
    scene.fails(INVALID_TOPIC, lambda: scene.client.create_topic(f"{topic}_of"))


@TABLE.case("Errors", "create: invalid replication factor")
def invalid_replication_factor(scene: Scene[Any]) -> None:
    scene.fails(INVALID_REPLICATION_FACTOR, lambda: scene.client.create_topic(scene.name(), replication_factor=2))


@TABLE.case("Errors", "create: invalid number of partitions")
def invalid_partitions(scene: Scene[Any]) -> None:
    scene.fails(INVALID_PARTITIONS, lambda: scene.client.create_topic(scene.name(), partitions=0))


@TABLE.case("Errors", "add partitions: fewer than there are, as many, of no topic")
def fewer_partitions(scene: Scene[Any]) -> None:
    topic = scene.topic(partitions=3)
    scene.fails(INVALID_PARTITIONS, lambda: scene.client.create_partitions(topic, 2))
    scene.fails(INVALID_PARTITIONS, lambda: scene.client.create_partitions(topic, 3))
    scene.fails(UNKNOWN_TOPIC_OR_PARTITION, lambda: scene.client.create_partitions("nobody-made-this", 2))


@TABLE.case("Errors", "create: invalid configuration")
def invalid_config_at_create(scene: Scene[Any]) -> None:
    topic = scene.name()
    scene.fails(INVALID_CONFIG, lambda: scene.client.create_topic(topic, config={"retention.ms": "soon"}))
    scene.fails(INVALID_CONFIG, lambda: scene.client.create_topic(topic, config={"no.such.config": "1"}))
    scene.fails(INVALID_CONFIG, lambda: scene.client.create_topic(topic, config={"cleanup.policy": "burn"}))


@TABLE.case("Errors", "alter: invalid configuration")
def invalid_config(scene: Scene[Any]) -> None:
    topic = scene.topic()
    alter = scene.client.alter_configs
    scene.fails(INVALID_CONFIG, lambda: alter("topic", topic, [("SET", "retention.ms", "soon")]))
    scene.fails(INVALID_CONFIG, lambda: alter("topic", topic, [("SET", "no.such.config", "1")]))
    scene.fails(INVALID_CONFIG, lambda: alter("topic", topic, [("APPEND", "retention.ms", "1")]))


@TABLE.case("Errors", "replace: invalid configuration")
def invalid_replaced_config(scene: Scene[Any]) -> None:
    topic = scene.topic()
    replace = scene.client.replace_configs
    scene.fails(INVALID_CONFIG, lambda: replace("topic", topic, {"retention.ms": "soon"}))


@TABLE.case("Errors", "delete an unknown topic")
def delete_unknown_topic(scene: Scene[Any]) -> None:
    scene.fails(UNKNOWN_TOPIC_OR_PARTITION, lambda: scene.client.delete_topic("nobody-made-this"))


@TABLE.case("Errors", "describe an unknown topic")
def describe_unknown_topic(scene: Scene[Any]) -> None:
    scene.fails(UNKNOWN_TOPIC_OR_PARTITION, lambda: scene.client.describe_topic("nobody-made-this"))


@TABLE.case("Errors", "configurations of an unknown topic")
def configs_of_unknown_topic(scene: Scene[Any]) -> None:
    scene.fails(UNKNOWN_TOPIC_OR_PARTITION, lambda: scene.client.describe_configs("topic", "nobody-made-this"))


@TABLE.case("Errors", "delete records after the end")
def delete_records_out_of_range(scene: Scene[Any]) -> None:
    topic = scene.topic()
    scene.feed(topic, some_records(3))
    scene.fails(OFFSET_OUT_OF_RANGE, lambda: scene.client.delete_records(topic, 0, 1000))

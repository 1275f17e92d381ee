"""A broker's file and command line: typed values, all errors together, warnings, what is refused."""

from __future__ import annotations

import pytest

from tidelog.config.broker import BrokerConfig
from tidelog.config.errors import ConfigError
from tidelog.errors import ErrorCode


def load(**settings: str) -> BrokerConfig:
    return BrokerConfig.load({"broker.id": "1"} | {name.replace("_", "."): text for name, text in settings.items()})


def problems(properties: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load({"broker.id": "1"} | properties)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    return caught.value.problems


def test_values_are_typed_and_defaults_are_there() -> None:
    config = load(log_segment_bytes="1000", auto_create_topics_enable="false", log_cleanup_policy="delete, compact")
    assert config["log.segment.bytes"] == 1000
    assert config["auto.create.topics.enable"] is False
    assert config["log.cleanup.policy"] == ("delete", "compact")
    assert config["log.cleaner.min.cleanable.ratio"] == 0.5
    assert config["replica.lag.time.max.ms"] == 10_000
    assert config["log.retention.ms"] is None
    assert config["tidelog.metrics.port"] == -1
    assert config.originals["log.segment.bytes"] == "1000"
    assert config.warnings == []


def test_overrides_win_over_the_file() -> None:
    config = BrokerConfig.load({"broker.id": "1", "num.partitions": "2"}, {"num.partitions": "7"})
    assert config["num.partitions"] == 7


@pytest.mark.parametrize("given", [{"broker.id": "5"}, {"node.id": "5"}, {"broker.id": "5", "node.id": " 5"}])
def test_both_names_of_the_id(given: dict[str, str]) -> None:
    config = BrokerConfig.load(given)
    assert config.broker_id == config["node.id"] == 5


def test_ids_that_contradict_and_no_id() -> None:
    assert "the same thing" in problems({"node.id": "2"})[0]
    with pytest.raises(ConfigError, match=r"broker\.id: every broker needs its own number"):
        BrokerConfig.load({})


def test_all_problems_of_a_file_are_told_together() -> None:
    found = problems(
        {
            "broker.id": "x",
            "log.segment.bytes": "1",
            "num.io.threads": "many",
            "compression.type": "rar",
            "replica.fetch.wait.max.ms": "60000",
            "listeners": "nonsense",
        }
    )
    told = "\n".join(found)
    for name in ("broker.id", "log.segment.bytes", "num.io.threads", "compression.type", "replica.fetch", "listeners"):
        assert name in told
    assert told.count("broker.id") == 1
    assert "Invalid value 1 for configuration log.segment.bytes: Value must be at least 14" in found


def test_unknown_names_warn_with_the_near_one() -> None:
    config = load(num_partition="3", frobnicate="1", retention_ms="5")
    assert config.warnings == [
        "Unknown setting num.partition: did you mean num.partitions?",
        "Unknown setting frobnicate",
        "Unknown setting retention.ms: did you mean log.retention.ms?",
    ]


def test_settings_without_effect_warn_once_they_differ() -> None:
    assert load(log_preallocate="false").warnings == []
    assert load(log_preallocate="true").warnings == ["log.preallocate=true is accepted, but has no effect in tidelog"]


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("process.roles", "broker", "tidelog.coordination"),
        ("controller.quorum.voters", "1@h:1", "KRaft"),
        ("controller.quorum.fetch.timeout.ms", "5", "KRaft"),
        ("controller.listener.names", "CONTROLLER", "KRaft"),
        ("zookeeper.metadata.migration.enable", "true", "KRaft"),
        ("authorizer.class.name", "kafka.security.authorizer.AclAuthorizer", "does not start open"),
        ("ssl.client.auth", "required", "does not start open"),
        ("ssl.keystore.location", "/k", "does not start open"),
        ("sasl.enabled.mechanisms", "PLAIN", "does not start open"),
        ("listener.name.plaintext.ssl.keystore.location", "/k", "does not start open"),
        ("security.inter.broker.protocol", "SSL", "does not start open"),
        ("delegation.token.secret.key", "s", "does not start open"),
        ("create.topic.policy.class.name", "a.B", "Java classes"),
        ("remote.log.storage.system.enable", "true", "tiered storage"),
        ("zookeeper.set.acl", "true", "ZooKeeper"),
    ],
)
def test_what_cannot_be_served_is_refused(name: str, value: str, word: str) -> None:
    assert any(problem.startswith(f"{name} is set") and word in problem for problem in problems({name: value}))


def test_refused_settings_may_stand_at_their_default() -> None:
    assert load(ssl_client_auth="none", authorizer_class_name="", process_roles="").warnings == []


def test_secrets_are_not_told() -> None:
    assert "hunter2" not in str(problems({"sasl.jaas.config": "hunter2", "ssl.key.password": "hunter2"}))


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({"log.dirs": " , "}, "log.dirs"),
        ({"log.roll.ms": "0"}, "log.roll.ms"),
        ({"log.roll.jitter.ms": "-1"}, "log.roll.jitter.ms"),
        ({"log.retention.ms": "0"}, "log.retention.ms"),
        ({"log.retention.hours": "-2"}, "log.retention.hours"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, "log.cleaner.dedupe.buffer.size"),
        ({"replica.fetch.wait.max.ms": "20000"}, "replica.lag.time.max.ms"),
        ({"replica.socket.timeout.ms": "100"}, "replica.socket.timeout.ms"),
        ({"default.replication.factor": "0"}, "default.replication.factor"),
        ({"offsets.commit.required.acks": "4"}, "offsets.commit.required.acks"),
        ({"queued.max.request.bytes": "5"}, "queued.max.request.bytes"),
        ({"connections.max.idle.ms": "50"}, "connections.max.idle.ms"),
        ({"max.connections.per.ip": "0"}, "max.connections.per.ip"),
        ({"max.connections.per.ip.overrides": "h"}, "max.connections.per.ip.overrides"),
        ({"group.min.session.timeout.ms": "2000000"}, "group.min.session.timeout.ms"),
        ({"group.consumer.session.timeout.ms": "1"}, "group.consumer.session.timeout.ms"),
        ({"tidelog.coordination": "zookeeper"}, "zookeeper.connect"),
        ({"tidelog.coordination": "raft"}, "tidelog.coordination"),
    ],
)
def test_what_must_hold_between_settings(properties: dict[str, str], name: str) -> None:
    assert any(name in problem for problem in problems(properties))


def test_log_directories() -> None:
    assert load().log_dirs == ("/tmp/kafka-logs",)
    assert load(log_dir="/a").log_dirs == ("/a",)
    assert load(log_dir="/a", log_dirs="/b, /c,/b").log_dirs == ("/b", "/c")


def test_coordination() -> None:
    assert load()["tidelog.coordination"] == "embedded"
    assert load(zookeeper_connect="h:2181")["tidelog.coordination"] == "zookeeper"
    chosen = load(zookeeper_connect="h:2181", tidelog_coordination="memory")
    assert chosen["tidelog.coordination"] == "memory"
    assert chosen.warnings == ["zookeeper.connect is not used: tidelog.coordination is memory"]
    assert load(log_dirs="/data/1").coordination_dir == load(log_dirs="/data/2").coordination_dir
    assert load(tidelog_coordination_dir="/c").coordination_dir == "/c"


def test_settings_of_one_listener_and_of_addresses() -> None:
    config = BrokerConfig.load(
        {
            "broker.id": "1",
            "listener.name.plaintext.max.connections": "9",
            "max.connections.per.ip.overrides": "10.0.0.1:5, h:6",
        }
    )
    assert config["listener.name.plaintext.max.connections"] == 9
    assert config.max_connections_per_ip_overrides == {"10.0.0.1": 5, "h": 6}


def test_dynamic_values_lie_over_the_file_and_bad_ones_are_left_out() -> None:
    config = load(log_retention_ms="1", num_io_threads="4", zookeeper_connect="h:1")
    changed = config.with_dynamic(
        {"log.retention.ms": "2", "num.io.threads": "5"}, {"log.retention.ms": "3", "message.max.bytes": "x"}
    )
    assert (changed["log.retention.ms"], changed["num.io.threads"]) == (3, 5)
    assert changed["message.max.bytes"] == config["message.max.bytes"]
    assert "message.max.bytes" in changed.warnings[0]
    assert changed["tidelog.coordination"] == "zookeeper"
    assert (config["log.retention.ms"], config["num.io.threads"]) == (1, 4)
    assert changed.with_dynamic({}, {})["log.retention.ms"] == 1

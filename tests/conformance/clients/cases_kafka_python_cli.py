"""Cases for kafka-python's command line: what it prints, and what it did."""

from __future__ import annotations

import pytest
from cases import Table
from driver import ClientError, Record
from driver_kafka_python_cli import KafkaPythonCommands
from group_confluent import ConfluentGroups
from group_driver import Joining
from scene import Scene, eventually
from targets import GROUPS

from peers.app import App

TABLE = Table(needs=GROUPS)
_ADMIN, _NOT_SERVED = "python -m kafka.admin", "python -m kafka.admin: what not every broker has"


def _refused(scene: Scene[KafkaPythonCommands], text: str, *arguments: str) -> None:
    with pytest.raises(ClientError, match=text):
        scene.client.admin(*arguments)


@TABLE.case(_ADMIN, "topics: create, list, describe, delete")
def cli_topics(scene: Scene[KafkaPythonCommands]) -> None:
    admin, topic = scene.client.admin, scene.name()
    (created,) = admin("topics", "create", "-t", topic, "--num-partitions", "2", "--replication-factor", "1")["topics"]
    assert (created["name"], created["error_code"], created["num_partitions"]) == (topic, 0, 2)
    eventually(lambda: scene.is_ready(topic, 2))
    assert topic in admin("topics", "list")
    (described,) = admin("topics", "describe", "-t", topic)
    assert described["topic_id"] == created["topic_id"]
    assert [(found["leader_id"], found["isr_nodes"]) for found in described["partitions"]] == [(1, [1])] * 2
    assert {"READ", "WRITE", "DELETE", "ALTER"} <= set(described["authorized_operations"])
    admin("topics", "delete", "-t", topic)
    eventually(lambda: scene.leaders(topic) == [])


@TABLE.case(_ADMIN, "topics: errors")
def cli_topic_errors(scene: Scene[KafkaPythonCommands]) -> None:
    _refused(scene, r"Error 36\] TopicAlreadyExistsError", "topics", "create", "-t", scene.topic())
    _refused(scene, r"Error 17\] InvalidTopicError", "topics", "create", "-t", "two words")
    _refused(scene, r"Error 3\] UnknownTopicOrPartitionError", "topics", "delete", "-t", scene.name())


@TABLE.case(_ADMIN, "configs: describe, alter, reset")
def cli_configs(scene: Scene[KafkaPythonCommands]) -> None:
    admin, topic = scene.client.admin, scene.topic()

    def retention() -> tuple[str, str]:
        told = admin("configs", "describe", "-r", "topic", "-n", topic, "-c", "retention.ms")["topic"][topic]
        return told["retention.ms"]["value"], told["retention.ms"]["config_source"]

    assert retention() == ("604800000", "DEFAULT_CONFIG")
    assert admin("configs", "alter", "-r", "topic", "-n", topic, "-c", "retention.ms=12345") == {"topic": {topic: "OK"}}
    eventually(lambda: retention() == ("12345", "DYNAMIC_TOPIC_CONFIG"))
    assert admin("configs", "reset", "-r", "topic", "-n", topic, "-c", "retention.ms") == {"topic": {topic: "OK"}}
    eventually(lambda: retention() == ("604800000", "DEFAULT_CONFIG"))


@TABLE.case(_ADMIN, "partitions: create, list-offsets, delete-records, elect-leaders")
def cli_partitions(scene: Scene[KafkaPythonCommands]) -> None:
    admin, topic = scene.client.admin, scene.topic()
    admin("partitions", "create", "-p", f"{topic}:2")
    eventually(lambda: scene.is_ready(topic, 2))
    scene.feed(topic, [Record(None, b"v")] * 7)
    ends = admin("partitions", "list-offsets", "-t", topic, "-s", "latest")[topic]
    assert {number: told["offset"] for number, told in ends.items()} == {"0": 7, "1": 0}
    admin("partitions", "delete-records", "-r", f"{topic}:0:3", as_json=False)
    starts = admin("partitions", "list-offsets", "-p", f"{topic}:0:earliest")[topic]
    assert starts["0"]["offset"] == 3
    elected = admin("partitions", "elect-leaders", "-t", topic, "--no-raise-errors")["replica_election_results"]
    assert [result["error_code"] for result in elected[0]["partition_result"]] == [84, 84]


@TABLE.case(_ADMIN, "partitions describe, page by page (DescribeTopicPartitions)")
def cli_describe_partitions(scene: Scene[KafkaPythonCommands]) -> None:
    topic = scene.topic(3)
    describe = ("partitions", "describe", "-t", topic, "--response-partition-limit", "2")
    first = scene.client.admin(*describe, as_json=False)
    rest = scene.client.admin(*describe, "--cursor-topic", topic, "--cursor-partition", "2", as_json=False)
    assert [first.count("'partition_index'"), rest.count("'partition_index'")] == [3, 1]  # and that of the cursor
    assert "'next_cursor': None" in rest


@TABLE.case(_ADMIN, "groups: list, describe, and their offsets: list, alter, delete")
def cli_groups(scene: Scene[KafkaPythonCommands]) -> None:
    admin, topic, group = scene.client.admin, scene.topic(2), scene.name()
    scene.feed(topic, [Record(None, b"v", partition=i % 2) for i in range(10)])
    reading = ConfluentGroups()
    reading.bootstrap = scene.bootstrap
    with reading.join(Joining(group, (topic,))) as member:
        member.wait_for_records(10)
        member.commit()
        described = admin("groups", "describe", "-g", group)[group]
        assert (described["group_state"], len(described["members"])) == ("Stable", 1)
        assert [described["protocol_type"], described["protocol_data"]] == ["consumer", "range"]
    assert group in {found["group_id"] for found in admin("groups", "list", "--state", "Empty")}
    offsets = admin("groups", "list-offsets", "-g", group)[topic]
    assert {part: (told["offset"], told["lag"]) for part, told in offsets.items()} == {"0": (5, 0), "1": (5, 0)}
    assert admin("groups", "alter-offsets", "-g", group, "-o", f"{topic}:1:2") == {f"{topic}:1": "NoError"}
    assert admin("groups", "delete-offsets", "-g", group, "-p", f"{topic}:0") == {f"{topic}:0": "NoError"}
    offsets = admin("groups", "list-offsets", "-g", group)[topic]
    assert {part: (told["offset"], told["lag"]) for part, told in offsets.items()} == {"1": (2, 3)}
    assert admin("groups", "delete", "-g", group) == {group: "OK"}
    assert admin("groups", "describe", "-g", group)[group]["group_state"] == "Dead"


@TABLE.case(_ADMIN, "cluster: describe, broker-version, describe-log-dirs")
def cli_cluster(scene: Scene[KafkaPythonCommands]) -> None:
    topic = scene.topic()
    described = scene.client.admin("cluster", "describe")
    assert [f"{broker['host']}:{broker['port']}" for broker in described["brokers"]] == [scene.bootstrap]
    assert described["controller_id"] == 1
    assert scene.client.admin("cluster", "broker-version", "--broker", "1") == {"1": "4.1"}
    assert topic in scene.client.admin("cluster", "describe-log-dirs", as_json=False)


@TABLE.case("python -m kafka.producer, kafka.consumer", "lines written and read; the next run goes on after Ctrl-C")
def cli_lines(scene: Scene[KafkaPythonCommands]) -> None:
    topic, group = scene.topic(), scene.name()
    first, second = [f"line {i}" for i in range(20)], [f"other {i}" for i in range(5)]

    def read(count: int) -> list[str]:
        with scene.client.console_consumer(topic, group) as consumer:
            eventually(lambda: _lines(consumer) >= count)
            consumer.interrupt()
            return consumer.output().splitlines()

    scene.client.produce_lines(topic, first)
    assert read(20) == first
    scene.client.produce_lines(topic, second)
    assert read(5) == second


def _lines(consumer: App) -> int:
    consumer.check()
    return consumer.output().count("\n")


@TABLE.case(_NOT_SERVED, "groups describe: what the client may do")
def cli_authorized_operations(scene: Scene[KafkaPythonCommands]) -> None:
    topic, group = scene.topic(), scene.name()
    scene.client.admin("groups", "alter-offsets", "-g", group, "-o", f"{topic}:0:0")
    described = scene.client.admin("groups", "describe", "-g", group)[group]
    assert {"READ", "DELETE", "DESCRIBE"} <= set(described["authorized_operations"] or ())


@TABLE.case(_NOT_SERVED, "cluster describe-quorum")
def cli_quorum(scene: Scene[KafkaPythonCommands]) -> None:
    (topic,) = scene.client.admin("cluster", "describe-quorum")["topics"]
    assert topic["partitions"][0]["leader_id"] == 1


@TABLE.case(_NOT_SERVED, "cluster describe-features")
def cli_features(scene: Scene[KafkaPythonCommands]) -> None:
    assert "metadata.version" in scene.client.admin("cluster", "describe-features")


@TABLE.case(_NOT_SERVED, "configs list")
def cli_config_resources(scene: Scene[KafkaPythonCommands]) -> None:
    assert scene.client.admin("configs", "list")["broker"] == ["1"]


@TABLE.case(_NOT_SERVED, "acls describe: told that there is no authorizer")
def cli_acls(scene: Scene[KafkaPythonCommands]) -> None:
    _refused(scene, r"Error 54\] SecurityDisabledError", "acls", "describe")


@TABLE.case(_NOT_SERVED, "users describe-scram-credentials: there are none")
def cli_users(scene: Scene[KafkaPythonCommands]) -> None:
    assert scene.client.admin("users", "describe-scram-credentials") == {}


@TABLE.case(_NOT_SERVED, "transactions list: there are none")
def cli_transactions(scene: Scene[KafkaPythonCommands]) -> None:
    assert scene.client.admin("transactions", "list") == {"1": []}

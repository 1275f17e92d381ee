"""What Kafka 3.9.1 and tidelog leave in ZooKeeper for the same topics: the same paths with the same JSON keys.

A state has one key more: of which life of each ISR member its writer knew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewPartitions
from kazoo.client import KazooClient

from peers.clients import create_topic
from peers.kafka import ZooKeeperBroker
from tests.kits.coordinationkit import zookeeper_server
from tests.kits.processkit import broker_process, wait_for

pytestmark = pytest.mark.jvm

MAY_DIFFER = frozenset(
    {
        "controller_epoch",
        "endpoints",
        "host",
        "id",
        "leader_epoch",
        "port",
        "timestamp",
        "topic_id",
    }
)
"""Keys whose values are of one life or one machine."""
OURS_ALONE = frozenset({"isr_epochs"})
"""Keys that Kafka passes over: it takes from a node what it knows by name, and leaves out ours when it writes one."""
OUR_NODES = "/brokers/epochs"
"""What log directories have noted; Kafka has no such node, and passes over it."""

Tree = dict[str, Any]


def make_topics(bootstrap: str, zookeeper: KazooClient, chroot: str) -> None:
    create_topic(bootstrap, "one")
    create_topic(bootstrap, "several", partitions=3)
    create_topic(bootstrap, "with-config", config={"retention.ms": 3600000, "cleanup.policy": "compact"})
    create_topic(bootstrap, "grown", partitions=2)
    create_topic(bootstrap, "gone", partitions=2, config={"retention.ms": 1000})
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    producer.produce("one", b"x")
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions("grown", 4)])["grown"].result(30)
    admin.delete_topics(["gone"])["gone"].result(30)
    change = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "one", incremental_configs=[change])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)

    def is_settled() -> bool:
        states = (f"{chroot}/brokers/topics/grown/partitions/{number}/state" for number in range(4))
        return not zookeeper.exists(f"{chroot}/brokers/topics/gone") and all(map(zookeeper.exists, states))

    wait_for(is_settled, "the topics to be as they were asked for")


def paths_under(zookeeper: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in zookeeper.get_children(path):
        yield from paths_under(zookeeper, f"{path}/{name}")


def tree(zookeeper: KazooClient, chroot: str) -> Tree:
    """Each node's data, without the values that may differ, and whether it is ephemeral."""
    found = {}
    for path in paths_under(zookeeper, chroot):
        if path.removeprefix(chroot).startswith(OUR_NODES):
            continue
        data, stat = zookeeper.get(path)
        found[path.removeprefix(chroot) or "/"] = (parsed(path, data or b""), stat.ephemeralOwner != 0)
    return found


def parsed(path: str, data: bytes) -> Any:
    if path.endswith("/controller_epoch"):
        return int(data) > 0
    try:
        value = json.loads(data)
    except ValueError:
        return data
    if not isinstance(value, dict):
        return value
    return {key: "..." if key in MAY_DIFFER else value[key] for key in value if key not in OURS_ALONE}


def test_the_same_topics_leave_the_same_nodes(tmp_path: Path) -> None:
    server = zookeeper_server()
    with server.client() as zookeeper:
        zookeeper.ensure_path("/of-kafka")
        settings = {"zookeeper.connect": f"{server.connect}/of-kafka"}
        with ZooKeeperBroker(tmp_path / "kafka", server, settings=settings) as kafka:
            make_topics(kafka.bootstrap, zookeeper, "/of-kafka")
            theirs = tree(zookeeper, "/of-kafka")
        (tmp_path / "ours").mkdir()
        connect = f"{server.connect}/of-tidelog"
        with broker_process(tmp_path / "ours", zookeeper_connect=connect) as broker:
            make_topics(f"127.0.0.1:{broker.port}", zookeeper, "/of-tidelog")
            ours = tree(zookeeper, "/of-tidelog")
    differences = {
        path: (theirs.get(path, "no such node"), ours.get(path, "no such node"))
        for path in sorted(theirs.keys() | ours.keys())
        if theirs.get(path) != ours.get(path)
    }
    shown = "\n".join(f"{path}\n  Kafka   {kafka}\n  tidelog {own}" for path, (kafka, own) in differences.items())
    assert not differences, f"\n{shown}"
    for path, (value, _) in theirs.items():
        if isinstance(value, dict):
            assert list(value) == list(ours[path][0]), f"the keys of {path} have another order"

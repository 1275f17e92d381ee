"""Cases for kafkajs alone: it has no consumer without a group, so that it cannot play those of the other clients."""

from __future__ import annotations

from cases import Table
from driver import EARLIEST, LATEST, Record, Sending
from group_driver import Joining
from group_kafkajs import KafkaJs
from scene import Scene, eventually, now_ms
from targets import GROUPS

TABLE = Table(needs=GROUPS)
_SECTION = "kafkajs"


def _records(count: int) -> list[Record]:
    now = now_ms()
    headers = (("name", b"value"), ("other", b""))
    return [Record(f"key-{i}".encode(), f"value-{i}".encode(), headers, timestamp=now + i) for i in range(count)]


def _written_and_read(scene: Scene[KafkaJs], sending: Sending) -> None:
    topic = scene.topic()
    records = _records(20)
    scene.client.produce(topic, records, sending)
    with scene.client.join(Joining(scene.name(), (topic,))) as member:
        read = member.wait_for_records(20)
    assert [record.content for record in read] == [record.content for record in records]
    assert [record.timestamp for record in read] == [record.timestamp for record in records]


@TABLE.case(_SECTION, "keys, values, headers and timestamps: written and read, not compressed and with gzip")
def kafkajs_records(scene: Scene[KafkaJs]) -> None:
    _written_and_read(scene, Sending())
    _written_and_read(scene, Sending(codec="gzip"))


@TABLE.case(_SECTION, "acks=1, and an idempotent producer")
def kafkajs_acks(scene: Scene[KafkaJs]) -> None:
    _written_and_read(scene, Sending(acks="1"))
    _written_and_read(scene, Sending(idempotent=True))


@TABLE.case(_SECTION, "topics: create, list, describe, first and next offset, delete")
def kafkajs_topics(scene: Scene[KafkaJs]) -> None:
    topic = scene.name()
    scene.client.create_topic(topic, partitions=2)
    eventually(lambda: scene.is_ready(topic, 2))
    assert topic in scene.client.list_topics()
    assert [partition.leader for partition in scene.client.describe_topic(topic)] == [1, 1]
    scene.feed(topic, [Record(None, b"v")] * 7)
    scene.delete_records(topic, 3)
    offsets = [scene.client.list_offsets(topic, 0, which).offset for which in (EARLIEST, LATEST)]
    assert offsets == [3, 7]
    scene.client.delete_topic(topic)
    eventually(lambda: scene.leaders(topic) == [])

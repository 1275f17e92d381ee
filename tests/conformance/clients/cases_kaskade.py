"""Cases for kaskade: what its user sees of topics, groups and records, and what comes of the forms that are filled."""

from __future__ import annotations

from cases import Table
from driver import Record
from driver_kaskade import Kaskade
from group_confluent import ConfluentGroups
from group_driver import Joining, Member
from scene import Scene, eventually
from targets import GROUPS

TABLE = Table(needs=GROUPS)
_QUICK = ("--timeout", "consumer.idle=1")
"""It waits no longer for a page to be filled."""


def _retention_ms(scene: Scene[Kaskade], topic: str) -> str:
    return dict(scene.client.show("describe", topic)["configurations"])["retention.ms"]


@TABLE.case("Admin mode", "create a topic in its form")
def kaskade_create(scene: Scene[Kaskade]) -> None:
    topic = scene.name()
    shown = scene.client.show("create", topic, partitions=2, retention_ms=70_000)["row"]
    assert shown == [topic, "2", "1", "1", "0", "0", "0", "0"]
    eventually(lambda: scene.is_ready(topic, 2))
    assert _retention_ms(scene, topic) == "70000"


@TABLE.case("Admin mode", "edit a topic: more partitions, another retention")
def kaskade_edit(scene: Scene[Kaskade]) -> None:
    topic = scene.topic(2)
    assert scene.client.show("edit", topic, partitions=3, retention_ms=80_000)["row"][1] == "3"
    eventually(lambda: scene.is_ready(topic, 3))
    assert _retention_ms(scene, topic) == "80000"


@TABLE.case("Admin mode", "delete a topic")
def kaskade_delete(scene: Scene[Kaskade]) -> None:
    topic = scene.topic()
    scene.client.show("delete", topic)
    eventually(lambda: scene.leaders(topic) == [])


@TABLE.case("Admin mode", "topics with their records, groups and lag")
def kaskade_topics(scene: Scene[Kaskade]) -> None:
    topic = scene.topic(2)
    group = _group_that_read(scene, topic, 10)
    scene.feed(topic, [Record(None, b"more")] * 3)
    shown = scene.client.show("describe", topic)
    assert [row[:5] for row in shown["partitions"]] == [["0", "1", "0", "8", "8"], ["1", "1", "0", "5", "5"]]
    ((name, _, state, *numbers),) = shown["groups"]
    assert (name, state, numbers[-1]) == (group, "empty", "3")
    assert shown["group-offsets"] == [[group, "0", "5", "8", "3"], [group, "1", "5", "5", "0"]]
    assert scene.client.show("topics", topic)["row"] == [topic, "2", "1", "1", "1", "0", "13", "3"]


@TABLE.case("Admin mode", "the members of a group and what they have")
def kaskade_members(scene: Scene[Kaskade]) -> None:
    topic = scene.topic(2)
    with _member(scene, topic) as member:
        scene.feed(topic, [Record(None, b"v")])
        member.wait_for_records(1)
        member.commit()
        shown = scene.client.show("describe", topic)
    ((_, _, state, assignor, *_),) = shown["groups"]
    assert (state, assignor) == ("stable", "range")
    ((_, client, _, host, parts),) = shown["group-members"]
    assert client
    assert host.lstrip("/") == "127.0.0.1"
    assert parts == "[0, 1]"


@TABLE.case("Consumer mode", "from the earliest offset, page by page: keys, values and places")
def kaskade_earliest(scene: Scene[Kaskade]) -> None:
    topic = scene.topic(2)
    records = [Record(b"key-%d" % i, b'{"n": %d}' % i, partition=i % 2) for i in range(40)]
    scene.feed(topic, records)
    shown = scene.client.show("records", topic, *_QUICK, "--earliest", "-k", "string", "-v", "json", count=40)["rows"]
    assert len(shown) == 40
    for partition in (0, 1):
        rows = [row for row in shown if row[4] == str(partition)]
        assert [row[0] for row in rows] == [f"key-{i}" for i in range(partition, 40, 2)]
        assert [row[1] for row in rows] == [f"{{'n': {i}}}" for i in range(partition, 40, 2)]
        assert [row[5] for row in rows] == [str(offset) for offset in range(20)]


@TABLE.case("Consumer mode", "from an offset of one partition")
def kaskade_from_offset(scene: Scene[Kaskade]) -> None:
    topic = scene.topic(2)
    scene.feed(topic, [Record(None, b"v%d" % i, partition=1) for i in range(20)])
    shown = scene.client.show("records", topic, *_QUICK, "--partition", "1:15", "-v", "string", count=5)["rows"]
    assert [row[1] for row in shown] == [f"v{i}" for i in range(15, 20)]
    assert {row[0] for row in shown} == {"null"}


@TABLE.case("Consumer mode", "in a group: from where it had committed")
def kaskade_group(scene: Scene[Kaskade]) -> None:
    topic = scene.topic(2)
    group = _group_that_read(scene, topic, 10)
    scene.feed(topic, [Record(None, b"new %d" % i) for i in range(3)])
    shown = scene.client.show("records", topic, *_QUICK, "--kafka", f"group.id={group}", "-v", "string", count=3)[
        "rows"
    ]
    assert [row[1] for row in shown] == ["new 0", "new 1", "new 2"]


def _member(scene: Scene[Kaskade], topic: str, group: str = "") -> Member:
    reading = ConfluentGroups()
    reading.bootstrap = scene.bootstrap
    return reading.join(Joining(group or scene.name(), (topic,)))


def _group_that_read(scene: Scene[Kaskade], topic: str, count: int) -> str:
    """Its members have left."""
    group = scene.name()
    scene.feed(topic, [Record(None, b"old", partition=i % 2) for i in range(count)])
    with _member(scene, topic, group) as member:
        member.wait_for_records(count)
        member.commit()
    return group

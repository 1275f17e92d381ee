"""Cases for the consumers of Kafka's bin directory, and for what it reads in the topic in which groups are stored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from cases import Table
from cases_groups import parts_of, spread
from cases_groups_tools import join
from driver_shell import Tools
from group_driver import Joining
from scene import Scene
from targets import GROUPS
from tool_runs import ok, run

from peers import home

TABLE = Table(needs=GROUPS)
_STORED = "Groups as they are stored (__consumer_offsets)"
_FORMATTERS = "org.apache.kafka.tools.consumer"
_OLD_FORMATTERS = "kafka.coordinator.group.GroupMetadataManager$"
"""Of Kafka 3.9, which has both."""


@TABLE.case("kafka-console-consumer", "--from-beginning, without a group of its own")
def console_from_beginning(scene: Scene[Tools]) -> None:
    topic = scene.topic(partitions=2)
    scene.feed(topic, spread(10, 2))
    for _ in range(2):
        out = ok(scene, "kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "10")
        assert sorted(out.split()) == sorted(f"value-{i}" for i in range(10))


@TABLE.case("kafka-console-consumer", "--group: the next run goes on where the last one ended")
def console_group(scene: Scene[Tools]) -> None:
    topic, group = scene.topic(), scene.name()
    scene.feed(topic, spread(10, 1))
    options = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages")
    assert ok(scene, "kafka-console-consumer", *options, "4").split() == [f"value-{i}" for i in range(4)]
    assert ok(scene, "kafka-console-consumer", *options, "6").split() == [f"value-{i}" for i in range(4, 10)]


@TABLE.case("kafka-console-consumer", "--include: topics by a regular expression")
def console_include(scene: Scene[Tools]) -> None:
    prefix = scene.name()
    topics = [f"{prefix}-a", f"{prefix}-b"]
    scene.create(topics, 1, {})
    for topic in topics:
        scene.feed(topic, spread(3, 1, topic))
    options = ("--include", f"{prefix}-.*", "--from-beginning", "--max-messages", "6")
    out = ok(scene, "kafka-console-consumer", *options)
    assert sorted(out.split()) == [f"{topic}-{i}" for topic in topics for i in range(3)]


@TABLE.case("kafka-consumer-perf-test", "reads what it is asked for, in a group")
def consumer_perf(scene: Scene[Tools]) -> None:
    topic, group = scene.topic(partitions=2), scene.name()
    scene.feed(topic, spread(2000, 2))
    out = ok(scene, "kafka-consumer-perf-test", "--topic", topic, "--messages", "2000", "--group", group)
    names, values = (re.split(r",\s*", line) for line in out.strip().splitlines()[-2:])
    assert dict(zip(names, values, strict=True))["data.consumed.in.nMsg"] == "2000"
    listed = ok(scene, "kafka-consumer-groups", "--describe", "--group", group)
    assert sorted(re.findall(rf"{topic} +(\d) +(\d+) +(\d+) +(\d+) ", listed)) == [
        ("0", "1000", "1000", "0"),
        ("1", "1000", "1000", "0"),
    ]


@TABLE.case("kafka-verifiable-consumer", "what it is assigned, reads and commits")
def verifiable_consumer(scene: Scene[Tools]) -> None:
    topic, group = scene.topic(partitions=2), scene.name()
    scene.feed(topic, spread(20, 2))
    out = ok(scene, "kafka-verifiable-consumer", "--topic", topic, "--group-id", group, "--max-messages", "20")
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    (assigned,) = [event["partitions"] for event in events if event["name"] == "partitions_assigned"]
    assert {(part["topic"], part["partition"]) for part in assigned} == parts_of(topic, 2)
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 20
    commits = [event for event in events if event["name"] == "offsets_committed"]
    assert all(event["success"] for event in commits)
    assert {part["offset"] for part in commits[-1]["offsets"]} == {10}
    assert events[-1]["name"] == "shutdown_complete"


def _stored(scene: Scene[Tools], formatter: str) -> str:
    """All that there is; it ends when nothing came for a while, which the tool takes for a failure."""
    options = ["--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "1500", "--formatter", formatter]
    return run(scene, "kafka-console-consumer", *options).out


def _stored_json(scene: Scene[Tools], formatter: str, group: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Key and value of each record of a group; the formatter puts nothing between them."""
    text, decoder, at = _stored(scene, f"{_FORMATTERS}.{formatter}"), json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        record, at = decoder.raw_decode(text, at)
        if record["key"]["data"]["group"] == group:
            yield record["key"], record["value"]


def _live_and_die(scene: Scene[Tools]) -> tuple[str, str]:
    """A group that had one member, which committed 3 and left; the group and its topic."""
    topic, group = scene.topic(), scene.name()
    scene.feed(topic, spread(3, 1))
    with join(scene, Joining(group, (topic,))) as member:
        member.wait_for_records(3)
        member.commit()
    return group, topic


@TABLE.case(_STORED, "OffsetsMessageFormatter prints what was committed")
def stored_offsets(scene: Scene[Tools]) -> None:
    group, topic = _live_and_die(scene)
    ((key, value),) = _stored_json(scene, "OffsetsMessageFormatter", group)
    assert key["data"] == {"group": group, "topic": topic, "partition": 0}
    assert key.get("type", key.get("version")) == 1
    assert value["version"] in (3, 4)
    assert (value["data"]["offset"], value["data"]["leaderEpoch"], value["data"]["metadata"]) == (3, 0, "")
    if scene.client.version() == home.KAFKA_ZOOKEEPER:
        old = _stored(scene, f"{_OLD_FORMATTERS}OffsetsMessageFormatter")
        assert f"[{group},{topic},0]::OffsetAndMetadata(offset=3, leaderEpoch=Optional[0], metadata=, " in old


@TABLE.case(_STORED, "GroupMetadataMessageFormatter prints generations and members, and a tombstone when it is deleted")
def stored_groups(scene: Scene[Tools]) -> None:
    group, _ = _live_and_die(scene)
    ok(scene, "kafka-consumer-groups", "--delete", "--group", group)
    records = list(_stored_json(scene, "GroupMetadataMessageFormatter", group))
    assert {key.get("type", key.get("version")) for key, _ in records} == {2}
    *values, last = [value for _, value in records]
    assert last is None
    assert {value["version"] for value in values} == {3}
    lived = next(value["data"] for value in values if value["data"]["members"])
    assert (lived["protocolType"], lived["protocol"]) == ("consumer", "range")
    (member,) = lived["members"]
    assert member["memberId"] == lived["leader"]
    assert (member["clientId"], member["clientHost"], member["groupInstanceId"]) == ("conformance", "/127.0.0.1", None)
    assert (member["sessionTimeout"], member["rebalanceTimeout"]) == (10_000, 300_000)
    assert member["subscription"]
    assert member["assignment"]
    died = values[-1]["data"]
    assert (died["generation"], died["protocol"], died["members"]) == (lived["generation"] + 1, None, [])
    if scene.client.version() == home.KAFKA_ZOOKEEPER:
        old = _stored(scene, f"{_OLD_FORMATTERS}GroupMetadataMessageFormatter")
        assert f"{group}::GroupMetadata(groupId={group}, generation={lived['generation']}, " in old
        assert f"{group}::NULL" in old

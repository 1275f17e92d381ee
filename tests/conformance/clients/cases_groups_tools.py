"""Cases for kafka-consumer-groups: what it prints, and what it changes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cases import Table
from cases_groups import parts_of, spread
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from driver import DEADLINE_S, Record
from driver_shell import Tools
from group_confluent import ConfluentGroups
from group_driver import Joining, Member, Part
from scene import Scene, eventually, now_ms
from targets import GROUPS
from tool_runs import ok

TABLE = Table(needs=GROUPS)
_SECTION = _TOOL = "kafka-consumer-groups"
_HOUR_MS = 3_600_000
_NOT_READY = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""


def join(scene: Scene[Tools], joining: Joining) -> Member:
    """A member beside the tool: librdkafka."""
    client = ConfluentGroups()
    client.bootstrap = scene.bootstrap
    return client.join(joining)


def words(text: str) -> str:
    """What a table says, without its spaces."""
    return " ".join(text.split())


def _commit(scene: Scene[Tools], group: str, *places: tuple[str, int, int]) -> None:
    """As an administrator does. The first group of a broker may find its coordinator not ready."""

    def is_stored() -> bool:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*place) for place in places])
        answer = scene.stage.admin.alter_consumer_group_offsets([asked])[group].result(DEADLINE_S)
        errors = [place.error for place in answer.topic_partitions if place.error is not None]
        assert all(error.retriable() or error.code() in _NOT_READY for error in errors), errors
        return not errors

    eventually(is_stored)


def _committed(scene: Scene[Tools], group: str) -> dict[Part, int]:
    asked = scene.stage.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(DEADLINE_S).topic_partitions
    return {(place.topic, place.partition): place.offset for place in found}


@TABLE.case(_SECTION, "--list, and with --state, of one state")
def groups_list(scene: Scene[Tools]) -> None:
    topic, active, empty = scene.topic(), scene.name(), scene.name()
    _commit(scene, empty, (topic, 0, 0))
    with join(scene, Joining(active, (topic,))) as member:
        member.wait_for_share(parts_of(topic, 1))
        assert {active, empty} <= set(ok(scene, _TOOL, "--list").split())
        listed = words(ok(scene, _TOOL, "--list", "--state"))
        assert f"{active} Stable" in listed
        assert f"{empty} Empty" in listed
        stable = ok(scene, _TOOL, "--list", "--state", "Stable").split()
        assert active in stable
        assert empty not in stable
        assert f"{active} Classic" in words(ok(scene, _TOOL, "--list", "--type"))


@TABLE.case(_SECTION, "--describe, --offsets: a group with members")
def groups_describe(scene: Scene[Tools]) -> None:
    topic, group = scene.topic(partitions=2), scene.name()
    scene.feed(topic, spread(10, 2))
    with join(scene, Joining(group, (topic,))) as member:
        member.wait_for_records(10)
        member.commit({(topic, 0): 5, (topic, 1): 3})
        for option in ((), ("--offsets",), ("--timeout", "5000")):
            out = words(ok(scene, _TOOL, "--describe", "--group", group, *option))
            assert "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID" in out
            assert f"{group} {topic} 0 5 5 0 conformance-" in out
            assert f"{group} {topic} 1 3 5 2 conformance-" in out
            assert out.count("/127.0.0.1 conformance") == 2


@TABLE.case(_SECTION, "--describe: a group without members, and one that nobody made")
def groups_describe_empty(scene: Scene[Tools]) -> None:
    topic, group = scene.topic(partitions=2), scene.name()
    scene.feed(topic, spread(10, 2))
    _commit(scene, group, (topic, 0, 2), (topic, 1, 5))
    ran = scene.client.tools.run(_TOOL, ["--bootstrap-server", scene.bootstrap, "--describe", "--group", group])
    assert f"Consumer group '{group}' has no active members." in ran.err
    assert f"{group} {topic} 0 2 5 3 - - -" in words(ran.out)
    assert f"{group} {topic} 1 5 5 0 - - -" in words(ran.out)
    unknown = ok(scene, _TOOL, "--describe", "--group", "nobody-made-this")
    assert "'nobody-made-this' does not exist" in unknown or "Group nobody-made-this not found" in unknown


@TABLE.case(_SECTION, "--describe --members --verbose, with static ones")
def groups_describe_members(scene: Scene[Tools]) -> None:
    topic, group = scene.topic(partitions=2), scene.name()
    with join(scene, Joining(group, (topic,), instance_id="first")) as member:
        member.wait_for_share(parts_of(topic, 2))
        members = words(ok(scene, _TOOL, "--describe", "--group", group, "--members"))
        assert "GROUP CONSUMER-ID GROUP-INSTANCE-ID HOST CLIENT-ID #PARTITIONS" in members
        assert " first /127.0.0.1 conformance 2" in members
        verbose = words(ok(scene, _TOOL, "--describe", "--group", group, "--members", "--verbose"))
        assert "conformance 2 (0,1)" in verbose or f"conformance 2 - {topic}:0,1" in verbose


@TABLE.case(_SECTION, "--describe --state, also of --all-groups")
def groups_describe_state(scene: Scene[Tools]) -> None:
    topic, active, empty = scene.topic(), scene.name(), scene.name()
    _commit(scene, empty, (topic, 0, 0))
    with join(scene, Joining(active, (topic,))) as member:
        member.wait_for_share(parts_of(topic, 1))
        one = words(ok(scene, _TOOL, "--describe", "--group", active, "--state"))
        assert f"{active} {scene.bootstrap} (1) range Stable 1" in one
        every = words(ok(scene, _TOOL, "--describe", "--all-groups", "--state"))
        assert f"{active} {scene.bootstrap} (1) range Stable 1" in every
        assert f"{empty} {scene.bootstrap} (1) Empty 0" in every.replace("(1) - Empty", "(1) Empty")


def _old_and_new_records(scene: Scene[Tools]) -> tuple[str, str]:
    """A group that stands at 6 of a log from 2 to 10, in which the records before 4 are two hours old."""
    topic, group = scene.topic(), scene.name()
    now = now_ms()
    scene.feed(topic, [Record(None, b"v", timestamp=now - 2 * _HOUR_MS if i < 4 else now) for i in range(10)])
    scene.delete_records(topic, 2)
    _commit(scene, group, (topic, 0, 6))
    return group, topic


def _an_hour_ago() -> str:
    return datetime.fromtimestamp((now_ms() - _HOUR_MS) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")


_WAYS: dict[str, tuple[Callable[[], tuple[str, ...]], int]] = {
    "to-earliest": (lambda: ("--to-earliest",), 2),
    "to-latest": (lambda: ("--to-latest",), 10),
    "to-current": (lambda: ("--to-current",), 6),
    "to-offset": (lambda: ("--to-offset", "5"), 5),
    "to-offset after the end": (lambda: ("--to-offset", "99"), 10),
    "shift-by": (lambda: ("--shift-by", "-3"), 3),
    "shift-by before the start": (lambda: ("--shift-by", "-100"), 2),
    "to-datetime": (lambda: ("--to-datetime", _an_hour_ago()), 4),
    "by-duration": (lambda: ("--by-duration", "PT1H"), 4),
}


@TABLE.case(_SECTION, "--reset-offsets --dry-run, in all seven ways")
def groups_reset_dry_run(scene: Scene[Tools]) -> None:
    group, topic = _old_and_new_records(scene)
    for name, (way, offset) in _WAYS.items():
        out = ok(scene, _TOOL, "--reset-offsets", *way(), "--group", group, "--topic", topic, "--dry-run")
        assert f"{group} {topic} 0 {offset}" in words(out), name
    assert _committed(scene, group) == {(topic, 0): 6}


@TABLE.case(_SECTION, "--reset-offsets --execute, in all seven ways")
def groups_reset(scene: Scene[Tools]) -> None:
    group, topic = _old_and_new_records(scene)
    for name, (way, offset) in _WAYS.items():
        _commit(scene, group, (topic, 0, 6))
        out = ok(scene, _TOOL, "--reset-offsets", *way(), "--group", group, "--topic", topic, "--execute")
        assert f"{group} {topic} 0 {offset}" in words(out), name
        assert _committed(scene, group) == {(topic, 0): offset}, name


@TABLE.case(_SECTION, "--reset-offsets: some partitions, all topics, a group that did not exist")
def groups_reset_scope(scene: Scene[Tools]) -> None:
    topic, group = scene.topic(partitions=3), scene.name()
    scene.feed(topic, spread(9, 3))
    reset = ("--reset-offsets", "--group", group)
    ok(scene, _TOOL, *reset, "--to-latest", "--topic", topic, "--execute")
    assert _committed(scene, group) == dict.fromkeys(parts_of(topic, 3), 3)
    ok(scene, _TOOL, *reset, "--to-earliest", "--topic", f"{topic}:0,2", "--execute")
    assert _committed(scene, group) == {(topic, 0): 0, (topic, 1): 3, (topic, 2): 0}
    ok(scene, _TOOL, *reset, "--to-offset", "1", "--all-topics", "--execute")
    assert _committed(scene, group) == dict.fromkeys(parts_of(topic, 3), 1)


@TABLE.case(_SECTION, "--reset-offsets: refused while there are members")
def groups_reset_refused(scene: Scene[Tools]) -> None:
    topic, group = scene.topic(), scene.name()
    scene.feed(topic, spread(5, 1))
    with join(scene, Joining(group, (topic,))) as member:
        member.wait_for_records(5)
        member.commit()
        out = ok(scene, _TOOL, "--reset-offsets", "--to-earliest", "--group", group, "--topic", topic, "--execute")
        assert f"the group '{group}' is inactive, but the current state is Stable" in out
        assert member.committed((topic, 0)) == 5


@TABLE.case(_SECTION, "--reset-offsets --export, and --from-file")
def groups_export(scene: Scene[Tools]) -> None:
    topic, group = scene.topic(partitions=2), scene.name()
    scene.feed(topic, spread(10, 2))
    _commit(scene, group, (topic, 0, 4), (topic, 1, 5))
    options = ("--reset-offsets", "--group", group)
    out = ok(scene, _TOOL, *options, "--to-current", "--topic", topic, "--export", "--dry-run")
    assert sorted(out.split()) == [f"{topic},0,4", f"{topic},1,5"]
    _commit(scene, group, (topic, 0, 0), (topic, 1, 0))
    with tempfile.NamedTemporaryFile("w") as file:
        Path(file.name).write_text(out)
        ok(scene, _TOOL, *options, "--from-file", file.name, "--execute")
    assert _committed(scene, group) == {(topic, 0): 4, (topic, 1): 5}


@TABLE.case(_SECTION, "--delete: an empty group, one with members, one that nobody made")
def groups_delete(scene: Scene[Tools]) -> None:
    topic, active, empty = scene.topic(), scene.name(), scene.name()
    _commit(scene, empty, (topic, 0, 0))
    out = ok(scene, _TOOL, "--delete", "--group", empty)
    assert f"Deletion of requested consumer groups ('{empty}') was successful." in out
    assert empty not in ok(scene, _TOOL, "--list").split()
    assert "GroupIdNotFoundException: The group id does not exist." in ok(scene, _TOOL, "--delete", "--group", empty)
    with join(scene, Joining(active, (topic,))) as member:
        member.wait_for_share(parts_of(topic, 1))
        assert "GroupNotEmptyException: The group is not empty." in ok(scene, _TOOL, "--delete", "--group", active)


@TABLE.case(_SECTION, "--delete-offsets: of some partitions; refused while a member subscribes to the topic")
def groups_delete_offsets(scene: Scene[Tools]) -> None:
    topic, group = scene.topic(partitions=2), scene.name()
    scene.feed(topic, spread(10, 2))
    _commit(scene, group, (topic, 0, 4), (topic, 1, 5))
    out = words(ok(scene, _TOOL, "--delete-offsets", "--group", group, "--topic", f"{topic}:1"))
    assert f"{topic} 1 Successful" in out
    assert _committed(scene, group) == {(topic, 0): 4}
    with join(scene, Joining(group, (topic,))) as member:
        member.wait_for_share(parts_of(topic, 2))
        out = ok(scene, _TOOL, "--delete-offsets", "--group", group, "--topic", topic)
        assert "GroupSubscribedToTopicException" in out
        eventually(lambda: _committed(scene, group) == {(topic, 0): 4})

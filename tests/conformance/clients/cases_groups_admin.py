"""Cases for administrators of consumer groups: list, describe, delete, and offsets from outside."""

from __future__ import annotations

from cases import Table
from cases_groups import parts_of, spread
from driver import ClientError
from group_driver import (
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    NON_EMPTY_GROUP,
    UNKNOWN_MEMBER_ID,
    GroupDriver,
    Joining,
    Parts,
)
from scene import Scene, eventually
from targets import GROUPS

TABLE = Table(needs=GROUPS)
_SECTION = "Administration of groups"


def left_group(scene: Scene[GroupDriver]) -> tuple[str, str]:
    """A group without members and its topic of two partitions, of which 5 and 5 are committed."""
    topic, group = scene.topic(partitions=2), scene.name()
    scene.feed(topic, spread(10, 2))
    with scene.client.join(Joining(group, (topic,))) as member:
        member.wait_for_records(10)
        member.commit()
    eventually(lambda: scene.client.describe_group(group).state == "Empty")
    return group, topic


@TABLE.case(_SECTION, "list")
def list_groups(scene: Scene[GroupDriver]) -> None:
    group, topic = scene.name(), scene.topic()
    with scene.client.join(Joining(group, (topic,))) as member:
        member.wait_for_share(parts_of(topic, 1))
        assert scene.client.list_groups()[group] in ("consumer", "")


@TABLE.case(_SECTION, "describe: state, assignor, members and what they have")
def describe_group(scene: Scene[GroupDriver]) -> None:
    topic, group = scene.topic(partitions=3), scene.name()
    with scene.client.join(Joining(group, (topic,))) as one, scene.client.join(Joining(group, (topic,))) as two:
        eventually(lambda: sorted([len(one.share()), len(two.share())]) == [1, 2])
        found = scene.client.describe_group(group)
        expected = ("Stable", "consumer", scene.client.usual_protocol)
        assert (found.state, found.protocol_type, found.protocol) == expected
        assert {member.parts for member in found.members} == {one.share(), two.share()}
        assert {member.client_id for member in found.members} <= {"conformance", "rdkafka"}
        assert {member.host.removeprefix("/") for member in found.members} == {"127.0.0.1"}
    eventually(lambda: scene.client.describe_group(group).state == "Empty")
    assert scene.client.describe_group(group).members == ()


@TABLE.case(_SECTION, "describe an unknown group: an error, or Dead for clients of the older request")
def describe_unknown_group(scene: Scene[GroupDriver]) -> None:
    try:
        found = scene.client.describe_group("nobody-made-this")
        answer: object = (found.state, found.members)
    except ClientError as error:
        answer = error.code
    assert answer in (GROUP_ID_NOT_FOUND, ("Dead", ()))


@TABLE.case(_SECTION, "delete: its offsets are gone")
def delete_group(scene: Scene[GroupDriver]) -> None:
    group, _ = left_group(scene)
    scene.client.delete_group(group)
    assert group not in scene.client.list_groups()
    assert scene.client.list_group_offsets(group) == {}


@TABLE.case(_SECTION, "delete: refused while there are members")
def delete_group_with_members(scene: Scene[GroupDriver]) -> None:
    group, topic = scene.name(), scene.topic()
    with scene.client.join(Joining(group, (topic,))) as member:
        member.wait_for_share(parts_of(topic, 1))
        scene.fails(NON_EMPTY_GROUP, lambda: scene.client.delete_group(group))


@TABLE.case(_SECTION, "delete an unknown group")
def delete_unknown_group(scene: Scene[GroupDriver]) -> None:
    scene.fails(GROUP_ID_NOT_FOUND, lambda: scene.client.delete_group("nobody-made-this"))


@TABLE.case(_SECTION, "offsets of all partitions")
def list_group_offsets(scene: Scene[GroupDriver]) -> None:
    group, topic = left_group(scene)
    assert scene.client.list_group_offsets(group) == {(topic, 0): 5, (topic, 1): 5}


@TABLE.case(_SECTION, "alter offsets: members start there")
def alter_group_offsets(scene: Scene[GroupDriver]) -> None:
    group, topic = left_group(scene)
    scene.client.alter_group_offsets(group, {(topic, 0): 4, (topic, 1): 3})
    assert scene.client.list_group_offsets(group) == {(topic, 0): 4, (topic, 1): 3}
    with scene.client.join(Joining(group, (topic,))) as member:
        read = member.wait_for_records(3)
    assert sorted((record.partition, record.offset) for record in read) == [(0, 4), (1, 3), (1, 4)]


@TABLE.case(_SECTION, "alter offsets: refused while there are members")
def alter_offsets_of_group_with_members(scene: Scene[GroupDriver]) -> None:
    group, topic = scene.name(), scene.topic()
    with scene.client.join(Joining(group, (topic,))) as member:
        member.wait_for_share(parts_of(topic, 1))
        scene.fails(UNKNOWN_MEMBER_ID, lambda: scene.client.alter_group_offsets(group, {(topic, 0): 0}))


@TABLE.case(_SECTION, "delete offsets of some partitions")
def delete_group_offsets(scene: Scene[GroupDriver]) -> None:
    group, topic = left_group(scene)
    scene.client.delete_group_offsets(group, [(topic, 1)])
    assert scene.client.list_group_offsets(group) == {(topic, 0): 5}


@TABLE.case(_SECTION, "delete offsets: refused while a member subscribes to the topic")
def delete_offsets_of_subscribed_topic(scene: Scene[GroupDriver]) -> None:
    group, topic = left_group(scene)
    parts: Parts = parts_of(topic, 2)
    with scene.client.join(Joining(group, (topic,))) as member:
        member.wait_for_share(parts)
        scene.fails(GROUP_SUBSCRIBED_TO_TOPIC, lambda: scene.client.delete_group_offsets(group, sorted(parts)))
    assert scene.client.list_group_offsets(group) == dict.fromkeys(parts, 5)

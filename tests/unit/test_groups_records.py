"""The records in __consumer_offsets: Kafka's bytes, old and new; what is loaded from them; describing and listing."""

from __future__ import annotations

import struct

import pytest

from tests.kits.groupkit import GROUP, START_MS, Coordinator, group_config, subscription
from tidelog.errors import ErrorCode
from tidelog.groups import Groups, refuse
from tidelog.groups.records import group_record, offset_record
from tidelog.wire.api import API
from tidelog.wire.codec import encode
from tidelog.wire.messages.group_records import (
    ConsumerGroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.wire.messages.groups import HeartbeatRequest
from tidelog.wire.stored import encode_key, encode_versioned

TIME = struct.pack(">q", START_MS)


def test_an_offset_in_bytes() -> None:
    c = Coordinator()
    c.commit({("t", 3): 258}, group_id="g", metadata="m")
    value = b"\0\4" + b"\0\0\0\0\0\0\1\2" + b"\xff\xff\xff\xff" + b"\2m" + TIME + b"\0"
    assert c.committed() == [(b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3", value)]


def test_an_offset_with_a_topic_id_in_bytes() -> None:
    value = OffsetCommitValue(offset=1, leader_epoch=2, metadata="", commit_timestamp=START_MS, topic_id=b"i" * 16)
    record = offset_record("g", "t", 0, value)
    assert record[1] == b"\0\4" + b"\0\0\0\0\0\0\0\1" + b"\0\0\0\2" + b"\1" + TIME + b"\1\0\x10" + b"i" * 16


def test_an_offset_that_expires_by_itself_in_bytes() -> None:
    c = Coordinator()
    c.commit({("t", 0): 1}, group_id="g", retention_ms=5, version=2)
    expires = struct.pack(">q", START_MS + 5)
    assert c.committed()[0][1] == b"\0\1" + b"\0\0\0\0\0\0\0\1" + b"\0\0" + TIME + expires


def test_a_group_in_bytes() -> None:
    c = Coordinator(group_config(initial_rebalance_delay_ms=0))
    ticket = c.join(group_id="g", instance_id="i", protocols={"range": b"sub"}, session_ms=6_000, rebalance_ms=7_000)
    c.pass_ms(0)
    member = c.joined(ticket).member_id
    c.sync(member, 1, {member: b"share"}, group_id="g", instance_id="i")
    c.leave(("", "i"), group_id="g")
    key = b"\0\2\0\1g"
    head = b"\0\3" + b"\0\x08consumer" + b"\0\0\0\1" + b"\0\5range" + b"\0\6i-0001" + TIME + b"\0\0\0\1"
    client = b"\0\6reader" + b"\0\x0a/127.0.0.1"
    timeouts = struct.pack(">ii", 7_000, 6_000)
    shares = b"\0\0\0\3sub" + b"\0\0\0\5share"
    empty = b"\0\3" + b"\0\x08consumer" + b"\0\0\0\2" + b"\xff\xff" + b"\xff\xff" + TIME + b"\0\0\0\0"
    assert c.committed() == [(key, head + b"\0\6i-0001" + b"\0\1i" + client + timeouts + shares), (key, empty)]


def test_tombstones_in_bytes() -> None:
    c = Coordinator()
    c.commit({("t", 3): 1}, group_id="g")
    c.delete_group("g")
    assert c.committed()[1:] == [(b"\0\1\0\1g\0\1t\0\0\0\3", None), (b"\0\2\0\1g", None)]


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("key_kind", [0, 1])
def test_offsets_of_every_version_are_loaded(version: int, key_kind: int) -> None:
    key = struct.pack(">h", key_kind) + encode(OffsetCommitKey(group=GROUP, topic="orders", partition=1), 0)
    value = OffsetCommitValue(offset=9, metadata="m", commit_timestamp=5)
    c = Coordinator()
    c.groups.replay([(key, encode_versioned(value, version))])
    assert c.offsets() == {("orders", 1): 9}
    c.groups.replay([(key, None)])
    assert c.offsets() == {}


@pytest.mark.parametrize("version", range(5))
def test_groups_of_every_version_are_loaded(version: int) -> None:
    member = MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=60_000 if version >= 1 else -1,
        session_timeout=9_000,
        subscription=subscription("orders"),
        assignment=b"share",
    )
    value = GroupMetadataValue(protocol_type="consumer", generation=4, protocol="range", leader="m", members=[member])
    key, _ = group_record(GROUP, None)
    c = Coordinator()
    c.groups.replay([(key, encode_versioned(value, version))])
    c.carry_out(c.groups.loaded(c.now_ms))
    described = c.groups.describe(GROUP, 5)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert [m.member_assignment for m in described.members] == [b"share"]
    c.pass_ms(8_999)
    assert c.heartbeat("m", 4) == ErrorCode.NONE
    c.pass_ms(9_000)
    assert c.state() == "Empty"
    c.groups.replay([(key, None)])
    assert c.state() == "Dead"


def test_records_of_other_kinds_are_passed_over() -> None:
    groups = Groups(group_config())
    consumer = encode_key(ConsumerGroupMetadataKey(group_id="new"))
    groups.replay([(consumer, b"\0\0\0\0\0\1\0"), (consumer, None), (b"\x7f\xff whatever", b"?"), (b"\0\2\0\1g", None)])
    groups.replay([(b"", b"no key"), (b"\0", b"half a kind")])
    assert groups.list_groups() == []


def test_the_last_record_of_a_group_counts() -> None:
    c = Coordinator()
    (member,) = c.stable()
    c.commit({("orders", 0): 5}, member, 1)
    c.leave(member)
    c.fail_over()
    assert c.state() == "Empty"
    assert c.offsets() == {("orders", 0): 5}
    (again,) = c.stable()
    assert again != member
    assert c.heartbeat(again, 3) == ErrorCode.NONE, "generations go on"


def test_a_loaded_member_is_known_by_the_chosen_protocol_only() -> None:
    c = Coordinator()
    both = {"range": subscription("orders"), "roundrobin": subscription("orders")}
    leader, follower = c.stable(2, protocols=both)
    c.fail_over()
    assert c.joined(c.join(follower, protocols={"range": subscription("orders")})).leader == leader
    c.join(follower, protocols=both)
    assert c.state() == "PreparingRebalance"


def test_describing_a_group() -> None:
    c = Coordinator()
    dead = c.groups.describe(GROUP, 5)
    assert (dead.group_state, dead.error_code, dead.error_message) == ("Dead", ErrorCode.NONE, None)
    missing = c.groups.describe(GROUP, 6)
    assert (missing.error_code, missing.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group orders-readers not found.",
    )
    leader, _ = c.stable(2)
    described = c.groups.describe(GROUP, 6)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    assert described.members[0].member_metadata == subscription("orders")
    assert (described.members[0].client_id, described.members[0].client_host) == ("reader", "/127.0.0.1")
    c.join(leader)
    described = c.groups.describe(GROUP, 6)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert described.members[0].member_metadata == b""


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], ["orders-readers", "simple"]),
        (["Stable"], [], ["orders-readers"]),
        ([" eMpty ", "dead"], [], ["simple"]),
        ([], ["Classic"], ["orders-readers", "simple"]),
        ([], ["consumer"], []),
        (["stable"], ["classic", "share"], ["orders-readers"]),
        (["nonsense"], [], []),
    ],
)
def test_listing_groups(states: list[str], types: list[str], found: list[str]) -> None:
    c = Coordinator()
    c.stable()
    c.commit({("orders", 0): 1}, group_id="simple")
    listed = c.groups.list_groups(states, types)
    assert [group.group_id for group in listed] == found


@pytest.mark.parametrize("key", [8, 9, 11, 12, 13, 14, 15, 16, 42, 47])
def test_every_request_can_be_refused_in_every_version(key: int) -> None:
    served = API[key]
    for version in range(served.versions.first, served.versions.last + 1):
        refusal = refuse(served.request(), ErrorCode.NOT_COORDINATOR, version)
        assert type(refusal) is served.response
        encode(refusal, version)


def test_heartbeats_are_not_refused_while_groups_are_loaded() -> None:
    assert refuse(HeartbeatRequest(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 4).error_code == 0  # type: ignore[attr-defined]
    assert refuse(HeartbeatRequest(), ErrorCode.NOT_COORDINATOR, 4).error_code == ErrorCode.NOT_COORDINATOR  # type: ignore[attr-defined]

"""Every record that a coordinator writes, read by Kafka's own classes, which write the same bytes again."""

from __future__ import annotations

import base64
import struct

import pytest

from peers import home
from peers.oracle import WireOracle
from tests.kits.groupkit import GROUP, Coordinator, subscription
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

pytestmark = pytest.mark.jvm

KINDS = {1: "OffsetCommit", 2: "GroupMetadata"}


def a_life() -> Coordinator:
    """A group that has had all kinds of records."""
    c = Coordinator()
    c.commit({("orders", 0): 1, ("bestellungen-ä", 7): 2**40}, metadata="größe")
    c.commit({("orders", 1): 3}, retention_ms=60_000, version=4)
    partition = OffsetCommitRequestPartition(
        partition_index=2, committed_offset=4, committed_leader_epoch=5, committed_metadata=None
    )
    topic = OffsetCommitRequestTopic(name="orders", topic_id=bytes(range(16)), partitions=[partition])
    c.carry_out(c.groups.commit_offsets(OffsetCommitRequest(group_id=GROUP, topics=[topic]), 10, c.now_ms, "t"))
    dynamic, static = c.new_member(), c.join(instance_id="a")
    c.pass_ms(6_000)
    leader, follower = dynamic[0], c.joined(static).member_id
    c.sync(leader, 1, {leader: b"all", follower: b""})
    c.join(instance_id="a")
    c.leave(leader, ("", "a"))
    c.delete_group()
    return c


def test_kafka_reads_what_is_written() -> None:
    records = a_life().committed()
    assert len(records) == 12
    seen = set()
    with WireOracle(home.KAFKA_KRAFT) as oracle:
        for key, value in records:
            (kind,) = struct.unpack_from(">h", key)
            told, again = oracle.decode(KINDS[kind] + "Key", 0, key[2:])
            assert (told["group"], again) == (GROUP, key[2:])
            if value is None:
                continue
            (version,) = struct.unpack_from(">h", value)
            seen.add((KINDS[kind], version))
            told, again = oracle.decode(KINDS[kind] + "Value", version, value[2:])
            assert again == value[2:]
            for member in told.get("members", ()):
                assert base64.b64decode(member["subscription"]) == subscription("orders")
    assert seen == {("OffsetCommit", 1), ("OffsetCommit", 4), ("GroupMetadata", 3)}

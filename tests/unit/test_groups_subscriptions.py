"""What members read: found out when it is asked for, some members at a time, and at no rebalance."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.groupkit import GROUP, Coordinator, group_config, subscription
from tidelog.errors import ErrorCode
from tidelog.groups import subscriptions
from tidelog.wire.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

RETENTION_MS = group_config().offsets_retention_ms
LONG_MS = 1_800_000


class _Reads:
    """Counts the subscriptions that are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._decode_from = subscriptions.decode_from
        monkeypatch.setattr(subscriptions, "decode_from", self.decode_from)

    def decode_from(self, *arguments: Any) -> Any:
        self.count += 1
        return self._decode_from(*arguments)


def _delete(c: Coordinator, topic: str) -> int:
    """The error for partition 0 of the topic."""
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=[OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])],
    )
    c.delete_offsets(request, ("delete", c.now_ms, topic))
    code: int = c.answers["delete", c.now_ms, topic].topics[0].partitions[0].error_code
    return code


def test_no_rebalance_and_no_fail_over_reads_what_members_subscribe_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a megabyte of metadata for each member that would take long."""
    reads = _Reads(monkeypatch)
    c = Coordinator()
    leader, follower = c.stable(2)
    c.join(leader)
    c.join(follower)
    c.fail_over()
    assert reads.count == 0
    assert _delete(c, "orders") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert reads.count == 2


def test_members_are_read_some_at_a_time() -> None:
    c = Coordinator()
    c.stable(5)
    reads = c.groups.subscriptions(GROUP, ["orders", "refunds"])
    steps = 0
    while not reads.is_complete:
        assert reads.look(2) <= 2
        steps += 1
    assert steps == 3
    assert (reads.reads("orders"), reads.reads("refunds")) == (True, False)


def test_a_large_subscription_counts_for_more() -> None:
    c = Coordinator()
    c.stable(2, protocols={"range": subscription(*(f"t{number}" for number in range(20_000)))})
    reads = c.groups.subscriptions(GROUP, ["t7"])
    assert reads.look(50) > 50
    assert not reads.is_complete, "the other member waits for the next slice"


def test_who_joins_while_members_are_read_is_read_too() -> None:
    c = Coordinator()
    leader, _ = c.stable(2)
    reads = c.groups.subscriptions(GROUP, ["refunds"])
    reads.look(10)
    assert reads.is_complete
    c.join(leader, protocols={"range": subscription("refunds")})
    assert c.state() == "PreparingRebalance"
    assert not reads.is_complete
    reads.look(10)
    assert reads.is_complete
    assert reads.reads("refunds")


def test_a_member_with_another_protocol_reads_what_any_of_its_protocols_names() -> None:
    """The group has not agreed on one with it."""
    c = Coordinator()
    member, _ = c.new_member(protocols={"range": subscription("orders"), "sticky": subscription("refunds")})
    assert c.state() == "PreparingRebalance"
    assert _delete(c, "refunds") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert _delete(c, "orders") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    c.pass_ms(3_000)
    c.sync(member, 1)
    assert _delete(c, "refunds") == ErrorCode.NONE


def test_a_subscription_with_too_many_topics_counts_as_one_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group rebalances all the same: only its members have to understand it."""
    monkeypatch.setattr(subscriptions, "MAX_TOPICS", 2)
    c = Coordinator()
    (member,) = c.stable(protocols={"range": subscription("a", "b", "c")}, session_ms=LONG_MS)
    c.commit({("refunds", 0): 8}, member, 1)
    assert _delete(c, "refunds") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    c.now_ms += RETENTION_MS
    c.expire_offsets()
    assert c.offsets() == {("refunds", 0): 8}
    c.join(member, protocols={"range": subscription("a", "b")}, session_ms=LONG_MS)
    c.sync(member, 2)
    assert _delete(c, "refunds") == ErrorCode.NONE

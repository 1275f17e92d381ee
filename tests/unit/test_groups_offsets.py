"""OffsetCommit, OffsetFetch and OffsetDelete: who may commit, when it counts, what is told of it."""

from __future__ import annotations

import pytest

from tests.kits.groupkit import GROUP, Coordinator, group_config, subscription
from tidelog.errors import ErrorCode
from tidelog.groups import LargeCommit, fetch_error, fetch_response, fetched_groups
from tidelog.wire.codec import decode, encode
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

ORDERS = ("orders", 0)


def delete_offsets(c: Coordinator, *partitions: tuple[str, int], group_id: str = GROUP) -> OffsetDeleteResponse:
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index)])
            for topic, index in partitions
        ],
    )
    ticket = f"delete {len(c.answers)}"
    c.delete_offsets(request, ticket)
    answer = c.answers[ticket]
    assert isinstance(answer, OffsetDeleteResponse)
    return answer


@pytest.mark.parametrize("version", range(2, 10))
def test_who_is_in_no_group_commits_to_a_group_of_its_own(version: int) -> None:
    c = Coordinator()
    assert c.error(c.commit({ORDERS: 7, ("orders", 1): 8, ("refunds", 0): 9}, version=version)) == ErrorCode.NONE
    assert c.offsets() == {ORDERS: 7, ("orders", 1): 8, ("refunds", 0): 9}
    (listed,) = c.groups.list_groups()
    assert (listed.group_state, listed.protocol_type, listed.group_type) == ("Empty", "", "classic")


def test_the_empty_group_id_can_commit_and_fetch() -> None:
    c = Coordinator()
    assert c.error(c.commit({ORDERS: 7}, group_id="")) == ErrorCode.NONE
    assert c.offsets(group_id="") == {ORDERS: 7}


@pytest.mark.parametrize(
    ("member_id", "generation", "error"),
    [
        ("reader-0001", 1, ErrorCode.NONE),
        ("reader-0001", 0, ErrorCode.ILLEGAL_GENERATION),
        ("reader-0001", 2, ErrorCode.ILLEGAL_GENERATION),
        ("reader-0001", -1, ErrorCode.ILLEGAL_GENERATION),
        ("stranger", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_commit_to_a_group_with_members(member_id: str, generation: int, error: ErrorCode) -> None:
    c = Coordinator()
    c.stable()
    assert c.error(c.commit({ORDERS: 7}, member_id, generation)) == error
    assert c.offsets() == ({} if error else {ORDERS: 7})


def test_anybody_may_commit_without_a_generation_to_an_empty_group() -> None:
    c = Coordinator()
    (member,) = c.stable()
    c.leave(member)
    assert c.error(c.commit({ORDERS: 7}, "stranger", -1)) == ErrorCode.NONE
    assert c.error(c.commit({ORDERS: 8}, member, 1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert c.offsets() == {ORDERS: 7}


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_generation_of_a_group_that_is_not_there(version: int, error: ErrorCode) -> None:
    c = Coordinator()
    assert c.error(c.commit({ORDERS: 7}, "stranger", 1, version=version)) == error
    assert c.groups.list_groups() == []


def test_metadata_that_is_too_long_is_refused_partition_by_partition() -> None:
    c = Coordinator(group_config(offset_metadata_max_bytes=10))
    assert c.error(c.commit({ORDERS: 7}, metadata="0123456789")) == ErrorCode.NONE
    written = len(c.log)
    assert c.error(c.commit({ORDERS: 8}, metadata="0123456789a")) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert c.error(c.commit({ORDERS: 8}, metadata="\U0001f600" * 5)) == ErrorCode.NONE
    assert c.error(c.commit({ORDERS: 9}, metadata="\U0001f600" * 6)) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert len(c.log) == written + 1
    partitions = [
        OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="x" * 11),
        OffsetCommitRequestPartition(partition_index=1, committed_offset=2, committed_metadata=None),
    ]
    request = OffsetCommitRequest(
        group_id=GROUP, topics=[OffsetCommitRequestTopic(name="orders", partitions=partitions)]
    )
    c.carry_out(c.groups.commit_offsets(request, 9, c.now_ms, "mixed"))
    errors = [partition.error_code for partition in c.answers["mixed"].topics[0].partitions]
    assert errors == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert c.offsets() == {ORDERS: 8, ("orders", 1): 2}


def test_a_commit_counts_when_it_is_stored() -> None:
    c = Coordinator(hold=True)
    ticket = c.commit({ORDERS: 7})
    assert ticket not in c.answers
    assert c.offsets() == {}
    c.settle()
    assert c.error(ticket) == ErrorCode.NONE
    assert c.offsets() == {ORDERS: 7}


def test_a_commit_that_cannot_be_stored_leaves_nothing() -> None:
    c = Coordinator(hold=True)
    ticket = c.commit({ORDERS: 7, ("orders", 1): 8})
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    errors = [partition.error_code for partition in c.answers[ticket].topics[0].partitions]
    assert errors == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert c.offsets() == {}
    assert c.groups.list_groups() == []


def test_a_commit_that_is_stored_late_counts() -> None:
    c = Coordinator(hold=True)
    ticket = c.commit({ORDERS: 7})
    c.settle(ErrorCode.REQUEST_TIMED_OUT)
    assert c.error(ticket) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.offsets() == {}
    c.settle()
    assert c.offsets() == {ORDERS: 7}


def test_the_order_of_the_log_decides_whatever_is_settled_first() -> None:
    c = Coordinator(hold=True)
    for offset in (7, 5, 6):
        c.commit({ORDERS: offset})
    first, second, third = c.waiting_writes()
    c.settle(ErrorCode.NONE, second)
    assert c.offsets() == {ORDERS: 5}
    c.settle(ErrorCode.NONE, first)
    assert c.offsets() == {ORDERS: 5}
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS, third)
    assert c.offsets() == {ORDERS: 5}
    c.commit({ORDERS: 4})
    c.settle()
    assert c.offsets() == {ORDERS: 4}, "offsets may go back"


@pytest.mark.parametrize("large", [False, True])
def test_of_a_partition_that_is_committed_twice_in_one_request_the_last_counts(large: bool) -> None:
    """As in the log: the answer is the same after a fail-over."""
    c = Coordinator(hold=True)
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset) for offset in (5, 3, 10, 7)]
    request = OffsetCommitRequest(
        group_id=GROUP, topics=[OffsetCommitRequestTopic(name="orders", partitions=partitions)]
    )
    if large:
        whole = LargeCommit(request, c.config, c.groups.usage, None, c.now_ms)
        whole.read(request.topics)
        c.carry_out(c.groups.commit_large(whole, 9, c.now_ms, "ticket"))
    else:
        c.carry_out(c.groups.commit_offsets(request, 9, c.now_ms, "ticket"))
    c.commit({ORDERS: 1})
    c.settle()
    assert [p.error_code for p in c.answers["ticket"].topics[0].partitions] == [0] * 4
    assert c.offsets() == {ORDERS: 7}
    c.fail_over()
    assert c.offsets() == {ORDERS: 7}


# Very many partitions


WIDE = {("orders", index): 7 for index in range(5)} | {("refunds", 0): 7}


def _again(offset: int) -> dict[tuple[str, int], int]:
    return dict.fromkeys(WIDE, offset)


def test_a_large_commit_is_one_write_and_seen_whole() -> None:
    c = Coordinator(hold=True)
    ticket = c.commit(WIDE, large=True)
    assert len(c.waiting_writes()) == 1
    assert (ticket in c.answers, c.offsets()) == (False, {})
    c.settle(ErrorCode.REQUEST_TIMED_OUT)
    assert c.error(ticket) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.offsets() == {}
    c.settle()
    assert c.offsets() == WIDE
    refused = c.commit(_again(8), large=True, metadata="note")
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    codes = {p.error_code for topic in c.answers[refused].topics for p in topic.partitions}
    assert codes == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert c.offsets() == WIDE
    c.commit(_again(9), large=True, metadata="note")
    c.settle()
    assert c.offsets() == _again(9)
    c.fail_over()
    assert c.offsets() == _again(9)


def test_a_large_commit_that_fails_leaves_no_group() -> None:
    c = Coordinator(hold=True)
    c.commit(WIDE, large=True)
    c.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert c.groups.list_groups() == []


def test_large_and_small_commits_count_in_the_order_of_the_log() -> None:
    c = Coordinator(hold=True)
    c.commit({ORDERS: 1})
    c.commit(WIDE, large=True)
    c.commit({ORDERS: 3})
    c.commit(_again(4), large=True)
    seen = []
    for _ in range(4):
        c.settle()
        seen.append(c.offsets())
    assert seen == [{ORDERS: 1}, WIDE, WIDE | {ORDERS: 3}, _again(4)]


def test_a_large_commit_is_allowed_or_not_when_it_is_written() -> None:
    c = Coordinator()
    (member,) = c.stable()
    assert c.error(c.commit(WIDE, large=True)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert c.error(c.commit(WIDE, member, 0, large=True)) == ErrorCode.ILLEGAL_GENERATION
    assert c.error(c.commit(WIDE, member, 1, large=True)) == ErrorCode.NONE
    assert c.error(c.commit(WIDE, "m", 1, group_id="none", large=True)) == ErrorCode.GROUP_ID_NOT_FOUND


def test_what_a_large_commit_is_about_to_store_is_deleted_with_its_topic_and_its_group() -> None:
    c = Coordinator(hold=True)
    c.commit(WIDE, large=True)
    c.delete_topics("orders")
    c.delete_group()
    for entry in c.waiting_writes():
        c.settle(ErrorCode.NONE, entry)
    assert c.groups.list_groups() == []
    c.fail_over()
    assert c.groups.list_groups() == []


def test_what_a_large_commit_is_about_to_store_does_not_expire() -> None:
    c = Coordinator()
    c.commit(WIDE)
    c.now_ms += c.config.offsets_retention_ms
    c.hold = True
    c.commit(_again(8), large=True)
    c.expire_offsets()
    c.settle()
    assert c.waiting_writes() == []
    assert c.offsets() == _again(8)


def test_a_snapshot_does_not_change() -> None:
    c = Coordinator()
    c.commit(WIDE)
    all_of_it, some = c.answers[c.snapshot()], c.answers[c.snapshot("refunds", "none")]
    c.commit(_again(8), large=True)
    assert {(topic, p): v.offset for topic, values in all_of_it.items() for p, v in values.items()} == WIDE
    assert {(topic, p): v.offset for topic, values in some.items() for p, v in values.items()} == {("refunds", 0): 7}
    c.hold = True
    c.commit(_again(9), large=True)
    stable = c.snapshot("refunds", require_stable=True)
    fetched = c.fetch({"orders": [4]}, require_stable=True)
    assert stable not in c.answers
    assert fetched not in c.answers
    for _ in range(3):
        c.settle()
    assert c.answers[stable]["refunds"][0].offset == 9
    assert c.answers[fetched].topics[0].partitions[0].committed_offset == 9


def test_a_snapshot_of_offsets_that_cannot_be_stable_is_an_error() -> None:
    c = Coordinator(hold=True)
    c.commit(WIDE, large=True)
    ticket = c.snapshot(require_stable=True)
    c.fail_over()
    assert c.answers[ticket] is ErrorCode.NOT_COORDINATOR


# Groups and their members


def test_a_simple_group_gets_members() -> None:
    c = Coordinator()
    c.commit({ORDERS: 7})
    (member,) = c.stable()
    assert c.error(c.commit({ORDERS: 8})) == ErrorCode.UNKNOWN_MEMBER_ID
    c.commit({ORDERS: 9}, member, 1)
    assert c.offsets() == {ORDERS: 9}


def test_a_group_fetches_what_it_asks_for() -> None:
    c = Coordinator()
    c.commit({ORDERS: 7, ("refunds", 3): 8}, metadata="note")
    group = c.answers[c.fetch({"orders": [0, 1], "other": [0]})]
    assert isinstance(group, OffsetFetchResponseGroup)
    told = [
        (topic.name, p.partition_index, p.committed_offset, p.metadata, p.error_code)
        for topic in group.topics
        for p in topic.partitions
    ]
    assert told == [("orders", 0, 7, "note", 0), ("orders", 1, -1, "", 0), ("other", 0, -1, "", 0)]


def test_a_group_that_is_not_there_has_no_offsets() -> None:
    c = Coordinator()
    group = c.answers[c.fetch({"orders": [0]})]
    assert (group.error_code, group.topics[0].partitions[0].committed_offset) == (ErrorCode.NONE, -1)
    assert c.answers[c.fetch()].topics == []


def test_who_requires_stable_offsets_waits_for_commits_under_way() -> None:
    c = Coordinator()
    c.commit({ORDERS: 7})
    c.hold = True
    c.commit({ORDERS: 8})
    assert c.answers[c.fetch({"orders": [0]})].topics[0].partitions[0].committed_offset == 7
    other = c.fetch({"orders": [1]}, require_stable=True)
    assert other in c.answers
    waiting = [c.fetch({"orders": [0]}, require_stable=True), c.fetch(require_stable=True)]
    assert not any(ticket in c.answers for ticket in waiting)
    assert [entry.write.records for entry in c.waiting_writes()][1:] == [[], []]
    for _ in range(3):
        c.settle()
    told = [c.answers[ticket].topics[0].partitions[0].committed_offset for ticket in waiting]
    assert told == [8, 8]


def test_who_requires_stable_offsets_and_cannot_get_them_asks_elsewhere() -> None:
    c = Coordinator(hold=True)
    c.commit({ORDERS: 8})
    ticket = c.fetch({"orders": [0]}, require_stable=True)
    c.settle(ErrorCode.REQUEST_TIMED_OUT, c.waiting_writes()[1])
    assert c.answers[ticket].error_code == ErrorCode.NOT_COORDINATOR
    c.settle()
    c.settle()


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_can_fetch(version: int) -> None:
    c = Coordinator()
    c.commit({ORDERS: 7}, metadata="note")
    if version >= 8:
        asked = OffsetFetchRequestTopics(name="orders", topic_id=b"i" * 16, partition_indexes=[0])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])])
    else:
        topic = OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
        request = OffsetFetchRequest(group_id=GROUP, topics=[topic])
    request = decode(OffsetFetchRequest, encode(request, version), version)
    (group,) = fetched_groups(request, version)
    assert group.topics is not None
    group.topics[0].name = "orders"
    c.carry_out(c.groups.fetch_offsets(group, version, c.now_ms, "t", require_stable=False))
    sent = encode(fetch_response([c.answers["t"]], version), version)
    response = decode(OffsetFetchResponse, sent, version)
    told = response.groups[0].topics[0] if version >= 8 else response.topics[0]
    assert [(p.committed_offset, p.metadata) for p in told.partitions] == [(7, "note")]
    refusal = fetch_response([fetch_error(group, ErrorCode.NOT_COORDINATOR, version)], version)
    refusal = decode(OffsetFetchResponse, encode(refusal, version), version)
    if version == 1:
        assert refusal.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    elif version < 8:
        assert refusal.error_code == ErrorCode.NOT_COORDINATOR
    else:
        assert refusal.groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_all_topics_are_asked_for_with_null() -> None:
    request = decode(OffsetFetchRequest, encode(OffsetFetchRequest(group_id=GROUP, topics=None), 5), 5)
    assert fetched_groups(request, 5) == [OffsetFetchRequestGroup(group_id=GROUP, topics=None)]


def test_what_was_committed_for_a_topic_of_the_same_name_does_not_count() -> None:
    c = Coordinator()
    old, new, none = b"o" * 16, b"n" * 16, bytes(16)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    topic = OffsetCommitRequestTopic(name="orders", topic_id=old, partitions=[partition])
    request = OffsetCommitRequest(group_id=GROUP, topics=[topic])
    c.carry_out(c.groups.commit_offsets(request, 10, c.now_ms, "commit"))
    assert c.answers["commit"].topics[0].topic_id == old
    c.fail_over()
    for topic_id, offset in ((old, 7), (new, -1), (none, 7)):
        asked = OffsetFetchRequestTopics(name="orders", topic_id=topic_id, partition_indexes=[0])
        group = OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])
        c.carry_out(c.groups.fetch_offsets(group, 10, c.now_ms, topic_id, require_stable=False))
        told = c.answers[topic_id].topics[0]
        assert (told.topic_id, told.partitions[0].committed_offset) == (topic_id, offset)


def test_offsets_of_topics_that_are_read_are_not_deleted() -> None:
    c = Coordinator()
    (member,) = c.stable(protocols={"range": subscription("orders")})
    c.commit({ORDERS: 7, ("refunds", 0): 8}, member, 1)
    response = delete_offsets(c, ORDERS, ("refunds", 0), ("refunds", 5))
    errors = [(topic.name, topic.partitions[0].error_code) for topic in response.topics]
    assert errors == [("orders", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC), ("refunds", 0), ("refunds", 0)]
    assert c.offsets() == {ORDERS: 7}
    c.leave(member)
    assert delete_offsets(c, ORDERS).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert c.offsets() == {}


def test_subscriptions_that_cannot_be_read_could_be_for_everything() -> None:
    c = Coordinator()
    (member,) = c.stable(protocols={"range": b"\x00"})
    c.commit({ORDERS: 7}, member, 1)
    response = delete_offsets(c, ORDERS)
    assert response.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_when_no_offsets_can_be_deleted() -> None:
    c = Coordinator()
    assert delete_offsets(c, ORDERS).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert delete_offsets(c, ORDERS, group_id="").error_code == ErrorCode.INVALID_GROUP_ID
    c.join(protocol_type="connect", protocols={"v1": b""}, version=3)
    assert delete_offsets(c, ORDERS).error_code == ErrorCode.NON_EMPTY_GROUP


def test_deleting_is_answered_when_it_is_stored() -> None:
    c = Coordinator()
    c.commit({ORDERS: 7})
    c.hold = True
    topic = OffsetDeleteRequestTopic(name="orders", partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    request = OffsetDeleteRequest(group_id=GROUP, topics=[topic])
    c.delete_offsets(request, "t")
    assert "t" not in c.answers
    c.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert c.answers["t"].error_code == ErrorCode.NOT_COORDINATOR
    assert c.offsets() == {ORDERS: 7}

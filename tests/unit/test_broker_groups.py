"""The group coordinator on one broker: requests find it, records hold what it knows, time acts on it."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.memberkit import (
    COMMIT,
    FETCH,
    FIND,
    GROUP,
    MemberKit,
    commit_request,
    coordinator_of,
    ready,
    stable_generation,
)
from tidelog.broker.group.writes import Writes
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.errors import ErrorCode
from tidelog.groups import partition_of
from tidelog.lab.broker import eventually
from tidelog.log.log import Log
from tidelog.log.reading import Region
from tidelog.net.calling import Connection
from tidelog.types import Buffer, TopicPartition
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidelog.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
)
from tidelog.wire.messages.metadata import FindCoordinatorRequest

ONE = {
    "offsets_topic_replication_factor": "1",
    "offsets_topic_num_partitions": "5",
    "transaction_state_log_replication_factor": "1",
    "transaction_state_log_min_isr": "1",
    "transaction_state_log_num_partitions": "3",
    "group_initial_rebalance_delay_ms": "0",
}


async def _stable(kit: Kit, count: int = 1) -> list[MemberKit]:
    """Members that have joined and synced together."""
    await ready(kit)
    members = [MemberKit(kit, f"m{number}") for number in range(count)]
    await asyncio.gather(*(member.live(lambda: len(stable_generation(members)) == 1) for member in members))
    return members


# Finding


def test_the_first_who_looks_for_a_coordinator_has_the_topic_created() -> None:
    async def story(kit: Kit) -> None:
        assert kit.broker.metadata.topic(GROUP_OFFSETS_TOPIC) is None
        assert await coordinator_of(kit) == 1
        topic = kit.broker.metadata.topic(GROUP_OFFSETS_TOPIC)
        assert topic is not None
        assert len(topic.partitions) == 5
        config = kit.broker.dynamic_config.topic_config(GROUP_OFFSETS_TOPIC)
        assert (config["cleanup.policy"], config["compression.type"]) == (("compact",), "producer")
        assert config["segment.bytes"] == 104_857_600

    run(story, **ONE)


@pytest.mark.parametrize("version", range(7))
def test_coordinators_of_groups_and_of_transactions_in_every_version(version: int) -> None:
    async def story(kit: Kit) -> None:
        for key_type in (0, 1) if version >= 1 else (0,):
            keys = {"coordinator_keys": [GROUP, "h"]} if version >= 4 else {"key": GROUP}
            request = FindCoordinatorRequest(key_type=key_type, **keys)
            answer = await kit.call(request, version)
            found = answer.coordinators if version >= 4 else [answer]
            assert [(one.error_code, one.node_id, one.host) for one in found] == [(0, 1, "b1")] * len(found)
        assert (kit.broker.metadata.topic(TRANSACTION_STATE_TOPIC) is not None) == (version >= 1)

    run(story, **ONE)


@pytest.mark.parametrize(
    ("key", "key_type", "code"),
    [
        ("", 0, ErrorCode.INVALID_GROUP_ID),
        ("", 1, ErrorCode.INVALID_REQUEST),
        ("g:topic:0", 2, ErrorCode.INVALID_REQUEST),
        ("g", 7, ErrorCode.INVALID_REQUEST),
    ],
)
def test_keys_that_have_no_coordinator(key: str, key_type: int, code: ErrorCode) -> None:
    async def story(kit: Kit) -> None:
        answer = await kit.call(FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type), FIND)
        assert (answer.coordinators[0].error_code, answer.coordinators[0].node_id) == (code, -1)

    run(story, **ONE)


def test_ids_that_are_too_long_are_refused_and_cut_in_the_answers() -> None:
    """Answers that repeat very many of these would be as large as the requests."""

    async def story(kit: Kit) -> None:
        await ready(kit)
        long, cut = "x" * 30_000, "x" * 1_024
        invalid = (cut, ErrorCode.INVALID_GROUP_ID)
        for key_type, code in ((0, ErrorCode.INVALID_GROUP_ID), (1, ErrorCode.INVALID_REQUEST)):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[long, cut])
            found = (await kit.call(request, FIND)).coordinators
            assert [(one.key, one.error_code) for one in found] == [(cut, code), (cut, ErrorCode.NONE)]
        described = (await kit.call(DescribeGroupsRequest(groups=[long]), 6)).groups
        assert [(one.group_id, one.error_code) for one in described] == [invalid]
        deleted = (await kit.call(DeleteGroupsRequest(groups_names=[long]), 2)).results
        assert [(one.group_id, one.error_code) for one in deleted] == [invalid]
        for count in (1, 30):
            groups = [OffsetFetchRequestGroup(group_id=f"{long}{n}", topics=None) for n in range(count)]
            fetched = (await kit.call(OffsetFetchRequest(groups=groups), FETCH)).groups
            assert [(one.group_id, one.error_code) for one in fetched] == [invalid] * count

    run(story, **ONE)


def test_too_few_brokers_for_the_topic_is_no_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    async def story(kit: Kit) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            began_s = loop.time()
            answer = await kit.call(FindCoordinatorRequest(coordinator_keys=[GROUP]), FIND)
            assert answer.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert loop.time() - began_s < 0.2, "the fetches that are sent behind it would wait as long"
        assert kit.broker.metadata.topic(GROUP_OFFSETS_TOPIC) is None

    run(story, offsets_topic_replication_factor="3")
    assert caplog.text.count("cannot create") == 1, "clients decide how often they ask"


def test_who_asks_before_anything_is_there_hears_that_this_is_not_the_coordinator() -> None:
    async def story(kit: Kit) -> None:
        assert await MemberKit(kit).join() is ErrorCode.NOT_COORDINATOR
        assert await MemberKit(kit).committed() is ErrorCode.NOT_COORDINATOR

    run(story, **ONE)


# Members


def test_members_join_sync_and_live() -> None:
    async def story(kit: Kit) -> None:
        members = await _stable(kit, 3)
        for member in members:
            assert await member.heartbeat() is ErrorCode.NONE
        assert await members[0].leave() is ErrorCode.NONE
        assert await members[1].heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        codes = await asyncio.gather(members[1].join(), members[2].join())
        assert codes == [ErrorCode.NONE] * 2
        assert sorted(len(one.members) for one in members[1:]) == [0, 2]

    run(story, **ONE)


def test_who_is_not_heard_of_is_out() -> None:
    async def story(kit: Kit) -> None:
        silent, alive = await _stable(kit, 2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while await alive.heartbeat() is ErrorCode.NONE:
            await asyncio.sleep(1)
        assert 9 <= loop.time() - began <= 11.5, "session.timeout.ms is 10 s here"
        assert await alive.join() is ErrorCode.NONE
        assert alive.members == [alive.id]
        assert await silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID

    run(story, **ONE)


# Offsets


def test_what_is_committed_is_there_after_a_restart_and_the_members_too() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 3)
        (member,) = await _stable(kit)
        assert await member.commit(42) is ErrorCode.NONE
        assert await member.commit(7, index=2) is ErrorCode.NONE
        kit.kill()
        await kit.start()
        await ready(kit)
        assert await member.heartbeat() is ErrorCode.NONE, "the group was loaded with its members"
        assert await member.committed() == 42
        assert await member.committed(index=2) == 7
        assert await member.committed(index=1) == -1, "no offset is not 0"
        assert await member.commit(43) is ErrorCode.NONE

    run(story, **ONE)


def test_what_does_not_exist_is_refused_and_the_rest_is_committed() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        request = commit_request(GROUP, {("t", 0): 5, ("t", 1): 6, ("nowhere", 0): 7})
        answer = await kit.call(request, COMMIT)
        codes = {
            (topic.name, one.partition_index): ErrorCode(one.error_code)
            for topic in answer.topics
            for one in topic.partitions
        }
        assert codes == {
            ("t", 0): ErrorCode.NONE,
            ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await MemberKit(kit).committed() == 5
        only_unknown = await kit.call(commit_request(GROUP, {("nowhere", 0): 7}), COMMIT)
        assert only_unknown.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(story, **ONE)


def test_topics_by_their_ids() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic("t", 1)
        await ready(kit)
        unknown = b"?" * 16
        partition = [OffsetCommitRequestPartition(partition_index=0, committed_offset=9)]
        request = OffsetCommitRequest(
            group_id=GROUP,
            topics=[OffsetCommitRequestTopic(topic_id=one, partitions=partition) for one in (topic_id, unknown)],
        )
        answer = await kit.call(request, 10)
        assert {topic.topic_id: topic.partitions[0].error_code for topic in answer.topics} == {
            topic_id: ErrorCode.NONE,
            unknown: ErrorCode.UNKNOWN_TOPIC_ID,
        }
        for wanted in (
            [OffsetFetchRequestTopics(topic_id=one, partition_indexes=[0]) for one in (topic_id, unknown)],
            None,
        ):
            fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=wanted)])
            (group,) = (await kit.call(fetch, 10)).groups
            found = {topic.topic_id: topic.partitions[0] for topic in group.topics}
            assert (found[topic_id].committed_offset, found[topic_id].error_code) == (9, 0)
            if wanted is not None:
                assert found[unknown].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(story, **ONE)


def test_the_offsets_of_a_deleted_topic_are_gone_and_its_namesake_has_none() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await kit.create_topic("u", 1)
        await ready(kit)
        member = MemberKit(kit)
        for topic in ("t", "u"):
            assert (await kit.call(commit_request(GROUP, {(topic, 0): 5}), COMMIT)).topics[0].partitions[
                0
            ].error_code == 0
        await kit.delete_topic("t")
        await eventually(lambda: kit.broker.metadata.topic("t") is None)
        await kit.create_topic("t", 1)
        assert await member.committed("t") == -1
        assert await member.committed("u") == 5
        await kit.restart()
        await ready(kit)
        assert await member.committed("t") == -1

    run(story, **ONE)


def test_many_groups_in_one_fetch_of_offsets() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        groups = [f"group {number}" for number in range(8)]
        for number, group in enumerate(groups):
            await kit.call(commit_request(group, {("t", 0): number}), COMMIT)
        assert len({partition_of(group, 5) for group in groups}) > 1
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups])
        answer = await kit.call(request, FETCH)
        assert [group.topics[0].partitions[0].committed_offset for group in answer.groups] == list(range(8))
        assert (await kit.call(OffsetFetchRequest(groups=[]), FETCH)).groups == []

    run(story, **ONE)


def test_old_offsets_expire_and_their_group_with_them() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        await kit.call(commit_request(GROUP, {("t", 0): 5}), COMMIT)
        await asyncio.sleep(60)
        assert await MemberKit(kit).committed() == 5
        await asyncio.sleep(70)
        assert await MemberKit(kit).committed() == -1
        assert (await kit.call(ListGroupsRequest(), 5)).groups == []
        await kit.restart()
        await ready(kit)
        assert (await kit.call(ListGroupsRequest(), 5)).groups == []

    run(story, offsets_retention_minutes="2", offsets_retention_check_interval_ms="1000", **ONE)


# Administration


def test_groups_are_listed_described_and_deleted() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        (member,) = await _stable(kit)
        await kit.call(commit_request("other", {("t", 0): 5}), COMMIT)
        listed = (await kit.call(ListGroupsRequest(), 5)).groups
        assert sorted((one.group_id, one.group_state, one.group_type) for one in listed) == [
            ("g", "Stable", "classic"),
            ("other", "Empty", "classic"),
        ]
        shown = kit.broker.metrics.text()
        prefix = "kafka_coordinator_group_groupmetadatamanager_numgroups"
        for name, count in (("", 2), ("stable", 1), ("empty", 1), ("preparingrebalance", 0)):
            assert f"{prefix}{name} {count}" in shown
        filtered = (await kit.call(ListGroupsRequest(states_filter=["Empty"]), 5)).groups
        assert [one.group_id for one in filtered] == ["other"]
        described = (await kit.call(DescribeGroupsRequest(groups=[GROUP, "nobody"]), 6)).groups
        assert (described[0].group_state, described[0].protocol_data) == ("Stable", "range")
        assert [(one.member_id, one.client_id) for one in described[0].members] == [(member.id, "kit")]
        assert described[0].members[0].client_host.startswith("/")
        assert described[1].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        deleted = (await kit.call(DeleteGroupsRequest(groups_names=[GROUP, "other", "nobody"]), 2)).results
        assert {one.group_id: ErrorCode(one.error_code) for one in deleted} == {
            GROUP: ErrorCode.NON_EMPTY_GROUP,
            "other": ErrorCode.NONE,
            "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        assert [one.group_id for one in (await kit.call(ListGroupsRequest(), 5)).groups] == [GROUP]
        assert (await kit.call(DeleteGroupsRequest(groups_names=[]), 2)).results == []

    run(story, **ONE)


def test_offsets_are_deleted_if_nobody_reads_them() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await kit.create_topic("u", 1)
        (member,) = await _stable(kit)
        assert await member.commit(5) is ErrorCode.NONE
        assert await member.commit(6, "u") is ErrorCode.NONE
        topics = [
            OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for name in ("t", "u")
        ]
        answer = await kit.call(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
        codes = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
        assert codes == {"t": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, "u": ErrorCode.NONE}
        assert (await member.committed("t"), await member.committed("u")) == (5, -1)

    run(story, **ONE)


# The log


def test_commits_of_one_turn_go_into_one_batch() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        connection = await kit.connect()
        answers = [connection.send(commit_request(GROUP, {("t", 0): number}), COMMIT) for number in range(20)]
        for answer in answers:
            assert (await answer).topics[0].partitions[0].error_code == 0
        log = kit.broker.replicas.partitions[TopicPartition(GROUP_OFFSETS_TOPIC, partition_of(GROUP, 5))].log
        assert log.log_end_offset == 20
        assert await MemberKit(kit).committed() == 19

    run(story, **ONE)


def test_a_write_that_fails_unexpectedly_does_not_keep_later_ones_from_being_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)

        def fail(*_: object) -> int:
            raise MemoryError

        async def commit(offset: int) -> int:
            answer = await kit.call(commit_request(GROUP, {("t", 0): offset}), COMMIT)
            return int(answer.topics[0].partitions[0].error_code)

        with monkeypatch.context() as patch:
            patch.setattr(Writes, "_append_records", fail)
            assert await commit(1) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert await commit(2) == 0
        assert await MemberKit(kit).committed("t") == 2

    run(story, **ONE)


def test_a_commit_that_is_too_large_for_the_log_is_refused_and_others_go_on() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        await kit.alter_topic(GROUP_OFFSETS_TOPIC, max_message_bytes="300")
        request = commit_request(GROUP, {("t", 0): 1})
        request.topics[0].partitions[0].committed_metadata = "x" * 400
        assert (await kit.call(request, COMMIT)).topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert await MemberKit(kit).committed() == -1
        assert (await kit.call(commit_request(GROUP, {("t", 0): 2}), COMMIT)).topics[0].partitions[0].error_code == 0
        assert await MemberKit(kit).committed() == 2

    run(story, **ONE)


def test_a_file_that_is_replaced_while_a_shard_loads_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_of, gone = Log.bytes_of, [True]

    async def replaced_once(self: Log, region: Region) -> Buffer:
        """As when compaction puts another file in its place between finding a region and reading it."""
        if self.partition.topic == GROUP_OFFSETS_TOPIC and region.size and gone:
            gone.pop()
            return b""
        return await bytes_of(self, region)

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        await kit.call(commit_request(GROUP, {("t", 0): 5}), COMMIT)
        monkeypatch.setattr(Log, "bytes_of", replaced_once)
        await kit.restart()
        await ready(kit)
        assert not gone
        assert await MemberKit(kit).committed() == 5

    run(story, **ONE)


def test_with_flush_messages_an_answered_commit_outlives_a_power_loss() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        await kit.alter_topic(GROUP_OFFSETS_TOPIC, flush_messages="1")
        for offset in range(5):
            await kit.call(commit_request(GROUP, {("t", 0): offset}), COMMIT)
        kit.lose_power()
        await kit.start()
        await ready(kit)
        assert await MemberKit(kit).committed() == 4

    run(story, **ONE)


# Names that clients choose


@pytest.mark.parametrize("version", [3, 5])
def test_a_long_client_id_spoils_nothing_for_others(version: int) -> None:
    """A member id is made of it, and has to fit into records and into the answers of all versions."""

    async def story(kit: Kit) -> None:
        await ready(kit)
        stranger = await Connection.open(kit.host_name, kit.port, client_id="c" * 32_767)
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=1_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="p")],
        )
        answer = await stranger.call(request, version, timeout_ms=5_000)
        if version >= 4:
            request.member_id = answer.member_id
            answer = await stranger.call(request, version, timeout_ms=5_000)
        assert answer.error_code == 0
        assert answer.member_id.startswith("c" * 255 + "-")
        for describing in (0, 6):
            described = (await kit.call(DescribeGroupsRequest(groups=[GROUP, GROUP]), describing)).groups
            assert [(group.group_id, len(group.members)) for group in described] == [(GROUP, 1)]
        stranger.close()

    run(story, **ONE)


def test_what_groups_keep_is_shown() -> None:
    async def story(kit: Kit) -> None:
        await ready(kit)
        await kit.create_topic("t")
        request = commit_request("g", {("t", 0): 1})
        request.topics[0].partitions[0].committed_metadata = "12345"
        assert (await kit.call(request, COMMIT)).topics[0].partitions[0].error_code == 0
        text = kit.broker.metrics.text()
        assert "kafka_coordinator_group_groupmetadatamanager_numoffsets 1\n" in text
        for line in ("offset_metadata_bytes 5", "pending_member_ids 0", "for_bounds_total 0"):
            assert f"tidelog_group_{line}\n" in text or f"tidelog_group_refused_{line}\n" in text

    run(story, **ONE)

"""What one request may ask for: how many elements, and each thing once. Large ones are served in slices, in order."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from tests.kits.brokerkit import FETCH_BY_NAME, Kit, fetch_request, fetched, produce_request, run
from tests.kits.logkit import batch
from tidelog.broker.handlers.metadata import MOST_CREATED
from tidelog.broker.handlers.refused_fetch import refused_fetch
from tidelog.errors import ErrorCode, TooManyElementsError, WireError
from tidelog.lab.broker import eventually
from tidelog.net.calling import Connection, ConnectionClosedError
from tidelog.wire import ZERO_UUID, Message
from tidelog.wire.frames import decode_request, decode_response, encode_request
from tidelog.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidelog.wire.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from tidelog.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest, MetadataRequestTopic
from tidelog.wire.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.wire.messages.topics import (
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)

FEW = {"tidelog_request_max_elements": "1000"}
ONE_OF_EACH = {"offsets_topic_replication_factor": "1", "offsets_topic_num_partitions": "2"}


def frame_of(request: Message, version: int) -> bytes:
    return b"".join(bytes(part) for part in encode_request(request, version, 7, "kit"))


def named(names: list[str]) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


# How many elements


def test_elements_of_all_arrays_count_together() -> None:
    request = fetch_request({("t", index): 0 for index in range(10)} | {("u", 0): 0})
    frame = frame_of(request, FETCH_BY_NAME)[4:]
    assert decode_request(frame, 13).request == request
    with pytest.raises(TooManyElementsError, match="more than 12 elements"):
        decode_request(frame, 12)


def test_tagged_fields_count_and_one_struct_has_at_most_a_thousand() -> None:
    request = named([])
    for tag in range(3):
        request.set_unknown_tagged_field(100 + tag, b"")
    with pytest.raises(TooManyElementsError):
        decode_request(frame_of(request, 9)[4:], 2)
    request._unknown = tuple((100 + tag, b"") for tag in range(1001))
    with pytest.raises(WireError, match="1001 tagged fields"):
        decode_request(frame_of(request, 9)[4:])


def test_a_large_unknown_tagged_field_is_skipped() -> None:
    request = named(["t"])
    request.set_unknown_tagged_field(100, bytes(65_537))
    decoded = decode_request(frame_of(request, 9)[4:]).request
    assert decoded.unknown_tagged_fields == ()
    assert decoded == named(["t"])


@pytest.mark.parametrize("count", [998, 5_000])
def test_too_many_elements_are_an_invalid_request_where_the_answer_has_an_error_for_all(count: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t")

        async def sizes(partitions: int) -> Any:
            topic = DescribableLogDirTopic(topic="t", partitions=list(range(partitions)))
            return await kit.call(DescribeLogDirsRequest(topics=[topic]), 3)

        assert (await sizes(count + 3)).error_code == ErrorCode.INVALID_REQUEST
        assert "too_many_elements_total 1" in kit.broker.metrics.text()
        allowed = await sizes(998)
        assert (allowed.error_code, len(allowed.results[0].topics[0].partitions)) == (0, 1)

    run(story, **FEW)


def test_other_requests_with_too_many_elements_end_their_connection() -> None:
    async def story(kit: Kit) -> None:
        with pytest.raises(ConnectionClosedError):
            await kit.call(named([str(number) for number in range(1001)]), 9)
        assert len((await kit.call(named([str(number) for number in range(1000)]), 9)).topics) == 1000

    run(story, **FEW)


@pytest.mark.parametrize("version", [8, 9, 10])
@pytest.mark.parametrize("count", [1_000, 30_000])
def test_a_fetch_of_too_many_offsets_is_an_invalid_request_of_each_group(version: int, count: int) -> None:
    """A client whose connection is closed would send the same again for ever."""

    async def story(kit: Kit) -> None:
        topic = OffsetFetchRequestTopics(partition_indexes=list(range(count)))
        topic.name, topic.topic_id = ("", b"t" * 16) if version >= 10 else ("t", ZERO_UUID)
        groups = [
            OffsetFetchRequestGroup(group_id=group_id, topics=topics)
            for group_id, topics in (("g\u00fc", [topic]), ("all", None), ("none", []), ("g\u00fc", [topic, topic]))
        ]
        if version >= 9:
            groups[0].member_id, groups[0].member_epoch = "m", 5
        groups[1].set_unknown_tagged_field(100, b"x" * 300)
        answer = await kit.call(OffsetFetchRequest(groups=groups), version)
        assert [(group.group_id, group.error_code) for group in answer.groups] == [
            (group_id, ErrorCode.INVALID_REQUEST) for group_id in ("g\u00fc", "all", "none")
        ]
        assert "too_many_elements_total 1" in kit.broker.metrics.text()

    run(story, **FEW)


@pytest.mark.parametrize("version", [1, 7])
def test_a_fetch_of_too_many_offsets_in_old_versions(version: int) -> None:
    """v1 has no place for the error but the partitions."""

    async def story(kit: Kit) -> None:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=list(range(1_000)))]
        request = OffsetFetchRequest(group_id="g", topics=topics)
        if version == 1:
            with pytest.raises(ConnectionClosedError):
                await kit.call(request, version)
        else:
            assert (await kit.call(request, version)).error_code == ErrorCode.INVALID_REQUEST

    run(story, **FEW)


def test_a_fetch_of_too_many_offsets_whose_groups_cannot_be_read_has_no_answer() -> None:
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=list(range(10)))
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="group", topics=[topic] * 3)])
    frame = frame_of(request, 9)[4:]
    assert refused_fetch(frame, 9) is not None
    header = len(frame_of(OffsetFetchRequest(), 9)[4:]) - 3
    for end in range(header, len(frame) - 2):
        assert refused_fetch(frame[:end], 9) is None, "it is cut"
    assert refused_fetch(frame[:header] + b"\xff" * 100_000, 9) is None, "a number that does not end"
    long = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g" * 1_025, topics=[])])
    assert refused_fetch(frame_of(long, 9)[4:], 9) is None
    many = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[])] * 20_000)
    assert refused_fetch(frame_of(many, 9)[4:], 9) is None, "to look at them all would take long"


@pytest.mark.parametrize("version", [1, 7, 9])
def test_a_consumer_of_very_many_partitions_gets_its_offsets_in_one_request(version: int) -> None:
    count = 30_000

    async def story(kit: Kit) -> None:
        await commit(kit, 3)
        indexes = list(range(count))
        if version >= 8:
            wanted = [OffsetFetchRequestTopics(name="t", partition_indexes=indexes)]
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)])
        else:
            old = [OffsetFetchRequestTopic(name="t", partition_indexes=indexes)]
            request = OffsetFetchRequest(group_id="g", topics=old)
        answer = await kit.call(request, version)
        (topic,) = answer.groups[0].topics if version >= 8 else answer.topics
        offsets = {partition.partition_index: partition.committed_offset for partition in topic.partitions}
        assert offsets == dict.fromkeys(indexes, -1) | {0: 0, 1: 1, 2: 2}

    run(story, **ONE_OF_EACH)


def test_a_large_fetch_of_offsets_in_v1_tells_an_error_of_each_partition() -> None:
    async def story(kit: Kit) -> None:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=list(range(2_500)))]
        answer = await kit.call(OffsetFetchRequest(group_id="g", topics=topics), 1)
        codes = [partition.error_code for topic in answer.topics for partition in topic.partitions]
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2_500

    run(story)


def test_some_requests_have_a_limit_of_their_own() -> None:
    async def story(kit: Kit) -> None:
        assert (await kit.call(ListGroupsRequest(states_filter=["Stable"] * 1000), 4)).error_code == 0
        answer = await kit.call(ListGroupsRequest(states_filter=["Stable"] * 1001), 4)
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    run(story)


def test_requests_that_brokers_send_each_other_are_not_bound_by_the_limit_for_clients() -> None:
    """A follower whose fetch is refused, or a controller that may not ask for log ends, would try the same for ever."""

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 2)
        many = {(f"unknown-{number}", 0): 0 for number in range(10_000)}
        answer = await kit.call(fetch_request(many | {("t", 0): 0}, max_wait_ms=0), FETCH_BY_NAME)
        assert (answer.error_code, len(answer.responses)) == (0, 10_001)
        wanted = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
        topics = [ListOffsetsTopic(name=topic, partitions=wanted) for topic, _ in many]
        assert len((await kit.call(ListOffsetsRequest(topics=topics), 7)).topics) == 10_000

    run(story, **FEW)


# Each thing once


def test_metadata_names_a_topic_once() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 3)
        answer = await kit.call(named(["t", "none", "t", "none", "t"]), 9)
        assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("t", 3), ("none", 0)]

    run(story)


def test_coordinators_groups_and_settings_are_told_once() -> None:
    async def story(kit: Kit) -> None:
        answer = await kit.call(FindCoordinatorRequest(coordinator_keys=["g", "h", "g"]), 4)
        assert [one.key for one in answer.coordinators] == ["g", "h"]
        await eventually(lambda: all(shard.is_active for shard in kit.broker.groups.shards.values()))
        answer = await kit.call(DescribeGroupsRequest(groups=["g", "h", "g"]), 5)
        assert [one.group_id for one in answer.groups] == ["g", "h"]
        answer = await kit.call(DeleteGroupsRequest(groups_names=["g", "h", "g"]), 2)
        assert [one.group_id for one in answer.results] == ["g", "h"]
        resources = [
            DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=keys)
            for keys in (None, ["broker.id"], None, ["broker.id"], [])
        ]
        answer = await kit.call(DescribeConfigsRequest(resources=resources), 4)
        assert [len(one.configs) > 1 for one in answer.results] == [True, False]

    run(story, **ONE_OF_EACH)


def test_all_offsets_of_a_group_are_told_once() -> None:
    async def story(kit: Kit) -> None:
        await commit(kit, 3)
        groups = [OffsetFetchRequestGroup(group_id="g", topics=None)] * 3
        answer = await kit.call(OffsetFetchRequest(groups=groups), 9)
        assert [len(group.topics[0].partitions) for group in answer.groups] == [3]

    run(story, **ONE_OF_EACH)


def test_of_a_partition_that_is_deleted_from_twice_the_last_offset_counts() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        for _ in range(3):
            await kit.produce()
        wanted = [DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (3, 1)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=wanted)], timeout_ms=10_000)
        answer = await kit.call(request, 2)
        assert [one.low_watermark for one in answer.topics[0].partitions] == [1]

    run(story)


def test_topics_that_are_deleted_twice_are_refused_and_unknown_ones_cost_little() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        names = ["t", "t", *(f"none-{number}" for number in range(2000))]
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=10_000)
        answer = await kit.call(request, 6)
        codes = {one.name: one.error_code for one in answer.responses}
        assert len(answer.responses) == 2001
        assert codes.pop("t") == ErrorCode.INVALID_REQUEST
        assert set(codes.values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert kit.broker.metadata.topic("t") is not None

    run(story)


def test_one_metadata_creates_so_many_topics_and_the_next_one_more() -> None:
    async def story(kit: Kit) -> None:
        names = [f"new-{number:03}" for number in range(MOST_CREATED + 20)]
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
        answer = await kit.call(request, 9)
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.LEADER_NOT_AVAILABLE}
        known = kit.broker.metadata.topics
        await eventually(lambda: len(known) == MOST_CREATED)
        await kit.call(request, 9)
        await eventually(lambda: len(known) == len(names))

    run(story)


# In slices


async def commit(kit: Kit, partitions: int) -> Any:
    await kit.create_topic("t", partitions)
    await kit.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    await eventually(lambda: all(shard.is_active for shard in kit.broker.groups.shards.values()))
    wanted = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index) for index in range(partitions + 1)
    ]
    topics = [OffsetCommitRequestTopic(name="t", partitions=wanted)]
    return await kit.call(OffsetCommitRequest(group_id="g", topics=topics), 9)


def test_a_large_commit_and_a_large_fetch_of_offsets() -> None:
    async def story(kit: Kit) -> None:
        answer = await commit(kit, 2500)
        codes = {one.partition_index: one.error_code for topic in answer.topics for one in topic.partitions}
        assert len(codes) == 2501
        assert codes.pop(2500) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert set(codes.values()) == {0}
        explicit = OffsetFetchRequestTopics(name="t", partition_indexes=list(range(2501)))
        for version in (8, 9):
            for topics, missing in ((None, []), ([explicit], [2500])):
                groups = [OffsetFetchRequestGroup(group_id="g", topics=topics)]
                answer = await kit.call(OffsetFetchRequest(groups=groups), version)
                (topic,) = answer.groups[0].topics
                offsets = {one.partition_index: one.committed_offset for one in topic.partitions}
                assert offsets == {index: index for index in range(2500)} | dict.fromkeys(missing, -1)

    run(story, **ONE_OF_EACH)


def test_a_large_fetch_of_offsets_of_a_group_that_is_not_here_is_refused() -> None:
    async def story(kit: Kit) -> None:
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=list(range(2500)))]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
        answer = await kit.call(request, 9)
        assert answer.groups[0].error_code == ErrorCode.NOT_COORDINATOR
        assert answer.groups[0].topics == []

    run(story)


def test_a_large_fetch_of_records() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 3)
        for index in range(3):
            await kit.produce(index=index)
        wanted = {("t", index): 0 for index in range(3)} | {("none", index): 0 for index in range(3000)}
        answer = await kit.call(fetch_request(wanted), FETCH_BY_NAME)
        found = fetched(answer)
        assert len(found) == 3003
        assert all(found["t", index].records for index in range(3))
        assert {found["none", index].error_code for index in range(3000)} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    run(story)


def test_a_session_of_very_many_partitions_goes_on() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 2500)
        opened = await kit.call(
            fetch_request({("t", index): 0 for index in range(2500)}, session_epoch=0, session_id=0), FETCH_BY_NAME
        )
        assert len(fetched(opened)) == 2500
        waiting = asyncio.ensure_future(
            kit.call(fetch_request({}, session_epoch=1, session_id=opened.session_id, max_wait_ms=5_000), FETCH_BY_NAME)
        )
        await asyncio.sleep(0.1)
        await kit.produce(index=2499)
        assert list(fetched(await waiting)) == [("t", 2499)]

    run(story)


def test_requests_behind_a_large_one_of_their_connection_are_served_after_it() -> None:
    """A produce in slices, and the next batch of the same idempotent producer right behind it."""

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 600)
        producer = {"producer_id": 7, "producer_epoch": 0}
        everywhere, at_both_ends = [("t", index) for index in range(600)], [("t", 0), ("t", 599)]

        async def send(partitions: list[tuple[str, int]], sequence: int) -> set[int]:
            data = {partition: batch(base_sequence=sequence, **producer) for partition in partitions}
            answer: Any = await connection.call(produce_request(data), 12)
            return {one.error_code for one in answer.responses[0].partition_responses}

        connection = await Connection.open("b1", kit.port, client_id="kit")
        assert await send(everywhere, 0) == {0}
        assert await asyncio.gather(send(everywhere, 1), send(at_both_ends, 2)) == [{0}, {0}]
        connection.close()

    run(story)


def test_a_large_request_whose_bytes_are_wrong_ends_its_connection() -> None:
    async def story(kit: Kit) -> None:
        frame = frame_of(fetch_request({("t", index): 0 for index in range(9_000)}), FETCH_BY_NAME)
        cut = struct.pack(">i", len(frame) - 104) + frame[4:-100]
        reader, writer = await asyncio.open_connection("b1", kit.port)
        writer.write(cut)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(4)

    run(story)


@pytest.mark.long
def test_a_large_answer_is_whole_and_in_its_place() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 6_000)
        reader, writer = await asyncio.open_connection("b1", kit.port)
        writer.write(frame_of(MetadataRequest(topics=None), 9) + frame_of(DescribeLogDirsRequest(topics=None), 4))
        answers = []
        for key, version in ((3, 9), (35, 4)):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answers.append(decode_response(key, version, await reader.readexactly(size)).response)
        everything, sizes = answers
        assert len(everything.topics[0].partitions) == 6_000  # type: ignore[attr-defined]
        assert len(sizes.results[0].topics[0].partitions) == 6_000  # type: ignore[attr-defined]

    run(story)


def test_a_large_fetch_that_waits_keeps_no_large_request_waiting() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1_500)
        wanted = {("t", index): 0 for index in range(1_500)}
        connections = [await kit.connect() for _ in range(4)]
        of_clients = kit.broker._dispatcher._of_clients
        of_clients._max_elements = 1  # one at a time
        waiting = [
            connection.send(fetch_request(wanted, max_wait_ms=60_000), FETCH_BY_NAME) for connection in connections
        ]
        await eventually(lambda: len(kit.broker._dispatcher._parked) == 4)
        assert of_clients._held == 0
        await kit.produce(index=1_499)
        for answer in waiting:
            assert len(fetched(await answer)) == 1_500

    run(story)


def test_a_small_frame_with_many_elements_is_a_large_request() -> None:
    """Three bytes of it become a hundred in memory."""

    async def story(kit: Kit) -> None:
        kit.broker._dispatcher._of_clients._held = 1_000_000
        few, many = (MetadataRequest(topics=[MetadataRequestTopic()] * count) for count in (900, 1_100))
        connection = await kit.connect()
        assert len((await kit.call(few, 1)).topics) == 1
        waiting = connection.send(many, 1)
        await eventually(lambda: len(kit.broker._dispatcher._of_clients._waiting) == 1)
        kit.broker._dispatcher._of_clients.give(1_000_000)
        assert len((await waiting).topics) == 1  # type: ignore[attr-defined]

    run(story)


def test_a_produce_of_many_bytes_and_few_partitions_waits_for_no_place() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 4, max_message_bytes="10000000")
        kit.broker._dispatcher._of_clients._held = 1_000_000
        data = {("t", index): batch([bytes(3_000_000)]) for index in range(4)}
        answer = await kit.call(produce_request(data), 12)
        assert {one.error_code for one in answer.responses[0].partition_responses} == {0}

    run(story)

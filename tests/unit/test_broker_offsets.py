"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords (S1.3, S4.4, S10.2)."""

from __future__ import annotations

import pytest

from tests.kits.brokerkit import Kit, code_of, run, values_of
from tests.kits.logkit import batch
from tidelog.errors import ErrorCode
from tidelog.wire.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
THEN = 1_700_000_000_000


async def list_offsets(
    kit: Kit,
    timestamp: int,
    *,
    version: int = 10,
    topic: str = "t",
    epoch: int = -1,
    isolation_level: int = 0,
    replica_id: int = -1,
) -> ListOffsetsPartitionResponse:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )
    answer = await kit.call(request, version)
    found: ListOffsetsPartitionResponse = answer.topics[0].partitions[0]
    return found


@pytest.mark.parametrize("version", range(1, 11))
@pytest.mark.parametrize("cold", [False, True])
def test_special_timestamps_by_version(version: int, cold: bool) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"a", b"b"], timestamp=THEN))
        await kit.produce(batch([b"c"], timestamp=THEN + 500))
        await kit.produce(batch([b"d"], timestamp=THEN + 100))
        for wanted, since, expected in (
            (LATEST, 1, (-1, 4)),
            (EARLIEST, 1, (-1, 0)),
            (MAX_TIMESTAMP, 7, (THEN + 500, 2)),
            (EARLIEST_LOCAL, 8, (-1, 0)),
            (LATEST_TIERED, 9, (-1, -1)),
            (-6, 11, (-1, -1)),
            (THEN, 1, (THEN, 0)),
            (THEN + 1, 1, (THEN + 1, 1)),
            (THEN + 2, 1, (THEN + 500, 2)),
            (THEN + 501, 1, (-1, -1)),
            (0, 1, (THEN, 0)),
        ):
            found = await list_offsets(kit, wanted, version=version)
            if version < since:
                assert found.error_code == ErrorCode.UNSUPPORTED_VERSION, wanted
                continue
            assert (found.error_code, found.timestamp, found.offset) == (0, *expected), wanted
            knows_epoch = version >= 4 and expected[1] >= 0
            assert found.leader_epoch == (0 if knows_epoch else -1), wanted

    run(story, cold=cold)


def test_an_empty_partition() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for wanted, offset in ((LATEST, 0), (EARLIEST, 0), (MAX_TIMESTAMP, -1), (THEN, -1)):
            found = await list_offsets(kit, wanted)
            assert (found.error_code, found.timestamp, found.offset) == (0, -1, offset)

    run(story)


def test_isolation() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        log = kit.partition().log
        log.append_as_leader(batch(producer_id=3, producer_epoch=0, base_sequence=0, transactional=True), 0)
        log.high_watermark = 2
        assert (await list_offsets(kit, LATEST)).offset == 2
        assert (await list_offsets(kit, LATEST, isolation_level=1)).offset == 1
        assert (await list_offsets(kit, THEN, isolation_level=1)).offset == 0

    run(story)


@pytest.mark.parametrize("version", [4, 5, 10])
def test_a_new_leader_does_not_know_the_end_yet(version: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch(timestamp=THEN))
        log = kit.partition().log
        assert await kit.lead_and_isr(leader=2, isr=[1, 2]) == 0
        log.append_as_follower(batch(base_offset=1, partition_leader_epoch=1, timestamp=THEN + 50))
        assert await kit.lead_and_isr(isr=[1, 2]) == 0
        assert (log.high_watermark, log.log_end_offset) == (1, 2)
        not_yet = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
        assert await code_of(list_offsets(kit, LATEST, version=version)) == not_yet
        assert await code_of(list_offsets(kit, THEN + 10, version=version)) == not_yet, "it may well be there"
        assert (await list_offsets(kit, THEN, version=version)).offset == 0
        assert (await list_offsets(kit, EARLIEST, version=version)).offset == 0
        assert (await list_offsets(kit, LATEST, replica_id=2)).offset == 2, "a follower sees all"
        assert values_of(await kit.fetch(1)) == []

    run(story)


def test_errors_of_list_offsets() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await kit.lead_and_isr(leader_epoch=5) == 0
        assert await code_of(list_offsets(kit, LATEST, topic="nobody")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await code_of(list_offsets(kit, LATEST, epoch=4)) == ErrorCode.FENCED_LEADER_EPOCH
        assert await code_of(list_offsets(kit, LATEST, epoch=6)) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await code_of(list_offsets(kit, LATEST, epoch=5)) == ErrorCode.NONE
        twice = [ListOffsetsPartition(partition_index=0, timestamp=LATEST)] * 2
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=twice)])
        answer = await kit.call(request, 10)
        assert [one.error_code for one in answer.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2
        assert await kit.lead_and_isr(leader=2, isr=[2]) == 0
        assert await code_of(list_offsets(kit, LATEST)) == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(story)


# OffsetForLeaderEpoch


async def epoch_end(
    kit: Kit, epoch: int, *, current: int = -1, version: int = 4, topic: str = "t"
) -> OffsetForLeaderEpochResponseEpochEndOffset:
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])])
    answer = await kit.call(request, version)
    found: OffsetForLeaderEpochResponseEpochEndOffset = answer.topics[0].partitions[0]
    return found


@pytest.mark.parametrize("version", [2, 3, 4])
def test_where_epochs_end(version: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce(batch([b"a", b"b"]))
        assert await kit.lead_and_isr(leader_epoch=3) == 0
        await kit.produce(batch([b"c"]))
        for epoch, expected in ((0, (0, 2)), (1, (0, 2)), (2, (0, 2)), (3, (3, 3)), (4, (-1, -1)), (-1, (-1, -1))):
            found = await epoch_end(kit, epoch, version=version)
            assert (found.error_code, found.leader_epoch, found.end_offset) == (0, *expected), epoch
        assert await code_of(epoch_end(kit, 0, current=2, version=version)) == ErrorCode.FENCED_LEADER_EPOCH
        assert await code_of(epoch_end(kit, 0, current=4, version=version)) == ErrorCode.UNKNOWN_LEADER_EPOCH
        unknown = await epoch_end(kit, 0, topic="nobody", version=version)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(story)


# DeleteRecords


async def delete_records(kit: Kit, offset: int, topic: str = "t", *, version: int = 2) -> DeleteRecordsPartitionResult:
    wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    answer = await kit.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=1000), version)
    found: DeleteRecordsPartitionResult = answer.topics[0].partitions[0]
    return found


@pytest.mark.parametrize("version", [0, 1, 2])
def test_delete_records(version: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for number in range(5):
            await kit.produce(batch([b"%d" % number]))
        answer = await delete_records(kit, 2, version=version)
        assert (answer.error_code, answer.low_watermark) == (0, 2)
        assert await code_of(kit.fetch(1)) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert values_of(await kit.fetch(2)) == [b"2", b"3", b"4"]
        assert (await list_offsets(kit, EARLIEST)).offset == 2
        again = await delete_records(kit, 1, version=version)
        assert (again.error_code, again.low_watermark) == (0, 2), "it does not go back"
        assert await code_of(delete_records(kit, 6, version=version)) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await code_of(delete_records(kit, -2, version=version)) == ErrorCode.OFFSET_OUT_OF_RANGE
        all_of_it = await delete_records(kit, -1, version=version)
        assert (all_of_it.error_code, all_of_it.low_watermark) == (0, 5)
        assert (await kit.produce()).base_offset == 5

    run(story)


def test_what_records_are_not_deleted() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("compacted", cleanup_policy="compact")
        await kit.create_topic("__consumer_offsets", cleanup_policy="delete")
        await kit.create_topic("t")
        assert await code_of(delete_records(kit, 0, "compacted")) == ErrorCode.POLICY_VIOLATION
        assert await code_of(delete_records(kit, 0, "__consumer_offsets")) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await code_of(delete_records(kit, 0, "nobody")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await kit.lead_and_isr(leader=2, isr=[2]) == 0
        assert await code_of(delete_records(kit, 0)) == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(story)


def test_records_above_hw_are_not_deleted() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        assert await kit.lead_and_isr(isr=[1, 2]) == 0
        await kit.produce(acks=1)
        assert await code_of(delete_records(kit, 2)) == ErrorCode.OFFSET_OUT_OF_RANGE
        answer = await delete_records(kit, -1)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT, "2 may be elected, and has not deleted anything"
        assert (await list_offsets(kit, EARLIEST)).offset == 1

    run(story)

"""A deletion is told to anybody only when the log start is on the device (S10.2)."""

from __future__ import annotations

import asyncio

from tests.kits.brokerkit import Kit, run
from tests.kits.logkit import batch
from tests.unit.test_broker_fetcher import SESSION, Leader, _following
from tests.unit.test_broker_offsets import delete_records
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.log import names
from tidelog.log.checkpoints import read_offset_checkpoint
from tidelog.log.directory import LogDirectory
from tidelog.log.trimming import delete_expired
from tidelog.types import TopicPartition
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)

SLOW_MS = 50.0


def _directory(kit: Kit) -> LogDirectory:
    (directory,) = kit.broker.storage.directories
    return directory


def _written_start(kit: Kit) -> int:
    path = f"{_directory(kit).path}/{names.LOG_STARTS}"
    return read_offset_checkpoint(kit.host.disk, path).get(TopicPartition("t", 0), 0)


async def _five_records(kit: Kit) -> None:
    await kit.create_topic(retention_ms="-1")
    for number in range(5):
        await kit.produce(batch([b"%d" % number]))


def test_a_deletion_is_acknowledged_when_the_log_start_is_on_the_device() -> None:
    async def story(kit: Kit) -> None:
        await _five_records(kit)
        kit.host.disk.work.delay_ms = (SLOW_MS, SLOW_MS)
        log = kit.partition().log
        deleting = asyncio.ensure_future(delete_records(kit, 2))
        await eventually(lambda: log.log_start_offset == 2)
        assert (log.durable_log_start, kit.partition().low_watermark, _written_start(kit)) == (0, 0, 0)
        assert not deleting.done()
        assert (await kit.fetch(1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE, "readers are refused at once"
        answer = await deleting
        assert (answer.error_code, answer.low_watermark, _written_start(kit)) == (0, 2, 2)

    run(story)


def test_deletions_that_come_together_share_checkpoints() -> None:
    async def story(kit: Kit) -> None:
        await _five_records(kit)
        written = 0
        write_file = kit.host.disk.write_file

        def counting(path: str, data: bytes) -> None:
            nonlocal written
            written += path.endswith(names.LOG_STARTS)
            write_file(path, data)

        kit.host.disk.write_file = counting  # type: ignore[method-assign, assignment]
        answers = await asyncio.gather(*(delete_records(kit, 1 + number % 4) for number in range(40)))
        assert {answer.error_code for answer in answers} == {0}
        assert 1 <= written <= 4
        assert (await delete_records(kit, 3)).error_code == 0
        assert written <= 4, "what is deleted already needs no checkpoint"

    run(story)


def test_a_deletion_that_cannot_be_written_down_is_answered_with_a_storage_error() -> None:
    async def story(kit: Kit) -> None:
        await _five_records(kit)
        kit.host.disk.fail_next("sync", under=f"{_directory(kit).path}/{names.LOG_STARTS}")
        answer = await delete_records(kit, 2)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert _directory(kit).offline is not None

    run(story)


def test_a_log_start_at_a_segment_is_written_down_too() -> None:
    """The segments before it are renamed, and after a power loss they may have their old names again."""

    async def story(kit: Kit) -> None:
        await _five_records(kit)
        kit.partition().log.roll()
        await kit.produce()
        log = kit.partition().log
        assert (await delete_records(kit, 5)).error_code == 0
        assert await delete_expired(log) == 1
        assert log.segments[0].base_offset == 5
        await _directory(kit).checkpoint()
        assert _written_start(kit) == 5

    run(story)


def _answer(topic_id: bytes, log_start: int, records: bytes = b"", high_watermark: int = 3) -> FetchResponse:
    data = FetchResponsePartitionData(
        partition_index=0, records=records, high_watermark=high_watermark, log_start_offset=log_start
    )
    return FetchResponse(session_id=SESSION, responses=[FetchableTopicResponse(topic_id=topic_id, partitions=[data])])


def _starts(request: FetchRequest) -> list[int]:
    return [partition.log_start_offset for topic in request.topics for partition in topic.partitions]


def test_a_follower_names_a_log_start_when_it_is_on_the_device() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        leader, log = Leader(), kit.partition().log
        fetcher = await _following(kit, leader)
        await eventually(lambda: len(leader.asked) == 1)
        records = b"".join(batch([b"x"], base_offset=number, partition_leader_epoch=3) for number in range(3))
        kit.host.disk.work.delay_ms = (SLOW_MS, SLOW_MS)
        second = await leader.answers(1, _answer(topic_id, 2, records))
        assert log.log_start_offset == 2, "readers are refused at once"
        assert _starts(second) == [0]
        await eventually(lambda: len(leader.asked) == 3)
        assert _starts(leader.asked[2][0]) == [2], "it is named again, though nothing else is new"
        assert _written_start(kit) == 2
        leader.asked[1][1].set_result(FetchResponse(session_id=SESSION))
        await leader.answers(3, _answer(topic_id, 2))
        await asyncio.sleep(1)
        assert _starts(leader.asked[3][0]) == [], "and only once"
        await fetcher.stop()

    run(story)


def test_a_follower_whose_retention_was_faster_names_its_log_start_too() -> None:
    """A deletion up to there waits at the leader for this follower."""

    async def story(kit: Kit) -> None:
        await _five_records(kit)
        topic_id, log = kit.partition().topic_id, kit.partition().log
        leader = Leader()
        fetcher = await _following(kit, leader)
        await eventually(lambda: len(leader.asked) == 1)
        log.log_start_offset = 4
        await _directory(kit).checkpoint()
        assert _starts(await leader.answers(1, _answer(topic_id, 3, high_watermark=5))) == [4]
        await fetcher.stop()

    run(story)


def test_a_follower_that_cannot_write_its_log_start_down_names_it_no_more() -> None:
    async def story(kit: Kit) -> None:
        await _five_records(kit)
        leader = Leader()
        fetcher = await _following(kit, leader)
        await eventually(lambda: len(leader.asked) == 1)
        kit.host.disk.fail_next("sync", under=f"{_directory(kit).path}/{names.LOG_STARTS}")
        await leader.answers(1, _answer(kit.partition().topic_id, 2, high_watermark=5))
        await eventually(lambda: _directory(kit).offline is not None)
        await asyncio.sleep(1)
        assert all(2 not in _starts(request) for request, _ in leader.asked)
        await fetcher.stop()

    run(story)


def test_log_starts_that_move_together_share_a_checkpoint() -> None:
    """Retention at the leader moves those of many partitions at about the same time."""
    count = 30

    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic(partitions=count)
        for index in range(count):
            await kit.produce(batch([b"0"]), index=index)
        leader = Leader()
        fetcher = await _following(kit, leader, partitions=count)
        await eventually(lambda: len(leader.asked) == 1)
        before = kit.host.disk.work.delay_ms
        kit.host.disk.work.delay_ms = (SLOW_MS, SLOW_MS)
        checkpoints = 0
        persist = kit.partition().log.persist_checkpoints

        async def counting() -> None:
            nonlocal checkpoints
            checkpoints += 1
            await persist()

        for partition in kit.partitions():
            partition.log.persist_checkpoints = counting
        for number in range(1, count + 1):
            answer = _answer(topic_id, 1, high_watermark=1)
            answer.responses[0].partitions[0].partition_index = number - 1
            await leader.answers(number, answer)
        await eventually(lambda: all(partition.log.durable_log_start == 1 for partition in kit.partitions()))
        assert checkpoints <= 2
        kit.host.disk.work.delay_ms = before
        await fetcher.stop()

    run(story)

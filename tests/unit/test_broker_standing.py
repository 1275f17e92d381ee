"""A leader whose session may be over, or that may be deposed: what it does not say.

This is decision 5 of docs/ARCHITECTURE.md, and edge case 43.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kits.brokerkit import (
    FETCH,
    FETCH_BY_NAME,
    Kit,
    code_of,
    fetch_request,
    fetched,
    follower_request,
    run,
    say_session_is_current,
    within,
)
from tests.unit.test_broker_offsets import delete_records
from tidelog.broker.partition import Partition
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.log.log import Appended
from tidelog.types import TopicPartition
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
FOLLOWER, FOLLOWERS_EPOCH = 2, 50


class Session:
    """Whether the broker's session is current, as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_current = True
        say_session_is_current(monkeypatch, lambda: self.is_current)


def _follower_fetch(kit: Kit, topic_id: bytes, offsets: dict[int, int]) -> FetchRequest:
    """Of a follower that is registered."""
    kit.registered(FOLLOWER, FOLLOWERS_EPOCH)
    return follower_request(topic_id, offsets, follower=FOLLOWER, broker_epoch=FOLLOWERS_EPOCH)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(monkeypatch)


async def _list(kit: Kit, timestamp: int) -> ErrorCode:
    wanted = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    answer = await kit.call(ListOffsetsRequest(replica_id=-1, topics=[wanted]), 7)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def _epoch_end(kit: Kit, epoch: int) -> tuple[ErrorCode, int]:
    wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    topics = [OffsetForLeaderTopic(topic="t", partitions=[wanted])]
    answer = (await kit.call(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), 4)).topics[0].partitions[0]
    return ErrorCode(answer.error_code), answer.end_offset


@pytest.mark.parametrize("acks", [1, -1])
def test_nothing_is_written_nor_acknowledged_without_a_session(session: Session, acks: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        session.is_current = False
        assert await code_of(kit.produce(acks=acks)) == NOT_LEADER
        assert kit.partition().log.log_end_offset == 0
        session.is_current = True
        assert await code_of(kit.produce(acks=acks)) == ErrorCode.NONE

    run(story)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_process_that_is_frozen_between_a_write_and_its_answer_acknowledges_nothing(
    session: Session, acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in one turn of the loop, and the session is over when the process goes on."""
    append = Partition.append

    def append_and_freeze(partition: Partition, *given: Any) -> Appended:
        appended = append(partition, *given)
        session.is_current = False
        return appended

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        monkeypatch.setattr(Partition, "append", append_and_freeze)
        code = await code_of(kit.produce(acks=acks, timeout_ms=200))
        assert code in (NOT_LEADER, ErrorCode.REQUEST_TIMED_OUT)

    run(story)


@pytest.mark.parametrize("acks", [1, -1])
def test_what_was_written_before_the_session_ended_is_not_acknowledged_after_it(session: Session, acks: int) -> None:
    """The flush takes a while."""

    async def story(kit: Kit) -> None:
        await kit.create_topic(flush_messages="1")
        kit.host.disk.work.delay_ms = (50.0, 50.0)
        producing = asyncio.ensure_future(kit.produce(acks=acks, timeout_ms=200))
        await eventually(lambda: kit.partition().log.log_end_offset == 1)
        session.is_current = False
        assert ErrorCode((await producing).error_code) in (NOT_LEADER, ErrorCode.REQUEST_TIMED_OUT)
        assert kit.partition().log.high_watermark == 0

    run(story)


def test_nothing_is_deleted_nor_is_a_deletion_acknowledged_without_a_session(session: Session) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for _ in range(3):
            await kit.produce()
        kit.host.disk.work.delay_ms = (50.0, 50.0)
        log = kit.partition().log
        deleting = asyncio.ensure_future(code_of(delete_records(kit, 1)))
        await eventually(lambda: log.log_start_offset == 1)
        session.is_current = False
        assert await deleting == NOT_LEADER, "the session ended while the log start was written down"
        assert await code_of(delete_records(kit, 2)) == NOT_LEADER
        assert log.log_start_offset == 1
        session.is_current = True
        assert await code_of(delete_records(kit, 2)) == ErrorCode.NONE

    run(story)


def test_hw_waits_for_the_session_and_moves_on_by_itself(session: Session) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        assert await kit.lead_and_isr(isr=[1, FOLLOWER]) == 0
        producing = asyncio.ensure_future(kit.produce(acks=-1))
        await eventually(lambda: kit.partition().log.log_end_offset == 1)
        session.is_current = False
        other = await kit.connect()
        await other.call(_follower_fetch(kit, topic_id, {0: 1}), FETCH, timeout_ms=1_000)
        await asyncio.sleep(1)
        assert kit.partition().log.high_watermark == 0
        assert not producing.done()
        session.is_current = True
        async with within(0.2):
            assert (await producing).error_code == ErrorCode.NONE
        assert kit.partition().log.high_watermark == 1
        other.close()

    run(story)


def test_edge_43_without_a_session_no_client_is_sent_to_its_reset_policy(session: Session) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for _ in range(3):
            await kit.produce()
        kit.partition().log.log_start_offset = 1
        for offset in (0, 4, 1_000_000):
            session.is_current = True
            assert await code_of(kit.fetch(offset)) == ErrorCode.OFFSET_OUT_OF_RANGE
            session.is_current = False
            assert await code_of(kit.fetch(offset)) == NOT_LEADER
        assert await code_of(kit.fetch(2)) == ErrorCode.NONE, "what is committed may be read"
        for timestamp in (-1, -2, 0):
            assert await _list(kit, timestamp) == NOT_LEADER
        assert (await _epoch_end(kit, 0))[0] == NOT_LEADER

    run(story)


def test_edge_43_a_leader_whose_hw_has_not_reached_its_term_says_nothing_of_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def confirmed(*_: object) -> bool:
        return True

    async def story(kit: Kit) -> None:
        monkeypatch.setattr(kit.broker.isr_changes, "confirm", confirmed)
        topic_id = await kit.create_topic()
        assert await kit.lead_and_isr(isr=[1, FOLLOWER]) == 0
        await kit.produce(acks=1)
        assert await kit.lead_and_isr(isr=[1, FOLLOWER]) == 0, "a new term, which begins above HW"
        assert await code_of(kit.fetch(1)) == ErrorCode.NONE, "between HW and the end there is nothing yet"
        assert await code_of(kit.fetch(2)) == NOT_LEADER, "though no other broker leads"
        other = await kit.connect()
        await other.call(_follower_fetch(kit, topic_id, {0: 1}), FETCH, timeout_ms=1_000)
        assert await code_of(kit.fetch(2)) == ErrorCode.OFFSET_OUT_OF_RANGE
        other.close()

    run(story)


def test_edge_43_an_epoch_from_the_future_is_unknown_only_where_the_term_is_certain(session: Session) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        later = kit.partition().leader_epoch + 5
        assert await _epoch_end(kit, later) == (ErrorCode.NONE, -1), "a topic that was made anew begins at epoch 0"
        assert await kit.lead_and_isr(isr=[1, FOLLOWER]) == 0
        assert (await _epoch_end(kit, later))[0] == NOT_LEADER, "the controller does not confirm this term"
        assert (await _epoch_end(kit, 0))[0] == ErrorCode.NONE

    run(story)


def test_edge_43_a_silent_controller_delays_a_fetch_of_many_partitions_once() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic(partitions=20)
        for index in range(20):
            assert await kit.lead_and_isr(index=index, isr=[1, FOLLOWER]) == 0
        other = await kit.connect()
        caught_up = dict.fromkeys(range(20), 0)
        await other.call(_follower_fetch(kit, topic_id, caught_up), FETCH, timeout_ms=1_000)
        other.close()

        async def silent(request: object, version: int) -> object:
            await asyncio.sleep(30)
            raise OSError("gone")

        kit.broker.isr_changes._send = silent  # type: ignore[assignment]
        beyond = {("t", index): 5 for index in range(20)}
        async with within(2):
            answer = await kit.call(fetch_request(beyond), FETCH_BY_NAME)
        assert {one.error_code for one in fetched(answer).values()} == {NOT_LEADER}

    run(story)


def test_a_partition_that_leads_no_more_is_not_asked_again(session: Session) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        assert await kit.lead_and_isr(isr=[1, FOLLOWER]) == 0
        await kit.produce(acks=1)
        session.is_current = False
        await kit.call(_follower_fetch(kit, topic_id, {0: 1}), FETCH)
        kit.broker.replicas.partitions[TopicPartition("t", 0)].follow()
        session.is_current = True
        await asyncio.sleep(1)
        assert kit.partition().log.high_watermark == 0

    run(story)

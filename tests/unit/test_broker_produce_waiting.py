"""When a produce is answered: acks, leaders that move, flushes, and a broker that is not current (S3.2, S3.3, S7.3)."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import (
    FETCH_BY_NAME,
    PRODUCE_BY_NAME,
    Kit,
    code_of,
    fetch_request,
    fetched,
    produce_request,
    run,
    values_of,
    within,
)
from tests.kits.logkit import batch, idempotent
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.net.calling import Connection, ConnectionClosedError
from tidelog.replication.leader import FollowerFetch

# Who leads


def test_not_leader_names_the_leader() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await kit.lead_and_isr(leader=2, isr=[2]) == 0
        answer = await kit.call(produce_request({("t", 0): batch()}), PRODUCE_BY_NAME)
        refused = answer.responses[0].partition_responses[0]
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        # Metadata still says that this one leads: the client is told what the metadata says.
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (1, 0)
        assert [(one.node_id, one.host, one.port) for one in answer.node_endpoints] == [(1, "b1", 9092)]
        plain = await kit.call(produce_request({("t", 0): batch()}), 9)
        assert plain.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(story)


def test_a_partition_that_lives_elsewhere() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        del kit.broker.replicas.partitions[kit.partition().name]
        assert await code_of(kit.produce()) == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(story)


# acks=all with two replicas


async def _two_in_sync(kit: Kit, **config: str) -> None:
    await kit.create_topic(**config)
    assert await kit.lead_and_isr(isr=[1, 2], replicas=[1, 2]) == 0


def test_acks_all_times_out_while_a_replica_has_not_copied() -> None:
    async def story(kit: Kit) -> None:
        await _two_in_sync(kit)
        assert await code_of(kit.produce(acks=1)) == ErrorCode.NONE
        async with within(0.6):
            assert await code_of(kit.produce(timeout_ms=500)) == ErrorCode.REQUEST_TIMED_OUT
        assert await code_of(kit.produce(timeout_ms=0)) == ErrorCode.REQUEST_TIMED_OUT
        assert await code_of(kit.produce(timeout_ms=-1)) == ErrorCode.REQUEST_TIMED_OUT
        assert not kit.partition().awaiting_commit, "who waits no more is forgotten"

    run(story)


def test_a_move_of_the_leader_answers_who_waits_at_once() -> None:
    async def story(kit: Kit) -> None:
        await _two_in_sync(kit)
        connection = await kit.connect()
        waiting = connection.send(produce_request({("t", 0): batch()}), PRODUCE_BY_NAME)
        await eventually(lambda: kit.partition().awaiting_commit)
        async with within(0.1):
            assert await kit.lead_and_isr(leader=2, isr=[1, 2]) == 0
            answer = (await waiting).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(story)


def test_who_waits_is_answered_when_the_isr_shrinks_to_the_leader() -> None:
    async def story(kit: Kit) -> None:
        await _two_in_sync(kit)
        connection = await kit.connect()
        waiting = connection.send(produce_request({("t", 0): batch()}), PRODUCE_BY_NAME)
        await eventually(lambda: kit.partition().awaiting_commit)
        assert await kit.lead_and_isr(isr=[1], replicas=[1, 2], leader_epoch=kit.partition().leader_epoch) == 0
        assert (await waiting).responses[0].partition_responses[0].error_code == ErrorCode.NONE
        assert await kit.values() == [b"value"]

    run(story)


def test_min_insync_replicas() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(min_insync_replicas="2")
        assert await code_of(kit.produce()) == ErrorCode.NONE, "a partition with one replica is asked for one"
        assert await kit.lead_and_isr(isr=[1], replicas=[1, 2]) == 0
        assert await code_of(kit.produce()) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert await code_of(kit.produce(acks=1)) == ErrorCode.NONE

    run(story)


def test_a_retry_is_not_kept_waiting_by_what_was_written_after_its_original() -> None:
    async def story(kit: Kit) -> None:
        await _two_in_sync(kit)
        first, second, third = await kit.connect(), await kit.connect(), await kit.connect()
        waiting = [first.send(produce_request({("t", 0): idempotent(0)}, timeout_ms=60_000), PRODUCE_BY_NAME)]
        await eventually(lambda: len(kit.partition().awaiting_commit) == 1)
        waiting.append(second.send(produce_request({("t", 0): idempotent(1)}, timeout_ms=60_000), PRODUCE_BY_NAME))
        await eventually(lambda: len(kit.partition().awaiting_commit) == 2)
        waiting.append(third.send(produce_request({("t", 0): idempotent(0)}, timeout_ms=60_000), PRODUCE_BY_NAME))
        await eventually(lambda: len(kit.partition().awaiting_commit) == 3)
        kit.partition().follower_fetched(FollowerFetch(2, 1, 0))  # it has copied the first
        for future in (waiting[0], waiting[2]):
            answer = (await asyncio.wait_for(asyncio.shield(future), 1)).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, 0)
        assert not waiting[1].done()

    run(story)


def test_hw_waits_while_the_isr_is_too_small_and_goes_on_when_it_is_not() -> None:
    """S2.6: so a record that acks=all was refused for is not committed either, until the ISR has grown again."""

    async def story(kit: Kit) -> None:
        await _two_in_sync(kit, min_insync_replicas="2")
        connection = await kit.connect()
        waiting = connection.send(produce_request({("t", 0): batch()}, timeout_ms=60_000), PRODUCE_BY_NAME)
        await eventually(lambda: kit.partition().awaiting_commit)
        epoch = kit.partition().leader_epoch
        assert await kit.lead_and_isr(isr=[1], replicas=[1, 2], leader_epoch=epoch) == 0
        assert kit.partition().log.high_watermark == 0
        kit.partition().follower_fetched(FollowerFetch(2, 1, 0))
        assert kit.partition().log.high_watermark == 0
        assert await kit.lead_and_isr(isr=[1, 2], replicas=[1, 2], leader_epoch=epoch) == 0
        assert (await waiting).responses[0].partition_responses[0].error_code == ErrorCode.NONE

    run(story)


# flush.messages


def test_flush_messages_1_answers_when_it_is_synced() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(flush_messages="1")
        answer = await kit.produce(acks=1)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert kit.partition().log.recovery_point == 1
        assert await code_of(kit.produce()) == ErrorCode.NONE
        assert kit.partition().log.recovery_point == 2

    run(story)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_nobody_sees_a_record_that_has_still_to_be_flushed(acks: int) -> None:
    """A power loss could take it away again."""

    async def story(kit: Kit) -> None:
        await kit.create_topic(flush_messages="1")
        log = kit.partition().log
        go_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flush = log.flush

        async def slow_flush() -> None:
            await go_on
            await flush()

        log.flush = slow_flush  # type: ignore[method-assign]
        connection, reader = await kit.connect(), await kit.connect()
        request = produce_request({("t", 0): batch()}, acks=acks)
        reading = reader.send(fetch_request({("t", 0): 0}, max_wait_ms=60_000), FETCH_BY_NAME)
        if acks:
            connection.send(request, PRODUCE_BY_NAME)
        else:
            connection.post(request, PRODUCE_BY_NAME)
        await eventually(lambda: log.log_end_offset == 1)
        await asyncio.sleep(1)
        assert (log.high_watermark, reading.done()) == (0, False)
        go_on.set_result(None)
        async with within(0.1):
            assert values_of(fetched(await reading)["t", 0]) == [b"value"]
        assert log.recovery_point == 1

    run(story)


@pytest.mark.parametrize("seed", range(4))
def test_flushes_of_many_at_once_leave_nobody_waiting(seed: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(flush_messages="3")
        connections = [await kit.connect() for _ in range(4)]

        async def write(connection: Connection) -> None:
            for _ in range(25):
                answer = await connection.call(produce_request({("t", 0): batch()}), PRODUCE_BY_NAME)
                assert answer.responses[0].partition_responses[0].error_code == 0

        async with within(5.0):
            await asyncio.gather(*(write(connection) for connection in connections))
        log = kit.partition().log
        assert (log.high_watermark, log.log_end_offset) == (100, 100)
        assert log.recovery_point > 97

    run(story, seed=seed)


@pytest.mark.parametrize("acks", [1, -1])
def test_the_leader_moves_while_a_produce_waits_for_its_flush(acks: int) -> None:
    """The new leader may cut what was just written: nothing may be promised, and nobody waits for a time-out."""

    async def story(kit: Kit) -> None:
        await kit.create_topic(flush_messages="1")
        partition = kit.partition()
        flushing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        go_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flush = partition.log.flush

        async def slow_flush() -> None:
            if not flushing.done():
                flushing.set_result(None)
            await go_on
            await flush()

        partition.log.flush = slow_flush  # type: ignore[method-assign]
        connection = await kit.connect()
        waiting = connection.send(produce_request({("t", 0): batch()}, acks=acks), PRODUCE_BY_NAME)
        await flushing
        assert await kit.lead_and_isr(leader=2, isr=[1, 2]) == 0
        go_on.set_result(None)
        async with within(0.5):
            answer = (await waiting).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(story)


def test_a_failing_sync_is_a_storage_error() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic(flush_messages="1")
        kit.host.disk.fail_next("sync", count=None)
        assert await code_of(kit.produce()) == ErrorCode.KAFKA_STORAGE_ERROR
        assert kit.broker.failed.done()

    run(story)


# Fences


def test_a_broker_that_is_not_current_writes_and_promises_nothing() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        log = kit.partition().log
        kit.broker.session.forget_renewals()  # type: ignore[attr-defined]
        for acks in (1, -1):
            assert await code_of(kit.produce(acks=acks)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (log.log_end_offset, log.high_watermark) == (1, 1)
        connection = await kit.connect()
        connection.post(produce_request({("t", 0): batch()}, acks=0), PRODUCE_BY_NAME)
        await eventually(lambda: connection.closed)

    run(story)


def test_a_client_that_leaves_while_it_waits_breaks_nothing() -> None:
    async def story(kit: Kit) -> None:
        await _two_in_sync(kit)
        connection = await kit.connect()
        waiting = connection.send(produce_request({("t", 0): batch()}), PRODUCE_BY_NAME)
        await eventually(lambda: kit.partition().awaiting_commit)
        connection.close()
        with pytest.raises(ConnectionClosedError):
            await waiting
        assert await kit.lead_and_isr(isr=[1]) == 0
        assert await code_of(kit.produce()) == ErrorCode.NONE

    run(story)


def test_a_stop_with_produces_waiting_is_clean() -> None:
    async def story(kit: Kit) -> None:
        await _two_in_sync(kit)
        connection = await kit.connect()
        waiting = connection.send(produce_request({("t", 0): batch()}, timeout_ms=3000), PRODUCE_BY_NAME)
        await eventually(lambda: kit.partition().awaiting_commit)
        await kit.stop()
        with pytest.raises(ConnectionClosedError):
            await waiting
        await asyncio.sleep(5)  # its timer has nothing left to say

    run(story)

"""What a leader hears from the fetches of its followers, whatever else goes on meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import FETCH, Kit, fetch_request, fetched, follower_request, run
from tests.kits.logkit import batch
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.log.trimming import advance_log_start
from tidelog.net.calling import Connection
from tidelog.replication.leader import UNKNOWN_OFFSET, RemoteReplica
from tidelog.types import NO_EPOCH
from tidelog.wire.messages.fetch import FetchRequest

FOLLOWER, BROKER_EPOCH = 2, 50


async def _led(kit: Kit, partitions: int = 2) -> bytes:
    """A topic that the kit's broker leads, and broker 2 is to follow; a record in each partition."""
    topic_id = await kit.create_topic(partitions=partitions)
    for index in range(partitions):
        await kit.produce(batch([b"0"]), index=index)
        assert await kit.lead_and_isr(index=index, isr=[1, FOLLOWER]) == 0
    kit.registered(FOLLOWER, BROKER_EPOCH)
    return topic_id


def _remote(kit: Kit, index: int) -> RemoteReplica:
    leader = kit.partition(index=index).leader
    assert leader is not None
    return leader.remotes[FOLLOWER]


def _fetch(
    topic_id: bytes, offsets: dict[int, int], *, broker_epoch: int = BROKER_EPOCH, **options: int
) -> FetchRequest:
    return follower_request(topic_id, offsets, follower=FOLLOWER, broker_epoch=broker_epoch, **options)


def _make_cold(kit: Kit, delay_ms: float) -> None:
    kit.host.disk.cold_chance = 1.0
    kit.host.disk.work.delay_ms = (delay_ms, delay_ms)


def _send(connection: Connection, request: FetchRequest) -> asyncio.Future[object]:
    return connection.send(request, FETCH, timeout_ms=10_000)


def test_edge_34_a_change_during_a_cold_read_of_another_partition_does_not_make_the_leader_deaf() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await _led(kit)
        _make_cold(kit, 20.0)
        connection = await kit.connect()
        # Partition 1 is at its end and answered at once; then partition 0 is read from the device.
        answer = _send(connection, _fetch(topic_id, {1: 1, 0: 0}, session_epoch=0, max_wait_ms=500))
        await asyncio.sleep(0.01)
        assert (await kit.produce(batch([b"1"]), index=1, acks=1)).error_code == 0
        assert not answer.done()
        await answer
        assert (_remote(kit, 1).log_end_offset, _remote(kit, 0).log_end_offset) == (1, 0)
        connection.close()

    run(story)


def test_edge_34_a_follower_is_heard_before_the_device_is() -> None:
    """Of every partition, be it read at once or from the device: no acknowledgement waits for a slow read."""

    async def story(kit: Kit) -> None:
        topic_id = await _led(kit)
        _make_cold(kit, 2_000.0)
        connection = await kit.connect()
        answer = _send(connection, _fetch(topic_id, {0: 0, 1: 1}, session_epoch=0, max_wait_ms=500))
        await eventually(lambda: (_remote(kit, 0).log_end_offset, _remote(kit, 1).log_end_offset) == (0, 1), 1.0)
        assert not answer.done()
        await answer
        connection.close()

    run(story)


def test_edge_34_a_follower_of_very_many_partitions_is_heard_before_the_device_is() -> None:
    """They are named, read and heard in slices."""

    async def story(kit: Kit) -> None:
        count = 1_010
        topic_id = await kit.create_topic(partitions=count)
        for index in (0, 1):
            await kit.produce(batch([b"0"]), index=index)
        for index in range(count):
            assert await kit.lead_and_isr(index=index, isr=[1, FOLLOWER]) == 0
        kit.registered(FOLLOWER, BROKER_EPOCH)
        connection = await kit.connect()
        _make_cold(kit, 2_000.0)
        offsets = {**dict.fromkeys(range(count), 0), 1: 1}
        answer = _send(connection, _fetch(topic_id, offsets, session_epoch=0, max_wait_ms=500))
        await eventually(lambda: (_remote(kit, 0).log_end_offset, _remote(kit, 1).log_end_offset) == (0, 1), 1.0)
        assert not answer.done()
        await answer
        connection.close()

    run(story)


def test_edge_34_each_of_two_fetches_of_a_session_is_heard_for_itself() -> None:
    """The second names partition 1 while the first reads partition 0 from the device."""

    async def story(kit: Kit) -> None:
        topic_id = await _led(kit)
        connection = await kit.connect()
        first = await connection.call(_fetch(topic_id, {0: 0, 1: 0}, session_epoch=0), FETCH, timeout_ms=10_000)
        _make_cold(kit, 20.0)
        again = {"session_id": first.session_id, "session_epoch": 1, "max_wait_ms": 500}
        answers = [_send(connection, _fetch(topic_id, {0: 0}, **again))]
        await asyncio.sleep(0.01)
        again["session_epoch"] = 2
        answers.append(_send(connection, _fetch(topic_id, {1: 1}, **again)))
        await asyncio.gather(*answers)
        assert (_remote(kit, 0).log_end_offset, _remote(kit, 1).log_end_offset) == (0, 1)
        connection.close()

    run(story)


def test_edge_34_a_change_during_the_cold_reads_of_two_fetches_is_not_forgotten() -> None:
    """Seed 4968: HW of partition 0 moves while one fetch reads it from the device and a later one, which has named its
    end, reads another partition. The first fetch took partition 0 for read, and no later one heard of its records."""

    async def story(kit: Kit) -> None:
        topic_id = await _led(kit)
        assert await kit.lead_and_isr(index=0, isr=[1, FOLLOWER, 3], replicas=[1, FOLLOWER, 3]) == 0
        await kit.produce(batch([b"not committed yet"]), index=0, acks=1)
        connection = await kit.connect()
        first = await connection.call(_fetch(topic_id, {0: 0, 1: 0}, session_epoch=0), FETCH, timeout_ms=10_000)
        _make_cold(kit, 20.0)
        again = {"session_id": first.session_id, "max_wait_ms": 5_000}
        answers = [_send(connection, _fetch(topic_id, {0: 0}, session_epoch=1, **again))]
        await asyncio.sleep(0.01)
        answers.append(_send(connection, _fetch(topic_id, {0: 2, 1: 0}, session_epoch=2, **again)))
        await asyncio.sleep(0.005)
        partition = kit.partition(index=0)
        partition.isr_changed([1, FOLLOWER], [1, FOLLOWER, 3])
        assert partition.log.high_watermark == 2
        assert not any(answer.done() for answer in answers)
        await asyncio.gather(*answers)
        answer = _send(connection, _fetch(topic_id, {1: 1}, session_epoch=3, **again))
        await kit.produce(batch([b"more"]), index=0, acks=1)
        found = fetched(await asyncio.wait_for(answer, 1.0))  # type: ignore[arg-type]
        assert found[topic_id, 0].records
        connection.close()

    run(story)


def test_edge_34_a_log_start_that_moves_during_the_cold_reads_of_two_fetches_is_told() -> None:
    """The first fetch reads the partition after a later one has named it, and its answer is passed over."""

    async def story(kit: Kit) -> None:
        topic_id = await _led(kit, 3)
        for index in range(3):
            await kit.lead_and_isr(index=index, isr=[1], replicas=[1, FOLLOWER])
        connection = await kit.connect()
        first = await connection.call(_fetch(topic_id, {1: 0, 0: 0, 2: 0}, session_epoch=0), FETCH, timeout_ms=10_000)
        _make_cold(kit, 20.0)
        again = {"session_id": first.session_id, "max_wait_ms": 1_000}
        answers = [_send(connection, _fetch(topic_id, {1: 0}, session_epoch=1, **again))]
        await asyncio.sleep(0.01)
        answers.append(_send(connection, _fetch(topic_id, {0: 1, 2: 0}, session_epoch=2, **again)))
        await asyncio.sleep(0.005)
        partition = kit.partition(index=0)
        advance_log_start(partition.log, 1)
        partition.log_start_moved()
        assert not any(answer.done() for answer in answers)
        await asyncio.gather(*answers)
        kit.host.disk.cold_chance = 0.0
        request = _fetch(topic_id, {1: 1, 2: 1}, session_epoch=3, **again)
        answer = await connection.call(request, FETCH, timeout_ms=10_000)
        assert fetched(answer)[topic_id, 0].log_start_offset == 1
        connection.close()

    run(story)


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_position_beyond_the_leaders_end_is_not_heard(is_cold: bool) -> None:
    """It would count for ever: a leader does not let a follower go back within a life."""

    async def story(kit: Kit) -> None:
        topic_id = await _led(kit)
        if is_cold:
            _make_cold(kit, 20.0)
        connection = await kit.connect()
        beyond = kit.partition(index=0).log.log_end_offset + 1
        await connection.call(_fetch(topic_id, {0: beyond, 1: 0}), FETCH, timeout_ms=10_000)
        assert (_remote(kit, 0).log_end_offset, _remote(kit, 1).log_end_offset) == (UNKNOWN_OFFSET, 0)
        connection.close()

    run(story)


def test_a_fetch_that_hears_where_the_logs_part_tells_nothing() -> None:
    """The follower has other records there: as many, but not those of this leader."""

    async def story(kit: Kit) -> None:
        topic_id = await _led(kit, 1)
        assert (await kit.produce(batch([b"1"]), acks=1)).error_code == 0
        for last_fetched_epoch, heard in ((0, UNKNOWN_OFFSET), (1, 2)):
            answer = await kit.call(_fetch(topic_id, {0: 2}, last_fetched_epoch=last_fetched_epoch), FETCH)
            (told,) = answer.responses[0].partitions
            assert (told.error_code, told.diverging_epoch.end_offset >= 0) == (0, heard == UNKNOWN_OFFSET)
            assert _remote(kit, 0).log_end_offset == heard

    run(story)


def test_an_answer_of_a_term_that_ended_while_it_was_read_is_not_given() -> None:
    """Its bytes and its HW would be those of a follower's log (edge cases 5 and 29)."""

    async def story(kit: Kit) -> None:
        topic_id = await _led(kit)
        _make_cold(kit, 20.0)
        connection = await kit.connect()
        answer = _send(connection, _fetch(topic_id, {1: 1, 0: 0}, max_wait_ms=500))
        await asyncio.sleep(0.01)
        leaders = [kit.partition(index=index).leader for index in (0, 1)]
        for index in (0, 1):
            kit.partition(index=index).follow()
        found = fetched(await answer)  # type: ignore[arg-type]
        assert [found[topic_id, index].error_code for index in (0, 1)] == [6, 6]
        known = [leader.remotes[FOLLOWER].log_end_offset for leader in leaders if leader is not None]
        assert known == [0, 1], "what the follower said while the term lasted"
        connection.close()

    run(story)


def test_edge_32_a_fetch_without_a_broker_epoch_counts_for_nothing() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await _led(kit, 1)
        answer = await kit.call(_fetch(topic_id, {0: 1}, broker_epoch=-1), FETCH)
        assert answer.responses[0].partitions[0].error_code == 0
        assert _remote(kit, 0).log_end_offset == -1
        assert FOLLOWER not in kit.broker.replicas.followers_seen
        await kit.call(_fetch(topic_id, {0: 1}), FETCH)
        await kit.call(_fetch(topic_id, {0: 0}, broker_epoch=-1), FETCH)
        assert (_remote(kit, 0).log_end_offset, _remote(kit, 0).broker_epoch) == (1, BROKER_EPOCH)

    run(story)


def test_edge_32_a_version_that_cannot_say_the_broker_epoch_counts_for_nothing() -> None:
    """Anybody can send it: acks=all must not be acknowledged because of it."""

    async def story(kit: Kit) -> None:
        await _led(kit, 1)
        producing = asyncio.ensure_future(kit.produce(batch([b"1"]), acks=-1, timeout_ms=2_000))
        await eventually(lambda: kit.partition().log.log_end_offset == 2)
        stranger = await kit.connect()
        answer = await stranger.call(fetch_request({("t", 0): 2}, replica_id=FOLLOWER), 11, timeout_ms=1_000)
        assert answer.responses[0].partitions[0].error_code == 0
        assert _remote(kit, 0).log_end_offset == UNKNOWN_OFFSET
        assert (await producing).error_code == ErrorCode.REQUEST_TIMED_OUT
        stranger.close()

    run(story)


@pytest.mark.parametrize("broker_epoch", [0, BROKER_EPOCH - 1, BROKER_EPOCH + 1, 2**62])
def test_edge_32_a_fetch_of_another_registration_is_refused(broker_epoch: int) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await _led(kit, 1)
        answer = await kit.call(_fetch(topic_id, {0: 1}, broker_epoch=broker_epoch), FETCH)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert _remote(kit, 0).log_end_offset == UNKNOWN_OFFSET
        answer = await kit.call(_fetch(topic_id, {0: 1}), FETCH)
        assert answer.responses[0].partitions[0].error_code == 0
        assert (_remote(kit, 0).log_end_offset, _remote(kit, 0).broker_epoch) == (1, BROKER_EPOCH)

    run(story)


def test_edge_32_only_registered_brokers_are_seen_as_followers() -> None:
    """Otherwise anybody could make the broker note one id after the other, or keep a dead follower in the ISR."""

    async def story(kit: Kit) -> None:
        topic_id = await _led(kit, 1)
        kit.broker.metadata.brokers[FOLLOWER] = kit.broker.metadata.brokers[kit.broker_id]
        seen = kit.broker.replicas.followers_seen
        for broker_epoch in (0, BROKER_EPOCH - 1, BROKER_EPOCH + 1):
            await kit.call(_fetch(topic_id, {0: 1}, broker_epoch=broker_epoch), FETCH)
        for stranger in range(1_000, 1_020):
            fetch = _fetch(topic_id, {0: 1})
            fetch.replica_state.replica_id = stranger
            await kit.call(fetch, FETCH)
        assert seen == {}
        await kit.call(_fetch(topic_id, {0: 1}), FETCH)
        assert list(seen) == [FOLLOWER]

    run(story)


def test_edge_32_a_follower_that_is_not_registered_is_refused() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await _led(kit, 1)
        kit.registered(FOLLOWER, NO_EPOCH)
        answer = await kit.call(_fetch(topic_id, {0: 1}), FETCH)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(story)


@pytest.mark.parametrize(
    ("leader_epoch", "code"), [(None, ErrorCode.NOT_LEADER_OR_FOLLOWER), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_a_broker_that_is_no_replica_copies_nothing(leader_epoch: int | None, code: ErrorCode) -> None:
    """It may have heard of a reassignment before the leader has: with Kafka's errors it tries again."""

    async def story(kit: Kit) -> None:
        topic_id = await _led(kit, 1)
        kit.registered(3, BROKER_EPOCH)
        epoch = -1 if leader_epoch is None else kit.partition().leader_epoch
        request = follower_request(topic_id, {0: 0}, follower=3, broker_epoch=BROKER_EPOCH, current_leader_epoch=epoch)
        answer = (await kit.call(request, FETCH)).responses[0].partitions[0]
        assert (answer.error_code, answer.records) == (code, b"")

    run(story)

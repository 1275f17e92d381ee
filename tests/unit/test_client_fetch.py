"""Fetching by partition: sessions, leaders that move, positions out of range, aborted transactions; offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from tests.kits.clientkit import P0, P1, sabotage, simulate, values
from tests.kits.fake_broker import CLOSE, FakeCluster
from tidelog.client import fetch
from tidelog.client.cluster import Cluster
from tidelog.client.committed import visible_records
from tidelog.client.errors import BrokerError, UnknownTopicError
from tidelog.client.fetch import Fetched, Fetcher, FetchSettings
from tidelog.client.fetch_session import FetchSession, Wanted
from tidelog.client.offsets import EARLIEST, LATEST, list_offsets, start_and_end
from tidelog.errors import ErrorCode
from tidelog.records.build import build_batch
from tidelog.records.control import ControlType, EndTxnMarker, build_marker
from tidelog.records.header import headers
from tidelog.types import TopicPartition
from tidelog.wire.messages.fetch import AbortedTransaction, FetchRequest, FetchResponse

FETCH, LIST_OFFSETS = 1, 2


def fill(fake: FakeCluster, partition: TopicPartition, count: int) -> None:
    for number in range(count):
        fake.append(partition, bytes(values(2, 2 * number)))


def asked_for(fake: FakeCluster) -> list[int]:
    """The partitions in the last fetch."""
    last = fake.brokers[1].of_key(FETCH)[-1]
    return [data.partition for topic in last.topics for data in topic.partitions]


async def read_until(fetcher: Fetcher, ends: dict[TopicPartition, int]) -> dict[TopicPartition, list[int]]:
    """The values of each partition, checked to follow on each other."""
    found: dict[TopicPartition, list[int]] = {partition: [] for partition in ends}
    at: dict[TopicPartition, int] = {}
    while any(at.get(partition, 0) < end for partition, end in ends.items()):
        for fetched in await fetcher.next():
            assert at.get(fetched.partition, fetched.fetch_offset) == fetched.fetch_offset
            at[fetched.partition] = fetched.next_offset
            found.setdefault(fetched.partition, []).extend(read(fetched))
    return {partition: found[partition] for partition in ends}


def read(fetched: Fetched) -> list[int]:
    return [int(record.value or b"") for record in visible_records(fetched.records, (), fetched.fetch_offset)]


def test_partitions_are_read_from_their_positions_on() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fill(fake, P0, 5)
        fill(fake, P1, 3)
        fetcher = Fetcher(cluster, {P0: 3, P1: 0})
        found = await read_until(fetcher, {P0: 10, P1: 6})
        assert found == {P0: list(range(3, 10)), P1: list(range(6))}
        fake.append(P0, bytes(values(2, 10)))
        assert await read_until(fetcher, {P0: 12}) == {P0: [10, 11]}
        assert fetcher.position(P0) == 12
        fetcher.close()

    simulate(story)


def test_a_leader_that_moved_and_a_connection_that_ended_are_gone_on_from() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fill(fake, P0, 4)
        fake.brokers[1].script[FETCH] = [None, CLOSE]
        fetcher = Fetcher(cluster, {P0: 0, P1: 0})
        assert (await read_until(fetcher, {P0: 8}))[P0] == list(range(8))
        fake.leaders[P0], fake.leader_epochs[P0] = 2, 1
        fill(fake, P1, 1)
        fake.append(P0, bytes(values(2, 8)))
        assert await read_until(fetcher, {P0: 10, P1: 2}) == {P0: [8, 9], P1: [0, 1]}
        fetcher.close()

    simulate(story, brokers=2)


@pytest.mark.parametrize("seed", range(6))
def test_no_trouble_on_the_network_leaves_a_gap(seed: int) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fetcher = Fetcher(cluster, {P0: 0, P1: 0})
        reading = asyncio.ensure_future(read_until(fetcher, {P0: 60, P1: 60}))
        for number in range(30):
            await asyncio.sleep(0.1)
            for partition in (P0, P1):
                fake.append(partition, bytes(values(2, 2 * number)))
        assert await reading == {P0: list(range(60)), P1: list(range(60))}
        fetcher.close()

    simulate(story, brokers=2, seed=seed, saboteur=sabotage)


def test_a_position_out_of_range_is_an_error_or_reset() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fill(fake, P0, 2)
        strict = Fetcher(cluster, {P0: 99})
        with pytest.raises(BrokerError, match="orders-0 from offset 99: OFFSET_OUT_OF_RANGE"):
            await strict.next()
        strict.close()
        lenient = Fetcher(cluster, {P0: 99}, FetchSettings(out_of_range=EARLIEST))
        assert await read_until(lenient, {P0: 4}) == {P0: [0, 1, 2, 3]}
        lenient.close()

    simulate(story)


def test_a_partition_that_is_dropped_while_its_position_is_reset_stays_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member of the group may read it by now."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fill(fake, P0, 2)
        fetcher = Fetcher(cluster, {P0: 99, P1: 0}, FetchSettings(out_of_range=EARLIEST))

        async def slow(*given: Any, **options: Any) -> Any:
            found = await list_offsets(*given, **options)
            fetcher.drop([P0])
            fill(fake, P1, 1)
            return found

        monkeypatch.setattr(fetch, "list_offsets", slow)
        assert await read_until(fetcher, {P1: 2}) == {P1: [0, 1]}
        with pytest.raises(KeyError):
            fetcher.position(P0)
        fetcher.close()

    simulate(story)


def test_a_partition_that_begins_elsewhere_while_its_position_is_reset_is_read_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fill(fake, P0, 5)
        fetcher = Fetcher(cluster, {P0: 99}, FetchSettings(out_of_range=EARLIEST))

        async def slow(*given: Any, **options: Any) -> Any:
            found = await list_offsets(*given, **options)
            fetcher.add({P0: 6})
            return found

        monkeypatch.setattr(fetch, "list_offsets", slow)
        assert await read_until(fetcher, {P0: 10}) == {P0: [6, 7, 8, 9]}
        fetcher.close()

    simulate(story)


def test_a_dropped_partition_is_not_asked_for() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fill(fake, P0, 1)
        fetcher = Fetcher(cluster, {P0: 0, P1: 0})
        await read_until(fetcher, {P0: 2})
        fetcher.drop([P0])
        async with asyncio.timeout(60):
            while asked_for(fake) != [1]:
                await asyncio.sleep(0.01)
        fetcher.close()

    simulate(story)


def test_a_topic_that_stays_unknown_is_an_error_in_the_end() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fetcher = Fetcher(cluster, {P0: 0})
        await fetcher.next()
        fake.leaders.clear()
        with pytest.raises(UnknownTopicError, match="topic orders"):
            await fetcher.next()
        fetcher.close()

    simulate(story)


def test_a_topic_that_was_made_anew_is_not_the_one_that_is_read() -> None:
    """It is unknown, if the reader says which one it reads; otherwise it goes on there."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fill(fake, P0, 1)
        bound = Fetcher(cluster, {P0: 0}, topic_ids={"orders": fake.topic_id("orders")})
        free = Fetcher(cluster, {P0: 0})
        for fetcher in (bound, free):
            assert [one.next_offset for one in await fetcher.next()] == [2]
        fake.make_anew("orders")
        fill(fake, P0, 3)
        assert [one.next_offset for one in await free.next()] == [4]
        with pytest.raises(UnknownTopicError, match="topic orders"):
            await bound.next()
        for fetcher in (bound, free):
            fetcher.close()

    simulate(story)


def test_only_what_changed_is_sent_in_a_session() -> None:
    sent: list[tuple[int, int, list[int]]] = []

    def answer(request: FetchRequest) -> FetchResponse:
        numbers = [data.partition for topic in request.topics for data in topic.partitions]
        sent.append((request.session_id, request.session_epoch, numbers))
        return FetchResponse(session_id=77)

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[FETCH] = [answer, answer, answer]
        fetcher = Fetcher(cluster, {P0: 0, P1: 0})
        waiting = asyncio.ensure_future(fetcher.next())
        while len(sent) < 3:
            await asyncio.sleep(0.01)
        waiting.cancel()
        fetcher.close()

    simulate(story)
    assert sent == [(0, 0, [0, 1]), (77, 1, []), (77, 2, [])]


def test_a_session_tells_what_changed_and_what_is_forgotten() -> None:
    session = FetchSession()
    a, b = Wanted(b"a" * 16, 0, 1), Wanted(b"b" * 16, 0, 1)
    assert session.step({P0: a, P1: b}) == (0, 0, {P0: a, P1: b}, {})
    assert session.answered(ErrorCode.NONE, 5)
    moved = a._replace(fetch_offset=9)
    assert session.step({P0: moved}) == (5, 1, {P0: moved}, {P1: b})
    assert session.answered(ErrorCode.NONE, 5)
    anew = moved._replace(topic_id=b"c" * 16)
    assert session.step({P0: anew}) == (5, 2, {P0: anew}, {P0: moved})
    assert not session.answered(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    assert session.step({P0: anew}) == (0, 0, {P0: anew}, {})
    assert session.answered(ErrorCode.NONE, 0)
    assert session.step({P0: anew}) == (0, 0, {P0: anew}, {})
    session.lost()
    assert session.step({P1: b}) == (0, 0, {P1: b}, {})


def test_offsets_are_asked_of_the_leaders_and_asked_again() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fill(fake, P0, 2)
        fake.leaders[P1] = 2
        assert await start_and_end(cluster, [P0, P1]) == {P0: (0, 4), P1: (0, 0)}
        found = await list_offsets(cluster, {P1: LATEST, P0: EARLIEST})
        assert {partition: offset.offset for partition, offset in found.items()} == {P1: 0, P0: 0}
        assert list(found) == [P1, P0]

    fake = simulate(story, brokers=2)
    assert len(fake.brokers[2].of_key(LIST_OFFSETS)) >= 2


def batches(*parts: bytes | memoryview) -> bytes:
    """One buffer of these, with offsets that count up."""
    buffer = bytearray(b"".join(parts))
    offset = 0
    for position, header in headers(bytes(buffer)):
        buffer[position : position + 8] = offset.to_bytes(8, "big")
        offset += header.last_offset_delta + 1
    return bytes(buffer)


def transactional(producer: int, data: Iterable[bytes]) -> memoryview:
    records = [(1, None, value) for value in data]
    return build_batch(records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def test_aborted_transactions_and_markers_are_left_out() -> None:
    def marker(producer: int, kind: ControlType) -> memoryview:
        return build_marker(EndTxnMarker(kind, 0), producer, 0, 1)

    buffer = batches(
        transactional(1, [b"a"]),
        transactional(2, [b"b"]),
        marker(1, ControlType.ABORT),
        build_batch([(1, None, b"c")]),
        marker(2, ControlType.COMMIT),
        transactional(1, [b"d", b"e"]),
        marker(1, ControlType.COMMIT),
    )
    aborted = [AbortedTransaction(producer_id=1, first_offset=0)]
    assert [record.value for record in visible_records(buffer, aborted)] == [b"b", b"c", b"d", b"e"]
    assert [record.value for record in visible_records(buffer)] == [b"a", b"b", b"c", b"d", b"e"]
    assert [record.value for record in visible_records(buffer, aborted, 6)] == [b"e"]

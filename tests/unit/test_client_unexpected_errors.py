"""Errors that no rule is for, such as MemoryError: what was sent ends, whoever waits hears of it, nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.clientkit import P0, P1, simulate, values, written
from tests.kits.fake_broker import SILENCE, FakeCluster
from tidelog.client import batching, column_batching, sending
from tidelog.client.batching import Batcher, BatchingSettings
from tidelog.client.cluster import Cluster
from tidelog.client.column_batching import ColumnBatcher
from tidelog.client.errors import DeadlineError
from tidelog.client.produce import Producer
from tidelog.client.sequences import PartitionQueue
from tidelog.net.calling import Connection, ConnectionClosedError
from tidelog.records.batch import decode_into
from tidelog.records.buffers import ColumnBuffers
from tidelog.records.columns import Columns

PRODUCE = 0
NO_MEMORY = MemoryError("no memory for it")


def breaking(patch: pytest.MonkeyPatch, owner: object, name: str, *calls: int) -> None:
    """These calls of a function or method raise, counted from 0; the others do what they did."""
    function: Callable[..., Any] = getattr(owner, name)
    count = 0

    def called(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count - 1 in calls:
            raise NO_MEMORY
        return function(*args, **options)

    patch.setattr(owner, name, called)


def rows(count: int, start: int = 0) -> ColumnBuffers:
    columns = Columns()
    decode_into(columns, values(count, start))
    return columns.finish()


# A batch that cannot be made


def test_rows_of_a_batch_that_could_not_be_made_are_not_called_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        breaking(monkeypatch, column_batching, "finish_batch", 0)
        producer = Producer(cluster)
        batcher = ColumnBatcher(producer, BatchingSettings(linger_ms=100))
        batcher.add(P0, rows(10))
        await asyncio.sleep(1)  # it has lingered
        with pytest.raises(MemoryError, match="no memory"):
            batcher.add(P0, rows(10, 10))
        for wait in (batcher.room, batcher.flush):
            with pytest.raises(MemoryError, match="no memory"):
                await wait()
        producer.close()

    assert written(simulate(story), P0) == []


def test_what_waits_for_room_hears_of_a_batch_that_could_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        breaking(monkeypatch, column_batching, "finish_batch", 0)
        fake.brokers[1].script[PRODUCE] = [SILENCE]
        producer = Producer(cluster)
        batcher = ColumnBatcher(producer, BatchingSettings(linger_ms=500, buffer_memory=1))
        unanswered = producer.send(P0, values(1))
        batcher.add(P1, rows(1))
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(MemoryError, match="no memory"):
            await batcher.room()
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(0.5, abs=0.1)
        producer.close()
        with pytest.raises(ConnectionClosedError):
            await unanswered

    simulate(story)


def test_a_flush_that_cannot_make_a_batch_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        breaking(monkeypatch, column_batching, "finish_batch", 0)
        producer = Producer(cluster)
        batcher = ColumnBatcher(producer, BatchingSettings(linger_ms=10_000))
        batcher.add(P0, rows(10))
        with pytest.raises(MemoryError, match="no memory"):
            await batcher.flush()
        producer.close()

    assert written(simulate(story), P0) == []


@pytest.mark.parametrize("lingers", [True, False])
def test_single_records_of_a_batch_that_could_not_be_made_fail(monkeypatch: pytest.MonkeyPatch, lingers: bool) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        breaking(monkeypatch, batching, "finish_batch", 0)
        producer = Producer(cluster)
        batcher = Batcher(cluster, producer, "orders", BatchingSettings(linger_ms=100))
        lost = await batcher.add(1, None, b"0", partition=0)
        if not lingers:
            await batcher.flush()
        with pytest.raises(MemoryError, match="no memory"):
            await asyncio.wait_for(lost, 1)
        await batcher.add(1, None, b"1", partition=0)
        await batcher.flush()
        producer.close()

    assert written(simulate(story), P0) == [1]


# A batch that cannot be split


def test_a_batch_that_breaks_down_as_it_is_split_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        breaking(monkeypatch, sending, "split_batch", 0)
        fake.max_message_bytes["orders"] = 200
        producer = Producer(cluster)
        lost, beside = producer.send(P0, values(100)), producer.send(P1, values(2))
        behind = producer.send(P0, values(2, 100))
        await asyncio.wait_for(producer.flush(), 5)
        with pytest.raises(MemoryError, match="no memory"):
            await lost
        assert [(await future).base_offset for future in (beside, behind)] == [0, 0]
        assert producer.outstanding_bytes == 0
        producer.close()

    fake = simulate(story)
    assert written(fake, P0) == [100, 101]
    assert written(fake, P1) == [0, 1]


def test_a_batch_that_breaks_down_as_it_is_split_unsent_fails_and_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        producer.limits.refused("orders", 200)
        breaking(monkeypatch, sending, "split_batch", 0)
        lost, beside = producer.send(P0, values(100)), producer.send(P1, values(2))
        await asyncio.wait_for(producer.flush(), 5)
        with pytest.raises(MemoryError, match="no memory"):
            await lost
        assert (await beside).base_offset == 0
        assert (await producer.send(P0, values(2))).base_offset == 0
        producer.close()

    simulate(story)


@pytest.mark.parametrize("call", range(3))
def test_pieces_that_were_made_in_vain_keep_nothing_from_its_end(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        breaking(monkeypatch, PartitionQueue, "split", call)
        fake.max_message_bytes["orders"] = 200
        producer = Producer(cluster)
        lost = producer.send(P0, values(100))
        with pytest.raises(MemoryError, match="no memory"):
            await asyncio.wait_for(lost, 5)
        await asyncio.wait_for(producer.flush(), 5)
        assert producer.outstanding_bytes == 0
        assert (await producer.send(P0, values(1))).base_offset == len(written(fake, P0)) - 1
        producer.close()

    simulate(story)


# A request that cannot be sent, an answer that cannot be taken


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Connection, "send"),
        (Connection, "pick"),
        (Cluster, "connection"),
        (PartitionQueue, "identify"),
        (PartitionQueue, "acknowledged"),
    ],
)
def test_whatever_breaks_down_on_the_way_ends_the_batch(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        if name == "send":
            await producer.send(P1, values(1))  # the first call would be InitProducerId
        breaking(monkeypatch, owner, name, 0)
        with pytest.raises(MemoryError, match="no memory"):
            await asyncio.wait_for(producer.send(P0, values(1)), 5)
        await asyncio.wait_for(producer.flush(), 5)
        monkeypatch.undo()
        assert (await asyncio.wait_for(producer.send(P0, values(1, 1)), 5)).base_offset >= 0
        producer.close()

    assert written(simulate(story), P0)[-1] == 1


def test_metadata_that_breaks_down_ends_what_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.leaders[P0] = -1
        await cluster.refresh_once(["orders"])
        breaking(monkeypatch, Cluster, "refresh_once", 0)
        producer = Producer(cluster)
        with pytest.raises(MemoryError, match="no memory"):
            await asyncio.wait_for(producer.send(P0, values(1)), 5)
        fake.leaders[P0] = 1
        assert (await asyncio.wait_for(producer.send(P0, values(1)), 5)).base_offset == 0
        producer.close()

    simulate(story)


@pytest.mark.parametrize("is_late", [True, False])
def test_a_batch_that_nothing_decides_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    """Its answer comes to nothing, or long after it was given up."""
    answers: list[tuple[Any, ...]] = []

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster, delivery_timeout_ms=20_000)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        answered = producer._answered
        monkeypatch.setattr(producer, "_answered", lambda *answer: answers.append(answer))
        lost = producer.send(P0, values(1))
        await asyncio.wait_for(producer.flush(), 60)
        assert loop.time() - began_s == pytest.approx(20 + cluster.settings.request_timeout_ms / 1000, abs=0.1)
        with pytest.raises(DeadlineError, match=r"orders-0: gave up after 20 s \(delivery.timeout.ms\)"):
            await lost
        monkeypatch.undo()
        if is_late:
            answered(*answers[0])
        assert producer.outstanding_bytes == 0
        assert (await producer.send(P0, values(1, 1))).base_offset == 1
        producer.close()

    assert written(simulate(story), P0) == [0, 1]

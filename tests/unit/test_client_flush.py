"""A flush that begins in the same turn of the loop in which the last answer comes: what was refused is not success."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tests.kits.clientkit import P0, simulate, values, written
from tests.kits.fake_broker import FakeCluster
from tidelog.cli import produce
from tidelog.client.batching import Batcher, BatchingSettings
from tidelog.client.cluster import Cluster
from tidelog.client.column_batching import ColumnBatcher
from tidelog.client.errors import BrokerError
from tidelog.client.produce import Producer
from tidelog.records.batch import decode_into
from tidelog.records.buffers import ColumnBuffers
from tidelog.records.columns import Columns

T = TypeVar("T")
LINGER_MS = 5
DEADLINE_S = 10


def rows(count: int) -> ColumnBuffers:
    columns = Columns()
    decode_into(columns, values(count))
    return columns.finish()


async def begun_with_the_answer(producer: Producer, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Begins the work just before the producer hears the answer, so the loop runs it before the batch's callbacks."""
    begun: asyncio.Future[asyncio.Task[T]] = asyncio.get_running_loop().create_future()
    answered = producer._answered

    def hooked(*args: Any) -> None:
        begun.set_result(asyncio.create_task(work()))
        answered(*args)

    producer._answered = hooked  # type: ignore[method-assign]
    return await asyncio.wait_for(await asyncio.wait_for(begun, DEADLINE_S), DEADLINE_S)


def test_rows_that_were_refused_as_the_flush_began_are_not_called_written() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.max_message_bytes["orders"] = 10
        producer = Producer(cluster)
        batcher = ColumnBatcher(producer, BatchingSettings(linger_ms=LINGER_MS))
        batcher.add(P0, rows(1))
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            await begun_with_the_answer(producer, batcher.flush)
        producer.close()

    assert written(simulate(story), P0) == []


def test_rows_that_were_taken_as_the_flush_began_are_written() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        producer = Producer(cluster)
        batcher = ColumnBatcher(producer, BatchingSettings(linger_ms=LINGER_MS))
        batcher.add(P0, rows(2))
        await begun_with_the_answer(producer, batcher.flush)
        await batcher.flush()
        producer.close()

    assert written(simulate(story), P0) == [0, 1]


@pytest.mark.parametrize("is_refused", [True, False])
def test_the_command_counts_the_last_batch_before_it_ends(is_refused: bool, capsys: pytest.CaptureFixture[str]) -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        if is_refused:
            fake.max_message_bytes["orders"] = 10
        producer = Producer(cluster)
        batcher = Batcher(cluster, producer, "orders", BatchingSettings(linger_ms=LINGER_MS))
        outcome = produce._Outcome("orders")
        outcome.expect(await batcher.add(1, None, b"0", partition=0))

        async def end() -> BaseException | None:
            await produce._end(batcher, producer, outcome)
            outcome.report()
            return outcome.failure

        assert isinstance(await begun_with_the_answer(producer, end), BrokerError) == is_refused

    assert written(simulate(story), P0) == ([] if is_refused else [0])
    told = "1 record not written, or not known to be" if is_refused else "1 record written to orders"
    assert told in capsys.readouterr().err

"""A task whose rows come slowly or not at all: the network goes on, failures are heard, and no thread is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.kits.fake_admin import FakeAdminBroker, served_broker
from tests.kits.fake_broker import CLOSE, SILENCE
from tests.unit.test_client_produce import refusal
from tidelog.client import column_batching
from tidelog.client.errors import BrokerError, DeadlineError
from tidelog.errors import ErrorCode
from tidelog.records.batch import decode
from tidelog.spark.options import write_options
from tidelog.spark.writing import write_batches
from tidelog.types import TopicPartition

P0 = TopicPartition("orders", 0)
PRODUCE = 0
DEADLINE_S = 30


@pytest.fixture
def broker() -> Iterator[FakeAdminBroker]:
    with served_broker() as broker:
        broker.add_topic("orders", 1)
        yield broker
    assert not [thread for thread in threading.enumerate() if thread.name == "tidelog-sender"]


def _write(broker: FakeAdminBroker, batches: Iterator[pa.RecordBatch], **settings: str) -> int:
    options = {f"kafka.{name.replace('_', '.')}": value for name, value in settings.items()}
    options |= {"kafka.bootstrap.servers": broker.bootstrap, "topic": "orders"}
    return write_batches(write_options(options), batches).record_count


def _rows(start: int, count: int, size: int = 0) -> pa.RecordBatch:
    values: pa.Array[Any] = pa.array([b"%d" % number + b" " * size for number in range(start, start + count)])
    return pa.RecordBatch.from_arrays([values], ["value"])


def _written(broker: FakeAdminBroker) -> list[int]:
    return [int(record.value or b"") for data in list(broker.cluster.logs[P0]) for record in decode(data)]


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.005)


def test_edge_40_rows_are_written_while_the_next_ones_are_waited_for(broker: FakeAdminBroker) -> None:
    """Full batches, and the last ones, which have lingered; the first connection is lost on top."""
    broker.script[PRODUCE] = [CLOSE]

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 400, 100):
            yield _rows(start, 100, 50)
            _wait_for(lambda: len(_written(broker)) == start + 100, f"{start + 100} rows")  # noqa: B023

    assert _write(broker, batches(), batch_size="2000", linger_ms="10") == 400
    assert _written(broker) == list(range(400))


def test_a_refusal_ends_the_task_with_the_next_rows(broker: FakeAdminBroker) -> None:
    broker.script[PRODUCE] = [refusal(ErrorCode.INVALID_RECORD)]
    pulled: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 1000, 10):
            pulled.append(start)
            yield _rows(start, 10)
            _wait_for(lambda: not broker.script[PRODUCE], "the refusal")

    with pytest.raises(BrokerError, match="produce to orders-0: INVALID_RECORD"):
        _write(broker, batches(), linger_ms="0")
    assert len(pulled) < 100


def test_no_more_than_buffer_memory_is_pulled_ahead(broker: FakeAdminBroker) -> None:
    broker.script[PRODUCE] = [SILENCE]
    pulled: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(100):
            pulled.append(start)
            yield _rows(start, 1, 1000)

    with pytest.raises(DeadlineError, match=r"orders-0: gave up after 0.3 s \(delivery.timeout.ms\)"):
        _write(
            broker,
            batches(),
            buffer_memory="5000",
            batch_size="1000",
            linger_ms="0",
            delivery_timeout_ms="300",
            request_timeout_ms="1000",
        )
    assert 4 <= len(pulled) <= 7


def test_a_failure_of_the_rows_is_the_tasks(broker: FakeAdminBroker) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield _rows(0, 10)
        raise ArithmeticError("no more rows")

    with pytest.raises(ArithmeticError, match="no more rows"):
        _write(broker, batches(), linger_ms="10000")
    assert _written(broker) == []


def test_batches_that_are_too_large_are_written_in_pieces(broker: FakeAdminBroker) -> None:
    broker.cluster.max_message_bytes["orders"] = 1000
    assert _write(broker, iter([_rows(0, 300, 50), _rows(300, 300, 50)]), compression_type="lz4") == 600
    assert _written(broker) == list(range(600))


def test_a_batch_that_cannot_be_made_fails_the_task(broker: FakeAdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows have lingered, so the sender's thread makes the batch while the task waits for more rows."""
    broke = threading.Event()

    def finish(*args: Any) -> memoryview:
        monkeypatch.undo()
        broke.set()
        raise MemoryError("no memory to compress into")

    monkeypatch.setattr(column_batching, "finish_batch", finish)

    def batches() -> Iterator[pa.RecordBatch]:
        yield _rows(0, 10)
        assert broke.wait(DEADLINE_S)

    with pytest.raises(MemoryError, match="no memory to compress into"):
        _write(broker, batches(), linger_ms="0")
    assert _written(broker) == []

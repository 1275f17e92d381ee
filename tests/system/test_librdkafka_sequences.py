"""librdkafka's idempotent producer and the answers that it takes for more than they say (edge cases 18, 20, 44)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.kits.brokerkit import Kit, run_here
from tests.kits.logkit import batch
from tidelog.broker.handlers import produce
from tidelog.broker.partition import RequestError
from tidelog.errors import ErrorCode
from tidelog.records.validate import validate
from tidelog.types import NO_PRODUCER

RECORDS = 40
_ANSWER_S = 30.0
_BATCHES_UNDER_WAY_S = 0.3
"""While the broker does nothing, the client sends the batches behind the first."""
_SETTINGS: dict[str, str | int | float | bool] = {
    "enable.idempotence": True,
    # It has up to five requests under way, but only while they hold fewer than five records.
    "batch.num.messages": 1,
    "linger.ms": 1,
    "message.timeout.ms": 20_000,
    "log_level": 0,
}


class Client:
    """Writes numbers to t-0 and keeps what it was told of each."""

    def __init__(self, kit: Kit) -> None:
        bootstrap = f"127.0.0.1:{kit.broker.ports_bound['PLAINTEXT']}"
        self._producer = Producer({"bootstrap.servers": bootstrap, **_SETTINGS})
        self.offsets: dict[int, int | None] = {}
        self.failures: list[str] = []

    def write(self, numbers: range) -> None:
        for number in numbers:
            self._producer.produce("t", b"%d" % number, partition=0, on_delivery=self._delivered)
        assert self._producer.flush(_ANSWER_S) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        offset = message.offset()
        self.offsets[int(message.value() or b"")] = None if offset is None or offset < 0 else offset


def refuse(monkeypatch: pytest.MonkeyPatch, codes: Iterator[ErrorCode]) -> None:
    """The broker refuses batches of idempotent producers with these codes, one each, and takes the others."""
    write = produce._Produce._written

    def write_or_refuse(self: Any, part: Any, looked: Any) -> Any:
        if validate(part.data.records).producer_id != NO_PRODUCER:
            code = next(codes)
            if code is not ErrorCode.NONE:
                time.sleep(_BATCHES_UNDER_WAY_S)
                raise RequestError(code)
        return write(self, part, looked)

    monkeypatch.setattr(produce._Produce, "_written", write_or_refuse)


@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER])
@pytest.mark.parametrize("is_empty", [True, False])
def test_edge_44_a_refused_first_batch_is_not_taken_for_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, is_empty: bool
) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        others = [] if is_empty else [b"of another"]
        for value in others:
            assert (await kit.produce(batch([value]))).error_code == 0
        refuse(monkeypatch, chain([code], repeat(ErrorCode.NONE)))
        client = Client(kit)
        await asyncio.to_thread(client.write, range(RECORDS))
        assert not client.failures
        assert await kit.values() == [*others, *(b"%d" % number for number in range(RECORDS))]
        assert client.offsets == {number: number + len(others) for number in range(RECORDS)}
        assert kit.partition().log.producers.states[0].epoch == 0, "it was not made to begin another epoch"

    run_here(story, tmp_path)


def test_a_producer_goes_on_when_its_topic_was_made_anew(tmp_path: Path) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        client = Client(kit)
        await asyncio.to_thread(client.write, range(RECORDS))
        await kit.delete_topic()
        await kit.create_topic()
        await asyncio.to_thread(client.write, range(RECORDS, 2 * RECORDS))
        assert not client.failures
        assert await kit.values() == [b"%d" % number for number in range(RECORDS, 2 * RECORDS)]
        assert len(client.offsets) == 2 * RECORDS

    run_here(story, tmp_path)

"""Requests of which only waiting is left: they keep no place among the large ones, and end with their clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, run
from tidelog.broker.handlers import elections, topics
from tidelog.broker.partition import Partition
from tidelog.controller.events import Elected
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.wire import Message
from tidelog.wire.messages.offsets import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tidelog.wire.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
)

FOR_EVER_MS = 2**31 - 1
MANY = 3_000
ELEMENTS = 'tidelog_network_request_channel_large_request_elements{sender="client"}'
RESTING = 'tidelog_network_request_channel_large_requests_resting{sender="client"}'
USED = "kafka_network_socketserver_memorypoolused"


def metric(kit: Kit, line: str) -> float:
    for found in kit.broker.metrics.text().splitlines():
        name, _, value = found.rpartition(" ")
        if name == line:
            return float(value)
    raise AssertionError(f"there is no {line}")


def create(timeout_ms: int) -> tuple[Message, int]:
    names = ["new", *(f"/{n}" for n in range(MANY))]
    wanted = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=wanted, timeout_ms=timeout_ms), 7


def enlarge(timeout_ms: int) -> tuple[Message, int]:
    names = ["t", *(f"none{n}" for n in range(MANY))]
    wanted = [CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names]
    return CreatePartitionsRequest(topics=wanted, timeout_ms=timeout_ms), 3


def delete(timeout_ms: int) -> tuple[Message, int]:
    wanted = [DeleteTopicState(name=name) for name in ("t", *(f"none{n}" for n in range(MANY)))]
    return DeleteTopicsRequest(topics=wanted, timeout_ms=timeout_ms), 6


def trim(timeout_ms: int) -> tuple[Message, int]:
    wanted = [DeleteRecordsPartition(partition_index=index, offset=0) for index in range(MANY)]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=wanted)], timeout_ms=timeout_ms), 2


def elect(timeout_ms: int) -> tuple[Message, int]:
    wanted = [ElectLeadersRequestTopicPartitions(topic="t", partitions=list(range(MANY)))]
    return ElectLeadersRequest(election_type=0, topic_partitions=wanted, timeout_ms=timeout_ms), 2


def codes(answer: Any) -> list[int]:
    """All error codes of an answer, at any depth."""
    if isinstance(answer, (list, tuple)):
        return [code for item in answer for code in codes(item)]
    if not isinstance(answer, Message):
        return []
    own = [answer.error_code] if hasattr(answer, "error_code") else []
    return own + [code for field in answer.__schema__.fields for code in codes(getattr(answer, field.name))]


REQUESTS = pytest.mark.parametrize("made", [create, enlarge, delete, trim, elect], ids=lambda made: made.__name__)


async def make_unseen(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a topic. What is done from now on does not show."""
    await kit.create_topic()
    monkeypatch.setattr(topics, "_has_leaders", lambda broker, result: False)
    monkeypatch.setattr(topics, "_is_gone", lambda broker, result: False)
    monkeypatch.setattr(Partition, "when_low_watermark", lambda self, offset, answer: None)
    wait = elections._wait

    async def wait_for_another(broker: Any, results: Any, *rest: Any) -> Any:
        return await wait(broker, {partition: Elected(ErrorCode.NONE, leader=9) for partition in results}, *rest)

    monkeypatch.setattr(elections, "_wait", wait_for_another)


@REQUESTS
def test_a_large_request_that_only_waits_keeps_neither_its_place_nor_its_bytes(
    made: Callable[[int], tuple[Message, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(kit: Kit) -> None:
        await make_unseen(kit, monkeypatch)
        client = await kit.connect()
        waiting = client.send(*made(FOR_EVER_MS))
        await eventually(lambda: metric(kit, RESTING) == 1)
        assert (metric(kit, ELEMENTS), metric(kit, USED)) == (0, 0)
        assert not waiting.done()
        assert kit.broker._dispatcher._later
        waiting.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        client.close()
        await eventually(lambda: not kit.broker._dispatcher._later)
        assert metric(kit, RESTING) == 0
        assert not kit.broker._dispatcher._places

    run(story)


@REQUESTS
def test_what_does_not_show_in_time_is_timed_out(
    made: Callable[[int], tuple[Message, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(kit: Kit) -> None:
        await make_unseen(kit, monkeypatch)
        answer = await kit.call(*made(2_000))
        assert ErrorCode.REQUEST_TIMED_OUT in codes(answer)
        assert (metric(kit, RESTING), metric(kit, ELEMENTS)) == (0, 0)

    run(story)

"""Requests that are sent ahead and have answers much larger than themselves: a connection gets one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.memberkit import COMMIT, GROUP, commit_request, ready
from tidelog.broker.apis import SERVED
from tidelog.broker.handlers import group_offsets
from tidelog.net.channel import Call
from tidelog.wire.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup

ONE = {"offsets_topic_replication_factor": "1", "offsets_topic_num_partitions": "1"}
OFFSET_FETCH = 9
AHEAD = 5
ALL_OFFSETS = OffsetFetchRequest(
    groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)],
    require_stable=True,
)


def noted(monkeypatch: pytest.MonkeyPatch, begins: str) -> list[str]:
    """In their order: when an OffsetFetch calls this function, and when one is answered."""
    events: list[str] = []
    begin: Callable[..., Any] = getattr(group_offsets, begins)
    answer = Call.answer

    def begun(*args: Any) -> Any:
        events.append("begun")
        return begin(*args)

    def answered(call: Call, parts: Any) -> None:
        if call.api_key == OFFSET_FETCH:
            events.append("answered")
        answer(call, parts)

    monkeypatch.setattr(group_offsets, begins, begun)
    monkeypatch.setattr(Call, "answer", answered)
    return events


def test_offsets_of_a_large_group(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 1_200

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", count)
        await ready(kit)
        await kit.call(commit_request(GROUP, {("t", index): 7 for index in range(count)}), COMMIT)
        connection = await kit.connect()
        events = noted(monkeypatch, "fetch_large_group")
        answers = [connection.send(ALL_OFFSETS, 9, timeout_ms=20_000) for _ in range(AHEAD)]
        for answer in answers:
            (group,) = (await answer).groups
            assert [partition.committed_offset for partition in group.topics[0].partitions] == [7] * count
        assert events == ["begun", "answered"] * AHEAD

    run(story, **ONE)


def test_offsets_that_wait_for_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """flush.messages makes the commit wait for the device, and those behind it wait for the commit."""

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        await kit.call(commit_request(GROUP, {("t", 0): 6}), COMMIT)
        connection = await kit.connect()
        events = noted(monkeypatch, "_fetch")
        commit = connection.send(commit_request(GROUP, {("t", 0): 7}), COMMIT, timeout_ms=20_000)
        answers = [connection.send(ALL_OFFSETS, 9, timeout_ms=20_000) for _ in range(AHEAD)]
        assert (await commit).topics[0].partitions[0].error_code == 0
        for answer in answers:
            (group,) = (await answer).groups
            assert group.topics[0].partitions[0].committed_offset == 7
        assert events == ["begun", "answered"] * AHEAD

    run(story, log_flush_interval_messages="1", **ONE)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(3, id="Metadata"),
        pytest.param(9, id="OffsetFetch"),
        pytest.param(15, id="DescribeGroups"),
        pytest.param(16, id="ListGroups"),
        pytest.param(19, id="CreateTopics"),
        pytest.param(32, id="DescribeConfigs"),
        pytest.param(35, id="DescribeLogDirs"),
        pytest.param(43, id="ElectLeaders"),
        pytest.param(46, id="ListPartitionReassignments"),
        pytest.param(75, id="DescribeTopicPartitions"),
    ],
)
def test_apis_whose_answers_may_be_much_larger_than_the_request(key: int) -> None:
    assert SERVED[key].one_at_a_time

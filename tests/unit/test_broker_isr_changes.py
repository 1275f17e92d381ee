"""How a leader asks the controller for another ISR, and whether it still leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, run
from tidelog.broker import isr_changes
from tidelog.broker.isr_changes import IsrChanges
from tidelog.broker.partition import Partition
from tidelog.controller.asked_before import mark_asked_before, was_asked_before
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.metrics import Metrics
from tidelog.replication.leader import FollowerFetch
from tidelog.wire.messages.controller import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    BrokerState,
)

FOLLOWER = 2
UNKNOWN = 9999
Answer = Callable[[AlterPartitionRequest], AlterPartitionResponse]


def _granted(isr: list[int], **facts: Any) -> Answer:
    def answer(request: AlterPartitionRequest) -> AlterPartitionResponse:
        (topic,) = request.topics
        (asked,) = topic.partitions
        known = {"leader_id": 1, "leader_epoch": asked.leader_epoch, "partition_epoch": asked.partition_epoch + 1}
        data = AlterPartitionResponsePartitionData(partition_index=0, isr=isr, **{**known, **facts})
        return AlterPartitionResponse(
            topics=[AlterPartitionResponseTopicData(topic_id=topic.topic_id, partitions=[data])]
        )

    return answer


class Controller:
    """Answers in turn, the last for ever, and notes what came."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[AlterPartitionRequest, int]] = []

    async def __call__(self, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        self.asked.append((request, version))
        await asyncio.sleep(0.001)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request)


async def _led(kit: Kit, broker_epoch: int) -> Partition:
    """Led by the kit's broker, which is the whole ISR; a follower has fetched all."""
    await kit.create_topic()
    assert await kit.lead_and_isr(isr=[1]) == 0
    partition = kit.partition()
    assert partition.leader is not None
    partition.leader.follower_fetched(FollowerFetch(FOLLOWER, 0, 0, broker_epoch), 0)
    return partition


@pytest.mark.parametrize(
    "first",
    [
        lambda request: AlterPartitionResponse(error_code=UNKNOWN),
        lambda request: AlterPartitionResponse(),
        lambda request: 1 // 0,
        OSError("gone"),
    ],
    ids=["unknown code", "says nothing of it", "unexpected", "no connection"],
)
def test_what_goes_wrong_is_tried_again(first: Any) -> None:
    async def story(kit: Kit) -> None:
        partition = await _led(kit, 7)
        controller = Controller(first, _granted([1, FOLLOWER]))
        changes = IsrChanges(1, lambda: 5, controller, Metrics())
        changes.propose(partition, (1, FOLLOWER))
        await eventually(lambda: partition.isr == (1, FOLLOWER))
        marks = [was_asked_before(request.topics[0].partitions[0]) for request, _ in controller.asked]
        assert marks == [False, True], "the controller knows that the first may have been granted"
        await changes.stop()

    run(story)


@pytest.mark.parametrize(
    "answer",
    [lambda request: AlterPartitionResponse(), _granted([], error_code=ErrorCode.NOT_CONTROLLER)],
    ids=["says nothing of it", "is not the controller"],
)
def test_a_controller_that_does_not_help_is_not_asked_without_a_rest(answer: Answer) -> None:
    async def story(kit: Kit) -> None:
        partition = await _led(kit, 7)
        controller = Controller(answer)
        changes = IsrChanges(1, lambda: 5, controller, Metrics())
        changes.propose(partition, (1, FOLLOWER))
        await asyncio.sleep(1)
        await changes.stop()
        assert 10 <= len(controller.asked) <= 21

    run(story)


def test_a_change_that_is_never_decided_keeps_none_of_another_version_from_being_asked_for() -> None:
    async def story(kit: Kit) -> None:
        stuck = await _led(kit, 7)
        await kit.create_topic("u")
        assert await kit.lead_and_isr("u", isr=[1]) == 0
        other = kit.partition("u")
        assert other.leader is not None
        other.leader.follower_fetched(FollowerFetch(FOLLOWER, 0, 0, -1), 0)
        granted = _granted([1, FOLLOWER])

        def answer(request: AlterPartitionRequest) -> AlterPartitionResponse:
            topic_ids = {topic.topic_id for topic in request.topics}
            return granted(request) if topic_ids == {other.topic_id} else AlterPartitionResponse()

        changes = IsrChanges(1, lambda: 5, Controller(answer), Metrics())
        changes.propose(stuck, (1, FOLLOWER))
        changes.propose(other, (1, FOLLOWER))
        await eventually(lambda: other.isr == (1, FOLLOWER))
        await changes.stop()

    run(story)


def test_a_refusal_with_an_unknown_code_leaves_the_isr_as_it_is_and_the_next_change_is_asked_for() -> None:
    async def story(kit: Kit) -> None:
        partition = await _led(kit, 7)
        controller = Controller(_granted([], error_code=UNKNOWN), _granted([1, FOLLOWER]))
        changes = IsrChanges(1, lambda: 5, controller, Metrics())
        changes.propose(partition, (1, FOLLOWER))
        leader = partition.leader
        assert leader is not None
        await eventually(lambda: leader.pending_isr is None)
        assert partition.isr == (1,)
        changes.propose(partition, (1, FOLLOWER))
        await eventually(lambda: partition.isr == (1, FOLLOWER))
        await changes.stop()

    run(story)


@pytest.mark.parametrize("code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION])
def test_edge_07_a_change_that_may_have_been_granted_before_another_counts_until_the_leader_hears_of_it(
    code: ErrorCode,
) -> None:
    """The answer that granted it was lost, and then the controller elected another leader."""

    async def story(kit: Kit) -> None:
        partition = await _led(kit, 7)
        controller = Controller(OSError("the answer was lost"), _granted([], error_code=code))
        changes = IsrChanges(1, lambda: 5, controller, Metrics())
        changes.propose(partition, (1, FOLLOWER))
        leader = partition.leader
        assert leader is not None
        await eventually(lambda: len(controller.asked) == 2)
        await asyncio.sleep(1)
        assert leader.maximal_isr == (1, FOLLOWER), "the follower is in the stored ISR, and may be elected"
        assert len(controller.asked) == 2
        await changes.stop()

    run(story)


@pytest.mark.parametrize(("broker_epoch", "version"), [(7, 3), (-1, 2)])
def test_a_follower_that_cannot_tell_its_broker_epoch_is_asked_for_without_epochs(
    broker_epoch: int, version: int
) -> None:
    async def story(kit: Kit) -> None:
        partition = await _led(kit, broker_epoch)
        controller = Controller(_granted([1, FOLLOWER]))
        changes = IsrChanges(1, lambda: 5, controller, Metrics())
        changes.propose(partition, (1, FOLLOWER))
        await eventually(lambda: partition.isr == (1, FOLLOWER))
        ((request, asked_version),) = controller.asked
        (data,) = request.topics[0].partitions
        named = data.new_isr or [member.broker_id for member in data.new_isr_with_epochs]
        assert (asked_version, named) == (version, [1, FOLLOWER])
        await changes.stop()

    run(story)


@pytest.mark.parametrize(
    ("answer", "is_confirmed"),
    [
        (_granted([1], partition_epoch=1), True),
        (_granted([1], leader_epoch=99), False),
        (_granted([1], leader_id=FOLLOWER), False),
        (_granted([], error_code=ErrorCode.FENCED_LEADER_EPOCH), False),
        (_granted([], error_code=UNKNOWN), False),
        (OSError("gone"), False),
    ],
)
def test_edge_43_the_controller_is_asked_whether_this_broker_still_leads(
    answer: Answer | Exception, is_confirmed: bool
) -> None:
    async def story(kit: Kit) -> None:
        partition = await _led(kit, 7)
        leader = partition.leader
        assert leader is not None
        changes = IsrChanges(1, lambda: 5, Controller(answer), Metrics())
        assert await changes.confirm(partition, leader) is is_confirmed
        assert (leader.isr, leader.pending_isr) == ((1,), None)

    run(story)


def test_edge_43_a_controller_that_does_not_answer_confirms_nothing() -> None:
    async def story(kit: Kit) -> None:
        partition = await _led(kit, 7)
        assert partition.leader is not None

        under_way = 0

        async def silent(request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
            nonlocal under_way
            under_way += 1
            try:
                await asyncio.sleep(30)
            finally:
                under_way -= 1
            raise OSError("gone")

        changes = IsrChanges(1, lambda: 5, silent, Metrics())
        assert await changes.confirm(partition, partition.leader) is False
        assert under_way == 0, "clients come again, and what they asked before must not pile up"

    run(story)


def _grants_all(request: AlterPartitionRequest) -> AlterPartitionResponse:
    topics = [
        AlterPartitionResponseTopicData(
            topic_id=topic.topic_id,
            partitions=[
                AlterPartitionResponsePartitionData(
                    partition_index=asked.partition_index,
                    leader_id=1,
                    leader_epoch=asked.leader_epoch,
                    partition_epoch=asked.partition_epoch + 1,
                    isr=[member.broker_id for member in asked.new_isr_with_epochs],
                )
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return AlterPartitionResponse(topics=topics)


@pytest.mark.parametrize(
    "first",
    [
        _grants_all,
        lambda request: AlterPartitionResponse(error_code=ErrorCode.INVALID_REQUEST),
        lambda request: AlterPartitionResponse(),
    ],
    ids=["granted", "refused", "not answered"],
)
def test_very_many_changes_go_into_several_requests(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the controller does not answer does not keep the others from being asked for."""
    monkeypatch.setattr(isr_changes, "MOST_AT_ONCE", 2)

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 7)
        for index in range(7):
            assert await kit.lead_and_isr(index=index, isr=[1]) == 0
        controller = Controller(first, _grants_all)
        changes = IsrChanges(1, lambda: 5, controller, Metrics())
        partitions = kit.partitions()
        for partition in partitions:
            leader = partition.leader
            assert leader is not None
            leader.follower_fetched(FollowerFetch(FOLLOWER, 0, 0, 7), 0)
            changes.propose(partition, (1, FOLLOWER))
        await eventually(lambda: all(partition.isr == (1, FOLLOWER) for partition in partitions))
        asked = [
            [data.partition_index for topic in request.topics for data in topic.partitions]
            for request, _ in controller.asked
        ]
        assert [len(indexes) for indexes in asked] == ([2, 2, 2, 1] if first is _grants_all else [2, 2, 2, 2, 1])
        assert len({index for indexes in asked[:3] for index in indexes}) == 6, "each is asked for before any again"
        await changes.stop()

    run(story)


def test_a_request_of_as_many_changes_as_are_sent_is_taken_however_few_elements_clients_may_send() -> None:
    async def story(kit: Kit) -> None:
        isr = [BrokerState(broker_id=broker_id, broker_epoch=1) for broker_id in range(10)]
        data = [
            AlterPartitionRequestPartitionData(partition_index=index, new_isr_with_epochs=isr)
            for index in range(isr_changes.MOST_AT_ONCE)
        ]
        for partition in data:
            mark_asked_before(partition)
        topic = AlterPartitionRequestTopicData(topic_id=bytes(15) + b"1", partitions=data)
        request = AlterPartitionRequest(broker_id=1, broker_epoch=kit.broker.epoch, topics=[topic])
        answer = await kit.call(request, 3)
        assert answer.error_code == 0
        assert len(answer.topics[0].partitions) == isr_changes.MOST_AT_ONCE

    run(story, tidelog_request_max_elements="1000")


def test_the_log_says_how_far_behind_who_leaves_the_isr_is_and_for_how_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.broker.isr_changes")

    async def story(kit: Kit) -> None:
        partition = await _led(kit, 7)
        changes = IsrChanges(1, lambda: 5, Controller(_granted([1, FOLLOWER]), _granted([1])), Metrics())
        changes.propose(partition, (1, FOLLOWER))
        await eventually(lambda: partition.isr == (1, FOLLOWER))
        assert partition.leader is not None
        now_ms = partition.log.clock.monotonic_ms()
        partition.leader.follower_fetched(FollowerFetch(FOLLOWER, 0, 0, 7), now_ms)
        partition.leader.appended(12, now_ms)
        await asyncio.sleep(11)
        changes.propose(partition, (1,))
        await eventually(lambda: partition.isr == (1,))
        await changes.stop()

    run(story)
    expanded, shrank = caplog.messages
    assert expanded == (
        "the ISR of 1 partition expanded: t-0 ISR 1 -> 1,2 (leader epoch 1; broker 2 has caught up at offset 0)"
    )
    assert shrank == (
        "the ISR of 1 partition shrank: t-0 ISR 1,2 -> 1 "
        "(leader epoch 1; broker 2 is 12 records behind at offset 0 and has not caught up for 11.0 s)"
    )


def test_a_refusal_that_comes_again_and_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.broker.isr_changes")

    async def story(kit: Kit) -> None:
        partition = await _led(kit, 7)
        controller = Controller(_granted([], error_code=ErrorCode.INELIGIBLE_REPLICA))
        changes = IsrChanges(1, lambda: 5, controller, Metrics())
        for count in range(1, 6):
            changes.propose(partition, (1, FOLLOWER))
            await eventually(
                lambda count=count: len(controller.asked) == count and partition.leader.pending_isr is None
            )
        await changes.stop()

    run(story)
    assert caplog.messages == ["the controller refuses the ISR of 1 partition: t-0 ISR [1, 2]: INELIGIBLE_REPLICA"]

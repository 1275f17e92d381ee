"""ControlledShutdown: what a broker that stops leads goes to others first (S12.3)."""

from __future__ import annotations

import pytest

from tests.kits.controlkit import T0, T1, broker, brokers, check_encodable, controller, find, kinds, state, topic
from tidelog.controller.events import BrokersChanged, CreateState, Outcome, ShutdownAsked, TopicsChanged, UpdateState
from tidelog.controller.image import PartitionState
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition
from tidelog.wire.messages.controller import LeaderAndIsrRequest, StopReplicaRequest

CASES = {
    # replicas, leader, ISR: leader and ISR after the shutdown of broker 1, and whether it leads on
    "it hands over": ((1, 2, 3), 1, (1, 2, 3), 2, (2, 3), False),
    "to the first in the order of replicas": ((1, 3, 2), 1, (1, 2, 3), 3, (2, 3), False),
    "only to one in sync": ((1, 2, 3), 1, (1, 3), 3, (3,), False),
    "nobody else is in sync": ((1, 2, 3), 1, (1,), 1, (1,), True),
    "the other one is shutting down as well": ((1, 4), 1, (1, 4), 1, (1,), True),
    "nobody else has it": ((1,), 1, (1,), 1, (1,), False),
    "it follows, in sync": ((2, 1), 2, (2, 1), 2, (2,), False),
    "it follows, not in sync": ((2, 1), 2, (2,), 2, (2,), False),
    "it is not there": ((2, 3), 2, (2, 3), 2, (2, 3), False),
}


@pytest.mark.parametrize("why", CASES)
def test_what_follows_from_a_shutdown(why: str) -> None:
    replicas, leader, isr, new_leader, new_isr, remains = CASES[why]
    rules, _ = controller(1, 2, 3, 4, topics={"t": topic(replicas)}, states={T0: state(leader, isr)})
    rules.handle(ShutdownAsked(4, 14))
    before = rules.image.state(T0)
    assert before is not None
    outcome = rules.handle(ShutdownAsked(1, 11))
    after = rules.image.state(T0)
    assert after is not None
    assert (after.leader, after.isr) == (new_leader, new_isr)
    assert after.leader_epoch - before.leader_epoch == len(outcome.writes) == (after != before)
    assert bool(outcome.answer.remaining_partitions) is remains
    assert outcome.answer.error_code == 0
    check_encodable(outcome)


def test_who_led_follows_and_who_followed_stops() -> None:
    rules, _ = controller(
        1, 2, topics={"t": topic((1, 2), (2, 1))}, states={T0: state(1, (1, 2)), T1: state(2, (2, 1))}
    )
    outcome = rules.handle(ShutdownAsked(1, 11))
    assert kinds(outcome, 1) == ["LeaderAndIsr", "UpdateMetadata", "StopReplica"]
    (led,) = find(outcome, 1, LeaderAndIsrRequest).topic_states[0].partition_states
    assert (led.partition_index, led.leader, led.leader_epoch) == (0, 2, 1)
    (stopped,) = find(outcome, 1, StopReplicaRequest).topic_states[0].partition_states
    assert (stopped.partition_index, stopped.delete_partition, stopped.leader_epoch) == (1, False, 1)
    told = find(outcome, 2, LeaderAndIsrRequest).topic_states[0].partition_states
    assert [(p.partition_index, p.leader, p.isr) for p in told] == [(0, 2, [2]), (1, 2, [2])]
    assert outcome.elections == 1


@pytest.mark.parametrize(
    ("id", "epoch", "code"),
    [
        (1, 10, ErrorCode.STALE_BROKER_EPOCH),
        (1, -1, ErrorCode.STALE_BROKER_EPOCH),
        (9, 10, ErrorCode.BROKER_NOT_AVAILABLE),
    ],
)
def test_who_may_ask(id: int, epoch: int, code: ErrorCode) -> None:
    rules, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    outcome = rules.handle(ShutdownAsked(id, epoch))
    assert outcome.answer.error_code == code
    assert bool(outcome.writes) is (code is ErrorCode.NONE)


def test_a_broker_that_is_shutting_down_is_elected_nowhere_until_its_next_life() -> None:
    rules, _ = controller(1, 2, topics={"t": topic((1, 2), unclean=True)}, states={T0: state(1, (1, 2))})
    rules.handle(ShutdownAsked(2, 12))
    outcome = rules.handle(BrokersChanged(brokers(2)))
    assert outcome.writes == [UpdateState(T0, PartitionState(-1, 2, (1,), 5, 2, {1: 11}))]
    outcome = rules.handle(BrokersChanged({2: broker(2, 300)}))
    assert [election.partition for election in outcome.unclean] == [T0]
    assert outcome.writes == [UpdateState(T0, PartitionState(2, 3, (2,), 5, 3, {2: 300}))]


def test_a_leader_that_could_not_hand_over_leads_until_it_is_gone() -> None:
    rules, _ = controller(1, 2, 3, topics={"t": topic((1, 2))}, states={T0: state(1, (1,))})
    rules.handle(ShutdownAsked(1, 11))
    assert rules.handle(BrokersChanged(brokers(1, 2))).writes == []
    outcome = rules.handle(BrokersChanged(brokers(2)))
    assert [write.state.leader for write in outcome.writes if isinstance(write, UpdateState)] == [-1]


def test_new_partitions_are_not_led_by_who_is_shutting_down() -> None:
    rules, _ = controller(1, 2)
    rules.handle(ShutdownAsked(1, 11))
    outcome = rules.handle(TopicsChanged({"t": topic((1, 2), (1,))}, ()))
    assert outcome.writes == [CreateState(T0, PartitionState(2, 0, (2,), 5, 0, {2: 12}))]


def test_a_topic_that_is_being_deleted_is_left_alone() -> None:
    rules, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))}, to_delete=("t",))
    outcome = rules.handle(ShutdownAsked(1, 11))
    assert outcome == Outcome(answer=outcome.answer)
    assert outcome.answer.remaining_partitions == []


def test_asking_again_elects_nobody_again() -> None:
    rules, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    rules.handle(ShutdownAsked(1, 11))
    outcome = rules.handle(ShutdownAsked(1, 11))
    assert outcome.writes == []
    assert kinds(outcome, 1) == ["StopReplica"]
    assert rules.image.offline_partitions == 0
    assert rules.image.is_online(TopicPartition("t", 0), 1)

"""AlterPartition: which ISR a leader may have (S3, edge case 8)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.controlkit import T0, TOPIC_ID, broker, brokers, check_encodable, controller, find, kinds, state, topic
from tidelog.controller import nodes
from tidelog.controller.asked_before import mark_asked_before
from tidelog.controller.controller import Controller
from tidelog.controller.events import (
    AlterPartitionAsked,
    BrokersChanged,
    Outcome,
    ShutdownAsked,
    TookOver,
    UpdateState,
)
from tidelog.controller.image import PartitionState, Snapshot
from tidelog.errors import ErrorCode
from tidelog.wire import encode
from tidelog.wire.messages.controller import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
    UpdateMetadataRequest,
)

LEADER_EPOCH, VERSION = 4, 7


def made(isr: tuple[int, ...] = (1, 2), recovery: int = 0) -> Controller:
    """Brokers 1 to 4, of which 4 is shutting down; 5 is dead. Replicas on 1, 2, 3, 4 and 5; 1 leads."""
    before = state(1, isr, epoch=LEADER_EPOCH, version=VERSION)._replace(leader_recovery_state=recovery)
    rules, _ = controller(1, 2, 3, 4, topics={"t": topic((1, 2, 3, 4, 5))}, states={T0: before})
    rules.handle(ShutdownAsked(4, 14))
    return rules


def members(*ids: int, epochs: dict[int, int] | None = None) -> list[BrokerState]:
    return [BrokerState(broker_id=id, broker_epoch=(epochs or {}).get(id, 10 + id)) for id in ids]


def request(
    isr: list[BrokerState],
    *,
    sender: int = 1,
    broker_epoch: int | None = None,
    version: int = 3,
    topic_id: bytes = TOPIC_ID,
    name: str = "t",
    index: int = 0,
    **data: int,
) -> AlterPartitionAsked:
    ids: dict[str, Any] = {"new_isr_with_epochs": isr} if version >= 3 else {"new_isr": [one.broker_id for one in isr]}
    epochs = {"leader_epoch": LEADER_EPOCH, "partition_epoch": VERSION} | data
    partition = AlterPartitionRequestPartitionData(partition_index=index, **epochs, **ids)
    asked = AlterPartitionRequest(
        broker_id=sender,
        broker_epoch=10 + sender if broker_epoch is None else broker_epoch,
        topics=[AlterPartitionRequestTopicData(topic_name=name, topic_id=topic_id, partitions=[partition])],
    )
    encode(asked, version)
    return AlterPartitionAsked(asked, version)


def test_edge_09_an_isr_written_before_the_controller_heard_of_a_bounce_is_known_for_it() -> None:
    """It came into the store after the new life of broker 2 had, and another controller goes on from it."""
    first = made()
    (write,) = first.handle(request(members(1, 2, 3))).writes
    assert isinstance(write, UpdateState)
    bounced_at, written_at = 200, 201
    stored = nodes.decode_state(T0, nodes.encode_state(write.state), write.state.version, written_at)
    second = Controller(1, 6, "PLAINTEXT")
    living = {1: broker(1), 2: broker(2, bounced_at), 3: broker(3)}
    second.handle(TookOver(Snapshot(living, {"t": topic((1, 2, 3, 4, 5))}, {T0: stored}, ())))
    after = second.image.state(T0)
    assert after is not None
    assert after.isr == (1, 3)


def code(outcome: Outcome) -> ErrorCode:
    assert isinstance(outcome.answer, AlterPartitionResponse)
    if outcome.answer.error_code:
        return ErrorCode(outcome.answer.error_code)
    return ErrorCode(outcome.answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_leader_gets_the_isr_it_asks_for(version: int) -> None:
    rules = made()
    outcome = rules.handle(request(members(1, 2, 3), version=version))
    # The leader epoch stays; the partition epoch, and the controller epoch of the node, move on.
    assert outcome.writes == [
        UpdateState(T0, PartitionState(1, LEADER_EPOCH, (1, 2, 3), 5, VERSION + 1, {1: 11, 2: 12, 3: 13}))
    ]
    (answer,) = outcome.answer.topics[0].partitions
    assert (answer.leader_id, answer.leader_epoch, answer.isr, answer.partition_epoch) == (
        1,
        LEADER_EPOCH,
        [1, 2, 3],
        VERSION + 1,
    )
    assert {id: kinds(outcome, id) for id in (1, 2, 3, 4)} == {id: ["UpdateMetadata"] for id in (1, 2, 3, 4)}
    assert find(outcome, 4, UpdateMetadataRequest).topic_states[0].partition_states[0].isr == [1, 2, 3]
    encode(outcome.answer, version)
    check_encodable(outcome)


REFUSALS: dict[str, tuple[AlterPartitionAsked, ErrorCode]] = {
    "an old leader epoch": (request(members(1), leader_epoch=3), ErrorCode.FENCED_LEADER_EPOCH),
    "a leader epoch from the future": (request(members(1), leader_epoch=5), ErrorCode.NOT_CONTROLLER),
    "an old partition epoch": (request(members(1), partition_epoch=6), ErrorCode.INVALID_UPDATE_VERSION),
    "a partition epoch from the future": (request(members(1), partition_epoch=8), ErrorCode.NOT_CONTROLLER),
    "a sender that does not lead": (request(members(1, 2, 3), sender=2), ErrorCode.INVALID_REQUEST),
    "an earlier life of the sender": (request(members(1), broker_epoch=9), ErrorCode.STALE_BROKER_EPOCH),
    "a life of the sender not seen yet": (request(members(1), broker_epoch=99), ErrorCode.STALE_BROKER_EPOCH),
    "a sender that is dead": (request(members(1), sender=5), ErrorCode.STALE_BROKER_EPOCH),
    "an ISR without the leader": (request(members(2)), ErrorCode.INVALID_REQUEST),
    "an empty ISR": (request([]), ErrorCode.INVALID_REQUEST),
    "a member that is no replica": (request(members(1, 9)), ErrorCode.INVALID_REQUEST),
    "edge 8: a dead member": (request(members(1, 5)), ErrorCode.INELIGIBLE_REPLICA),
    "edge 8: a member that is shutting down": (request(members(1, 4)), ErrorCode.INELIGIBLE_REPLICA),
    "edge 8: an earlier life of a member": (request(members(1, 3, epochs={3: 12})), ErrorCode.INELIGIBLE_REPLICA),
    "edge 8: as it was called before": (request(members(1, 5), version=1), ErrorCode.OPERATION_NOT_ATTEMPTED),
    "recovering after it has recovered": (request(members(1), leader_recovery_state=1), ErrorCode.INVALID_REQUEST),
    "an unknown topic id": (request(members(1), topic_id=b"u" * 16), ErrorCode.UNKNOWN_TOPIC_ID),
    "an unknown topic": (request(members(1), version=1, name="u"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "an unknown partition": (request(members(1), index=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_what_is_refused_changes_nothing(why: str) -> None:
    asked, refusal = REFUSALS[why]
    rules = made()
    before = rules.image.state(T0)
    outcome = rules.handle(asked)
    assert code(outcome) is refusal
    assert (outcome.writes, outcome.requests) == ([], {})
    assert rules.image.state(T0) == before


def test_edge_32_a_member_whose_epoch_is_unknown_to_the_leader_is_not_let_in() -> None:
    rules = made()
    assert code(rules.handle(request(members(1, 2, 3, epochs={3: -1})))) is ErrorCode.INELIGIBLE_REPLICA
    assert code(rules.handle(request(members(1, 2, 3), version=2))) is ErrorCode.NONE, "it cannot name epochs"


def test_edge_32_a_member_that_stays_may_be_unknown_to_a_leader_that_has_not_heard_of_it_yet() -> None:
    rules = made(isr=(1, 2, 3))
    assert code(rules.handle(request(members(1, 2, epochs={2: -1})))) is ErrorCode.NONE
    assert code(made().handle(request(members(1, 2, 3, epochs={2: -1})))) is ErrorCode.NONE


def test_edge_32_a_member_that_stays_with_an_unknown_epoch_is_the_one_that_the_isr_was_written_with() -> None:
    rules = made(isr=(1, 2, 3))
    before = rules.image.state(T0)
    assert before is not None
    rules.image.topics["t"].states[0] = before._replace(lives={**before.lives, 2: 11})
    assert code(rules.handle(request(members(1, 2, epochs={2: -1})))) is ErrorCode.INELIGIBLE_REPLICA
    assert code(rules.handle(request(members(1, 3, epochs={3: -1})))) is ErrorCode.NONE


def test_a_member_that_registered_anew_intact_and_has_not_fetched_since_does_not_keep_another_out() -> None:
    it = made()
    old = it.image.brokers[2].epoch
    intact = broker(2, epoch=160, intact_since=5, last_epoch=2**60)
    it.handle(BrokersChanged({1: broker(1), 2: intact, 3: broker(3)}))
    state = it.image.state(T0)
    assert state is not None
    assert state.isr == (1, 2)
    asked = request(members(1, 2, 3, epochs={2: old}), leader_epoch=state.leader_epoch, partition_epoch=state.version)
    assert code(it.handle(asked)) is ErrorCode.NONE
    lost = made()
    lost.handle(BrokersChanged({1: broker(1), 2: broker(2, epoch=160), 3: broker(3)}))
    state = lost.image.state(T0)
    assert state is not None
    asked = request(members(1, 2, 3, epochs={2: old}), leader_epoch=state.leader_epoch, partition_epoch=state.version)
    assert code(lost.handle(asked)) is ErrorCode.INELIGIBLE_REPLICA


def test_a_request_that_comes_twice_is_answered_twice_and_written_once() -> None:
    rules = made()
    first = rules.handle(request(members(1, 2, 3)))
    second = rules.handle(request(members(1, 2, 3)))
    assert second.answer == first.answer
    assert (second.writes, second.requests) == ([], {})
    other_order = rules.handle(request(members(3, 1, 2)))
    assert other_order.answer == first.answer
    assert other_order.writes == []


def test_a_leader_that_recovers_says_so() -> None:
    rules = made(isr=(1,), recovery=1)
    assert code(rules.handle(request(members(1, 2), leader_recovery_state=1))) is ErrorCode.INVALID_REQUEST
    outcome = rules.handle(request(members(1, 2), leader_recovery_state=0))
    assert [write.state.leader_recovery_state for write in outcome.writes if isinstance(write, UpdateState)] == [0]


def test_a_leader_that_is_shutting_down_may_let_others_in_and_hands_over_when_it_asks_again() -> None:
    rules, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1,), LEADER_EPOCH, VERSION)})
    (left,) = rules.handle(ShutdownAsked(1, 11)).answer.remaining_partitions
    assert (left.topic_name, left.partition_index) == ("t", 0)
    assert code(rules.handle(request(members(1, 2)))) is ErrorCode.NONE
    assert rules.handle(ShutdownAsked(1, 11)).answer.remaining_partitions == []
    assert rules.image.state(T0) == PartitionState(2, LEADER_EPOCH + 1, (2,), 5, VERSION + 2, {2: 12})


def test_edge_09_what_a_leader_asked_for_before_a_member_bounced_is_fenced() -> None:
    rules = made()
    rules.handle(BrokersChanged(brokers(1, 3, 4) | {2: broker(2, 200)}))
    assert code(rules.handle(request(members(1, 2, 3)))) is ErrorCode.FENCED_LEADER_EPOCH
    again = {"leader_epoch": LEADER_EPOCH + 1, "partition_epoch": VERSION + 1}
    assert code(rules.handle(request(members(1, 2), **again))) is ErrorCode.INELIGIBLE_REPLICA
    assert code(rules.handle(request(members(1, 2, epochs={2: 200}), **again))) is ErrorCode.NONE


def test_many_partitions_are_one_outcome() -> None:
    rules, _ = controller(
        1,
        2,
        topics={"t": topic(*[(1, 2)] * 50)},
        states={T0._replace(partition=at): state(1, (1, 2)) for at in range(50)},
    )
    data = [AlterPartitionRequestPartitionData(partition_index=at, new_isr_with_epochs=members(1)) for at in range(50)]
    asked = AlterPartitionRequest(
        broker_id=1, broker_epoch=11, topics=[AlterPartitionRequestTopicData(topic_id=TOPIC_ID, partitions=data)]
    )
    outcome = rules.handle(AlterPartitionAsked(asked, 3))
    assert len(outcome.writes) == 50
    assert {p.error_code for p in outcome.answer.topics[0].partitions} == {0}
    assert kinds(outcome, 2) == ["UpdateMetadata"]


@pytest.mark.parametrize("is_marked", [False, True])
def test_edge_42_a_refusal_of_what_was_asked_before_is_final(is_marked: bool) -> None:
    """Broker 4 is shutting down. A late copy of the question comes when it is there again in a new life."""
    rules = made()
    asked = request(members(1, 2, 3, 4))
    if is_marked:
        mark_asked_before(asked.request.topics[0].partitions[0])
        encode(asked.request, 3)
    outcome = rules.handle(asked)
    assert code(outcome) is ErrorCode.INELIGIBLE_REPLICA
    assert len(outcome.writes) == is_marked, "an ordinary refusal costs nothing"
    rules.image.shutting_down.clear()
    late = rules.handle(request(members(1, 2, 3, 4)))
    assert code(late) is (ErrorCode.INVALID_UPDATE_VERSION if is_marked else ErrorCode.NONE)

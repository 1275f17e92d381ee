"""ElectLeaders and the balance of leaders (S6.2, S6.3)."""

from __future__ import annotations

import pytest

from tests.kits.controlkit import (
    T0,
    T1,
    TOPIC_ID,
    broker,
    check_encodable,
    controller,
    find,
    kinds,
    state,
    topic,
    with_failed_directory,
)
from tidelog.controller.controller import Controller
from tidelog.controller.events import (
    Elected,
    ElectionAsked,
    ElectionType,
    ImbalanceChecked,
    LeaderAndIsrAnswered,
    Outcome,
    ShutdownAsked,
    TookOver,
)
from tidelog.controller.image import ElectionDefaults, PartitionState, Snapshot
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition
from tidelog.wire.messages.controller import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN

CASES = {
    # type, replicas, leader, ISR (brokers 1 to 3 live, 3 is shutting down): answer, leader and ISR after it
    "the preferred replica leads": (PREFERRED, (1, 2), 1, (1, 2), ErrorCode.ELECTION_NOT_NEEDED, 1, (1, 2)),
    "it leads again": (PREFERRED, (1, 2), 2, (2, 1), ErrorCode.NONE, 1, (2, 1)),
    "it is not in sync": (PREFERRED, (1, 2), 2, (2,), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 2, (2,)),
    "it is dead": (PREFERRED, (9, 2), 2, (2,), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 2, (2,)),
    "it is shutting down": (PREFERRED, (3, 2), 2, (2,), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 2, (2,)),
    "it waits for the ISR": (PREFERRED, (1, 9), -1, (9,), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, -1, (9,)),
    "there is a leader": (UNCLEAN, (1, 2), 2, (2, 1), ErrorCode.ELECTION_NOT_NEEDED, 2, (2, 1)),
    "the first that lives": (UNCLEAN, (9, 2, 1), -1, (9,), ErrorCode.NONE, 2, (2,)),
    "nobody lives": (UNCLEAN, (8, 9), -1, (9,), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, -1, (9,)),
    "who lives is shutting down": (UNCLEAN, (9, 3), -1, (9,), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, -1, (9,)),
}


@pytest.mark.parametrize("why", CASES)
def test_an_election_that_is_asked_for(why: str) -> None:
    kind, replicas, leader, isr, code, new_leader, new_isr = CASES[why]
    rules, _ = controller(1, 2, 3, topics={"t": topic(replicas)}, states={T0: state(leader, isr)})
    rules.handle(ShutdownAsked(3, 13))
    outcome = rules.handle(ElectionAsked(kind, (T0,)))
    assert outcome.answer == {T0: Elected(code, new_leader)}
    is_held = code is ErrorCode.NONE
    after = (
        PartitionState(new_leader, 1, new_isr, 5, 1, {member: 10 + member for member in new_isr})
        if is_held
        else state(new_leader, new_isr)
    )
    assert rules.image.state(T0) == after
    assert len(outcome.writes) == outcome.elections == is_held
    assert [one.partition for one in outcome.unclean] == ([T0] if is_held and kind is UNCLEAN else [])
    assert bool(outcome.requests) is is_held
    check_encodable(outcome)


def test_partitions_that_are_not_there() -> None:
    rules, _ = controller(1, topics={"t": topic((1,))}, states={T0: state(1, (1,))}, to_delete=("t",))
    asked = (T0, TopicPartition("u", 0))
    assert {at: told.code for at, told in rules.handle(ElectionAsked(PREFERRED, asked)).answer.items()} == {
        T0: ErrorCode.INVALID_TOPIC_EXCEPTION,
        TopicPartition("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_partition_that_never_had_a_leader() -> None:
    rules, _ = controller(1, topics={"t": topic((9,))})
    assert rules.handle(ElectionAsked(PREFERRED, (T0,))).answer[T0].code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert rules.handle(ElectionAsked(UNCLEAN, (T0,))).answer[T0].code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert rules.image.offline_partitions == 1


def test_of_all_partitions_only_those_that_needed_an_election_are_told() -> None:
    rules, _ = controller(
        1, 2, topics={"t": topic((1, 2), (2, 1))}, states={T0: state(1, (1, 2)), T1: state(1, (1, 2))}
    )
    assert rules.image.preferred_replica_imbalance == 1
    outcome = rules.handle(ElectionAsked(PREFERRED, None))
    assert outcome.answer == {T1: Elected(ErrorCode.NONE, 2)}
    assert kinds(outcome, 1) == ["LeaderAndIsr", "UpdateMetadata"]
    (told,) = find(outcome, 1, LeaderAndIsrRequest).topic_states[0].partition_states
    assert (told.partition_index, told.leader, told.isr) == (1, 2, [1, 2])
    assert rules.image.preferred_replica_imbalance == 0


def test_balance_is_restored_on_brokers_that_miss_more_than_their_share() -> None:
    # Broker 1 should lead ten and misses two; broker 2 should lead ten and misses one.
    replicas = [(1, 2)] * 10 + [(2, 1)] * 10
    leaders = [2, 2] + [1] * 9 + [2] * 9
    partitions = [TopicPartition("t", at) for at in range(20)]
    rules, _ = controller(
        1,
        2,
        topics={"t": topic(*replicas)},
        states={at: state(leader, (1, 2)) for at, leader in zip(partitions, leaders, strict=True)},
    )
    assert rules.image.preferred_replica_imbalance == 3
    outcome = rules.handle(ImbalanceChecked(10))
    assert [write.partition.partition for write in outcome.writes] == [0, 1]  # type: ignore[union-attr]
    assert rules.handle(ImbalanceChecked(10)) == Outcome()
    assert len(rules.handle(ImbalanceChecked(9)).writes) == 1
    assert rules.image.preferred_replica_imbalance == 0


def test_what_cannot_lead_and_what_is_being_reassigned_is_not_rebalanced() -> None:
    moving = topic((1, 2), (1, 2))
    moving.assignments[1] = moving.assignments[1].reassign_to((1, 3))
    rules, _ = controller(1, 2, topics={"t": moving}, states={T0: state(2, (2,)), T1: state(2, (2, 1))})
    assert rules.handle(ImbalanceChecked(0)) == Outcome()


@pytest.mark.parametrize("event", [ElectionAsked(PREFERRED, (T0,)), ImbalanceChecked(10)])
def test_edge_31_a_preferred_election_does_not_pass_by_a_wait_for_a_log(
    event: ElectionAsked | ImbalanceChecked,
) -> None:
    """Broker 1 may have lost its log, 2 has lost power, 3 was killed and has everything. Whoever makes 1 the leader of
    the whole ISR says that 2 has everything too."""
    made = Controller(1, 5, "INTERNAL", defaults=lambda: ElectionDefaults(min_insync_replicas=2))
    living = {1: with_failed_directory(broker(1)), 2: broker(2, 200)}
    recorded = PartitionState(3, 0, (1, 2, 3), 1, 0, {1: 11, 2: 12, 3: 13})
    made.handle(TookOver(Snapshot(living, {"t": topic((1, 2, 3))}, {T0: recorded}, ())))
    made.handle(event)
    error = LeaderAndIsrPartitionError(partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    topics = [LeaderAndIsrTopicError(topic_id=TOPIC_ID, partition_errors=[error])]
    made.handle(LeaderAndIsrAnswered(1, 11, LeaderAndIsrResponse(topics=topics)))
    after = made.image.state(T0)
    assert after is not None
    assert (after.leader, after.isr, after.lives[2]) == (-1, (1, 2, 3), 12)

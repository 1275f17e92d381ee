"""Reassignment of partitions: what may be asked for, and what follows step by step (KIP-455)."""

from __future__ import annotations

import pytest

from tests.kits.controlkit import (
    T0,
    TOPIC_ID,
    Telling,
    broker,
    brokers,
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
    AlterPartitionAsked,
    BrokersChanged,
    LeaderAndIsrAnswered,
    Outcome,
    ReassignmentAsked,
    ShutdownAsked,
    StatesChanged,
    TookOver,
    TopicsChanged,
    UpdateState,
    UpdateTopic,
)
from tidelog.controller.image import Assignment, PartitionState, Snapshot, TopicFacts
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition
from tidelog.wire.messages.controller import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaRequest,
    UpdateMetadataRequest,
)


def alter(rules: Controller, *isr: int) -> Outcome:
    """The leader asks for this ISR."""
    now = rules.image.state(T0)
    assert now is not None
    data = AlterPartitionRequestPartitionData(
        partition_index=0, leader_epoch=now.leader_epoch, partition_epoch=now.version, new_isr=[*isr]
    )
    request = AlterPartitionRequest(
        broker_id=now.leader,
        broker_epoch=10 + now.leader,
        topics=[AlterPartitionRequestTopicData(topic_id=TOPIC_ID, partitions=[data])],
    )
    outcome = rules.handle(AlterPartitionAsked(request, 2))
    assert outcome.answer.topics[0].partitions[0].error_code == 0
    return outcome


def reassign(rules: Controller, *target: int) -> Outcome:
    outcome = rules.handle(ReassignmentAsked({T0: target or None}))
    assert outcome.answer == {T0: None}
    check_encodable(outcome)
    return outcome


def started(*target: int) -> Controller:
    """From (1, 2), both in sync and 1 leading, on the way to the target."""
    rules, _ = controller(1, 2, 3, 4, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    reassign(rules, *target)
    return rules


def assignment(rules: Controller) -> Assignment | None:
    return rules.image.assignment(T0)


@pytest.mark.parametrize(
    ("now", "target", "wanted", "origin"),
    [
        (Assignment((1, 2)), (3, 4), Assignment((3, 4, 1, 2), (3, 4), (1, 2)), (1, 2)),
        (Assignment((1, 2)), (2, 3), Assignment((2, 3, 1), (3,), (1,)), (2, 1)),
        (Assignment((1, 2)), (1, 2, 3), Assignment((1, 2, 3), (3,), ()), (1, 2)),
        (Assignment((1, 2)), (2,), Assignment((2, 1), (), (1,)), (2, 1)),
        (Assignment((1, 2)), (2, 1), Assignment((2, 1)), (2, 1)),
        (Assignment((3, 1, 2), (3,), (1, 2)), (4,), Assignment((4, 1, 2), (4,), (1, 2)), (1, 2)),
        (Assignment((3, 1, 2), (3,), (1, 2)), (1, 2), Assignment((1, 2)), (1, 2)),
    ],
)
def test_an_assignment_on_its_way(
    now: Assignment, target: tuple[int, ...], wanted: Assignment, origin: tuple[int, ...]
) -> None:
    assert now.reassign_to(target) == wanted
    assert (wanted.target, wanted.origin) == (target, origin)


def test_new_replicas_join_first() -> None:
    rules, _ = controller(1, 2, 3, 4, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    outcome = reassign(rules, 3, 4)
    moving = Assignment((3, 4, 1, 2), (3, 4), (1, 2))
    assert outcome.writes == [
        UpdateState(T0, PartitionState(1, 1, (1, 2), 5, 1, {1: 11, 2: 12})),
        UpdateTopic("t", TOPIC_ID, {0: moving}),
    ]
    for id in (1, 2, 3, 4):
        assert kinds(outcome, id) == ["LeaderAndIsr", "UpdateMetadata"]
        (told,) = find(outcome, id, LeaderAndIsrRequest).topic_states[0].partition_states
        assert (told.replicas, told.adding_replicas, told.removing_replicas) == ([3, 4, 1, 2], [3, 4], [1, 2])
        assert (told.leader, told.leader_epoch, told.isr, told.is_new) == (1, 1, [1, 2], id in (3, 4))
    assert [at for at, _ in rules.image.reassigning()] == [T0]


def test_when_the_whole_target_is_in_sync_the_others_leave() -> None:
    rules = started(3, 4)
    outcome = alter(rules, 1, 2, 3)
    assert [type(write) for write in outcome.writes] == [UpdateState]
    outcome = alter(rules, 1, 2, 3, 4)
    # The leader hears of the ISR it asked for; then that it does not lead any more.
    (answer,) = outcome.answer.topics[0].partitions
    assert (answer.leader_id, answer.leader_epoch, answer.isr, answer.partition_epoch) == (1, 1, [1, 2, 3, 4], 3)
    assert outcome.writes == [
        UpdateState(T0, PartitionState(1, 1, (1, 2, 3, 4), 5, 3, {1: 11, 2: 12, 3: 13, 4: 14})),
        UpdateState(T0, PartitionState(3, 2, (3, 4), 5, 4, {3: 13, 4: 14})),
        UpdateTopic("t", TOPIC_ID, {0: Assignment((3, 4))}),
    ]
    assert outcome.elections == 1
    for id in (3, 4):
        assert kinds(outcome, id) == ["LeaderAndIsr", "UpdateMetadata"]
        (told,) = find(outcome, id, LeaderAndIsrRequest).topic_states[0].partition_states
        assert (told.leader, told.isr, told.replicas, told.adding_replicas) == (3, [3, 4], [3, 4], [])
    for id in (1, 2):
        assert kinds(outcome, id) == ["UpdateMetadata", "StopReplica"]
        (stopped,) = find(outcome, id, StopReplicaRequest).topic_states[0].partition_states
        assert (stopped.delete_partition, stopped.leader_epoch) == (True, 2)
        (shown,) = find(outcome, id, UpdateMetadataRequest).topic_states[0].partition_states
        assert (shown.leader, shown.replicas) == (3, [3, 4])
    assert list(rules.image.reassigning()) == []
    check_encodable(outcome)


@pytest.mark.parametrize(
    ("target", "leader"),
    [((2, 1), 1), ((1,), 1), ((2,), 2)],
    ids=["another order", "fewer", "fewer, without the leader"],
)
def test_what_is_in_sync_already_is_done_at_once(target: tuple[int, ...], leader: int) -> None:
    rules = started(*target)
    assert assignment(rules) == Assignment(target)
    now = rules.image.state(T0)
    assert now is not None
    assert (now.leader, now.leader_epoch, now.isr) == (leader, 1, tuple(id for id in (1, 2) if id in target))


def test_a_leader_in_the_target_leads_on() -> None:
    rules = started(3, 1)
    alter(rules, 1, 2, 3)
    assert assignment(rules) == Assignment((3, 1))
    now = rules.image.state(T0)
    assert now is not None
    assert (now.leader, now.isr) == (1, (1, 3))


def test_a_cancelled_reassignment_leads_back() -> None:
    rules = started(3, 4)
    alter(rules, 1, 2, 3)
    outcome = reassign(rules)
    assert outcome.writes == [
        UpdateState(T0, PartitionState(1, 2, (1, 2), 5, 3, {1: 11, 2: 12})),
        UpdateTopic("t", TOPIC_ID, {0: Assignment((1, 2))}),
    ]
    assert {id: kinds(outcome, id)[-1] for id in (1, 2, 3, 4)} == {
        1: "UpdateMetadata",
        2: "UpdateMetadata",
        3: "StopReplica",
        4: "StopReplica",
    }
    assert list(rules.image.reassigning()) == []


def test_a_new_replica_that_leads_hands_back_when_it_is_cancelled() -> None:
    rules = started(3, 4)
    alter(rules, 1, 2, 3)
    rules.handle(ShutdownAsked(1, 11))
    rules.handle(ShutdownAsked(2, 12))
    now = rules.image.state(T0)
    assert now is not None
    assert (now.leader, now.isr) == (3, (3,))
    outcome = rules.handle(ReassignmentAsked({T0: None}))
    # Only the new replica has all records: the way back would lose some.
    assert outcome.answer[T0].code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert outcome.writes == []
    rules.handle(BrokersChanged(brokers(1, 2, 3, 4)))
    rules.image.shutting_down.clear()
    alter(rules, 3, 2)
    reassign(rules)
    now = rules.image.state(T0)
    assert now is not None
    assert (now.leader, now.isr) == (2, (2,))
    assert assignment(rules) == Assignment((1, 2))


def test_another_target_on_the_way_drops_what_is_not_needed_any_more() -> None:
    rules = started(3)
    outcome = reassign(rules, 4, 2)
    assert assignment(rules) == Assignment((4, 2, 1), (4,), (1,))
    assert kinds(outcome, 3) == ["UpdateMetadata", "StopReplica"]
    alter(rules, 1, 2, 4)
    assert assignment(rules) == Assignment((4, 2))


def test_an_isr_that_somebody_else_wrote_ends_it_too() -> None:
    rules = started(3)
    outcome = rules.handle(StatesChanged({T0: state(1, (1, 2, 3), epoch=1, version=2)}))
    assert assignment(rules) == Assignment((3,))
    assert [write.state.version for write in outcome.writes if isinstance(write, UpdateState)] == [3]


def test_it_waits_for_a_new_replica_that_is_dead() -> None:
    rules = started(3)
    rules.handle(BrokersChanged(brokers(1, 2)))
    assert [at for at, _ in rules.image.reassigning()] == [T0]
    outcome = rules.handle(BrokersChanged(brokers(1, 2, 3)))
    (told,) = find(outcome, 3, LeaderAndIsrRequest).topic_states[0].partition_states
    assert told.adding_replicas == [3]


@pytest.mark.parametrize("isr", [(1, 2), (1, 2, 3), (3,)], ids=["begun", "in sync", "half ended"])
def test_the_next_controller_goes_on(isr: tuple[int, ...]) -> None:
    facts = TopicFacts(TOPIC_ID, {0: Assignment((3, 1, 2), (3,), (1, 2))})
    rules, outcome = controller(1, 2, 3, topics={"t": facts}, states={T0: state(isr[-1], isr, epoch=6)})
    now = rules.image.state(T0)
    assert now is not None
    assert now.leader_epoch == 7
    if 3 in isr:
        assert assignment(rules) == Assignment((3,))
        assert (now.leader, now.isr) == (3, (3,))
        assert "StopReplica" in kinds(outcome, 1)
    else:
        assert assignment(rules) == facts.assignments[0]
        assert (now.leader, now.isr) == (2, (1, 2))


def test_nodes_that_make_no_sense_do_not_stop_a_take_over() -> None:
    facts = TopicFacts(TOPIC_ID, {0: Assignment((3, 1), (3,), (1,))})
    rules, _ = controller(1, 2, 3, topics={"t": facts}, states={T0: state(2, (2,))})
    assert assignment(rules) == facts.assignments[0]


def test_a_partition_that_never_had_a_leader_moves_at_once() -> None:
    rules, _ = controller(1, topics={"t": topic((9,))})
    outcome = reassign(rules, 1)
    assert assignment(rules) == Assignment((1,))
    assert rules.image.state(T0) == PartitionState(1, 0, (1,), 5, 0, {1: 11})
    assert kinds(outcome, 1) == ["LeaderAndIsr", "UpdateMetadata"]


def test_a_topic_that_is_deleted_on_the_way_is_deleted_everywhere() -> None:
    rules = started(3)
    moving = {"t": TopicFacts(TOPIC_ID, {0: Assignment((3, 1, 2), (3,), (1, 2))})}
    outcome = rules.handle(TopicsChanged(moving, ("t",)))
    assert [id for id in (1, 2, 3, 4) if "StopReplica" in kinds(outcome, id)] == [1, 2, 3]
    outcome = rules.handle(ReassignmentAsked({T0: (4,)}))
    assert outcome.answer[T0].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(rules.image.reassigning()) == []


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((3, 3), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((-1, 2), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 4), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ((1, 2, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
    ids=["nowhere", "twice", "no broker", "dead", "shutting down", "nothing to cancel", "replication factor"],
)
def test_what_cannot_be(target: tuple[int, ...] | None, code: ErrorCode) -> None:
    rules, _ = controller(1, 2, 3, 4, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    rules.handle(ShutdownAsked(4, 14))
    outcome = rules.handle(ReassignmentAsked({T0: target}, allow_replication_factor_change=False))
    assert outcome.answer[T0].code is code
    assert (outcome.writes, outcome.requests) == ([], {})


def test_partitions_that_are_not_there_do_not_keep_others_from_moving() -> None:
    rules, _ = controller(1, 2, topics={"t": topic((1,))}, states={T0: state(1, (1,))})
    wrong = (TopicPartition("u", 0), TopicPartition("t", 1))
    outcome = rules.handle(ReassignmentAsked({wrong[0]: (1,), T0: (2,), wrong[1]: None}))
    assert outcome.answer.pop(T0) is None
    assert {failure.code for failure in outcome.answer.values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert assignment(rules) == Assignment((2, 1), (2,), (1,))


def test_the_topic_of_many_partitions_is_written_once() -> None:
    partitions = [TopicPartition("t", at) for at in range(20)]
    rules, _ = controller(
        1, 2, topics={"t": topic(*[(1,)] * 20)}, states={partition: state(1, (1,)) for partition in partitions}
    )
    outcome = rules.handle(ReassignmentAsked(dict.fromkeys(partitions, (2,))))
    assert [type(write) for write in outcome.writes] == [UpdateState] * 20 + [UpdateTopic]


def test_edge_31_a_move_does_not_end_before_one_of_its_target_has_said_that_its_log_is_there() -> None:
    """The log directory of broker 2 fails when it has just come into the ISR, and the controller dies."""
    made = Telling(1, 5, "INTERNAL")
    living = brokers(1) | {2: with_failed_directory(broker(2))}
    moving = topic((2, 1))._replace(assignments={0: Assignment((2, 1), (2,), (1,))})
    recorded = PartitionState(1, 3, (1, 2), 1, 4, {1: 11, 2: 12})
    outcome = made.handle(TookOver(Snapshot(living, {"t": moving}, {T0: recorded}, ())))
    assert "StopReplica" not in kinds(outcome, 1), "it is the only one that surely has the records"

    def answered(code: ErrorCode) -> Outcome:
        error = LeaderAndIsrPartitionError(partition_index=0, error_code=code)
        topics = [LeaderAndIsrTopicError(topic_id=TOPIC_ID, partition_errors=[error])]
        return made.handle(LeaderAndIsrAnswered(2, 12, LeaderAndIsrResponse(topics=topics)))

    outcome = answered(ErrorCode.KAFKA_STORAGE_ERROR)
    assert "StopReplica" not in kinds(outcome, 1)
    after = made.image.state(T0)
    assert after is not None
    assert (after.leader, after.isr) == (1, (1,))

    made = Telling(1, 5, "INTERNAL")
    made.handle(TookOver(Snapshot(living, {"t": moving}, {T0: recorded}, ())))
    assert "StopReplica" in kinds(answered(ErrorCode.NONE), 1), "nothing else comes that would end the move"
    assert assignment(made) == Assignment((2,))


def told_as_new(outcome: Outcome, id: int) -> bool:
    (told,) = find(outcome, id, LeaderAndIsrRequest).topic_states[0].partition_states
    return told.is_new


def returned(rules: Controller, id: int, epoch: int, intact_since: int = -1) -> Outcome:
    """The broker dies and comes back with another epoch; all others stay."""
    living = {other: each for other, each in rules.image.brokers.items() if other != id}
    rules.handle(BrokersChanged(living))
    return rules.handle(BrokersChanged(living | {id: broker(id, epoch, intact_since, epoch - 1)}))


def test_a_replica_that_is_added_is_new_whichever_request_tells_of_it() -> None:
    """The first one may be lost with the session of the broker, or with the controller."""
    rules = started(3, 4)
    assert told_as_new(returned(rules, 3, 23), 3)
    assert not told_as_new(returned(rules, 2, 22), 2), "it was there before"
    now, moving = rules.image.state(T0), assignment(rules)
    assert now is not None
    assert moving is not None
    _, outcome = controller(1, 2, 3, 4, topics={"t": TopicFacts(TOPIC_ID, {0: moving})}, states={T0: now})
    assert [told_as_new(outcome, id) for id in (1, 2, 3, 4)] == [False, False, True, True]


def test_a_replica_that_is_added_is_not_new_while_an_election_counts_it() -> None:
    rules = started(3, 4)
    alter(rules, 1, 2, 3)
    living = brokers(1, 2, 4) | {3: broker(3, 23, 13, 13)}
    assert not told_as_new(rules.handle(BrokersChanged(living)), 3), "it came back intact and is in the ISR"
    assert told_as_new(returned(rules, 3, 33), 3), "it has left the ISR, so nothing counts that it may have"


def test_a_replica_that_is_added_is_not_new_while_its_partition_waits_for_it() -> None:
    rules = started(3, 4)
    alter(rules, 1, 3)
    rules.handle(BrokersChanged({}))
    outcome = rules.handle(BrokersChanged({3: with_failed_directory(broker(3, 23)), 4: broker(4)}))
    now = rules.image.state(T0)
    assert now is not None
    assert (now.leader, set(now.eligible)) == (-1, {1, 3})
    assert not told_as_new(outcome, 3)
    assert told_as_new(outcome, 4)


def test_a_replica_that_is_added_and_eligible_is_not_new() -> None:
    facts = topic((1, 2, 3), min_insync=2)._replace(assignments={0: Assignment((1, 2, 3), (3,))})
    recorded = PartitionState(1, 3, (1,), 1, 4, {1: 11, 3: 13}, elr=(3,))
    rules, outcome = controller(1, 2, 3, topics={"t": facts}, states={T0: recorded})
    now = rules.image.state(T0)
    assert now is not None
    assert now.elr == (3,)
    assert not told_as_new(outcome, 3)


def test_a_replica_that_is_added_is_not_new_if_the_state_cannot_be_read() -> None:
    """It may be in the ISR."""
    facts = TopicFacts(TOPIC_ID, {0: Assignment((1, 2, 3), (3,))})
    made = Telling(1, 5, "INTERNAL")
    outcome = made.handle(TookOver(Snapshot(brokers(1, 2, 3), {"t": facts}, {}, (), faults={T0: "no JSON"})))
    assert not told_as_new(outcome, 3)


def test_a_replica_is_not_new_when_the_reassignment_has_ended() -> None:
    rules = started(3, 4)
    alter(rules, 1, 2, 3, 4)
    assert assignment(rules) == Assignment((3, 4))
    outcome = returned(rules, 3, 23)
    now = rules.image.state(T0)
    assert now is not None
    assert now.isr == (4,)
    assert not told_as_new(outcome, 3)

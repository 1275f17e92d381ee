"""The controller's rules: an event in, writes and requests out (S12)."""

from __future__ import annotations

from tests.controlkit import (
    T0,
    T1,
    TOPIC_ID,
    broker,
    brokers,
    check_encodable,
    controller,
    find,
    kinds,
    state,
    topic,
)
from tidelog.controller.events import (
    BrokersChanged,
    CreateState,
    ForgetDeletion,
    LeaderAndIsrAnswered,
    LogDirFailed,
    Outcome,
    RemoveTopic,
    StatesChanged,
    StopReplicaAnswered,
    TopicsChanged,
    UncleanElectionChanged,
    UpdateState,
)
from tidelog.controller.image import Assignment, PartitionState, TopicFacts
from tidelog.controller.requests import FULL, INCREMENTAL
from tidelog.errors import ErrorCode
from tidelog.wire.messages.controller import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)


def test_a_take_over_tells_everybody_everything() -> None:
    _, outcome = controller(
        1, 2, topics={"t": topic((1, 2), (2, 1))}, states={T0: state(1, (1, 2)), T1: state(2, (2, 1))}
    )
    assert outcome.writes == []
    for id in (1, 2):
        assert kinds(outcome, id) == ["UpdateMetadata", "LeaderAndIsr", "UpdateMetadata"]
        first, told, metadata = outcome.requests[id]
        assert isinstance(first, UpdateMetadataRequest)
        assert isinstance(told, LeaderAndIsrRequest)
        assert isinstance(metadata, UpdateMetadataRequest)
        assert (first.type, told.type, metadata.type) == (INCREMENTAL, FULL, FULL)
        assert first.topic_states == []
        assert {request.controller_epoch for request in (first, told, metadata)} == {5}
        assert {request.broker_epoch for request in (first, told, metadata)} == {10 + id}
        assert [(b.id, b.rack) for b in metadata.live_brokers] == [(1, "rack1"), (2, "rack2")]
        assert [leader.host_name for leader in told.live_leaders] == ["b1", "b2"]
        assert [p.partition_index for p in told.topic_states[0].partition_states] == [0, 1]
        assert told.topic_states[0].topic_id == metadata.topic_states[0].topic_id == TOPIC_ID
    check_encodable(outcome)


def test_a_broker_without_replicas_is_told_as_well() -> None:
    _, outcome = controller(1, 2, topics={"t": topic((1,))}, states={T0: state(1, (1,))})
    assert kinds(outcome, 2) == ["UpdateMetadata", "LeaderAndIsr", "UpdateMetadata"]
    assert find(outcome, 2, LeaderAndIsrRequest).topic_states == []


def test_a_new_topic_gets_leaders() -> None:
    made, _ = controller(1, 2, 3)
    outcome = made.handle(TopicsChanged({"t": topic((1, 2), (2, 3))}, ()))
    assert outcome.writes == [
        CreateState(T0, PartitionState(1, 0, (1, 2), 5, 0, {1: 11, 2: 12})),
        CreateState(T1, PartitionState(2, 0, (2, 3), 5, 0, {2: 12, 3: 13})),
    ]
    assert [kinds(outcome, id) for id in (1, 2, 3)] == [["LeaderAndIsr", "UpdateMetadata"]] * 3
    told = find(outcome, 1, LeaderAndIsrRequest)
    assert [(p.partition_index, p.is_new) for p in told.topic_states[0].partition_states] == [(0, True)]
    assert len(find(outcome, 1, UpdateMetadataRequest).topic_states[0].partition_states) == 2
    check_encodable(outcome)
    assert made.handle(TopicsChanged({"t": topic((1, 2), (2, 3))}, ())) == Outcome()


def test_a_take_over_finishes_a_topic_that_has_no_states_yet() -> None:
    _, outcome = controller(1, topics={"t": topic((1,), (1,))}, states={T0: state(1, (1,))})
    assert outcome.writes == [CreateState(T1, PartitionState(1, 0, (1,), 5, 0, {1: 11}))]


def test_a_partition_without_a_living_replica_waits_for_one() -> None:
    made, _ = controller(1)
    outcome = made.handle(TopicsChanged({"t": topic((2,))}, ()))
    assert outcome == Outcome()
    outcome = made.handle(BrokersChanged(brokers(1, 2)))
    assert [type(write) for write in outcome.writes] == [CreateState]


def test_added_partitions_get_leaders_and_the_others_are_left_alone() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    outcome = made.handle(TopicsChanged({"t": topic((1, 2), (2, 1))}, ()))
    assert [write.partition for write in outcome.writes if isinstance(write, CreateState)] == [T1]
    told = find(outcome, 1, LeaderAndIsrRequest)
    assert [p.partition_index for p in told.topic_states[0].partition_states] == [1]


def test_a_dead_leader_is_replaced() -> None:
    made, _ = controller(1, 2, 3, topics={"t": topic((1, 2), (3,))}, states={T0: state(1, (1, 2)), T1: state(3, (3,))})
    outcome = made.handle(BrokersChanged(brokers(2, 3)))
    assert outcome.writes == [UpdateState(T0, PartitionState(2, 1, (2,), 5, 1, {2: 12}))]
    assert 1 not in outcome.requests
    assert kinds(outcome, 2) == ["UpdateMetadata", "LeaderAndIsr", "UpdateMetadata"]
    assert kinds(outcome, 3) == ["UpdateMetadata", "UpdateMetadata"]
    metadata = find(outcome, 3, UpdateMetadataRequest)
    assert metadata.type == INCREMENTAL
    (partition,) = metadata.topic_states[0].partition_states
    assert (partition.leader, partition.isr, partition.offline_replicas) == (2, [2], [1])
    assert made.handle(BrokersChanged(brokers(2, 3))) == Outcome()


def test_a_dead_follower_leaves_the_isr() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    outcome = made.handle(BrokersChanged(brokers(1)))
    assert outcome.writes == [UpdateState(T0, PartitionState(1, 1, (1,), 5, 1, {1: 11}))]


def test_the_last_isr_member_is_waited_for_and_leads_when_it_is_back() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1,))})
    outcome = made.handle(BrokersChanged(brokers(2)))
    assert outcome.writes == [UpdateState(T0, PartitionState(-1, 1, (1,), 5, 1, {1: 100}))]
    back = {1: broker(1, 200), 2: broker(2)}
    outcome = made.handle(BrokersChanged(back))
    assert outcome.writes == [UpdateState(T0, PartitionState(1, 2, (1,), 5, 2, {1: 200}))]
    assert kinds(outcome, 1) == ["UpdateMetadata", "LeaderAndIsr", "UpdateMetadata"]
    assert find(outcome, 1, UpdateMetadataRequest).type == FULL
    assert find(outcome, 2, UpdateMetadataRequest).type == INCREMENTAL


def test_an_unclean_leader_is_elected_only_if_that_is_allowed() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1,))}, unclean=True)
    outcome = made.handle(BrokersChanged(brokers(2)))
    assert outcome.writes == [UpdateState(T0, PartitionState(2, 1, (2,), 5, 1, {2: 12}))]
    assert outcome.unclean == [T0]

    made, _ = controller(1, 2, topics={"t": topic((1, 2), unclean=False)}, states={T0: state(1, (1,))}, unclean=True)
    assert made.handle(BrokersChanged(brokers(2))).unclean == []
    outcome = made.handle(UncleanElectionChanged({"t": True}))
    assert outcome.unclean == [T0]
    assert [write.state.leader for write in outcome.writes if isinstance(write, UpdateState)] == [2]


def test_edge_09_a_broker_that_bounced_between_two_looks_leaves_the_isr() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    outcome = made.handle(BrokersChanged({1: broker(1, 200), 2: broker(2)}))
    assert outcome.writes == [UpdateState(T0, PartitionState(2, 1, (2,), 5, 1, {2: 12}))]
    assert kinds(outcome, 1) == ["UpdateMetadata", "LeaderAndIsr", "UpdateMetadata"]


def test_edge_09_a_broker_that_bounced_before_the_take_over_leaves_the_isr() -> None:
    # Its node is younger than the state that has it in the ISR.
    _, outcome = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2), life=11)})
    assert outcome.writes == [UpdateState(T0, PartitionState(1, 1, (1,), 5, 1, {1: 11}))]


def test_a_sole_leader_that_bounced_leads_a_new_term() -> None:
    made, outcome = controller(1, topics={"t": topic((1,))}, states={T0: state(1, (1,), life=3)})
    assert outcome.writes == [UpdateState(T0, PartitionState(1, 1, (1,), 5, 1, {1: 11}))]
    assert made.handle(UncleanElectionChanged({})) == Outcome()


def test_a_broker_that_is_back_is_online_in_everybodys_metadata() -> None:
    made, _ = controller(1, topics={"t": topic((1, 2))}, states={T0: state(1, (1,))})
    outcome = made.handle(BrokersChanged(brokers(1, 2)))
    assert outcome.writes == []
    (partition,) = find(outcome, 1, UpdateMetadataRequest).topic_states[0].partition_states
    assert partition.offline_replicas == []


def test_a_topic_is_deleted_when_all_replicas_are() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    outcome = made.handle(TopicsChanged({"t": topic((1, 2))}, ("t",)))
    assert outcome.writes == []
    for id in (1, 2):
        assert kinds(outcome, id) == ["UpdateMetadata", "StopReplica"]
        (partition,) = find(outcome, id, UpdateMetadataRequest).topic_states[0].partition_states
        assert partition.leader == -2
        (stopped,) = find(outcome, id, StopReplicaRequest).topic_states[0].partition_states
        assert (stopped.delete_partition, stopped.leader_epoch) == (True, -2)
    check_encodable(outcome)
    assert made.handle(TopicsChanged({"t": topic((1, 2))}, ("t",))) == Outcome()
    assert made.handle(StopReplicaAnswered(1, 11, (T0,), StopReplicaResponse())) == Outcome()
    assert made.handle(StopReplicaAnswered(2, 12, (T0,), StopReplicaResponse())).writes == [RemoveTopic("t")]
    assert made.image.topics == {}


def test_a_deletion_waits_for_a_dead_broker_and_goes_on_when_it_is_back() -> None:
    made, _ = controller(1, topics={"t": topic((1, 2))}, states={T0: state(1, (1,))}, to_delete=("t",))
    assert made.handle(StopReplicaAnswered(1, 11, (T0,), StopReplicaResponse())).writes == []
    outcome = made.handle(BrokersChanged(brokers(1, 2)))
    assert outcome.writes == []
    assert kinds(outcome, 2) == ["UpdateMetadata", "LeaderAndIsr", "UpdateMetadata", "StopReplica"]
    assert find(outcome, 2, LeaderAndIsrRequest).topic_states == []
    assert "StopReplica" not in kinds(outcome, 1)
    assert made.handle(StopReplicaAnswered(2, 12, (T0,), StopReplicaResponse())).writes == [RemoveTopic("t")]


def test_an_answer_of_an_earlier_life_or_with_an_error_deletes_nothing() -> None:
    made, _ = controller(1, topics={"t": topic((1,))}, states={T0: state(1, (1,))}, to_delete=("t",))
    assert made.handle(StopReplicaAnswered(1, 3, (T0,), StopReplicaResponse())) == Outcome()
    failed = StopReplicaPartitionError(topic_name="t", partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    assert made.handle(StopReplicaAnswered(1, 11, (T0,), StopReplicaResponse(partition_errors=[failed]))) == Outcome()
    stale = StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert made.handle(StopReplicaAnswered(1, 11, (T0,), stale)) == Outcome()


def test_wishes_to_delete_that_cannot_be_granted_are_taken_back() -> None:
    made, outcome = controller(1, to_delete=("nope",))
    assert outcome.writes == [ForgetDeletion("nope")]
    made, outcome = controller(
        1, topics={"t": topic((1,))}, states={T0: state(1, (1,))}, to_delete=("t",), deletion_enabled=False
    )
    assert outcome.writes == [ForgetDeletion("t")]
    assert made.image.deleting == {}


def test_a_failed_log_directory_costs_the_leadership() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    outcome = made.handle(LogDirFailed((1,)))
    assert {id: kinds(outcome, id) for id in outcome.requests} == {1: ["LeaderAndIsr"]}
    error = LeaderAndIsrPartitionError(partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    response = LeaderAndIsrResponse(topics=[LeaderAndIsrTopicError(topic_id=TOPIC_ID, partition_errors=[error])])
    outcome = made.handle(LeaderAndIsrAnswered(1, 11, response))
    assert outcome.writes == [UpdateState(T0, PartitionState(2, 1, (2,), 5, 1, {2: 12}))]
    (partition,) = find(outcome, 2, UpdateMetadataRequest).topic_states[0].partition_states
    assert partition.offline_replicas == [1]
    assert made.handle(LeaderAndIsrAnswered(1, 11, response)) == Outcome()
    assert made.handle(LeaderAndIsrAnswered(1, 11, LeaderAndIsrResponse())) == Outcome()


def test_states_that_others_wrote_are_told() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1,))})
    outcome = made.handle(StatesChanged({T0: state(1, (1, 2), version=1)}))
    assert outcome.writes == []
    assert kinds(outcome, 2) == ["UpdateMetadata"]
    assert made.handle(StatesChanged({T0: state(1, (1, 2), version=1)})) == Outcome()


def test_a_topic_that_was_made_anew_starts_anew() -> None:
    made, _ = controller(1, topics={"t": topic((1,))}, states={T0: state(1, (1,), epoch=7)})
    again = TopicFacts(b"u" * 16, {0: Assignment((1,))})
    outcome = made.handle(TopicsChanged({"t": again}, ()))
    assert [type(write) for write in outcome.writes] == [CreateState]


def test_a_replica_that_is_made_after_all_is_online_again() -> None:
    """Its disk failed at first, and the next LeaderAndIsr found it well (seed 1669)."""
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})

    def answered(code: ErrorCode) -> Outcome:
        error = LeaderAndIsrPartitionError(partition_index=0, error_code=code)
        topics = [LeaderAndIsrTopicError(topic_id=TOPIC_ID, partition_errors=[error])]
        return made.handle(LeaderAndIsrAnswered(2, 12, LeaderAndIsrResponse(topics=topics)))

    assert answered(ErrorCode.KAFKA_STORAGE_ERROR).writes == [
        UpdateState(T0, PartitionState(1, 1, (1,), 5, 1, {1: 11}))
    ]
    assert not made.image.is_online(T0, 2)
    (partition,) = find(answered(ErrorCode.NONE), 1, UpdateMetadataRequest).topic_states[0].partition_states
    assert partition.offline_replicas == []
    assert made.image.is_online(T0, 2)

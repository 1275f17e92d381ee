"""The controller's rules: an event in, writes and requests out (S12)."""

from __future__ import annotations

import pytest

from tests.kits.controlkit import (
    T0,
    T1,
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
    BrokersChanged,
    CreateState,
    ElectionRulesChanged,
    ForgetDeletion,
    LeaderAndIsrAnswered,
    LogDirFailed,
    LogEndsTold,
    LogEndsUntold,
    Outcome,
    ReassignmentAsked,
    RemoveTopic,
    StatesChanged,
    StopReplicaAnswered,
    TookOver,
    TopicsChanged,
    UncleanElection,
    UpdateState,
)
from tidelog.controller.image import NO_LEADER, Assignment, ElectionRules, PartitionState, Snapshot, TopicFacts
from tidelog.controller.log_ends import LogEnd
from tidelog.controller.requests import FULL, INCREMENTAL
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition
from tidelog.wire import ZERO_UUID
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
from tidelog.wire.messages.offsets import ListOffsetsRequest


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
    back = {1: broker(1, 200, intact_since=90, last_epoch=100), 2: broker(2)}
    outcome = made.handle(BrokersChanged(back))
    assert outcome.writes == [UpdateState(T0, PartitionState(1, 2, (1,), 5, 2, {1: 200}))]
    assert outcome.unclean == []
    assert kinds(outcome, 1) == ["UpdateMetadata", "LeaderAndIsr", "UpdateMetadata"]
    assert find(outcome, 1, UpdateMetadataRequest).type == FULL
    assert find(outcome, 2, UpdateMetadataRequest).type == INCREMENTAL


def test_an_unclean_leader_is_elected_only_if_that_is_allowed() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1,))}, unclean=True)
    outcome = made.handle(BrokersChanged(brokers(2)))
    assert outcome.writes == [UpdateState(T0, PartitionState(2, 1, (2,), 5, 1, {2: 12}))]
    assert outcome.unclean == [UncleanElection(T0, 2, (1,), {})]

    made, _ = controller(1, 2, topics={"t": topic((1, 2), unclean=False)}, states={T0: state(1, (1,))}, unclean=True)
    assert made.handle(BrokersChanged(brokers(2))).unclean == []
    outcome = made.handle(ElectionRulesChanged({"t": ElectionRules(True)}))
    assert outcome.unclean == [UncleanElection(T0, 2, (1,), {})]
    assert [write.state.leader for write in outcome.writes if isinstance(write, UpdateState)] == [2]


@pytest.mark.parametrize(
    ("intact_since", "last_epoch", "has_kept"),
    [
        (50, 100, True),
        (100, 100, True),
        (50, 150, True),
        (100, -1, False),  # its directories noted no epoch
        (101, 150, False),  # it lost power since
        (-1, -1, False),  # its directory is new, or it has just lost power
        (50, 99, False),  # its directory was put back from a copy
    ],
)
def test_edge_09_a_broker_has_kept_its_records_if_it_lost_nothing_since_the_isr_was_written(
    intact_since: int, last_epoch: int, has_kept: bool
) -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    outcome = made.handle(BrokersChanged({1: broker(1, 200, intact_since, last_epoch), 2: broker(2)}))
    kept = UpdateState(T0, PartitionState(1, 1, (1, 2), 5, 1, {1: 200, 2: 12}))
    left = UpdateState(T0, PartitionState(2, 1, (2,), 5, 1, {2: 12}))
    assert outcome.writes == [kept if has_kept else left]


def tell_log_end(made: Controller, broker: int, epoch: int, end: LogEnd | None) -> Outcome:
    """The answer to what was asked last."""
    return made.handle(LogEndsTold(broker, epoch, {T0: end}, {T0: made.image.topics["t"].states[0].leader_epoch}))


def test_edge_31_the_isr_stays_until_all_members_are_back_and_then_the_fullest_leads() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    outcome = made.handle(BrokersChanged({1: broker(1, 200)}))
    # Broker 1 has lost power and 2 is away. The epochs in the ISR stay, or 1 would pass for intact at the next look.
    assert outcome.writes == [UpdateState(T0, PartitionState(-1, 1, (1, 2), 5, 1, {1: 100, 2: 100}))]
    assert find(outcome, 1, ListOffsetsRequest).topics[0].partitions[0].partition_index == 0
    assert tell_log_end(made, 1, 200, LogEnd(0, 7)) == Outcome()
    back = {1: broker(1, 200), 2: broker(2, 201)}
    outcome = made.handle(BrokersChanged(back))
    assert outcome.writes == []
    assert find(outcome, 2, ListOffsetsRequest).replica_id == -2
    check_encodable(outcome)
    # It cannot tell at first, and is asked again.
    outcome = tell_log_end(made, 2, 201, None)
    assert kinds(outcome, 2) == ["ListOffsets"]
    assert tell_log_end(made, 2, 12, LogEnd(9, 9)) == Outcome(), "an answer of an earlier life"
    outcome = tell_log_end(made, 2, 201, LogEnd(0, 9))
    assert outcome.writes == [UpdateState(T0, PartitionState(2, 2, (2,), 5, 2, {2: 201}))]
    assert outcome.unclean == [UncleanElection(T0, 2, (1, 2), {1: LogEnd(0, 7), 2: LogEnd(0, 9)})]
    assert made.image.log_ends.of(T0) == {}


@pytest.mark.parametrize(("isr", "unclean"), [((1,), False), ((1,), True), ((1, 2), True)])
def test_edge_31_a_replica_that_need_not_be_waited_for_and_does_not_tell_its_log_end_is_passed_by(
    isr: tuple[int, ...], unclean: bool
) -> None:
    """Its log cannot be made, or the controller alone cannot reach it. It is asked again as long as it answers."""
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, isr)}, unclean=unclean)
    made.handle(BrokersChanged({1: broker(1, 200), 2: broker(2, 201)}))
    assert tell_log_end(made, 1, 200, LogEnd(0, 7)) == Outcome()
    assert kinds(tell_log_end(made, 2, 201, None), 2) == ["ListOffsets"]
    asked_in = {T0: made.image.topics["t"].states[0].leader_epoch}
    late = made.handle(LogEndsUntold(2, 201, {T0: asked_in[T0] - 1}))
    assert (kinds(late, 2), late.writes) == (["ListOffsets"], []), "the epoch has grown since: it gets as long again"
    assert made.handle(LogEndsUntold(2, 12, asked_in)) == Outcome(), "of an earlier life"
    outcome = made.handle(LogEndsUntold(2, 201, asked_in))
    assert outcome.unclean == [UncleanElection(T0, 1, isr, {1: LogEnd(0, 7)})]
    assert made.image.topics["t"].states[0].leader == 1
    assert made.handle(LogEndsUntold(2, 201, asked_in)) == Outcome()


def test_edge_31_a_silent_replica_is_passed_by_though_the_leader_epoch_has_grown_meanwhile() -> None:
    """A reassignment makes it grow while there is no leader."""
    made, _ = controller(1, 2, 3, topics={"t": topic((1, 2))}, states={T0: state(1, (1,))})
    made.handle(BrokersChanged({1: broker(1, 200), 2: broker(2, 201), 3: broker(3, 202)}))
    before = made.image.topics["t"].states[0].leader_epoch
    made.handle(ReassignmentAsked({T0: (1, 2, 3)}, True))
    now = made.image.topics["t"].states[0].leader_epoch
    assert now > before
    tell_log_end(made, 1, 200, LogEnd(0, 7))
    tell_log_end(made, 3, 202, LogEnd(-1, 0))
    outcome = made.handle(LogEndsUntold(2, 201, {T0: before}))
    assert kinds(outcome, 2) == ["ListOffsets"]
    assert made.image.topics["t"].states[0].leader == NO_LEADER
    assert made.handle(LogEndsUntold(2, 201, {T0: now})).unclean != []
    assert made.image.topics["t"].states[0].leader == 1


def test_edge_31_many_log_ends_are_asked_for_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with too many elements would be refused for ever, and all that waits behind it with it."""
    monkeypatch.setattr("tidelog.controller.requests.MOST_NAMED", 2)
    names = [TopicPartition("t", index) for index in range(5)]
    made, _ = controller(1, 2, topics={"t": topic(*[(1, 2)] * 5)}, states={name: state(1, (1, 2)) for name in names})
    outcome = made.handle(BrokersChanged({1: broker(1, 200), 2: broker(2, 201)}))
    asked = [request for request in outcome.requests[1] if isinstance(request, ListOffsetsRequest)]
    assert [[one.partition_index for one in request.topics[0].partitions] for request in asked] == [[0, 1], [2, 3], [4]]


def test_edge_31_a_member_that_does_not_tell_its_log_end_is_waited_for() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    made.handle(BrokersChanged({1: broker(1, 200), 2: broker(2, 201)}))
    tell_log_end(made, 1, 200, LogEnd(0, 7))
    asked_in = {T0: made.image.topics["t"].states[0].leader_epoch}
    assert made.handle(LogEndsUntold(2, 201, asked_in)).unclean == []
    outcome = tell_log_end(made, 2, 201, LogEnd(0, 6))
    assert outcome.unclean == [UncleanElection(T0, 1, (1, 2), {1: LogEnd(0, 7), 2: LogEnd(0, 6)})]


def test_edge_31_an_answer_from_before_another_leader_does_not_count() -> None:
    """Broker 1 dies, comes back intact, and dies again; what 2 has told of the time before is old."""
    facts = {"t": topic((1, 2, 3), unclean=True)}
    made, _ = controller(1, 2, 3, topics=facts, states={T0: state(1, (1,), life=11)})
    made.handle(BrokersChanged({2: broker(2), 3: broker(3)}))
    asked_in = {T0: made.image.topics["t"].states[0].leader_epoch}
    made.handle(BrokersChanged({1: broker(1, 50, 11, 11), 2: broker(2), 3: broker(3)}))
    assert made.image.topics["t"].states[0].leader == 1
    outcome = made.handle(BrokersChanged({2: broker(2), 3: broker(3)}))
    assert kinds(outcome, 2)[-1] == kinds(outcome, 3)[-1] == "ListOffsets"
    outcome = made.handle(LogEndsTold(3, 13, {T0: LogEnd(0, 120)}, asked_in))
    assert kinds(outcome, 3) == ["ListOffsets"], "it is asked again"
    tell_log_end(made, 2, 12, LogEnd(0, 150))
    tell_log_end(made, 3, 13, LogEnd(0, 120))
    assert made.image.topics["t"].states[0].leader == 2


@pytest.mark.parametrize("is_seen", [True, False])
def test_edge_31_what_was_told_of_a_deleted_topic_says_nothing_of_the_next_one_of_its_name(is_seen: bool) -> None:
    made, _ = controller(2, 3, topics={"t": topic((1, 2, 3))}, states={T0: state(-1, (1, 2, 3), life=5)})
    tell_log_end(made, 2, 12, LogEnd(7, 900))
    assert made.image.log_ends.of(T0)
    if is_seen:
        made.handle(TopicsChanged({}, ()))
    made.handle(TopicsChanged({"t": topic((1, 2, 3))._replace(topic_id=b"n" * 16)}, ()))
    assert not made.image.log_ends.of(T0)


def test_edge_31_an_intact_member_that_comes_back_leads_at_once() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    made.handle(BrokersChanged({1: broker(1, 200)}))
    outcome = made.handle(BrokersChanged({1: broker(1, 200), 2: broker(2, 201, 50, 100)}))
    assert outcome.writes == [UpdateState(T0, PartitionState(2, 2, (2,), 5, 2, {2: 201}))]
    assert outcome.unclean == []


def test_edge_31_what_a_broker_told_counts_no_more_when_it_has_bounced() -> None:
    made, _ = controller(1, 2, topics={"t": topic((1, 2))}, states={T0: state(1, (1, 2))})
    made.handle(BrokersChanged({1: broker(1, 200)}))
    tell_log_end(made, 1, 200, LogEnd(0, 7))
    made.handle(BrokersChanged({2: broker(2, 201)}))
    tell_log_end(made, 2, 201, LogEnd(0, 6))
    outcome = made.handle(BrokersChanged({1: broker(1, 202), 2: broker(2, 201)}))
    assert outcome.writes == []
    assert kinds(outcome, 1)[-1] == "ListOffsets"


def test_edge_31_a_partition_without_a_leader_is_not_moved_away_from_its_last_isr() -> None:
    made, _ = controller(1, 3, topics={"t": topic((1, 2))}, states={T0: state(-1, (1, 2), life=5)})
    outcome = made.handle(ReassignmentAsked({T0: (1, 3)}))
    assert made.image.topics["t"].assignments[0].replicas == (1, 3, 2), "both members stay until one of them leads"
    assert [write.state.isr for write in outcome.writes if isinstance(write, UpdateState)] == [(1, 2)]
    outcome = made.handle(ReassignmentAsked({T0: (1,)}))
    assert made.image.topics["t"].assignments[0].replicas == (1, 2), "and 1 is not enough either"


def test_a_move_that_would_leave_too_few_in_sync_is_refused() -> None:
    """Broker 2 may have lost power unheard; the one that is being added may be all that is left of a record."""
    moving = TopicFacts(TOPIC_ID, {0: Assignment((3, 4, 1, 2), (3, 4), (1, 2))}, ElectionRules(None, 2))
    made, _ = controller(1, 2, 3, topics={"t": moving}, states={T0: state(2, (2, 3))})
    outcome = made.handle(ReassignmentAsked({T0: None}))
    assert outcome.answer[T0].code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    after = made.image.state(T0)
    assert after is not None
    assert after.isr == (2, 3)


def _all_die_one_by_one(made: Controller) -> None:
    """Brokers 1, 2 and 3 died in the same moment; broker 4, the controller, hears of one after the other."""
    for living in ((2, 3, 4), (3, 4), (4,)):
        made.handle(BrokersChanged(brokers(*living)))


def test_edge_31_those_that_leave_an_isr_that_can_commit_nothing_stay_eligible() -> None:
    made, _ = controller(
        1, 2, 3, 4, topics={"t": topic((1, 2, 3), min_insync=2)}, states={T0: state(1, (1, 2, 3), life=13)}
    )
    _all_die_one_by_one(made)
    after = made.image.state(T0)
    assert after is not None
    assert (after.leader, after.isr, after.elr) == (-1, (3,), (2,)), "2 left an ISR of one; 1 left one of two"
    outcome = made.handle(BrokersChanged({3: broker(3, 200), 4: broker(4)}))
    assert outcome.writes == [], "3 lost power, and 2 may have kept all"
    outcome = made.handle(BrokersChanged({2: broker(2, 201, 5, 12), 3: broker(3, 200), 4: broker(4)}))
    (write,) = outcome.writes
    assert isinstance(write, UpdateState)
    assert (write.state.leader, write.state.isr, write.state.elr) == (2, (2,), (3,))
    assert outcome.unclean == []


def test_edge_31_one_that_may_have_lost_records_is_waited_for_if_its_successor_has_lost_some_too() -> None:
    """Seed 9513: broker 1 comes back after a failed sync. Broker 2 has lost power, but its registration is still there,
    so it is taken for intact. Broker 1, which has every record, must not be forgotten meanwhile."""
    made, _ = controller(1, 2, 3, topics={"t": topic((1, 2, 3), min_insync=2)}, states={T0: state(1, (1, 2), life=13)})
    made.handle(BrokersChanged({1: broker(1, 200), 2: broker(2), 3: broker(3)}))
    after = made.image.state(T0)
    assert after is not None
    assert (after.leader, after.isr, after.elr) == (2, (2,), (1,))
    made.handle(BrokersChanged({1: broker(1, 200), 3: broker(3)}))
    made.handle(BrokersChanged({1: broker(1, 200), 2: broker(2, 201), 3: broker(3)}))
    after = made.image.state(T0)
    assert after is not None
    assert (after.leader, set(after.eligible)) == (-1, {1, 2}), "both may have lost records, and both are asked"


def test_the_elr_ends_when_the_isr_is_large_enough_again_or_fewer_are_needed() -> None:
    facts = {"t": topic((1, 2, 3), min_insync=2)}
    made, _ = controller(1, 2, 3, topics=facts, states={T0: state(1, (1, 2), life=13)})
    made.handle(BrokersChanged(brokers(1, 3)))
    after = made.image.state(T0)
    assert after is not None
    assert (after.isr, after.elr) == ((1,), (2,))
    assert after.lives == {1: 11, 2: 13}
    lowered = made.handle(ElectionRulesChanged({"t": ElectionRules(None, 1)}))
    (write,) = lowered.writes
    assert isinstance(write, UpdateState)
    assert (write.state.leader, write.state.isr, write.state.elr) == (1, (1,), ())


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
    living = {1: broker(1, intact_since=2, last_epoch=3)}
    made = Telling(1, 5, "INTERNAL")
    outcome = made.handle(TookOver(Snapshot(living, {"t": topic((1,))}, {T0: state(1, (1,), life=3)}, ())))
    assert outcome.writes == [UpdateState(T0, PartitionState(1, 1, (1,), 5, 1, {1: 11}))]
    assert made.handle(ElectionRulesChanged({})) == Outcome()


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


def test_edge_31_replicas_of_brokers_with_a_failed_directory_lead_when_they_have_answered() -> None:
    """A controller that takes over knows of no replica that is offline."""
    living = {id: with_failed_directory(broker(id)) for id in (1, 2)}
    made = Telling(1, 5, "INTERNAL")

    def answered(id: int, code: ErrorCode) -> Outcome:
        error = LeaderAndIsrPartitionError(partition_index=0, error_code=code)
        topics = [LeaderAndIsrTopicError(topic_id=TOPIC_ID, partition_errors=[error])]
        return made.handle(LeaderAndIsrAnswered(id, 10 + id, LeaderAndIsrResponse(topics=topics)))

    def take_over() -> Outcome:
        states = {T0: state(3, (1, 2, 3))}
        return made.handle(TookOver(Snapshot(living, {"t": topic((1, 2, 3))}, states, ())))

    waiting = PartitionState(-1, 1, (1, 2, 3), 5, 1, {1: 11, 2: 12, 3: 100})
    outcome = take_over()
    assert outcome.writes == [UpdateState(T0, waiting)]
    assert find(outcome, 1, LeaderAndIsrRequest).topic_states[0].partition_states[0].leader == -1
    assert answered(1, ErrorCode.KAFKA_STORAGE_ERROR).writes == []
    assert answered(2, ErrorCode.KAFKA_STORAGE_ERROR).writes == []
    outcome = made.handle(BrokersChanged(living | {3: broker(3, 200, intact_since=90, last_epoch=100)}))
    assert outcome.writes == [UpdateState(T0, PartitionState(3, 2, (3,), 5, 2, {3: 200}))]

    made = Telling(1, 5, "INTERNAL")
    take_over()
    leads = PartitionState(2, 2, (1, 2), 5, 2, {1: 11, 2: 12})
    assert answered(2, ErrorCode.NONE).writes == [UpdateState(T0, leads)]
    assert answered(2, ErrorCode.NONE) == Outcome()
    assert answered(1, ErrorCode.NONE).writes == []


def test_edge_31_an_answer_from_before_the_failure_confirms_no_log() -> None:
    made = Telling(1, 5, "INTERNAL")
    living = {2: broker(2), 3: broker(3)}
    made.handle(TookOver(Snapshot(living, {"t": topic((3, 2))}, {T0: state(3, (3, 2))}, ())))

    def answered(code: ErrorCode, is_after_failure: bool) -> None:
        error = LeaderAndIsrPartitionError(partition_index=0, error_code=code)
        topics = [LeaderAndIsrTopicError(topic_id=TOPIC_ID, partition_errors=[error])]
        made.handle(LeaderAndIsrAnswered(2, 12, LeaderAndIsrResponse(topics=topics), is_after_failure))

    failed = {2: with_failed_directory(broker(2))}
    made.handle(BrokersChanged(failed))
    answered(ErrorCode.NONE, is_after_failure=False)
    answered(ErrorCode.KAFKA_STORAGE_ERROR, is_after_failure=True)
    made.handle(BrokersChanged(failed | {3: broker(3, 200, intact_since=90, last_epoch=100)}))
    after = made.image.state(T0)
    assert after is not None
    assert (after.leader, after.isr) == (3, (3,))


def test_a_topic_without_an_id_does_not_wait_for_answers_that_cannot_name_it() -> None:
    living = {id: with_failed_directory(broker(id)) for id in (1, 2)}
    made = Telling(1, 5, "INTERNAL")
    topics = {"t": topic((1, 2, 3))._replace(topic_id=ZERO_UUID)}
    outcome = made.handle(TookOver(Snapshot(living, topics, {T0: state(3, (1, 2, 3))}, ())))
    assert outcome.writes == [UpdateState(T0, PartitionState(1, 1, (1, 2), 5, 1, {1: 11, 2: 12}))]

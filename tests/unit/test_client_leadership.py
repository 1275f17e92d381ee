"""Elections, reassignments and watermarks as a client asks for them: who is asked, what is tried again, what fails."""

from __future__ import annotations

import pytest

from tests.kits.clientkit import P0, P1, simulate, values
from tests.kits.fake_broker import CLOSE, FakeCluster
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError, DeadlineError, UnknownTopicError
from tidelog.client.leadership import (
    Election,
    ElectionResult,
    Reassignment,
    alter_reassignments,
    elect_leaders,
    list_reassignments,
    partitions_of,
    wait_until_reassigned,
)
from tidelog.client.watermarks import ReplicaWatermarks, replica_watermarks
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, FetchResponsePartitionData
from tidelog.wire.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)

FETCH, LIST_OFFSETS, ELECT, ALTER, LIST = 1, 2, 43, 45, 46


def elected(*codes: ErrorCode) -> ElectLeadersResponse:
    results = [
        ElectLeadersResponsePartitionResult(partition_id=n, error_code=code, error_message=None)
        for n, code in enumerate(codes)
    ]
    return ElectLeadersResponse(
        replica_election_results=[ReplicaElectionResult(topic="orders", partition_result=results)]
    )


def moving(*numbers: int) -> ListPartitionReassignmentsResponse:
    partitions = [
        OngoingPartitionReassignment(
            partition_index=number, replicas=[2, 3, 1], adding_replicas=[2, 3], removing_replicas=[1]
        )
        for number in numbers
    ]
    return ListPartitionReassignmentsResponse(topics=[OngoingTopicReassignment(name="orders", partitions=partitions)])


def test_an_election_goes_to_the_controller_until_there_is_one() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        refused = ElectLeadersResponse(error_code=ErrorCode.NOT_CONTROLLER)
        answer = elected(ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
        fake.brokers[1].script[ELECT] = [CLOSE, lambda request: refused, lambda request: answer]
        results = await elect_leaders(cluster, Election.UNCLEAN, [P0, P1])
        assert results == {
            P0: ElectionResult(ErrorCode.NONE, None),
            P1: ElectionResult(ErrorCode.ELECTION_NOT_NEEDED, None),
        }
        assert not any(result.failed for result in results.values())
        asked: list[ElectLeadersRequest] = fake.brokers[1].of_key(ELECT)
        assert len(asked) == 3
        assert asked[-1].election_type == 1
        assert [(one.topic, one.partitions) for one in asked[-1].topic_partitions or ()] == [("orders", [0, 1])]

    fake = simulate(story, brokers=2)
    assert not fake.brokers[2].of_key(ELECT)


def test_an_election_everywhere_names_nothing_and_a_failure_is_a_result() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[ELECT] = [lambda request: elected(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
        results = await elect_leaders(cluster, Election.PREFERRED, None)
        assert results[P0].failed
        (asked,) = fake.brokers[1].of_key(ELECT)
        assert (asked.election_type, asked.topic_partitions) == (0, None)

    simulate(story)


def test_reassignments_begin_or_say_why_not() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        no_such = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        partitions = [
            ReassignablePartitionResponse(partition_index=0),
            ReassignablePartitionResponse(partition_index=1, error_code=no_such, error_message="it stands still"),
        ]
        answer = AlterPartitionReassignmentsResponse(
            responses=[ReassignableTopicResponse(name="orders", partitions=partitions)]
        )
        fake.brokers[1].script[ALTER] = [lambda request: answer]
        results = await alter_reassignments(cluster, {P0: (3, 2), P1: None})
        assert results[P0] is None
        assert str(results[P1]) == "partition orders-1: NO_REASSIGNMENT_IN_PROGRESS (it stands still)"
        (asked,) = fake.brokers[1].of_key(ALTER)
        assert isinstance(asked, AlterPartitionReassignmentsRequest)
        assert [(one.partition_index, one.replicas) for one in asked.topics[0].partitions] == [(0, [3, 2]), (1, None)]

    simulate(story)


def test_what_is_under_way() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[LIST] = [lambda request: moving(1), lambda request: moving()]
        found = await list_reassignments(cluster)
        assert found == {P1: Reassignment((2, 3, 1), (2, 3), (1,))}
        assert found[P1].target == (2, 3)
        assert await list_reassignments(cluster, [P0]) == {}
        asked: list[ListPartitionReassignmentsRequest] = fake.brokers[1].of_key(LIST)
        assert asked[0].topics is None
        assert [one.partition_indexes for one in asked[1].topics or ()] == [[0]]

    simulate(story)


def test_waiting_ends_when_the_list_is_empty_and_metadata_shows_the_target() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        def last(request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
            fake.leaders[P0] = 2
            return moving()

        fake.brokers[1].script[LIST] = [lambda request: moving(0), lambda request: moving(), last]
        await wait_until_reassigned(cluster, {P0: (2,)}, timeout_ms=10_000)
        assert not fake.brokers[1].script[LIST]
        fake.brokers[1].script[LIST] = [lambda request: moving(0)] * 100
        with pytest.raises(DeadlineError, match=r"not done after 2 s: orders-0"):
            await wait_until_reassigned(cluster, {P0: (2,), P1: (1,)}, timeout_ms=2_000)

    simulate(story, brokers=2)


def test_the_partitions_of_a_topic() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        assert await partitions_of(cluster, "orders") == [P0, P1]
        assert await partitions_of(cluster, "orders", [1, 1]) == [P1]
        with pytest.raises(BrokerError, match="no partition 7; it has 0 to 1"):
            await partitions_of(cluster, "orders", [0, 7])
        with pytest.raises(UnknownTopicError):
            await partitions_of(cluster, "nope")

    simulate(story)


# Watermarks


def end(offset: int) -> ListOffsetsResponse:
    found = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[found])])


def fetched(fake: FakeCluster, watermark: int, code: ErrorCode = ErrorCode.NONE) -> FetchResponse:
    data = FetchResponsePartitionData(partition_index=0, error_code=code, high_watermark=watermark, records=b"")
    topic = FetchableTopicResponse(topic_id=fake.topic_id("orders"), partitions=[data])
    return FetchResponse(responses=[topic])


async def asked(cluster: Cluster) -> dict[TopicPartition, list[ReplicaWatermarks]]:
    return await replica_watermarks(cluster, [await cluster.topic("orders", led=False, fresh=True)])


def test_each_replica_is_asked_itself_and_a_dead_one_is_not() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.append(P0, bytes(values(3)))
        fake.leaders = {P0: 2, P1: 7}
        assert await asked(cluster) == {
            P0: [ReplicaWatermarks(2, 3, 3)],
            P1: [ReplicaWatermarks(7, failure="dead")],
        }
        (ends,), (fetch,) = fake.brokers[2].of_key(LIST_OFFSETS), fake.brokers[2].of_key(FETCH)
        assert (ends.replica_id, fetch.replica_state.replica_id, fetch.max_wait_ms) == (-2, -2, 0)
        assert fetch.topics[0].partitions[0].fetch_offset == 3

    fake = simulate(story, brokers=2)
    assert not fake.brokers[1].of_key(FETCH)


def test_offsets_that_change_between_the_questions() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.leaders = {P0: 1}
        broker = fake.brokers[1]
        out_of_range = ErrorCode.OFFSET_OUT_OF_RANGE
        broker.script[LIST_OFFSETS] = [lambda request: end(9), lambda request: end(5)]
        broker.script[FETCH] = [lambda request: fetched(fake, -1, out_of_range), lambda request: fetched(fake, 4)]
        assert (await asked(cluster))[P0] == [ReplicaWatermarks(1, 5, 4)], "cut, and asked again"
        broker.script[LIST_OFFSETS] = [lambda request: end(5)]
        broker.script[FETCH] = [lambda request: fetched(fake, 8)]
        assert (await asked(cluster))[P0] == [ReplicaWatermarks(1, 8, 8)], "grown: never below its high watermark"
        broker.script[FETCH] = [lambda request: fetched(fake, -1, out_of_range)] * 9
        assert (await asked(cluster))[P0] == [ReplicaWatermarks(1, failure="OFFSET_OUT_OF_RANGE")]
        assert len(broker.script[FETCH]) == 6

    simulate(story)


def test_a_replica_that_does_not_answer_says_why() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[LIST_OFFSETS] = [CLOSE]
        for replicas in (await asked(cluster)).values():
            (replica,) = replicas
            assert replica.log_end_offset is None
            assert replica.failure
            assert replica.failure != "dead"

    simulate(story)

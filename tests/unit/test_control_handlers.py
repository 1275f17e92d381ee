"""The handlers of what is asked of the controller: requests in, responses out, as they go over the wire."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kits.controlkit import T0, Cluster, play
from tidelog.broker.control.shell import ControllerShell
from tidelog.broker.handlers.alter_partition import alter_partition, controlled_shutdown
from tidelog.broker.handlers.elections import elect_leaders
from tidelog.broker.handlers.reassignment import alter_partition_reassignments, list_partition_reassignments
from tidelog.broker.metadata import MetadataCache
from tidelog.broker.pacing import SlowLane
from tidelog.controller.topics import NewTopic
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.wire import decode, encode
from tidelog.wire.messages.controller import AlterPartitionRequest, ControlledShutdownRequest, LeaderAndIsrRequest
from tidelog.wire.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.schema import Message


class Caller:
    """Calls handlers as the dispatcher does, on a broker that has only what they need."""

    def __init__(self, shell: ControllerShell, metadata: MetadataCache) -> None:
        self.shell = shell
        self.broker: Any = SimpleNamespace(
            id=shell.broker_id,
            controller=shell,
            metadata=metadata,
            lane=SlowLane(),
            waiting=lambda call, give_up: nullcontext(),
        )

    async def __call__(self, handler: Any, request: Message, version: int) -> Any:
        call: Any = SimpleNamespace(version=version, sender="client test at 127.0.0.1")
        response = handler(self.broker, decode(type(request), encode(request, version), version), call)
        if not isinstance(response, Message):
            response = await response
        return decode(type(response), encode(response, version), version)


async def begin(cluster: Cluster, *replicas: list[int]) -> Caller:
    """Brokers 1, 2 and 3; the handlers run on broker 3, which is controller."""
    for id in (1, 2, 3):
        await cluster.start_broker(id)
    shell = await cluster.start_shell(3)
    await eventually(lambda: shell.is_active)
    await cluster.admin(shell).create_topics([NewTopic("t", assignments=[*enumerate(replicas)])])
    await eventually(lambda: cluster.shows("t", len(replicas)))
    return Caller(shell, cluster.brokers[3].metadata)


async def hand_over_and_return(cluster: Cluster, call: Caller) -> None:
    """Broker 1 stops in good order and comes back, out of sync."""
    one, two = cluster.brokers[1], cluster.brokers[2]
    await call(controlled_shutdown, ControlledShutdownRequest(broker_id=1, broker_epoch=one.epoch), 3)
    await cluster.stop_broker(1)
    await cluster.start_broker(1)
    await eventually(lambda: any(isinstance(request, LeaderAndIsrRequest) for request in one.received))
    await eventually(lambda: two.replicas[T0].leader == 2)


async def elsewhere(cluster: Cluster) -> Caller:
    """Handlers on a broker that is not controller."""
    shell = await cluster.start_shell(2)
    await eventually(lambda: shell.controller_id == 3)
    return Caller(shell, cluster.brokers[2].metadata)


def election(partitions: dict[str, list[int]] | None, kind: int = 0, timeout_ms: int = 1000) -> ElectLeadersRequest:
    topics = (
        None
        if partitions is None
        else [ElectLeadersRequestTopicPartitions(topic=name, partitions=at) for name, at in partitions.items()]
    )
    return ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=timeout_ms)


def results(response: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, result.partition_id): result.error_code
        for topic in response.replica_election_results
        for result in topic.partition_result
    }


@pytest.mark.parametrize("version", [0, 1, 2])
def test_elect_leaders(version: int) -> None:
    async def story(cluster: Cluster) -> None:
        call = await begin(cluster, [1, 2], [2, 1])
        await hand_over_and_return(cluster, call)
        response = await call(elect_leaders, election({"t": [0, 1, 7, 1]}), version)
        assert results(response) == {
            ("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert all(result.error_message for result in response.replica_election_results[0].partition_result)
        assert await cluster.alter_partition("t", 0, [2, 1]) is ErrorCode.NONE
        response = await call(elect_leaders, election(None), version)
        assert (response.error_code, results(response)) == (0, {("t", 0): 0})
        assert call.broker.metadata.partition("t", 0).leader == 1

    play(story)


def test_an_election_that_is_not_seen_in_time() -> None:
    async def story(cluster: Cluster) -> None:
        call = await begin(cluster, [1, 2])
        await hand_over_and_return(cluster, call)
        assert await cluster.alter_partition("t", 0, [2, 1]) is ErrorCode.NONE
        response = await call(elect_leaders, election({"t": [0]}, timeout_ms=0), 2)
        assert results(response) == {("t", 0): ErrorCode.REQUEST_TIMED_OUT}
        await eventually(lambda: call.broker.metadata.partition("t", 0).leader == 1)

    play(story)


def test_a_type_of_election_that_is_none() -> None:
    async def story(cluster: Cluster) -> None:
        call = await begin(cluster, [1])
        response = await call(elect_leaders, election({"t": [0]}, kind=5), 2)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert results(response) == {("t", 0): ErrorCode.INVALID_REQUEST}

    play(story)


def reassignment(
    replicas: dict[int, list[int] | None], name: str = "t", allow: bool = True
) -> AlterPartitionReassignmentsRequest:
    partitions = [ReassignablePartition(partition_index=at, replicas=target) for at, target in replicas.items()]
    return AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allow, topics=[ReassignableTopic(name=name, partitions=partitions)]
    )


def codes(response: Any) -> dict[int, int]:
    assert response.error_code == 0
    return {answer.partition_index: answer.error_code for answer in response.responses[0].partitions}


def test_reassignments_are_altered_listed_and_cancelled() -> None:
    async def story(cluster: Cluster) -> None:
        call = await begin(cluster, [1, 2], [2, 1])
        response = await call(alter_partition_reassignments, reassignment({0: [3, 1], 1: [9], 4: [1]}), 0)
        assert codes(response) == {
            0: ErrorCode.NONE,
            1: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            4: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert "broker 9" in response.responses[0].partitions[1].error_message
        for asked in (None, [0, 1]):
            topics = None if asked is None else [ListPartitionReassignmentsTopics(name="t", partition_indexes=asked)]
            listed = await call(list_partition_reassignments, ListPartitionReassignmentsRequest(topics=topics), 0)
            (ongoing,) = listed.topics[0].partitions
            assert (ongoing.partition_index, ongoing.replicas) == (0, [3, 1, 2])
            assert (ongoing.adding_replicas, ongoing.removing_replicas) == ([3], [2])
        topics = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[1])]
        listed = await call(list_partition_reassignments, ListPartitionReassignmentsRequest(topics=topics), 0)
        assert (listed.error_code, listed.topics) == (0, [])
        response = await call(alter_partition_reassignments, reassignment({0: None, 1: None}), 1)
        assert codes(response) == {0: ErrorCode.NONE, 1: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
        listed = await call(list_partition_reassignments, ListPartitionReassignmentsRequest(), 0)
        assert listed.topics == []

    play(story)


def test_a_reassignment_may_have_to_keep_the_replication_factor() -> None:
    async def story(cluster: Cluster) -> None:
        call = await begin(cluster, [1, 2])
        response = await call(alter_partition_reassignments, reassignment({0: [3]}, allow=False), 1)
        assert codes(response) == {0: ErrorCode.INVALID_REPLICATION_FACTOR}
        assert response.allow_replication_factor_change is False

    play(story)


def test_a_partition_that_is_named_twice_is_not_reassigned() -> None:
    async def story(cluster: Cluster) -> None:
        call = await begin(cluster, [1, 2])
        request = reassignment({0: [3]})
        request.topics += reassignment({0: [2]}).topics
        response = await call(alter_partition_reassignments, request, 0)
        assert codes(response) == {0: ErrorCode.INVALID_REQUEST}
        assert not (await cluster.assignment("t", 0)).is_being_reassigned

    play(story)


def test_other_brokers_refuse() -> None:
    async def story(cluster: Cluster) -> None:
        await begin(cluster, [1, 2])
        call = await elsewhere(cluster)
        not_here = ErrorCode.NOT_CONTROLLER
        assert (await call(alter_partition, AlterPartitionRequest(), 3)).error_code == not_here
        assert (await call(controlled_shutdown, ControlledShutdownRequest(broker_id=1), 3)).error_code == not_here
        assert (await call(alter_partition_reassignments, reassignment({0: [3]}), 0)).error_code == not_here
        assert (await call(list_partition_reassignments, ListPartitionReassignmentsRequest(), 0)).error_code == not_here
        response = await call(elect_leaders, election({"t": [0]}), 1)
        assert (response.error_code, results(response)) == (not_here, {("t", 0): not_here})

    play(story)


@pytest.mark.parametrize("version", [2, 3])
def test_controlled_shutdown(version: int) -> None:
    async def story(cluster: Cluster) -> None:
        call = await begin(cluster, [1, 2])
        epoch = cluster.brokers[1].epoch
        assert await cluster.alter_partition("t", 0, [1]) is ErrorCode.NONE
        for other in (-1, epoch - 1, epoch + 1):
            request = ControlledShutdownRequest(broker_id=1, broker_epoch=other)
            assert (await call(controlled_shutdown, request, version)).error_code == ErrorCode.STALE_BROKER_EPOCH
        request = ControlledShutdownRequest(broker_id=1, broker_epoch=epoch)
        response = await call(controlled_shutdown, request, version)
        assert response.error_code == 0
        assert [(left.topic_name, left.partition_index) for left in response.remaining_partitions] == [("t", 0)]
        response = await call(controlled_shutdown, ControlledShutdownRequest(broker_id=7, broker_epoch=1), version)
        assert response.error_code == ErrorCode.BROKER_NOT_AVAILABLE

    play(story)

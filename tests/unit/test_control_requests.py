"""What brokers and administrators ask of the controller's shell: ISRs, shutdowns, elections."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.controlkit import Cluster, play
from tidelog.broker.control.admin import Deletion, MorePartitions
from tidelog.broker.control.shell import ControllerShell, NotControllerError
from tidelog.broker.control.stats import ControlFacts
from tidelog.controller import nodes
from tidelog.controller.events import Elected, ElectionAsked, ElectionType, ReassignmentAsked
from tidelog.controller.topics import NewTopic
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.types import TopicPartition
from tidelog.wire.messages.controller import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
    ControlledShutdownRequest,
    StopReplicaRequest,
)

T0 = TopicPartition("t", 0)


async def begin(cluster: Cluster, *replicas: list[int]) -> ControllerShell:
    """Brokers 1, 2 and 3, a controller elsewhere, and the topic t."""
    for id in (1, 2, 3):
        await cluster.start_broker(id)
    shell = await cluster.start_shell(9)
    await eventually(lambda: shell.is_active)
    await cluster.admin(shell).create_topics([NewTopic("t", assignments=[*enumerate(replicas)])])
    await eventually(lambda: cluster.shows("t", len(replicas)))
    return shell


def shown_isr(cluster: Cluster, broker: int) -> tuple[int, ...] | None:
    known = cluster.brokers[broker].metadata.partition("t", 0)
    return None if known is None else tuple(known.isr)


def test_an_isr_is_written_and_told() -> None:
    async def story(cluster: Cluster) -> None:
        await begin(cluster, [1, 2])
        assert await cluster.alter_partition("t", 0, [1]) is ErrorCode.NONE
        state = await cluster.state("t", 0)
        assert state is not None
        assert (state.leader, state.leader_epoch, state.isr, state.version) == (1, 0, (1,), 1)
        await eventually(lambda: all(shown_isr(cluster, id) == (1,) for id in (1, 2, 3)))
        assert await cluster.alter_partition("t", 0, [1, 2]) is ErrorCode.NONE
        assert await cluster.alter_partition("t", 0, [1, 3]) is ErrorCode.INVALID_REQUEST

    play(story)


def test_many_isrs_take_few_writes() -> None:
    async def story(cluster: Cluster) -> None:
        shell = await begin(cluster, *[[1, 2]] * 60)
        assert shell.image is not None
        topic_id = shell.image.topics["t"].topic_id
        one = BrokerState(broker_id=1, broker_epoch=cluster.brokers[1].epoch)
        data = [AlterPartitionRequestPartitionData(partition_index=at, new_isr_with_epochs=[one]) for at in range(60)]
        request = AlterPartitionRequest(
            broker_id=1,
            broker_epoch=one.broker_epoch,
            topics=[AlterPartitionRequestTopicData(topic_id=topic_id, partitions=data)],
        )
        response = await shell.alter_partition(request, 3)
        assert {answer.error_code for answer in response.topics[0].partitions} == {0}
        modified = set()
        for at in range(60):
            node = await cluster.node(nodes.state_path(TopicPartition("t", at)))
            assert node is not None
            modified.add(node.stat.modified_id)
        assert len(modified) == 1

    play(story)


def test_an_isr_on_top_of_a_state_that_somebody_else_wrote_is_refused() -> None:
    async def story(cluster: Cluster) -> None:
        shell = await begin(cluster, [1, 2])
        state = await cluster.state("t", 0)
        assert state is not None
        await cluster.session.set(nodes.state_path(T0), nodes.encode_state(state._replace(leader_epoch=7)), 0)
        told = cluster.brokers[1].replicas[T0]
        data = AlterPartitionRequestPartitionData(
            new_isr_with_epochs=[BrokerState(broker_id=1)], leader_epoch=told.leader_epoch
        )
        assert shell.image is not None
        request = AlterPartitionRequest(
            broker_id=1,
            broker_epoch=cluster.brokers[1].epoch,
            topics=[
                AlterPartitionRequestTopicData(topic_id=shell.image.topics["t"].topic_id, partitions=[data]),
            ],
        )
        # Nothing is known then: the leader comes again, and finds a controller that has read everything again.
        assert (await shell.alter_partition(request, 3)).error_code == ErrorCode.NOT_CONTROLLER
        await eventually(lambda: cluster.brokers[1].replicas[T0].leader_epoch == 7)
        assert (await shell.alter_partition(request, 3)).topics[0].partitions[0].error_code == (
            ErrorCode.FENCED_LEADER_EPOCH
        )
        assert await cluster.alter_partition("t", 0, [1]) is ErrorCode.NONE

    play(story)


def test_only_the_controller_answers() -> None:
    async def story(cluster: Cluster) -> None:
        await begin(cluster, [1, 2])
        other = await cluster.start_shell(8)
        await eventually(lambda: other.controller_id == 9)
        assert (await other.alter_partition(AlterPartitionRequest(), 3)).error_code == ErrorCode.NOT_CONTROLLER
        shutdown = ControlledShutdownRequest(broker_id=1, broker_epoch=cluster.brokers[1].epoch)
        assert (await other.controlled_shutdown(shutdown)).error_code == ErrorCode.NOT_CONTROLLER
        with pytest.raises(NotControllerError):
            await other.ask(ElectionAsked(ElectionType.PREFERRED, None))
        assert other.facts == ControlFacts(0, 0, 0, 0, 0)

    play(story)


def test_a_broker_hands_over_and_comes_back_to_lead() -> None:
    async def story(cluster: Cluster) -> None:
        shell = await begin(cluster, [1, 2], [2, 1])
        await cluster.admin(shell).create_topics([NewTopic("u", assignments=[(0, [1])])])
        await eventually(lambda: cluster.shows("u", 1))
        one, two = cluster.brokers[1], cluster.brokers[2]
        response = await shell.controlled_shutdown(ControlledShutdownRequest(broker_id=1, broker_epoch=one.epoch))
        assert (response.error_code, response.remaining_partitions) == (0, [])
        await eventually(lambda: two.replicas[T0].leader == 2 and one.replicas[T0].leader == 2)
        await eventually(lambda: any(isinstance(request, StopReplicaRequest) for request in one.received))
        assert TopicPartition("t", 1) not in one.replicas
        for at in (0, 1):
            state = await cluster.state("t", at)
            assert state is not None
            assert (state.leader, state.isr, state.leader_epoch) == (2, (2,), 1)
        await eventually(lambda: shell.facts == ControlFacts(2, 3, 0, 1, 0))
        epoch = one.epoch
        await cluster.stop_broker(1)
        await eventually(lambda: shell.facts == ControlFacts(2, 3, 1, 2, 0))
        await cluster.start_broker(1)
        await eventually(lambda: T0 in one.replicas and shell.facts.offline_partitions_count == 0)
        assert (await shell.controlled_shutdown(ControlledShutdownRequest(broker_id=1, broker_epoch=epoch))).error_code
        assert await cluster.alter_partition("t", 0, [2, 1]) is ErrorCode.NONE
        assert await shell.ask(ElectionAsked(ElectionType.PREFERRED, None)) == {T0: Elected(ErrorCode.NONE, 1)}
        await eventually(lambda: two.replicas[T0].leader == 1)
        assert shell.facts == ControlFacts(2, 3, 0, 0, 0)

    play(story, auto_leader_rebalance_enable=False)


def test_leadership_goes_back_by_itself() -> None:
    async def story(cluster: Cluster) -> None:
        shell = await begin(cluster, [1, 2])
        await shell.controlled_shutdown(ControlledShutdownRequest(broker_id=1, broker_epoch=cluster.brokers[1].epoch))
        await cluster.stop_broker(1)
        await cluster.start_broker(1)
        await asyncio.sleep(6)  # virtual: past the first check
        assert await cluster.alter_partition("t", 0, [2, 1]) is ErrorCode.NONE
        await asyncio.sleep(1)
        assert cluster.brokers[2].replicas[T0].leader == 2
        await asyncio.sleep(31)
        assert cluster.brokers[2].replicas[T0].leader == 1
        assert shell.stats.elections == 2
        await shell.stop()
        assert shell._balancing is None

    play(story, leader_imbalance_check_interval_s=30)


def test_elections_are_counted_and_timed() -> None:
    async def story(cluster: Cluster) -> None:
        shell = await begin(cluster, [1, 2])
        times: list[float] = []
        shell.stats.on_election = times.append
        await cluster.stop_broker(1)
        await eventually(lambda: cluster.brokers[2].replicas[T0].leader == 2)
        await cluster.start_broker(1)
        await cluster.stop_broker(2)
        await eventually(lambda: shell.facts.offline_partitions_count == 1)
        answer = await shell.ask(ElectionAsked(ElectionType.UNCLEAN, (T0,)))
        assert answer == {T0: Elected(ErrorCode.NONE, 1)}
        assert (shell.stats.elections, shell.stats.unclean_elections, len(times)) == (2, 1, 2)
        assert all(ms >= 0 for ms in times)
        await shell.stop()
        assert shell.stats.elections == 2

    play(story)


def test_partitions_that_move_cannot_be_added_to() -> None:
    async def story(cluster: Cluster) -> None:
        shell = await begin(cluster, [1, 2])
        assert await shell.ask(ReassignmentAsked({T0: (3,)})) == {T0: None}
        assert shell.facts.reassigning_partitions == 1
        (result,) = await cluster.admin(shell).create_partitions([MorePartitions("t", 2)])
        assert result.code is ErrorCode.REASSIGNMENT_IN_PROGRESS
        # What the administrator's look at the topics found is what is written.
        assert shell.facts.reassigning_partitions == 1
        (result,) = await cluster.admin(shell).delete_topics([Deletion("t")])
        assert result.code is ErrorCode.NONE
        await cluster.admin(shell).wait_deleted(["t"], 10)
        assert not any(broker.replicas for broker in cluster.brokers.values())

    play(story)

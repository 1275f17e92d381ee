"""Three brokers and nodes that cannot be read, partitions that are not named, log directories that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tests.kits.logkit import batch
from tests.sim import edge_mutations
from tests.sim.mutations import Mutation
from tests.unit.test_broker_strays import on_disk
from tidelog.controller import nodes
from tidelog.errors import ErrorCode, TidelogError
from tidelog.lab.broker import eventually
from tidelog.lab.loop import SimulationError
from tidelog.log.directory import LogDirectory
from tidelog.types import TopicPartition
from tidelog.wire.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

U0 = TopicPartition("u", 0)
T = nodes.topic_path("t")


async def change(cluster: ClusterKit, path: str, edit: Callable[[bytes], bytes]) -> bytes:
    """Somebody writes a node by hand; what was there before."""
    session = await cluster.store.connect(60_000)
    before = (await session.get(path)).data
    await session.set(path, edit(before))
    await session.close()
    return before


async def lose_controller(cluster: ClusterKit) -> None:
    former = cluster.controller
    cluster[former].expire_session()
    await eventually(lambda: cluster.controller not in (0, former))


def bad_id(data: bytes) -> bytes:
    return data.replace(b'"topic_id":"', b'"topic_id":"*')


def all_on_disk(cluster: ClusterKit, topic: str = "t") -> list[list[str]]:
    return [on_disk(kit, topic) for kit in cluster.kits.values()]


def test_edge_35_a_topic_node_that_cannot_be_read_deletes_nothing() -> None:
    async def story(cluster: ClusterKit) -> None:
        for value in (b"0", b"1"):
            assert await cluster.produce(value) is ErrorCode.NONE
        await cluster.all_in_sync()
        good = await change(cluster, T, bad_id)
        await asyncio.sleep(1)
        assert await cluster.produce(b"2") is ErrorCode.NONE, "a controller that knew the topic serves it on"
        await cluster.all_in_sync()
        await lose_controller(cluster)
        await eventually(lambda: all_on_disk(cluster) == [["t-0-stray"]] * 3)
        cluster[1].kill()
        await cluster[1].start()
        assert on_disk(cluster[1]) == ["t-0-stray"]
        await asyncio.sleep(120)
        assert all_on_disk(cluster) == [["t-0-stray"]] * 3
        await change(cluster, T, lambda _: good)
        await eventually(lambda: all_on_disk(cluster) == [["t-0"]] * 3)
        await cluster.all_in_sync()
        assert cluster.values(1) == [b"0", b"1", b"2"]
        assert await cluster.produce(b"3") is ErrorCode.NONE

    run(story)


def test_strays_go_with_their_topic_when_the_operator_deletes_it() -> None:
    async def story(cluster: ClusterKit) -> None:
        assert await cluster.produce(b"0") is ErrorCode.NONE
        await change(cluster, T, bad_id)
        await lose_controller(cluster)
        await eventually(lambda: all_on_disk(cluster) == [["t-0-stray"]] * 3)
        await cluster[cluster.controller].delete_topic("t")
        await eventually(lambda: all_on_disk(cluster) == [[]] * 3, 300)
        await cluster.create_topic()
        assert await cluster.produce(b"new") is ErrorCode.NONE

    run(story)


def test_edge_36_a_state_that_cannot_be_read_leaves_the_rest_served() -> None:
    async def story(cluster: ClusterKit) -> None:
        await cluster.create_topic("u")
        leader = cluster[1]
        await leader.leads("u")
        assert (await leader.produce(batch([b"u0"]), "u")).error_code == 0
        path = nodes.state_path(U0)
        good = await change(cluster, path, lambda data: data[:-3])
        victim = cluster.controller
        cluster[victim].kill()
        await eventually(lambda: cluster.controller not in (0, victim))
        await cluster.leads(but=victim)
        assert await cluster.produce(b"0") is ErrorCode.NONE
        await cluster[victim].start()
        await cluster.all_in_sync()
        assert all_on_disk(cluster, "u") == [["u-0"]] * 3
        assert cluster.store.tree.get(path).data == good[:-3]
        await change(cluster, path, lambda _: good)
        await eventually(lambda: any(kit.partition("u").leader is not None for kit in cluster.kits.values()))
        (leading,) = [kit for kit in cluster.kits.values() if kit.partition("u").leader is not None]
        await eventually(lambda: len(leading.partition("u").isr) == 3)
        assert await leading.values("u") == [b"u0"]

    run(story)


def test_a_partition_that_moved_while_its_broker_was_down_is_a_stray_and_may_return() -> None:
    async def move(cluster: ClusterKit, *replicas: int) -> None:
        partition = ReassignablePartition(partition_index=0, replicas=list(replicas))
        topic = ReassignableTopic(name="t", partitions=[partition])
        request = AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=10_000)
        answer = await cluster[cluster.controller].call(request, 0)
        assert answer.error_code == 0
        assert answer.responses[0].partitions[0].error_code == 0, answer
        await eventually(lambda: cluster.assigned() == sorted(replicas))

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        away = next(number for number in cluster.kits if number not in (controller, cluster.leader()))
        others = [number for number in cluster.kits if number != away]
        assert await cluster.produce(b"0") is ErrorCode.NONE
        await cluster.all_in_sync()
        cluster[away].kill()
        await eventually(lambda: away not in cluster.isr())
        await move(cluster, *others)
        assert await cluster.produce(b"1") is ErrorCode.NONE
        await cluster[away].start()
        await eventually(lambda: on_disk(cluster[away]) == ["t-0-stray"])
        await move(cluster, *others, away)
        await cluster.all_in_sync()
        assert on_disk(cluster[away]) == ["t-0"]
        assert cluster.values(away) == [b"0", b"1"]

    run(story)


def test_a_topic_that_was_deleted_while_a_broker_was_down_leaves_no_stray() -> None:
    """The controller waits for that broker, and tells it when it is back."""

    async def story(cluster: ClusterKit) -> None:
        assert await cluster.produce(b"0") is ErrorCode.NONE
        away = next(number for number in cluster.kits if number != cluster.controller)
        cluster[away].kill()
        await eventually(lambda: away not in cluster.isr())
        await cluster[cluster.controller].delete_topic("t")
        assert cluster.store.tree.exists(T) is not None, "not before the last replica is gone"
        await cluster[away].start()
        await eventually(lambda: all_on_disk(cluster) == [[]] * 3, 300)
        await eventually(lambda: cluster.store.tree.exists(T) is None)

    run(story)


# Log directories


async def led_by_another(cluster: ClusterKit) -> int:
    """t, on three brokers, led by one that is not the controller."""
    first, third = [number for number in cluster.kits if number != cluster.controller]
    await cluster.create_topic("t", [(first, cluster.controller, third)])
    await eventually(lambda: cluster.leader() == first and len(cluster.isr()) == 3)
    assert await cluster.produce(b"0") is ErrorCode.NONE
    return first


def directory_of_t(cluster: ClusterKit, number: int) -> LogDirectory:
    return next(one for one in cluster[number].broker.storage.directories if TopicPartition("t", 0) in one.logs)


@pytest.mark.parametrize("trouble", ["none", "store out of reach", "session lost"])
def test_edge_37_a_failed_directory_is_told_until_it_is_heard(trouble: str) -> None:
    async def story(cluster: ClusterKit) -> None:
        first = await led_by_another(cluster)
        broker = cluster[first].broker
        if trouble == "store out of reach":
            cluster.store.suspend(broker.session.id)
        cluster[first].host.disk.fail_next("write", count=None, under=f"{directory_of_t(cluster, first).path}/t-0")
        partition = cluster.replicas()[first]
        assert await cluster.produce(b"1") is ErrorCode.KAFKA_STORAGE_ERROR
        assert partition.leader is None, "its term is over at once, whatever the controller knows"
        if trouble == "session lost":
            cluster[first].expire_session()
        await asyncio.sleep(1)
        if trouble == "store out of reach":
            cluster.store.resume(broker.session.id)
        await eventually(lambda: cluster.leader() not in (0, first), 10)
        assert await cluster.produce(b"1") is ErrorCode.NONE
        assert first not in cluster.stored_isr()
        for _ in range(2):
            await lose_controller(cluster)
            await asyncio.sleep(10)
            assert cluster.leader() not in (0, first), "it is not asked to lead again"
            assert partition.leader is None

    run(story, topic=False, log_dirs="/data1,/data2")


def test_edge_37_a_leader_with_a_failed_log_proposes_no_isr() -> None:
    """The followers lack a record when the log fails, and the controller does not hear of the failure for long."""

    async def story(cluster: ClusterKit) -> None:
        first = await led_by_another(cluster)
        kit, losses = cluster[first], cluster[first].broker._directory_losses
        tell, losses.tell = losses.tell, lambda: None  # type: ignore[method-assign]
        cluster.cut_off(first)
        assert (await kit.produce(batch([b"1"]), acks=1)).error_code == 0
        kit.host.disk.fail_next("write", count=None, under=f"{directory_of_t(cluster, first).path}/t-0")
        assert await cluster.produce(b"2") is ErrorCode.KAFKA_STORAGE_ERROR
        cluster.world.network.heal_all()
        stored = cluster.store.tree.get(nodes.state_path(TopicPartition("t", 0)))
        await asyncio.sleep(10)
        assert cluster.store.tree.get(nodes.state_path(TopicPartition("t", 0))) == stored
        tell()
        await eventually(lambda: cluster.leader() not in (0, first), 30)
        assert cluster.stored_isr() == sorted(number for number in cluster.kits if number != first)
        assert await cluster.produce(b"3") is ErrorCode.NONE

    run(story, topic=False, log_dirs="/data1,/data2")


# Each rule turned off alone

STORIES: dict[Mutation, Callable[[], None]] = {
    edge_mutations.delete_what_is_not_named: test_edge_35_a_topic_node_that_cannot_be_read_deletes_nothing,
    edge_mutations.strays_do_not_return: test_edge_35_a_topic_node_that_cannot_be_read_deletes_nothing,
    edge_mutations.bad_nodes_stop_the_controller: test_edge_36_a_state_that_cannot_be_read_leaves_the_rest_served,
    edge_mutations.tell_of_a_lost_directory_once: partial(
        test_edge_37_a_failed_directory_is_told_until_it_is_heard, "store out of reach"
    ),
    edge_mutations.lead_on_with_a_failed_log: test_edge_37_a_leader_with_a_failed_log_proposes_no_isr,
}


@pytest.mark.parametrize("mutation", STORIES, ids=lambda mutation: mutation.__name__)
def test_without_its_rule_a_story_ends_badly(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stories show what each rule is for, without the luck of a seed."""
    mutation(monkeypatch)
    with pytest.raises((AssertionError, SimulationError, TidelogError)):
        STORIES[mutation]()

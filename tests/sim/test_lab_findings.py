"""What the seeds have found, told again without luck: see docs/SIMULATOR.md."""

from __future__ import annotations

import asyncio

from tests.kits.clusterkit import ClusterKit, run
from tests.kits.logkit import batch
from tidelog.lab.broker import eventually
from tidelog.net.calling import DEFAULT_CONNECT_TIMEOUT_MS
from tidelog.replication.leader import Leader
from tidelog.types import TopicPartition
from tidelog.wire.messages.controller import LeaderAndIsrPartitionState, LeaderAndIsrTopicState


def _view(cluster: ClusterKit) -> Leader:
    leader = cluster.replicas()[cluster.leader()].leader
    assert leader is not None
    return leader


async def _joining(cluster: ClusterKit) -> tuple[int, int, int]:
    """Leader, newcomer and controller: the leader wants the newcomer in the ISR, and cannot ask for it."""
    controller = cluster.controller
    leader, newcomer = [number for number in cluster.kits if number != controller]
    await cluster.create_topic("t", [(leader, controller, newcomer)])
    await eventually(lambda: cluster.leader() == leader and len(cluster.isr()) == 3)
    cluster[newcomer].kill()
    await eventually(lambda: newcomer not in cluster.isr())
    for number in range(20):
        assert (await cluster[leader].produce(batch([b"%d" % number * 100]))).error_code == 0
    network = cluster.world.network
    network.cut(f"b{leader}", f"b{newcomer}")
    await cluster[newcomer].start()
    await eventually(lambda: newcomer in cluster[leader].broker.metadata.brokers)
    network.cut(f"b{leader}", f"b{controller}")
    network.heal(f"b{leader}", f"b{newcomer}")
    await eventually(lambda: newcomer in (_view(cluster).pending_isr or ()))
    return leader, newcomer, controller


def test_a_state_told_again_does_not_settle_what_a_leader_has_asked_for() -> None:
    """A new controller tells all there is. What was asked of the last one may have been granted: both sets count."""

    async def story(cluster: ClusterKit) -> None:
        leader, newcomer, controller = await _joining(cluster)
        partition = cluster.replicas()[leader]
        told_again = LeaderAndIsrPartitionState(
            topic_name="t",
            partition_index=0,
            controller_epoch=partition.controller_epoch,
            leader=leader,
            leader_epoch=partition.leader_epoch,
            isr=list(partition.isr),
            partition_epoch=partition.partition_epoch,
            replicas=list(partition.replicas),
        )
        topic = LeaderAndIsrTopicState(topic_name="t", topic_id=partition.topic_id, partition_states=[told_again])
        codes = await cluster[leader].broker.replicas.apply([topic])
        assert codes == {TopicPartition("t", 0): 0}
        assert newcomer in (_view(cluster).pending_isr or ())
        cluster.world.network.heal(f"b{leader}", f"b{controller}")
        await cluster.all_in_sync()

    run(story, topic=False)


def test_the_life_that_had_caught_up_is_the_one_that_joins() -> None:
    """What a leader asks for is meant for the life it saw catch up, however late the controller hears of it."""

    async def story(cluster: ClusterKit) -> None:
        leader, newcomer, controller = await _joining(cluster)
        network, end = cluster.world.network, cluster.ends()[leader][0]
        cluster[newcomer].lose_power()
        network.set_bandwidth(f"b{leader}", f"b{newcomer}", 100.0)
        await cluster[newcomer].start()
        view = _view(cluster)
        await eventually(lambda: view.remotes[newcomer].broker_epoch == cluster[newcomer].broker.epoch)
        await asyncio.sleep(DEFAULT_CONNECT_TIMEOUT_MS / 1000)  # by now the leader tries anew, with what it knows now
        assert cluster.ends()[newcomer][0] < end, "this seed has to lose some of it"
        network.heal(f"b{leader}", f"b{controller}", reset=True)
        while cluster.ends()[newcomer][0] < end:
            assert newcomer not in cluster.stored_isr()
            await asyncio.sleep(0.01)
        network.set_bandwidth(f"b{leader}", f"b{newcomer}", None)
        await cluster.all_in_sync()

    run(story, topic=False, seed=2, replica_socket_timeout_ms="60000")

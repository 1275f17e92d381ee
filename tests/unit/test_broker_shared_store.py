"""Two brokers on one store: who leads what is known to both, and either may be controller."""

from __future__ import annotations

from tests.kits.brokerkit import PRODUCE_BY_NAME, Kit, produce_request
from tests.kits.logkit import batch
from tidelog.coordination.memory import MemoryCoordination
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually, sim_settings
from tidelog.lab.world import World
from tidelog.types import TopicPartition
from tidelog.wire.messages.topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest


async def _story(world: World) -> None:
    store = MemoryCoordination(world.host("store").clock)
    one, two = (
        Kit(world.host(f"b{number}"), store, sim_settings(f"b{number}"), number, f"b{number}") for number in (1, 2)
    )
    await one.start()
    await two.start()
    await world.host("client").start(_told(one, two))


async def _told(one: Kit, two: Kit) -> None:
    for kit in (one, two):
        await eventually(lambda kit=kit: sorted(kit.broker.metadata.brokers) == [1, 2])
    assert [kit.broker.controller.is_active for kit in (one, two)] == [True, False]
    topic = CreatableTopic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[2])],
    )
    answer = await one.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == 0, answer.topics[0]
    await two.leads("t")
    await eventually(lambda: one.broker.metadata.partition("t", 0) is not None)
    assert TopicPartition("t", 0) not in one.broker.replicas.partitions
    refused = await one.call(produce_request({("t", 0): batch()}), PRODUCE_BY_NAME)
    partition = refused.responses[0].partition_responses[0]
    assert (partition.error_code, partition.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
    assert [(node.node_id, node.host) for node in refused.node_endpoints] == [(2, "b2")]
    assert (await two.produce()).error_code == 0
    before = two.controller_epoch
    one.kill()
    await eventually(lambda: two.broker.controller.is_active and sorted(two.broker.metadata.brokers) == [2])
    assert two.controller_epoch > before
    assert (await two.produce()).base_offset == 1
    await one.start()
    await eventually(lambda: sorted(two.broker.metadata.brokers) == [1, 2])
    assert not one.broker.controller.is_active
    assert await two.values() == [b"value", b"value"]


def test_two_brokers_on_one_store() -> None:
    with World(5) as world:
        world.run(_story(world))

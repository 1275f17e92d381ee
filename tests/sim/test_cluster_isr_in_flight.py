"""A change of the ISR is granted, its answer is lost, and another leader is elected (S3.4, edge case 7)."""

from __future__ import annotations

import asyncio

from tests.kits.brokerkit import PRODUCE_BY_NAME, produce_request
from tests.kits.clusterkit import ClusterKit
from tests.kits.logkit import batch
from tidelog.controller.events import ElectionType
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import LAG_MS, store_of
from tidelog.lab.world import World
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.topics import ElectLeadersRequest, ElectLeadersRequestTopicPartitions


class _Roles:
    """The controller has no replica. `old` leads, `new` is preferred, and `late` joins the ISR in between."""

    def __init__(self, cluster: ClusterKit) -> None:
        self.controller = cluster.controller
        self.new, self.late, self.old = [number for number in cluster.kits if number != self.controller]


async def _grant_without_an_answer(cluster: ClusterKit, roles: _Roles) -> None:
    """`late` is in the stored ISR, its leader does not know it, and it fetches no more."""
    network, old, late = cluster.world.network, f"b{roles.old}", f"b{roles.late}"
    await cluster.create_topic("t", [(roles.new, roles.late, roles.old)])
    await eventually(lambda: len(cluster.isr()) == 3)
    assert await cluster.produce(b"first") is ErrorCode.NONE
    for number, next_leader in ((roles.new, roles.late), (roles.late, roles.old)):
        cluster[number].kill()
        await eventually(lambda leader=next_leader: cluster.leader() == leader, 30)  # type: ignore[misc]
    await cluster[roles.new].start()
    await eventually(lambda: sorted(cluster.stored_isr()) == sorted([roles.new, roles.old]), 30)
    network.cut(late, old)
    network.cut(late, f"b{roles.new}")
    await cluster[roles.late].start()
    await eventually(lambda: roles.late in cluster[roles.old].broker.metadata.brokers, 30)
    await asyncio.sleep(1)
    network.cut(f"b{roles.controller}", old, one_way=True)
    network.heal(late, old)
    await eventually(lambda: roles.late in cluster.stored_isr(), 30)
    network.cut(late, old)
    await asyncio.sleep(LAG_MS / 1000 + 1.5)


async def _elect_preferred(cluster: ClusterKit, roles: _Roles) -> None:
    asked = ElectLeadersRequestTopicPartitions(topic="t", partitions=[0])
    request = ElectLeadersRequest(election_type=ElectionType.PREFERRED, topic_partitions=[asked], timeout_ms=500)
    asking = asyncio.ensure_future(cluster[roles.controller].call(request, 2))
    await eventually(lambda: cluster.stored_state().leader == roles.new, 5)
    asking.cancel()


async def _write_until_it_knows(cluster: ClusterKit, number: int) -> None:
    """Records with acks=1, each of which moves the high watermark if it may move."""
    replica = cluster.replica(number)
    assert replica is not None
    leader = replica.leader
    connection = await cluster[number].connect()
    written = []
    while replica.leader is leader:
        request = produce_request({("t", 0): batch([b"more"])}, acks=1, timeout_ms=1000, topic_id=ZERO_UUID)
        written.append(asyncio.ensure_future(connection.call(request, PRODUCE_BY_NAME)))
        await asyncio.sleep(0.002)
    await asyncio.gather(*written, return_exceptions=True)


def test_edge_07_a_leader_that_is_fenced_counts_the_member_whose_join_it_never_heard_of() -> None:
    async def story(cluster: ClusterKit) -> None:
        roles = _Roles(cluster)
        await _grant_without_an_answer(cluster, roles)
        value = asyncio.ensure_future(cluster[roles.old].produce(batch([b"second"]), timeout_ms=20_000))
        await asyncio.sleep(1)
        assert not value.done(), "a member of the stored ISR does not have it"
        await _elect_preferred(cluster, roles)
        # From here on the witness looks: the old leader hears that it is fenced, before it hears who leads.
        cluster.world.network.heal(f"b{roles.controller}", f"b{roles.old}", reset=True)
        await _write_until_it_knows(cluster, roles.old)
        assert ErrorCode((await value).error_code) is not ErrorCode.NONE
        cluster[roles.new].kill()
        await eventually(lambda: cluster.stored_state().leader == roles.late, 30)
        cluster.world.network.heal_all()

    with World(0) as world:
        cluster = ClusterKit(world, store_of(world), 4)

        async def whole() -> None:
            await cluster.start()
            await world.host("client").start(story(cluster))

        world.run(whole(), limit_s=600)

"""Known ways to lose data on the way from a leader to its followers and clients (EDGE_CASES.md 29 to 34 and 43)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tests.kits.brokerkit import code_of, produce_request
from tests.kits.clusterkit import ClusterKit, run
from tests.kits.logkit import batch
from tests.sim.edge_mutations import accept_later_epochs
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import SESSION_MS, store_of
from tidelog.lab.world import World
from tidelog.log.reading import Region
from tidelog.records.batch import decode
from tidelog.wire.messages.topics import ElectLeadersRequest


async def _put(cluster: ClusterKit, number: int, values: Mapping[int, bytes], acks: int = 1) -> None:
    """One record to each of these partitions, in one request."""
    request = produce_request({("t", index): batch([value]) for index, value in values.items()}, acks=acks)
    answer = await cluster[number].call(request, 12)
    assert not any(one.error_code for one in answer.responses[0].partition_responses)


def _held(cluster: ClusterKit, number: int) -> list[bytes | None]:
    """All records of partition 1 that one replica holds."""
    return [record.value for record in decode(cluster.held(number, 1))]


async def _answer_behind_a_cut(cluster: ClusterKit) -> None:
    """An answer for partition 1 waits behind 900 kB in the socket's queue while its leader loses its term."""
    heir = cluster.controller
    old, other, follower = [number for number in cluster.kits if number != heir]
    await cluster.create_topic("t", [(old, other, follower), (old, heir, follower)])
    await eventually(lambda: all(cluster.leader(index) == old and len(cluster.isr(index)) == 3 for index in (0, 1)))
    for value in (b"a0", b"a1"):
        await _put(cluster, old, {1: value}, acks=-1)
    await asyncio.sleep(1.5)
    network = cluster.world.network
    network.cut(f"b{old}", f"b{heir}")  # the heir lacks what comes now
    await asyncio.sleep(0.05)
    for value in (b"a2", b"a3", b"a4"):
        await _put(cluster, old, {1: value})
    await eventually(lambda: _held(cluster, follower)[-1] == b"a4", 1)
    await asyncio.sleep(0.7)  # the follower has asked again; partition 1 had its turn, so it stands last
    network.cut(f"b{old}", f"b{follower}")  # the link stalls with an answer in it
    await _put(cluster, old, {0: b"x" * 900_000, 1: b"a5"})
    await eventually(lambda: cluster.ends(0)[other][0] == 1, 5)
    network.cut(f"b{heir}", f"b{follower}")  # the follower does not hear the controller for a moment
    cluster[old].expire_session()
    await eventually(lambda: cluster.leader(1) == heir and cluster.leader(0) == other, 8)
    network.heal(f"b{old}", f"b{heir}")
    for value in (b"b2", b"b3", b"b4", b"b5", b"b6"):
        await _put(cluster, heir, {1: value})
    new = [b"a0", b"a1", b"b2", b"b3", b"b4", b"b5", b"b6"]
    await eventually(lambda: _held(cluster, old) == new, 8)
    network.heal(f"b{old}", f"b{follower}")
    await asyncio.sleep(0.5)
    assert _held(cluster, follower) == [b"a0", b"a1", b"a2", b"a3", b"a4"], "nothing of another term was copied"
    network.heal_all()
    await eventually(lambda: all(_held(cluster, number) == new for number in (old, heir, follower)), 20)
    cluster.witness.look()


@pytest.mark.parametrize("half", ["both", "leader", "follower"])
def test_edge_29_and_30_an_answer_in_a_sockets_queue_carries_no_bytes_of_another_term(
    half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each half of the fix is enough alone: the leader voids its answer, and the follower refuses later epochs."""
    if half == "follower":
        monkeypatch.setattr(Region, "is_void", False)
    elif half == "leader":
        accept_later_epochs(monkeypatch)
    with World(1) as world:

        async def tell() -> None:
            settings = {"replica_socket_timeout_ms": "30000", "replica_lag_time_max_ms": "10000"}
            cluster = ClusterKit(world, store_of(world), 4, **settings)
            await cluster.start()
            await world.host("client").start(_answer_behind_a_cut(cluster))

        world.run(tell(), limit_s=600)


@pytest.mark.parametrize("seed", [1, 4])
def test_edge_32_a_broker_between_two_registrations_does_not_join_the_isr(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fetch would erase what the leader knew of its life, and a later, emptier life would be taken for it."""

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        first, third = [number for number in cluster.kits if number != controller]
        await cluster.create_topic("t", [(first, third, controller)])
        await eventually(lambda: cluster.leader() == first and len(cluster.isr()) == 3)
        assert await cluster.produce(b"0") is ErrorCode.NONE
        cluster.world.network.cut(f"b{first}", f"b{third}")
        await asyncio.sleep(0.1)
        for value in (b"1", b"2", b"3"):
            assert await cluster.produce(value, timeout_ms=60_000) is ErrorCode.NONE
        await eventually(lambda: third not in cluster.stored_isr(), 30)
        broker = cluster[third].broker
        monkeypatch.setattr(broker._membership, "connect", asyncio.Event().wait)  # it gets no new session for now
        cluster[third].expire_session()
        await eventually(lambda: broker.epoch == -1, 30)
        await eventually(lambda: third not in cluster[first].broker.metadata.brokers, 30)
        cluster.world.network.heal(f"b{first}", f"b{third}", reset=True)
        await asyncio.sleep(5)
        leader = cluster.replicas()[first].leader
        assert leader is not None
        assert leader.remotes[third].log_end_offset < 4, "a fetch without a broker epoch counts for nothing"
        cluster[third].lose_power()
        cluster.world.network.cut(f"b{first}", f"b{third}")
        await cluster[third].start()
        await asyncio.sleep(2)
        assert third not in cluster.stored_isr()
        cluster.world.network.heal_all()
        await cluster.all_in_sync()

    run(story, seed=seed, topic=False)


def test_edge_33_with_flush_messages_1_what_is_acknowledged_survives_the_power_loss_of_all() -> None:
    async def story(cluster: ClusterKit) -> None:
        await cluster.create_topic("t", [(1, 2, 3)], flush_messages="1")
        await eventually(lambda: cluster.isr() == [1, 2, 3])
        for value in (b"0", b"1", b"2"):
            assert await cluster.produce(value) is ErrorCode.NONE
            end = max(end for end, _ in cluster.ends().values())
            synced = {number: one.log.recovery_point for number, one in cluster.replicas().items()}
            assert synced == dict.fromkeys((1, 2, 3), end), "synced on every member of the ISR"
        for number in (1, 2, 3):
            cluster[number].lose_power()
        await asyncio.sleep(SESSION_MS / 1000 * 2)
        await asyncio.gather(*(cluster[number].start() for number in (1, 2, 3)))
        await cluster.all_in_sync()
        assert all(cluster.values(number) == [b"0", b"1", b"2"] for number in cluster.kits)

    run(story, topic=False)


def test_edge_33_a_flush_policy_does_not_keep_a_follower_from_keeping_up() -> None:
    async def story(cluster: ClusterKit) -> None:
        await cluster.create_topic("t", [(1, 2, 3), (1, 2, 3)], flush_ms="5")
        await eventually(lambda: cluster.isr() == [1, 2, 3])
        for number in range(200):
            assert await cluster.produce(b"%d" % number, number % 2) is ErrorCode.NONE
        assert cluster.stored_isr() == cluster.stored_isr(1) == [1, 2, 3]
        await cluster.all_in_sync()
        await cluster.all_in_sync(1)

    run(story, topic=False)


def test_edge_43_a_leader_that_has_not_heard_of_its_successor_sends_no_client_to_its_reset_policy() -> None:
    """Its session is current, and its log is shorter than what the client has read."""

    async def story(cluster: ClusterKit) -> None:
        controller = cluster.controller
        preferred, deposed = [number for number in cluster.kits if number != controller]
        await cluster.create_topic("t", [(preferred, deposed, controller)])
        await eventually(lambda: cluster.leader() == preferred and len(cluster.isr()) == 3)
        for value in (b"0", b"1"):
            assert await cluster.produce(value) is ErrorCode.NONE
        cluster[preferred].kill()
        await eventually(lambda: cluster.leader() == deposed, 60)
        await cluster[preferred].start()
        await cluster.all_in_sync()
        assert await code_of(cluster[deposed].fetch(3)) == ErrorCode.OFFSET_OUT_OF_RANGE, "it leads, and is sure of it"
        cluster.cut_off(deposed)
        await cluster[controller].call(ElectLeadersRequest(timeout_ms=1_000, topic_partitions=None), 2)
        await eventually(lambda: cluster.leader() == preferred, 60)
        await _put(cluster, preferred, {0: b"2"})
        assert cluster.replicas()[deposed].leader is not None, "it has not heard of it"
        assert cluster[deposed].broker.is_current
        assert await code_of(cluster[deposed].fetch(3)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.world.network.heal_all()
        await cluster.all_in_sync()
        assert await code_of(cluster[preferred].fetch(3)) == ErrorCode.NONE
        assert await code_of(cluster[preferred].fetch(4)) == ErrorCode.OFFSET_OUT_OF_RANGE

    run(story, topic=False)

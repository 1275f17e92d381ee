"""Three brokers under a saboteur: what was acknowledged is there, once and in order, on every replica.

A kill keeps the page cache; a power loss does not, so it hits one broker at a time and never the last that is in
sync: the fault budget of EDGE_CASES.md.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import pytest

from tests.brokerkit import PORT, PRODUCE_BY_NAME, eventually, produce_request
from tests.clusterkit import ClusterKit, Writer, write
from tests.logkit import batch
from tidelog.broker.broker import BrokerState
from tidelog.coordination.memory import MemoryCoordination
from tidelog.errors import TidelogError
from tidelog.lab.world import World
from tidelog.net.calling import Connection
from tidelog.wire.versions import Versions

ASSIGNMENTS = ((1, 2, 3), (2, 3, 1))
ENDS = ("kill", "stop", "kill cut off")
TROUBLE = ("freeze", "cut", "cut one", "session", "reset")


class Plan(NamedTuple):
    """What makes one run different from another beside its seed."""

    saboteurs: tuple[tuple[str, ...], ...] = (ENDS + TROUBLE,)
    """The faults that each of them knows; they work side by side."""
    count: int = 60
    """Records of each writer in each partition."""
    noise: bool = False
    """Records with acks=1 in between, which an election may drop: replicas then part."""


async def sabotage(cluster: ClusterKit, faults: tuple[str, ...], chance: random.Random, over: asyncio.Event) -> None:
    """One fault after the other, each to its end."""
    while not over.is_set():
        await asyncio.sleep(chance.uniform(0.1, 2))
        leaders = [cluster.leader(index) or 1 for index in range(len(ASSIGNMENTS))]
        number = chance.choice([*cluster.kits, *leaders])
        fault = chance.choice(faults)
        if fault in (*ENDS, "power loss"):
            await _end(cluster, number, fault, chance)
        else:
            await _trouble(cluster, number, fault, chance)


async def _end(cluster: ClusterKit, number: int, how: str, chance: random.Random) -> None:
    kit = cluster[number]
    if how == "stop":
        await kit.stop()
    elif how == "kill":
        kit.kill()
    elif how == "kill cut off":  # what it wrote meanwhile nobody else has
        cluster.cut_off(number)
        await asyncio.sleep(chance.uniform(0.1, 1.5))
        kit.kill()
        cluster.heal(number)
    else:
        for index in range(len(ASSIGNMENTS)):  # never the last that is in sync
            await eventually(lambda index=index: len(cluster.isr(index)) > 1, 60.0)
        if any(cluster.isr(index) == [] for index in range(len(ASSIGNMENTS))):
            return
        kit.disconnect()
        kit.host.power_loss()
    await asyncio.sleep(chance.uniform(0, 8))
    await kit.start()


async def _trouble(cluster: ClusterKit, number: int, fault: str, chance: random.Random) -> None:
    kit, network = cluster[number], cluster.world.network
    if fault == "freeze":
        kit.host.freeze()
        await asyncio.sleep(chance.uniform(0.1, 10))
        kit.host.thaw()
    elif fault == "cut":
        cluster.cut_off(number)
        await asyncio.sleep(chance.uniform(0.1, 6))
        cluster.heal(number, reset=chance.random() < 0.5)
    elif fault == "cut one":
        other = chance.choice([other for other in cluster.kits if other != number])
        network.cut(f"b{number}", f"b{other}", one_way=chance.random() < 0.5)
        await asyncio.sleep(chance.uniform(0.1, 6))
        network.heal(f"b{number}", f"b{other}", reset=chance.random() < 0.5)
    elif fault == "session":
        if cluster.is_up(number) and kit.broker.state == BrokerState.RUNNING:
            kit.expire_session()
    else:
        network.reset(f"b{number}", chance.choice([f"b{other}" for other in cluster.kits] + ["c0", "c1"]))


async def _make_noise(cluster: ClusterKit, chance: random.Random) -> None:
    """Each record once, to whoever leads or thinks it does, as a client that does not mind losses."""
    number = 0
    while True:
        await asyncio.sleep(chance.uniform(0, 0.3))
        index = chance.randrange(len(ASSIGNMENTS))
        broker = chance.choice(sorted(cluster.kits))
        try:
            connection = await Connection.open(f"b{broker}", PORT, client_id="noise", connect_timeout_ms=300)
        except TidelogError:
            continue
        for _ in range(chance.randrange(1, 4)):
            number += 1
            request = produce_request({("t", index): batch([b"noise %d" % number])}, acks=1)
            connection.send(request, PRODUCE_BY_NAME).add_done_callback(lambda answer: answer.exception())
        await asyncio.sleep(0.05)
        connection.close()


def tell(seed: int, plan: Plan) -> str:
    """The digest of the run, with all that was promised found kept."""
    with World(seed) as world:
        world.run(_story(world, plan), limit_s=3600)
        return world.trace.digest()


async def _story(world: World, plan: Plan) -> None:
    chance = world.chance_for("store")
    store = MemoryCoordination(world.host("store").clock, delay_s=lambda: chance.random() / 1e3)
    cluster = ClusterKit(world, store, log_segment_bytes="3000")
    for one, other in ((1, 2), (2, 3), (1, 3)):
        latency_ms = world.chance_for(f"latency {one} {other}").choice([0.2, 2.0, 20.0])
        world.network.set_latency(f"b{one}", f"b{other}", latency_ms, latency_ms)
    for name in ("c0", "c1", "client"):
        world.host(name)
    await cluster.start()
    await world.host("admin").start(cluster.create_topic("t", ASSIGNMENTS))
    writers = [
        [Writer(cluster, f"c{number}", index, plan.count) for index in range(len(ASSIGNMENTS))] for number in range(2)
    ]
    over = asyncio.Event()
    faults = asyncio.gather(
        *(
            sabotage(cluster, known, world.chance_for(f"saboteur {number}"), over)
            for number, known in enumerate(plan.saboteurs)
        )
    )
    if plan.noise:
        world.host("noise").start(_make_noise(cluster, world.chance_for("noise")))
    witness = asyncio.ensure_future(cluster.witness.run())
    writing = asyncio.gather(
        *(world.host(f"c{number}").start(write(cluster, mine)) for number, mine in enumerate(writers))
    )
    await asyncio.wait([witness, faults, writing], return_when=asyncio.FIRST_COMPLETED)
    for failed in (witness, faults):
        if failed.done():
            await failed
    await writing
    over.set()
    await faults
    world.host("noise").kill()
    for index in range(len(ASSIGNMENTS)):
        await cluster.all_in_sync(index)
        for number in cluster.kits:
            found = cluster.values(number, index)
            assert len(found) == cluster.ends(index)[number][0], "all is committed"
            assert len(set(found)) == len(found), "nothing is there twice"
            for mine in writers:
                mine[index].check(found)
    witness.cancel()
    cluster.witness.look()


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_records_are_on_every_replica_exactly_once(seed: int) -> None:
    tell(seed, Plan())


@pytest.mark.parametrize("seed", range(100, 103))
def test_with_diverging_replicas(seed: int) -> None:
    tell(seed, Plan(noise=True))


@pytest.mark.parametrize("seed", range(103, 105))
def test_with_peers_that_are_asked_where_logs_part(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.fetcher._VERSIONS", Versions(11, 11))
    tell(seed, Plan(noise=True))


@pytest.mark.parametrize("seed", range(200, 203))
def test_with_two_faults_at_a_time(seed: int) -> None:
    tell(seed, Plan((ENDS, TROUBLE), noise=True))


@pytest.mark.parametrize("seed", range(300, 302))
def test_a_power_loss_of_one_broker_takes_nothing(seed: int) -> None:
    tell(seed, Plan(((*ENDS, "power loss", "power loss"),)))


def test_the_same_seed_is_the_same_run() -> None:
    assert tell(3, Plan(count=15, noise=True)) == tell(3, Plan(count=15, noise=True))

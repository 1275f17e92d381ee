"""Three brokers in one world, a replicated topic, and what must always hold of it.

A story gets a ClusterKit: brokers to kill, freeze and cut off, a client, and a witness that looks at all replicas
while the story goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tests.kits.brokerkit import Kit
from tests.kits.logkit import batch
from tidelog.controller.events import ElectionType
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.checkers import ALL_RULES, Rule
from tidelog.lab.cluster import LabCluster, settings_of, store_of
from tidelog.lab.store import LabStore, StoreKind
from tidelog.lab.witness import Witness
from tidelog.lab.world import World
from tidelog.wire.messages.topics import ElectLeadersRequest, ElectLeadersRequestTopicPartitions

Story = Callable[["ClusterKit"], Coroutine[Any, Any, None]]


class ClusterKit(LabCluster[Kit]):
    """Brokers 1..n on hosts b1..bn, and one store."""

    def __init__(
        self,
        world: World,
        store: LabStore,
        brokers: int = 3,
        *,
        rules: Sequence[type[Rule]] = ALL_RULES,
        **settings: str,
    ) -> None:
        kits = {
            number: Kit(world.host(f"b{number}"), store, settings_of(number, **settings), number, f"b{number}")
            for number in range(1, brokers + 1)
        }
        super().__init__(world, store, kits)
        self.witness = Witness(self, rules)

    @property
    def kits(self) -> dict[int, Kit]:
        return self.brokers

    async def all_in_sync(self, index: int = 0, patience_s: float = 60.0) -> None:
        """Every replica is in the ISR, and all have the same records, all of them committed."""
        await eventually(lambda: self.is_in_sync(index, len(self.kits)), patience_s)
        self.check_equal(index)

    def check_equal(self, index: int = 0) -> None:
        """All replicas are byte-equal below the smallest HW of them."""
        below = min(high_watermark for _, high_watermark in self.ends(index).values())
        logs = {number: self.bytes_below(number, index, below) for number in self.replicas(index)}
        assert len(set(logs.values())) == 1, f"replicas differ below {below}"

    async def elect_unclean(self, broker: int, index: int = 0) -> None:
        """What an operator asks of that broker, which has to be the controller."""
        asked = ElectLeadersRequestTopicPartitions(topic="t", partitions=[index])
        request = ElectLeadersRequest(election_type=ElectionType.UNCLEAN, topic_partitions=[asked], timeout_ms=5000)
        answer = await self.kits[broker].call(request, 2)
        assert not answer.replica_election_results[0].partition_result[0].error_code, answer

    async def produce(self, value: bytes, index: int = 0, **options: Any) -> ErrorCode:
        """One record to who leads now, tried once."""
        answer = await self.kits[self.leader(index)].produce(batch([value]), "t", index, **options)
        return ErrorCode(answer.error_code)


def run(
    story: Story,
    *,
    seed: int = 1,
    topic: bool = True,
    store: StoreKind = "memory",
    rules: Sequence[type[Rule]] = ALL_RULES,
    **settings: str,
) -> World:
    """Tell a story of three brokers and the topic t, in a world of its own. `rules` are what its witness checks."""
    with World(seed) as world:
        cluster = ClusterKit(world, store_of(world, store), rules=rules, **settings)
        world.run(_tell(cluster, story, topic), limit_s=7200)
    return world


async def _tell(cluster: ClusterKit, story: Story, topic: bool) -> None:
    world = cluster.world
    await cluster.start()

    async def whole() -> None:
        if topic:
            await cluster.create_topic()
            await eventually(lambda: cluster.isr() == sorted(cluster.kits))
        await story(cluster)

    witness = asyncio.ensure_future(cluster.witness.run())
    story_told = world.host("client").start(whole())
    await asyncio.wait([witness, story_told], return_when=asyncio.FIRST_COMPLETED)
    if witness.done():
        await witness
    await story_told
    witness.cancel()
    cluster.witness.look()

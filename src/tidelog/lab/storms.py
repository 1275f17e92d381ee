"""Faults that come together, as they do: elections in short succession, and heirs who were not well before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import combinations

from tidelog.lab.means import Means

_SLOW_BYTES_PER_S = (300.0, 1_000.0, 3_000.0, 10_000.0, None)


class Storms:
    """Whoever leads in a storm had no time to hear of what was before."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._cluster = means.cluster
        self._network = means.network
        self._partitions = means.partitions
        self._chance = means.chance
        self.known: dict[str, Callable[[int], Awaitable[None]]] = {
            "back to back": self.kill_back_to_back,
            "burst": self.burst,
            "flapping": self.flapping,
            "slow heirs": self.slow_heirs,
            "frozen heir": self.frozen_heir,
            "all at once": self.all_at_once,
        }

    async def kill_back_to_back(self, number: int) -> None:
        """A leader, and the next one as soon as it leads: whoever comes then had no time to catch up."""
        index = self._chance.choice(self._partitions)
        first = self._cluster.leader(index) or number
        await self._means.a_moment(first, 1.0)
        self._cluster[first].kill()
        killed = {first: None}
        second = await self._means.next_leader(index, first)
        if second:
            await self._means.pause(0.05, 0)
            self._cluster[second].kill()
            killed[second] = None
        await self._means.start_all_again(killed)

    async def burst(self, number: int) -> None:
        """Several elections in a few seconds, by deaths and by lost sessions."""
        index = self._chance.choice(self._partitions)
        leader, killed = self._cluster.leader(index) or number, dict[int, None]()
        for _ in range(self._chance.randrange(2, 6)):
            if self._chance.random() < 0.5:
                self._cluster[leader].kill()
                killed[leader] = None
            elif self._cluster.is_running(leader):
                self._cluster[leader].expire_session()
            leader = await self._means.next_leader(index, leader)
            if not leader:
                break
            await self._means.pause(0.3, 0)
        await self._means.start_all_again(killed, 3.0)

    async def flapping(self, number: int) -> None:
        """Leaders lose their sessions, one after the other, and nothing else."""
        index = self._chance.choice(self._partitions)
        leader = self._cluster.leader(index)
        for _ in range(self._chance.randrange(2, 6)):
            if leader and self._cluster.is_running(leader):
                self._cluster[leader].expire_session()
                self._means.note_state(leader)
            leader = await self._means.next_leader(index, leader)
            await self._means.pause(0.3, 0)

    async def slow_heirs(self, number: int) -> None:
        """Links carry little, some less than others, when the leader dies and for a while after that."""
        leader = self._means.a_leader(number)
        pairs = [(f"b{one}", f"b{other}") for one, other in combinations(self._cluster.brokers, 2)]
        for pair in pairs:
            self._network.set_bandwidth(*pair, self._chance.choice(_SLOW_BYTES_PER_S))
        await self._means.pause(3)
        await self._means.a_moment(leader, 1.0)
        self._cluster[leader].kill()
        again = asyncio.create_task(self._means.start_again(leader))
        following = await self._means.next_leader(self._chance.choice(self._partitions), leader)
        await self._means.pause(1.0, 0)
        killed = dict[int, None]()
        if following and following != leader and self._chance.random() < 0.5:
            self._cluster[following].kill()
            killed[following] = None
        for pair in pairs:
            self._network.set_bandwidth(*pair, None)
        await asyncio.gather(again, self._means.start_all_again(killed))

    async def frozen_heir(self, number: int) -> None:
        """One sleeps while another one, that led, dies; it wakes up before, in or after the election."""
        leader = self._means.a_leader(number)
        heir = self._means.other(leader)
        self._cluster[heir].host.freeze()
        await self._means.a_moment(leader, 3.0)
        self._cluster[leader].kill()
        await self._means.pause(self._chance.choice([0.5, 6.0]), 0)
        self._cluster[heir].host.thaw()
        await self._means.start_again(leader)

    async def all_at_once(self, number: int) -> None:
        """Every process is killed; their page caches stay. They come back in any order."""
        for one in self._cluster.brokers:
            self._cluster[one].kill()
        await self._means.start_all_again(dict.fromkeys(self._cluster.brokers))

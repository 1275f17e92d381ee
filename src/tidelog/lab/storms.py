"""Faults that come together, as they do: elections in short succession, and heirs who were not well before."""

from __future__ import annotations

import asyncio
from itertools import combinations

from tidelog.lab.faults import Faults

_SLOW_BYTES_PER_S = (300.0, 1_000.0, 3_000.0, 10_000.0, None)
_NEXT_S = 6.0
"""A session ends by then, and with it a term of leadership."""


class Storms(Faults):
    """Whoever leads in a storm had no time to hear of what was before."""

    async def _next_leader(self, index: int, last: int) -> int:
        """Who leads after this one; 0 if nobody does soon: there may be nobody else in sync."""
        await self._cluster.lookout.until(lambda: self._cluster.leader(index) not in (0, last), _NEXT_S, _NEXT_S)
        following = self._cluster.leader(index)
        return 0 if following == last else following

    async def _tide_rises(self, number: int) -> None:
        """Something has just been committed where this broker leads, or soon nothing has.

        What was promised a moment ago and is not yet known to all is what a death may take.
        """
        before = self._tide(number)
        await self._cluster.lookout.until(lambda: self._tide(number) > before, _NEXT_S, _NEXT_S)

    def _tide(self, number: int) -> int:
        replicas = (self._cluster.replica(number, index) for index in self._partitions)
        return sum(one.leader.high_watermark for one in replicas if one is not None and one.leader is not None)

    async def _a_moment(self, number: int, most_s: float) -> None:
        """A bad one more often than any."""
        if self._chance.random() < 0.6:
            await self._tide_rises(number)
        else:
            await self.pause(most_s, 0)

    async def _start_all_again(self, killed: dict[int, None], most_s: float = 8.0) -> None:
        await asyncio.gather(*(self._start_again(number, most_s) for number in killed))

    async def kill_back_to_back(self, number: int) -> None:
        """A leader, and the next one as soon as it leads: whoever comes then had no time to catch up."""
        index = self._chance.choice(self._partitions)
        first = self._cluster.leader(index) or number
        await self._a_moment(first, 1.0)
        self._cluster[first].kill()
        killed = {first: None}
        second = await self._next_leader(index, first)
        if second:
            await self.pause(0.05, 0)
            self._cluster[second].kill()
            killed[second] = None
        await self._start_all_again(killed)

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
            leader = await self._next_leader(index, leader)
            if not leader:
                break
            await self.pause(0.3, 0)
        await self._start_all_again(killed, 3.0)

    async def flapping(self, number: int) -> None:
        """Leaders lose their sessions, one after the other, and nothing else."""
        index = self._chance.choice(self._partitions)
        leader = self._cluster.leader(index)
        for _ in range(self._chance.randrange(2, 6)):
            if leader and self._cluster.is_running(leader):
                self._cluster[leader].expire_session()
                self._note_state(leader)
            leader = await self._next_leader(index, leader)
            await self.pause(0.3, 0)

    async def slow_heirs(self, number: int) -> None:
        """Links carry little, some less than others, when the leader dies and for a while after that."""
        leader = self._a_leader(number)
        pairs = [(f"b{one}", f"b{other}") for one, other in combinations(self._cluster.brokers, 2)]
        for pair in pairs:
            self._network.set_bandwidth(*pair, self._chance.choice(_SLOW_BYTES_PER_S))
        await self.pause(3)
        await self._a_moment(leader, 1.0)
        self._cluster[leader].kill()
        again = asyncio.ensure_future(self._start_again(leader))
        following = await self._next_leader(self._chance.choice(self._partitions), leader)
        await self.pause(1.0, 0)
        killed = dict[int, None]()
        if following and following != leader and self._chance.random() < 0.5:
            self._cluster[following].kill()
            killed[following] = None
        for pair in pairs:
            self._network.set_bandwidth(*pair, None)
        await asyncio.gather(again, self._start_all_again(killed))

    async def frozen_heir(self, number: int) -> None:
        """One sleeps while another one, that led, dies; it wakes up before, in or after the election."""
        leader = self._a_leader(number)
        heir = self._other(leader)
        self._cluster[heir].host.freeze()
        await self._a_moment(leader, 3.0)
        self._cluster[leader].kill()
        await self.pause(self._chance.choice([0.5, 6.0]), 0)
        self._cluster[heir].host.thaw()
        await self._start_again(leader)

    async def all_at_once(self, number: int) -> None:
        """Every process is killed; their page caches stay. They come back in any order."""
        for one in self._cluster.brokers:
            self._cluster[one].kill()
        await self._start_all_again(dict.fromkeys(self._cluster.brokers))

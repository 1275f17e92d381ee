"""Power losses, together with what else can go wrong at the same time; see tidelog.lab.budget for what is allowed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

from tidelog.lab.broker import WaitedInVainError
from tidelog.lab.budget import PowerBudget
from tidelog.lab.faults import BLACKOUT
from tidelog.lab.means import Means

_SHORTER_THAN_A_SESSION_S = 2.5
_AFTER_AN_ELECTION = 0.6
_PATIENCE_S = 15.0
"""How long a saboteur waits until a broker may lose power."""


class PowerLosses:
    """A broker without power comes back at once or late, while the others are well or not."""

    def __init__(self, means: Means, budget: PowerBudget) -> None:
        self.means = means
        self._cluster = means.cluster
        self._network = means.network
        self._partitions = means.partitions
        self._chance = means.chance
        self._budget = budget
        self.known: dict[str, Callable[[int], Awaitable[None]]] = {
            "power loss": self.lose_power,
            "power loss of a newcomer": self.lose_power_as_newcomer,
            "power loss and kills": self.lose_power_with_kills,
            BLACKOUT: self.lose_power_all,
        }

    async def lose_power(self, number: int) -> None:
        """Alone, or while the controller sleeps for a while."""
        sleeper = self._cluster.controller
        if not await self.until_it_may(number):
            return
        if sleeper not in (0, number) and self._chance.random() < 0.3:
            await asyncio.gather(self._doze(sleeper), self._without_power(number))
        else:
            await self._without_power(number)

    async def lose_power_with_kills(self, number: int) -> None:
        """Others are killed before it, in the same moment or after it; all come back in any order."""
        if not await self.until_it_may(number):
            return
        others = [other for other in self._cluster.brokers if other != number and self._cluster.is_up(other)]
        killed = self._chance.sample(others, self._chance.randrange(1, len(others) + 1)) if others else []
        before = [other for other in killed if self._chance.random() < 0.5]
        for other in before:
            self._cluster[other].kill()
        await self.means.pause(self._chance.choice([0.0, 0.0, 2.0]), 0)
        has_lost = self._budget.may_lose_power(number)
        if has_lost:
            self.go_dark(number)
        await self.means.pause(self._chance.choice([0.0, 2.0, 6.0]), 0)
        for other in killed:
            if other not in before:
                self._cluster[other].kill()
        ended = [*killed, number] if has_lost else killed
        await self.means.start_all_again(dict.fromkeys(ended))

    async def lose_power_all(self, number: int) -> None:
        """All in one moment; before that a leader may have died, so that another one leads that only followed."""
        if self._chance.random() < _AFTER_AN_ELECTION:
            index = self._chance.choice(self._partitions)
            leader = self._cluster.leader(index) or number
            await self.means.a_moment(leader, 1.0)
            self._cluster[leader].kill()
            await self.means.next_leader(index, leader)
        for other in self._cluster.brokers:
            if self._cluster.is_up(other):
                self.go_dark(other)
        await self.means.start_all_again(dict.fromkeys(self._cluster.brokers))

    async def lose_power_as_newcomer(self, number: int) -> None:
        """It was away, comes back, and loses power while it catches up; its leader may not reach the controller."""
        if not await self.until_it_may(number):
            return
        self._cluster[number].kill()
        for index in self._partitions:
            with contextlib.suppress(WaitedInVainError):
                what = f"b{number} has left the ISR of {index}"
                await self._cluster.until(partial(self._is_out, number, index), _PATIENCE_S, what)
        leader, controller = self.means.a_leader(number), self._cluster.controller
        ends = (f"b{leader}", f"b{controller}")
        is_cut = controller not in (0, leader) and number not in (leader, controller) and self._chance.random() < 0.7
        await self.means.start_again(number, 2.0)
        if is_cut:
            self._network.cut(*ends)
            await asyncio.gather(self._lose_power_soon(number), self._heal_later(ends))
        else:
            await self._lose_power_soon(number)

    async def _lose_power_soon(self, number: int) -> None:
        await self.means.pause(1.5, 0)
        if self._budget.may_lose_power(number):
            await self._without_power(number)

    async def _heal_later(self, ends: tuple[str, str]) -> None:
        await self.means.pause(7, 0)
        self._network.heal(*ends)

    async def _doze(self, number: int) -> None:
        """A short sleep, from which a broker wakes up in its session."""
        host = self._cluster[number].host
        host.freeze()
        await self.means.pause(_SHORTER_THAN_A_SESSION_S)
        host.thaw()

    async def _without_power(self, number: int) -> None:
        """It comes back. Its leader may be killed while it catches up."""
        leader = self.means.a_leader(number)
        self.go_dark(number)
        await self.means.start_again(number)
        if leader != number and self._cluster.is_up(leader) and self._chance.random() < 0.3:
            await self.means.pause(1.0, 0)
            self._cluster[leader].kill()
            await self.means.start_again(leader)

    def go_dark(self, number: int) -> None:
        disk = self._cluster[number].host.disk
        before = disk.used_bytes
        self._budget.lose_power(number)
        self.means.note("lost bytes", before - disk.used_bytes, f"b{number}")

    def loses_records(self, number: int) -> None:
        self._budget.loses_records(number)

    def may_lose_power(self, number: int) -> bool:
        return self._budget.may_lose_power(number)

    async def until_it_may(self, number: int) -> bool:
        """False if the budget does not allow it soon."""
        with contextlib.suppress(WaitedInVainError):
            what = f"b{number} may lose power"
            await self._cluster.until(lambda: self._budget.may_lose_power(number), _PATIENCE_S, what)
        return self._budget.may_lose_power(number)

    def _is_out(self, number: int, index: int) -> bool:
        return number not in self.means.stored_isr(index)

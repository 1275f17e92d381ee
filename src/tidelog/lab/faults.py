"""The saboteur: faults of every kind, one after the other, each to its end, within the fault budget.

A kill keeps the page cache. A power loss does not, so it hits one broker at a time and never the last that is in sync;
while it is not settled who is in sync without that broker, nothing else may happen. So a saboteur that knows power
losses works alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from tidelog.lab.broker import WaitedInVainError, eventually
from tidelog.lab.cluster import LabCluster

ENDS = ("kill", "stop", "kill cut off", "back to back", "die in a write", "controller", "roll", "full disk")
"""After these the broker is started again."""
TROUBLE = ("freeze", "cut", "cut one", "slow", "session", "store", "reset", "clock")
POWER = (*ENDS, "power loss", "power loss", "power loss")
_SETTLED_S = 60.0


class Saboteur:
    """Knows some faults. Several of them may work side by side, if at most one of them ends brokers."""

    def __init__(
        self,
        cluster: LabCluster[Any],
        partitions: Sequence[int],
        faults: Sequence[str],
        chance: random.Random,
        clients: Sequence[str] = (),
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._faults = faults
        self._chance = chance
        self._clients = clients
        self._known: dict[str, Callable[[int], Awaitable[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "kill cut off": self._kill_cut_off,
            "back to back": self._kill_back_to_back,
            "die in a write": self._die_in_a_write,
            "controller": self._kill_controller,
            "roll": self._roll,
            "full disk": self._fill_disk,
            "power loss": self._lose_power,
            "freeze": self._freeze,
            "cut": self._cut,
            "cut one": self._cut_one,
            "slow": self._slow,
            "session": self._expire_session,
            "store": self._lose_store,
            "reset": self._reset,
            "clock": self._set_clock,
        }

    async def run(self, over: asyncio.Event) -> None:
        """Leaders are hit more often than others."""
        while not over.is_set():
            await asyncio.sleep(self._chance.uniform(0.1, 2))
            leaders = [self._cluster.leader(index) or 1 for index in self._partitions]
            number = self._chance.choice([*self._cluster.brokers, *leaders])
            fault = self._chance.choice(self._faults)
            self._cluster.world.loop.note("fault", fault, "of", f"b{number}")
            await self._known[fault](number)

    async def _pause(self, most_s: float, least_s: float = 0.1) -> None:
        await asyncio.sleep(self._chance.uniform(least_s, most_s))

    def _other(self, number: int) -> int:
        return self._chance.choice([other for other in self._cluster.brokers if other != number])

    # Ends

    async def _start_again(self, number: int) -> None:
        await self._pause(8, 0)
        await self._cluster[number].start()

    async def _kill(self, number: int) -> None:
        self._cluster[number].kill()
        await self._start_again(number)

    async def _stop(self, number: int) -> None:
        await self._cluster[number].stop()
        await self._start_again(number)

    async def _kill_cut_off(self, number: int) -> None:
        """What it wrote meanwhile nobody else has."""
        self._cluster.cut_off(number)
        await self._pause(1.5)
        self._cluster[number].kill()
        self._cluster.heal(number)
        await self._start_again(number)

    async def _kill_back_to_back(self, number: int) -> None:
        """A leader, and the next one as soon as it leads: whoever comes then had no time to catch up."""
        index = self._chance.choice(self._partitions)
        first = self._cluster.leader(index) or number
        self._cluster[first].kill()
        killed = [first]
        with contextlib.suppress(WaitedInVainError):  # there may be nobody else in sync
            await eventually(lambda: self._cluster.leader(index) not in (0, first))
            await self._pause(0.05, 0)
            second = self._cluster.leader(index)
            if second not in (0, first):
                self._cluster[second].kill()
                killed.append(second)
        await asyncio.gather(*map(self._start_again, killed))

    async def _die_in_a_write(self, number: int) -> None:
        one = self._cluster[number]
        one.host.die_at(self._chance.randrange(1, 60))
        await self._pause(3)
        one.host.disk.doom.lift()
        if one.host.process is None:
            one.disconnect()
            await self._start_again(number)

    async def _kill_controller(self, number: int) -> None:
        await self._kill(self._cluster.controller or number)

    async def _roll(self, number: int) -> None:
        """A rolling restart: one after the other, each once all are in sync again."""
        for one in self._cluster.brokers:
            await self._cluster[one].restart()
            for index in self._partitions:
                await eventually(partial(self._is_whole, index), _SETTLED_S, "the ISR is whole")

    async def _fill_disk(self, number: int) -> None:
        """A broker whose log directory fails stops, as its process would."""
        one = self._cluster[number]
        disk = one.host.disk
        disk.capacity_bytes = disk.used_bytes + self._chance.randrange(3000)
        await self._pause(4)
        if one.broker.failed.done():
            one.kill()
        disk.mend()
        if one.host.process is None:
            await self._start_again(number)

    async def _lose_power(self, number: int) -> None:
        await eventually(lambda: all(self._may_lose_power(number, index) for index in self._partitions), _SETTLED_S)
        self._cluster[number].lose_power()
        for index in self._partitions:
            await eventually(
                partial(self._is_out, number, index), _SETTLED_S, f"the ISR of {index} is without b{number}"
            )
        await self._start_again(number)

    def _may_lose_power(self, number: int, index: int) -> bool:
        """Somebody else is in sync, will stay so, and no change of the ISR is under way."""
        leader = self._cluster.leader(index)
        view = self._cluster.replicas(index)[leader].leader if leader else None
        if view is None or view.pending_isr is not None:
            return False
        stored = self._cluster.stored_isr(index)
        return stored == sorted(view.isr) and any(other != number and self._cluster.is_up(other) for other in stored)

    def _is_whole(self, index: int) -> bool:
        return len(self._cluster.isr(index)) > 2

    def _is_out(self, number: int, index: int) -> bool:
        return number not in self._cluster.stored_isr(index)

    # Trouble

    async def _freeze(self, number: int) -> None:
        host = self._cluster[number].host
        host.freeze()
        await self._pause(10)
        host.thaw()

    async def _cut(self, number: int) -> None:
        self._cluster.cut_off(number)
        await self._pause(6)
        self._cluster.heal(number, reset=self._chance.random() < 0.5)

    async def _cut_one(self, number: int) -> None:
        network, ends = self._cluster.world.network, (f"b{number}", f"b{self._other(number)}")
        network.cut(*ends, one_way=self._chance.random() < 0.5)
        await self._pause(6)
        network.heal(*ends, reset=self._chance.random() < 0.5)

    async def _slow(self, number: int) -> None:
        """A link that carries little, so that a follower lags and leaves the ISR."""
        network, ends = self._cluster.world.network, (f"b{number}", f"b{self._other(number)}")
        network.set_bandwidth(*ends, self._chance.choice([200.0, 2_000.0, 20_000.0]))
        await self._pause(6)
        network.set_bandwidth(*ends, None)

    async def _expire_session(self, number: int) -> None:
        if self._cluster.is_running(number):
            self._cluster[number].expire_session()

    async def _lose_store(self, number: int) -> None:
        """Nobody answers one broker, or any of them, for a while."""
        store, session = self._cluster.store, None
        if self._chance.random() < 0.7:
            if not self._cluster.is_running(number):
                return
            session = self._cluster[number].broker.session.id
        store.suspend(session)
        await self._pause(6)
        store.resume(session)

    async def _reset(self, number: int) -> None:
        others = [*(f"b{other}" for other in self._cluster.brokers), *self._clients]
        self._cluster.world.network.reset(f"b{number}", self._chance.choice(others))

    async def _set_clock(self, number: int) -> None:
        """An administrator or a bad NTP server sets the wall clock."""
        self._cluster[number].host.clock.jump(self._chance.randrange(-3_600_000, 3_600_000))

"""What can happen to the machine of an embedded store while a cluster uses it. Each fault is done to its end.

A kill, a freeze or a lost session of a broker are in `tidelog.lab.faults`, and its "store" is a full disk here. None of
these faults takes from a broker's own disk what it had not synced, so they are within the budget of any other fault.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from tidelog.lab.cluster import LabCluster
from tidelog.lab.store import DIRECTORY, EmbeddedStore

STORE_FAULTS = ("full store", "failing store", "die in a store write", "store power loss", "removed session file")
"""All but "full store" and "removed session file" start brokers again at their end, as those in `faults.ENDS` do."""


class StoreFaults:
    """`known` names them for a saboteur; the number of a broker does not matter to them."""

    def __init__(self, cluster: LabCluster[Any], chance: random.Random) -> None:
        assert isinstance(cluster.store, EmbeddedStore), "needs store_of(world, 'embedded')"
        self._cluster = cluster
        self._machine = cluster.store.machine
        self._chance = chance
        self.known: dict[str, Callable[[int], Awaitable[None]]] = {
            "full store": self.fill,
            "failing store": self.fail,
            "die in a store write": self.die_in_a_write,
            "store power loss": self.lose_power,
            "removed session file": self.remove_session_file,
        }

    async def fill(self, number: int) -> None:
        """Perhaps in the midst of a line, of a snapshot or of a session's file."""
        self._machine.fill(self._chance.randrange(3000))
        await self._pause(6)
        self._machine.disk.capacity_bytes = None

    async def fail(self, number: int) -> None:
        """Some writes, syncs or reads end with an error."""
        for action in self._chance.choice([["write"], ["sync"], ["read"], ["write", "sync"]]):
            self._machine.disk.fail_next(action, count=self._chance.choice([1, 1, 3]), under=DIRECTORY)
        await self._pause(3)
        self._machine.disk.mend()
        await self._start_again()

    async def die_in_a_write(self, number: int) -> None:
        """The broker that makes a change to the store's disk dies in it, whichever that is."""
        self._machine.die_at(self._chance.randrange(1, 40))
        await self._pause(4)
        self._machine.disk.doom.lift()
        await self._start_again()

    async def lose_power(self, number: int) -> None:
        """All brokers die, and the store keeps what was synced."""
        self._machine.power_loss()
        await self._pause(2)
        await self._start_again()

    async def remove_session_file(self, number: int) -> None:
        """An operator cleans up where nothing was to be cleaned."""
        files = [name for name in self._machine.list(DIRECTORY) if name.startswith("session-")]
        if files:
            self._machine.remove(f"{DIRECTORY}/{self._chance.choice(files)}")

    async def _pause(self, most_s: float) -> None:
        await asyncio.sleep(self._chance.uniform(0.1, most_s))

    async def _start_again(self) -> None:
        """Those that died, and those whose process would have ended because they cannot join the cluster again."""
        for one in self._cluster.brokers.values():
            if one.is_up and one.broker.failed.done():
                one.kill()
            if one.host.process is None:
                one.disconnect()
            await one.start_if_down(lambda: self._pause(1))

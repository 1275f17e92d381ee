"""What can happen to a client: a process like any other, that is killed or stands still."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from tidelog.lab.cluster import LabCluster
from tidelog.lab.faults import SLOW_CLIENT

WRITER_PREFIX = "w"
"""Of the hosts of writers."""
_SLOW_BYTES_PER_S = (500.0, 5_000.0, 50_000.0)

Program = Callable[[], Coroutine[Any, Any, None]]
"""What a client runs, from the beginning or after its last life ended."""


class ClientFaults:
    """Writers, readers and members of groups, by the names of their hosts."""

    def __init__(self, cluster: LabCluster[Any], clients: Mapping[str, Program], chance: random.Random) -> None:
        self._world = cluster.world
        self._brokers = list(cluster.brokers)
        self._clients = clients
        self._chance = chance
        self.known: dict[str, Callable[[int], Awaitable[None]]] = {
            "kill a client": self.kill,
            "freeze a client": self.freeze,
            SLOW_CLIENT: self.slow,
        }

    async def kill(self, number: int) -> None:
        """It comes back after a while, shorter or longer than the session of a member."""
        name = self._chance.choice(list(self._clients))
        host = self._world.host(name)
        if host.process is None:
            return
        host.kill()
        self._world.loop.note("effect", "kill a client", "down", name)
        await asyncio.sleep(self._chance.uniform(0, self._chance.choice([0.5, 9.0])))
        self._start_again(name)

    async def freeze(self, number: int) -> None:
        name = self._chance.choice(list(self._clients))
        host = self._world.host(name)
        if host.process is not None:
            self._world.loop.note("effect", "freeze a client", "still", name)
        host.freeze()
        await asyncio.sleep(self._chance.uniform(0.1, 9))
        host.thaw()

    async def slow(self, number: int) -> None:
        """What it asks for comes in drops, so that answers wait in its brokers. Writers are let off: they wait too."""
        name = self._chance.choice([name for name in self._clients if not name.startswith(WRITER_PREFIX)])
        brokers = [f"b{broker}" for broker in self._brokers]
        bytes_per_s = self._chance.choice(_SLOW_BYTES_PER_S)
        for broker in brokers:
            self._world.network.set_bandwidth(name, broker, bytes_per_s)
        self._world.loop.note("effect", "slow a client", "slow", name)
        await asyncio.sleep(self._chance.uniform(0.5, 9))
        for broker in brokers:
            self._world.network.set_bandwidth(name, broker, None)

    def _start_again(self, name: str) -> None:
        """Unless another saboteur has done so."""
        host = self._world.host(name)
        if host.process is None:
            host.start(self._clients[name]())

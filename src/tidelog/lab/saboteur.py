"""The saboteur: faults of every kind, one after the other, each to its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tidelog.lab.ambushes import AMBUSHES, Scene
from tidelog.lab.budget import PowerBudget
from tidelog.lab.client_faults import ClientFaults, Program
from tidelog.lab.cluster import LabCluster
from tidelog.lab.directory_faults import DirectoryFaults
from tidelog.lab.faults import BLACKOUT, Faults
from tidelog.lab.means import Means
from tidelog.lab.power import PowerLosses
from tidelog.lab.store import EmbeddedStore
from tidelog.lab.store_faults import STORE_FAULTS, StoreFaults
from tidelog.lab.storms import Storms


class Saboteur:
    """Knows some faults. Several of them may work side by side, and hit the same broker or client at the same time."""

    def __init__(
        self,
        cluster: LabCluster[Any],
        partitions: Sequence[int],
        faults: Sequence[str],
        chance: random.Random,
        clients: Mapping[str, Program],
        budget: PowerBudget,
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._faults = faults
        self._chance = chance
        self._means = means = Means(cluster, partitions, chance, list(clients))
        self._power = PowerLosses(means, budget)
        self._known: dict[str, Callable[[int], Awaitable[None]]] = {
            **Faults(means).known,
            **Storms(means).known,
            **self._power.known,
            **ClientFaults(cluster, clients, chance).known,
            **DirectoryFaults(self._power).known,
        }
        if budget.is_unlimited:
            self._faults = (*self._faults, *(BLACKOUT,) * len(self._faults))
        if isinstance(cluster.store, EmbeddedStore):
            self._faults = (*self._faults, *STORE_FAULTS)
            self._known |= StoreFaults(cluster, chance).known
        self._clients = clients

    async def lie_in_ambush(self, name: str, over: asyncio.Event) -> None:
        """Lay this ambush again and again, and do nothing else."""
        self._means.fault = name
        scene = Scene(name, self._cluster, self._partitions, self._chance, self._power, self._clients)
        while not over.is_set():
            await asyncio.sleep(self._chance.uniform(0.1, 2))
            self._cluster.world.loop.note("fault", name, "of", "the cluster")
            await AMBUSHES[name].lay(scene)

    async def run(self, over: asyncio.Event) -> None:
        """Leaders are hit more often than others."""
        while not over.is_set():
            await asyncio.sleep(self._chance.uniform(0.1, 2))
            leaders = [self._cluster.leader(index) or 1 for index in self._partitions]
            number = self._chance.choice([*self._cluster.brokers, *leaders])
            fault = self._means.fault = self._chance.choice(self._faults)
            self._cluster.world.loop.note("fault", fault, "of", f"b{number}")
            await self._known[fault](number)

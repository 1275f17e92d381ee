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
from tidelog.lab.faults import BLACKOUT, SLOW_CLIENT
from tidelog.lab.power import PowerLosses
from tidelog.lab.store import EmbeddedStore
from tidelog.lab.store_faults import STORE_FAULTS, StoreFaults


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
        self._means = PowerLosses(cluster, partitions, chance, list(clients), budget)
        means, of_clients = self._means, ClientFaults(cluster, clients, chance)
        self._known: dict[str, Callable[[int], Awaitable[None]]] = {
            "kill": means.kill,
            "stop": means.stop,
            "kill cut off": means.kill_cut_off,
            "back to back": means.kill_back_to_back,
            "burst": means.burst,
            "slow heirs": means.slow_heirs,
            "frozen heir": means.frozen_heir,
            "all at once": means.all_at_once,
            "die in a write": means.die_in_a_write,
            "controller": means.kill_controller,
            "roll": means.roll,
            "full disk": means.fill_disk,
            "failing disk": means.fail_disk,
            "power loss": means.lose_power,
            "power loss of a newcomer": means.lose_power_as_newcomer,
            "power loss and kills": means.lose_power_with_kills,
            BLACKOUT: means.lose_power_all,
            "freeze": means.freeze,
            "cut": means.cut,
            "cut one": means.cut_one,
            "cut controller": means.cut_controller,
            "slow": means.slow,
            "session": means.expire_session,
            "flapping": means.flapping,
            "store": means.lose_store,
            "store restarts": means.restart_store,
            "reset": means.reset,
            "clock": means.set_clock,
            "kill a client": of_clients.kill,
            "freeze a client": of_clients.freeze,
            SLOW_CLIENT: of_clients.slow,
            **DirectoryFaults(cluster, chance, means).known,
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
        scene = Scene(name, self._cluster, self._partitions, self._chance, self._means, self._clients)
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

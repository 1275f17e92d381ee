"""The saboteur: faults of every kind, one after the other, each to its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tidelog.lab.cluster import LabCluster
from tidelog.lab.power import PowerLosses


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
        self._means = PowerLosses(cluster, partitions, chance, clients)
        means = self._means
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
            "freeze": means.freeze,
            "cut": means.cut,
            "cut one": means.cut_one,
            "slow": means.slow,
            "session": means.expire_session,
            "flapping": means.flapping,
            "store": means.lose_store,
            "reset": means.reset,
            "clock": means.set_clock,
        }

    async def run(self, over: asyncio.Event) -> None:
        """Leaders are hit more often than others."""
        while not over.is_set():
            await asyncio.sleep(self._chance.uniform(0.1, 2))
            leaders = [self._cluster.leader(index) or 1 for index in self._partitions]
            number = self._chance.choice([*self._cluster.brokers, *leaders])
            fault = self._means.fault = self._chance.choice(self._faults)
            self._cluster.world.loop.note("fault", fault, "of", f"b{number}")
            await self._known[fault](number)

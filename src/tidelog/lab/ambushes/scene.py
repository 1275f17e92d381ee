"""Where an ambush is laid: the cluster, its clients, and what a saboteur has to work with."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.lab.client_faults import Program
from tidelog.lab.cluster import LabCluster
from tidelog.lab.power import PowerLosses
from tidelog.types import BrokerId

_LOOK_S = 0.1
_TERMS = 6
"""Of controllers, until one has no replica."""


class Scene(NamedTuple):
    """One ambush at a time is laid in it; other saboteurs may work beside it."""

    name: str
    """Of the ambush."""
    cluster: LabCluster[Any]
    partitions: Sequence[int]
    """Of the topic that matters."""
    chance: random.Random
    power: PowerLosses
    """Power losses within their budget."""
    clients: Mapping[str, Program]

    async def pause(self, most_s: float, least_s: float = 0.0) -> None:
        await asyncio.sleep(self.chance.uniform(least_s, most_s))

    async def until(self, condition: Callable[[], object], patience_s: float) -> bool:
        """False if the condition did not come true in time."""
        return await self.cluster.lookout.until(condition, patience_s, _LOOK_S)

    async def start(self, number: BrokerId) -> None:
        """Until it serves, unless another saboteur has started it or kills it meanwhile."""
        await self.cluster[number].start_if_down(lambda: self.pause(1.0))

    async def control_from_elsewhere(self, index: int) -> None:
        """Until a broker that has no replica of the partition is controller, or it takes too long."""
        for _ in range(_TERMS):
            controller = self.cluster.controller
            if controller and controller not in self.cluster.assigned(index):
                return
            if controller and self.cluster.is_running(controller):
                self.cluster[controller].expire_session()
            await self.pause(2.0, 1.0)

    def note(self, *details: str | int) -> None:
        """In the trace: what the ambush has done, so that a test can see that it bites."""
        self.cluster.world.loop.note("effect", self.name, *details)


class Ambush(NamedTuple):
    """A sequence of faults that meets one way to lose data much more often than single faults do."""

    lay: Callable[[Scene], Awaitable[None]]
    """Once, to its end: everything that it broke is mended, and every broker that it ended is started again."""
    plan: Mapping[str, Any]
    """What it needs of the plan of a run; the rest of the plan is drawn from the seed as ever."""

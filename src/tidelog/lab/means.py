"""What all kinds of faults work with: whom they hit, what came of it, and how a broker is started again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from tidelog.coordination.port import NoNodeError
from tidelog.lab.cluster import LabCluster

_NEXT_S = 6.0
"""A session ends by then, and with it a term of leadership."""


class Means:
    """A cluster, chance, and what a saboteur does between its faults. It notes in the trace what came of each fault."""

    def __init__(
        self, cluster: LabCluster[Any], partitions: Sequence[int], chance: random.Random, clients: Sequence[str] = ()
    ) -> None:
        self.cluster = cluster
        self.network = cluster.world.network
        self.partitions = partitions
        self.chance = chance
        self.clients = clients
        self.fault = ""
        """What is being done now."""

    async def pause(self, most_s: float, least_s: float = 0.1) -> None:
        await asyncio.sleep(self.chance.uniform(least_s, most_s))

    def other(self, number: int) -> int:
        """The controller more often than others."""
        others = [other for other in self.cluster.brokers if other != number]
        controller = self.cluster.controller
        return self.chance.choice([*others, controller] if controller in others else others)

    def a_leader(self, otherwise: int) -> int:
        return self.cluster.leader(self.chance.choice(self.partitions)) or otherwise

    # What has come of it

    def note(self, *details: str | int) -> None:
        self.cluster.world.loop.note("effect", self.fault, *details)

    def note_state(self, number: int) -> None:
        """Of one broker, before it is helped up again."""
        one = self.cluster[number]
        if not one.is_up:
            self.note("down", f"b{number}")
        elif one.broker.failed.done() or one.broker.storage.is_partly_offline:
            self.note("offline", f"b{number}")
        elif self.cluster.is_running(number) and not one.broker.is_current:
            self.note("without session", f"b{number}")
        for index in self.partitions:
            replicas = self.cluster.replicas(index)
            leader = replicas.get(self.cluster.leader(index))
            if leader is not None and number in leader.replicas and number not in self.stored_isr(index):
                self.note("out of sync", f"b{number}")
            here = replicas.get(number)
            if leader is not None and here is not None and here.log.log_end_offset < leader.log.log_end_offset:
                self.note("behind", f"b{number}")

    def stored_isr(self, index: int) -> list[int]:
        try:
            return self.cluster.stored_isr(index)
        except NoNodeError:
            return []

    # Broken, and mended again

    async def start_again(self, number: int, most_s: float = 8.0) -> None:
        await self.pause(self.chance.choice([0.5, most_s]), 0)
        self.note_state(number)
        await self.start(number)

    async def start(self, number: int) -> None:
        await self.cluster[number].start_if_down(lambda: self.pause(1))

    async def next_leader(self, index: int, last: int) -> int:
        """Who leads after this one; 0 if nobody does soon: there may be nobody else in sync."""
        await self.cluster.lookout.until(lambda: self.cluster.leader(index) not in (0, last), _NEXT_S, _NEXT_S)
        following = self.cluster.leader(index)
        return 0 if following == last else following

    async def _tide_rises(self, number: int) -> None:
        """Something has just been committed where this broker leads, or soon nothing has.

        What was promised a moment ago and is not yet known to all is what a death may take.
        """
        before = self._tide(number)
        await self.cluster.lookout.until(lambda: self._tide(number) > before, _NEXT_S, _NEXT_S)

    def _tide(self, number: int) -> int:
        replicas = (self.cluster.replica(number, index) for index in self.partitions)
        return sum(one.leader.high_watermark for one in replicas if one is not None and one.leader is not None)

    async def a_moment(self, number: int, most_s: float) -> None:
        """A bad one more often than any."""
        if self.chance.random() < 0.6:
            await self._tide_rises(number)
        else:
            await self.pause(most_s, 0)

    async def start_all_again(self, killed: dict[int, None], most_s: float = 8.0) -> None:
        await asyncio.gather(*(self.start_again(number, most_s) for number in killed))

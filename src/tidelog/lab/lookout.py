"""The lookout: sees what happens inside the brokers of a cluster at the moment it happens.

The lab exchanges the classes of a broker's partitions and logs for ones that tell. The production code is unchanged,
and pays nothing for it outside of the lab.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.log.log import Log
from tidelog.replication.leader import Leader
from tidelog.types import BrokerId, Offset, TopicPartition

Heard = Callable[[BrokerId, Partition, Offset], None]
"""Called with the broker, its replica, and the high watermark that the replica had before."""


class Lookout:
    """Tells its listeners when a replica moves its high watermark and when it begins to lead."""

    def __init__(self) -> None:
        self._listeners: list[Heard] = []
        self._waiting: list[asyncio.Future[None]] = []

    def watch(self, broker: BrokerId, replicas: Replicas) -> None:
        """From now on, for all partitions that this broker will open. Call it before the broker starts."""
        replicas.partitions = _TellingPartitions(partial(self._happened, broker))

    def listen(self, heard: Heard) -> None:
        self._listeners.append(heard)

    async def next(self, timeout_s: float) -> None:
        """Until something happens, or until the time is over."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        timer = loop.call_later(timeout_s, _wake, future)
        try:
            await future
        finally:
            timer.cancel()

    async def until(self, condition: Callable[[], object], patience_s: float, look_s: float) -> bool:
        """False if the condition did not come true in time. It is looked at after each event, and now and then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while not condition():
            left_s = deadline - loop.time()
            if left_s <= 0:
                return False
            await self.next(min(look_s, left_s))
        return True

    def _happened(self, broker: BrokerId, partition: Partition, before: Offset) -> None:
        for heard in self._listeners:
            heard(broker, partition, before)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _TellingPartitions(dict[TopicPartition, Partition]):
    """The partitions of one broker. Each one that is added tells from then on."""

    def __init__(self, tell: Callable[[Partition, Offset], None]) -> None:
        super().__init__()
        self._tell = tell

    def __setitem__(self, name: TopicPartition, partition: Partition) -> None:
        telling: tuple[tuple[Any, type], ...] = ((partition, _TellingPartition), (partition.log, _TellingLog))
        for one, kind in telling:
            one.__class__ = kind
            one.tell = partial(self._tell, partition)
        super().__setitem__(name, partition)


class _TellingPartition(Partition):
    tell: Callable[[Offset], None]

    def lead(self, leader: Leader) -> None:
        super().lead(leader)
        self.tell(self.log.high_watermark)


class _TellingLog(Log):
    tell: Callable[[Offset], None]

    def _set_high_watermark(self, offset: Offset) -> None:
        before = self._high_watermark
        as_ever: Any = Log.__dict__["high_watermark"]
        as_ever.fset(self, offset)
        if self._high_watermark != before:
            self.tell(before)

    high_watermark = property(lambda self: self._high_watermark, _set_high_watermark)

"""How far the partitions reach that groups read: the high watermarks, for lags.

A replica that is here is looked at. It may be a follower's, which hears of the high watermark a moment later than the
leader knows it. For other partitions the leaders are asked, before a page of metrics is made and not more often than
every few seconds: for those that the last page looked for and did not find here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.broker.pacing import Pace
from tidelog.errors import TidelogError
from tidelog.types import BrokerId, Offset, TopicPartition
from tidelog.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = logging.getLogger(__name__)

REST_NS = 5_000_000_000
"""Leaders are asked at most so often."""
PATIENCE_S = 1.0
"""So long a page waits for their answers at most."""
MOST_ASKED = 10_000
_MOST_AT_ONCE = 2_000
_VERSION = 6
_ANYBODY, _LATEST = -1, -1


class LogEnds:
    """Belongs to the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._told: dict[TopicPartition, Offset] = {}
        """What leaders have answered to the last questions."""
        self._missed: dict[TopicPartition, None] = {}
        """What was looked for since then and is not here."""
        self._next_ns = 0

    def of(self, topic: str, index: int) -> Offset | None:
        """None if it is not known."""
        name = TopicPartition(topic, index)
        partition = self._broker.replicas.partitions.get(name)
        if partition is not None and partition.log.failed is None:
            return partition.log.high_watermark
        if len(self._missed) < MOST_ASKED:
            self._missed[name] = None
        return self._told.get(name)

    async def refresh(self) -> None:
        """Ask for what was missed. Never raises: what cannot be asked for is not known."""
        now_ns = self._broker.clock.monotonic_ns()
        if not self._missed or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + REST_NS
        missed, self._missed, self._told = list(self._missed), {}, {}
        by_leader: dict[BrokerId, list[TopicPartition]] = {}
        async for name in Pace(self._broker.lane).each(missed):
            known = self._broker.metadata.partition(name.topic, name.partition)
            if known is not None and known.leader in self._broker.metadata.brokers:
                by_leader.setdefault(known.leader, []).append(name)
        await asyncio.gather(*(self._ask(leader, names) for leader, names in by_leader.items()))

    async def _ask(self, leader: BrokerId, names: list[TopicPartition]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                connection = await self._broker.neighbours.connect(leader, "log-ends", PATIENCE_S * 1000)
                try:
                    for start in range(0, len(names), _MOST_AT_ONCE):
                        request = _request(names[start : start + _MOST_AT_ONCE])
                        self._take(await connection.call(request, _VERSION))
                finally:
                    connection.close()
        except (TidelogError, OSError) as failure:
            _log.debug("broker %d cannot be asked how far its partitions reach: %s", leader, failure)

    def _take(self, response: ListOffsetsResponse) -> None:
        for topic in response.topics:
            for partition in topic.partitions:
                if not partition.error_code:
                    self._told[TopicPartition(topic.name, partition.partition_index)] = partition.offset


def _request(names: list[TopicPartition]) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for topic, index in names:
        asked = ListOffsetsPartition(partition_index=index, timestamp=_LATEST)
        topics.setdefault(topic, ListOffsetsTopic(name=topic)).partitions.append(asked)
    return ListOffsetsRequest(replica_id=_ANYBODY, topics=list(topics.values()))

"""Which topics were deleted before a broker became coordinator of groups that still have offsets of them.

Offsets have the id of their topic with them. If a topic was deleted and another one of its name was created, the next
coordinator may hear of neither: all it finds are offsets with an id that it does not know. Either the topic of this id
is gone, or this broker has not been told of it yet. The coordination store says which. A topic that is being deleted is
gone as well: all brokers have been told of it, and it may stand in the store until a broker that is down is back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidelog.controller import nodes
from tidelog.coordination.port import NoNodeError
from tidelog.wire import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.groups import Groups

_OFFSETS_AT_ONCE = 20_000
_OFFSETS_OF_TOPIC = 100
"""To look at a topic of a group takes as long as to look at so many offsets."""
_PATIENCE_S = 5.0
"""For the controller to tell of all topics: otherwise the store is asked for each of them."""


class DeletedBefore:
    def __init__(self, broker: Broker) -> None:
        self._metadata = broker.metadata
        self._broker = broker

    async def among(self, groups: Groups) -> list[dict[str, bytes]]:
        """Topics by name, with their ids. CoordinationError if the store cannot be asked."""
        unknown = await self._unknown(groups)
        return [{name: topic_id} for name, topic_id in sorted(unknown) if await self._is_gone(name, topic_id)]

    async def _unknown(self, groups: Groups) -> set[tuple[str, bytes]]:
        found: set[tuple[str, bytes]] = set()
        left = _OFFSETS_AT_ONCE
        for name, values in groups.by_topic():
            found |= {(name, value.topic_id) for value in values}
            left -= _OFFSETS_OF_TOPIC + len(values)
            if left <= 0:
                left = _OFFSETS_AT_ONCE
                await asyncio.sleep(0)
        # What was known before the session was lost is out of date: a commit would be stored with an id of before.
        await self._metadata.wait_until(lambda: self._metadata.told_epoch == self._broker.epoch, _PATIENCE_S)
        return {(name, topic_id) for name, topic_id in found if topic_id not in (ZERO_UUID, self._metadata.id_of(name))}

    async def _is_gone(self, name: str, topic_id: bytes) -> bool:
        path, session = nodes.topic_path(name), self._broker.session
        is_marked = await session.exists(nodes.delete_topic_path(name)) is not None
        try:
            node = nodes.decode_topic(path, (await session.get(path)).data)
        except NoNodeError:
            return True
        except nodes.BadNodeError:
            return False
        # Offsets of it were loaded before, and while there is a mark no topic is created: the mark is of this id.
        return node.topic_id != ZERO_UUID and (is_marked or node.topic_id != topic_id)

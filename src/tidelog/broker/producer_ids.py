"""Producer ids, unique in the cluster: each broker takes them by the block from /latest_producer_id_block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog.controller import nodes
from tidelog.coordination.port import BadVersionError, NodeExistsError, NoNodeError, Session
from tidelog.types import BrokerId, ProducerId

BLOCK_SIZE = 1000


class ProducerIds:
    """Hands out ids of a block and takes the next block when it is used up; what a stopped broker had left is lost."""

    def __init__(self, broker_id: BrokerId, session: Callable[[], Session]) -> None:
        self._broker_id = broker_id
        self._session = session
        self._next = 0
        self._end = 0
        self._one_at_a_time = asyncio.Lock()

    async def next(self) -> ProducerId:
        async with self._one_at_a_time:
            if self._next == self._end:
                self._next = await self._take_block()
                self._end = self._next + BLOCK_SIZE
            taken = self._next
            self._next += 1
        return taken

    async def _take_block(self) -> ProducerId:
        """Compare and set until nobody was faster."""
        session = self._session()
        while True:
            try:
                node = await session.get(nodes.PRODUCER_ID_BLOCK)
            except NoNodeError:
                start, version = 0, None
            else:
                start = nodes.decode_producer_id_block(node.data).last + 1 if node.data else 0
                version = node.stat.version
            block = nodes.encode_producer_id_block(
                nodes.ProducerIdBlock(self._broker_id, start, start + BLOCK_SIZE - 1)
            )
            try:
                if version is None:
                    await session.create(nodes.PRODUCER_ID_BLOCK, block)
                else:
                    await session.set(nodes.PRODUCER_ID_BLOCK, block, version)
            except (BadVersionError, NodeExistsError, NoNodeError):
                continue
            return start

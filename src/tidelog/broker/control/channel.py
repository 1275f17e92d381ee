"""The way from the controller to one broker: requests in order, each tried until it is answered.

The broker of the controller itself is told the same way, over a socket. A channel ends with the broker's life, that is
when its node goes; until then a request that was not answered is sent again, which does no harm: it carries epochs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeAlias

from tidelog.controller.image import Broker, Endpoint
from tidelog.controller.requests import VERSIONS
from tidelog.errors import TidelogError
from tidelog.net.calling import Connection
from tidelog.wire.schema import Message

_log = logging.getLogger(__name__)

RETRY_AFTER_S = 0.1
ANSWER_WITHIN_MS = 30_000
"""Kafka's controller.socket.timeout.ms."""


class Calling(Protocol):
    """What a channel needs of a connection."""

    async def call(self, request: Message, version: int, *, timeout_ms: float | None = None) -> Any: ...

    def close(self) -> None: ...


Connect: TypeAlias = Callable[[str, int], Awaitable[Calling]]
Answered: TypeAlias = Callable[[Broker, Message, Any], None]


async def connect_to_broker(host: str, port: int) -> Connection:
    return await Connection.open(host, port, client_id="controller")


class BrokerChannel:
    """One broker's queue. Always: a request is sent only after the one before it was answered."""

    def __init__(self, broker: Broker, endpoint: Endpoint, connect: Connect, answered: Answered) -> None:
        self.broker = broker
        self.endpoint = endpoint
        self._connect = connect
        self._answered = answered
        self._queue: deque[Message] = deque()
        self._filled = asyncio.Event()
        self._connection: Calling | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"controller to broker {broker.id}")

    @property
    def queued(self) -> int:
        return len(self._queue)

    def send(self, requests: Iterable[Message]) -> None:
        self._queue.extend(requests)
        self._filled.set()

    def close(self) -> None:
        """What is queued is not sent; an answer under way is not heard."""
        self._task.cancel()
        self._disconnect()

    async def _run(self) -> None:
        while True:
            if not self._queue:
                self._filled.clear()
                await self._filled.wait()
            request = self._queue[0]
            try:
                response = await self._call(request)
            except (TidelogError, OSError) as failure:
                _log.info("%s to broker %d will be tried again: %s", type(request).__name__, self.broker.id, failure)
            except Exception:
                _log.exception("%s to broker %d cannot be sent", type(request).__name__, self.broker.id)
            else:
                self._queue.popleft()
                self._answered(self.broker, request, response)
                continue
            self._disconnect()
            await asyncio.sleep(RETRY_AFTER_S)

    async def _call(self, request: Message) -> Any:
        if self._connection is None:
            self._connection = await self._connect(self.endpoint.host, self.endpoint.port)
        return await self._connection.call(request, VERSIONS[type(request)], timeout_ms=ANSWER_WITHIN_MS)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

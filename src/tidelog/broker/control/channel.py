"""The way from the controller to one broker: requests in order, each tried until it is answered.

The broker of the controller itself is told the same way, over a socket. A channel ends with the broker's life, that is
when its node goes; until then a request that was not answered is sent again, with the sequence number of the first
time. The broker knows by it what comes late (see `controller.sequence`). A connection that the channel gives up is
reset, so that less of it can come late.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, Protocol, TypeAlias

from tidelog.broker.said import Said
from tidelog.controller.image import Broker, Endpoint
from tidelog.controller.requests import VERSIONS
from tidelog.controller.sequence import set_sequence
from tidelog.errors import TidelogError
from tidelog.net.calling import Connection
from tidelog.wire.messages.controller import StopReplicaRequest
from tidelog.wire.schema import Message

_log = logging.getLogger(__name__)

RETRY_AFTER_S = 0.1


class Calling(Protocol):
    """What a channel needs of a connection."""

    async def call(self, request: Message, version: int, *, timeout_ms: float | None = None) -> Any: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


OpenConnection: TypeAlias = Callable[[str, int, float], Awaitable[Calling]]
"""To a host and port, within so many milliseconds."""
Answered: TypeAlias = Callable[[Broker, Message, Any], None]


async def connect_to_broker(host: str, port: int, timeout_ms: float) -> Connection:
    return await Connection.open(host, port, client_id="controller", connect_timeout_ms=timeout_ms)


class BrokerChannel:
    """One broker's queue. Always: a request is sent only after the one before it was answered."""

    def __init__(
        self,
        broker: Broker,
        endpoint: Endpoint,
        connect: OpenConnection,
        timeout_ms: Callable[[], int],
        next_sequence: Callable[[], int],
        answered: Answered,
    ) -> None:
        self.broker = broker
        """As it is known now; with an answer goes what was known when the request was sent."""
        self.endpoint = endpoint
        self._connect = connect
        self._timeout_ms = timeout_ms
        """For a connection, and again for an answer: controller.socket.timeout.ms as it is now."""
        self._next_sequence = next_sequence
        self._answered = answered
        self._queue: deque[Message] = deque()
        self._filled = asyncio.Event()
        self._connection: Calling | None = None
        self._task = asyncio.create_task(self._run(), name=f"controller to broker {broker.id}")

    @property
    def queued(self) -> int:
        return len(self._queue)

    def send(self, requests: Iterable[Message]) -> None:
        """Each request gets its place in the order of this controller here, and keeps it however often it is sent."""
        for request in requests:
            set_sequence(request, self._next_sequence())
            self._queue.append(request)
        self._filled.set()

    def supersede(self) -> None:
        """Requests that tell everything come next, so those that wait here are not sent.

        A controller that cannot write takes over again and again, and would queue requests faster than a distant
        broker answers them. Replicas that are to be stopped are named by no other request: those requests stay.
        """
        present = list(islice(self._queue, 1))
        waiting = islice(self._queue, 1, None)
        stops = [request for request in waiting if isinstance(request, StopReplicaRequest)]
        self._queue = deque([*present, *stops])

    def close(self) -> None:
        """What is queued is not sent; an answer under way is not heard."""
        self._task.cancel()
        self._disconnect()

    async def _run(self) -> None:
        said = Said()
        while True:
            if not self._queue:
                self._filled.clear()
                await self._filled.wait()
            broker, request = self.broker, self._queue[0]
            kind = type(request).__name__
            try:
                response = await self._call(request)
            except (TidelogError, OSError) as failure:
                if said.is_news(str(failure)):
                    _log.info("%s to broker %d will be tried again: %s", kind, self.broker.id, failure)
            except Exception as failure:
                if said.is_news(repr(failure)):
                    _log.exception("%s to broker %d cannot be sent", kind, self.broker.id)
            else:
                said.is_over()
                self._queue.popleft()
                self._answered(broker, request, response)
                continue
            self._disconnect()
            await asyncio.sleep(RETRY_AFTER_S)

    async def _call(self, request: Message) -> Any:
        if self._connection is None:
            self._connection = await self._connect(self.endpoint.host, self.endpoint.port, self._timeout_ms())
        return await self._connection.call(request, VERSIONS[type(request)], timeout_ms=self._timeout_ms())

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

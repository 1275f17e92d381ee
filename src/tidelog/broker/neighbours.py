"""The way to the other brokers: a connection to one of them, and requests to the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidelog.broker.metadata import MetadataCache
from tidelog.errors import TidelogError
from tidelog.net.calling import DEFAULT_CONNECT_TIMEOUT_MS, Connection, ConnectionClosedError
from tidelog.types import BrokerId
from tidelog.wire import Message


class UnknownBrokerError(TidelogError):
    """No controller has told of a living broker with this id."""


class Neighbours:
    """Through the inter-broker listener. The connection to the controller is kept while it is the same."""

    def __init__(self, own: BrokerId, metadata: MetadataCache, listener: str, timeout_ms: Callable[[], int]) -> None:
        self._own = own
        self._metadata = metadata
        self._listener = listener
        self._timeout_ms = timeout_ms
        self._controller: tuple[BrokerId, Connection] | None = None
        self._opening: tuple[BrokerId, asyncio.Future[Connection]] | None = None
        """The connection to the controller while it is being opened."""
        self._asking: dict[asyncio.Future[Any], BrokerId] = {}
        """Questions under way, and which broker each of them is put to."""

    def is_alive(self, broker: BrokerId) -> bool:
        return broker in self._metadata.brokers

    async def connect(
        self, broker: BrokerId, purpose: str, timeout_ms: float = DEFAULT_CONNECT_TIMEOUT_MS
    ) -> Connection:
        found = self._metadata.brokers.get(broker)
        if found is None or self._listener not in found.endpoints:
            raise UnknownBrokerError(f"broker {broker} is not known to be alive")
        host, port = found.endpoints[self._listener]
        client_id = f"broker-{self._own}-{purpose}"
        return await Connection.open(host, port, client_id=client_id, connect_timeout_ms=timeout_ms)

    async def ask_controller(self, request: Message, version: int) -> Any:
        """The answer of the broker that is controller as far as is known here; it may answer that it is not.

        Connecting and the answer take controller.socket.timeout.ms each at most. When another controller makes itself
        known meanwhile, the question ends with a ConnectionClosedError, to be asked again there.
        """
        controller = self._metadata.controller_id
        asking = asyncio.create_task(self._ask(controller, request, version))
        self._asking[asking] = controller
        try:
            return await asking
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectionClosedError(f"broker {controller} is no longer the controller") from None
        finally:
            del self._asking[asking]

    async def _ask(self, controller: BrokerId, request: Message, version: int) -> Any:
        connection = self._connection_to(controller)
        if connection is None:
            connection = await self._opened(controller)
        return await connection.call(request, version, timeout_ms=self._timeout_ms())

    async def _opened(self, controller: BrokerId) -> Connection:
        """One connection for all questions: those that come while it is being opened wait for the same one."""
        if self._opening is None or self._opening[0] != controller:
            self._stop_opening()
            opening = asyncio.create_task(self.connect(controller, "to-controller", self._timeout_ms()))
            self._opening = controller, opening
            opening.add_done_callback(self._has_opened)
        return await asyncio.shield(self._opening[1])

    def _has_opened(self, opening: asyncio.Future[Connection]) -> None:
        if self._opening is None or self._opening[1] is not opening:
            if not opening.cancelled() and opening.exception() is None:
                opening.result().close()
            return
        controller, self._opening = self._opening[0], None
        if not opening.cancelled() and opening.exception() is None:
            self._controller = controller, opening.result()

    def _stop_opening(self) -> None:
        if self._opening is not None:
            self._opening[1].cancel()
            self._opening = None

    def _connection_to(self, controller: BrokerId) -> Connection | None:
        """The one that is kept, unless it is closed or leads to another broker; that one is closed."""
        if self._controller is not None and (self._controller[0] != controller or self._controller[1].closed):
            self.close()
        return None if self._controller is None else self._controller[1]

    def controller_changed(self) -> None:
        """Do not wait for an answer of a broker that is not the controller any more: it may be out of reach."""
        for asking, controller in self._asking.items():
            if controller != self._metadata.controller_id:
                asking.cancel()

    def close(self) -> None:
        self._stop_opening()
        if self._controller is not None:
            self._controller[1].close()
            self._controller = None

"""The way to the other brokers: a connection to one of them, and requests to whoever is controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.broker.metadata import MetadataCache
from tidelog.errors import TidelogError
from tidelog.net.calling import Connection
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

    def is_alive(self, broker: BrokerId) -> bool:
        return broker in self._metadata.brokers

    async def connect(self, broker: BrokerId, purpose: str) -> Connection:
        found = self._metadata.brokers.get(broker)
        if found is None or self._listener not in found.endpoints:
            raise UnknownBrokerError(f"broker {broker} is not known to be alive")
        host, port = found.endpoints[self._listener]
        return await Connection.open(host, port, client_id=f"broker-{self._own}-{purpose}")

    async def ask_controller(self, request: Message, version: int) -> Any:
        """The answer of who is controller now, as far as is known here; it may say that it is not."""
        controller = self._metadata.controller_id
        if self._controller is not None and (self._controller[0] != controller or self._controller[1].closed):
            self.close()
        if self._controller is None:
            self._controller = controller, await self.connect(controller, "to-controller")
        return await self._controller[1].call(request, version, timeout_ms=self._timeout_ms())

    def close(self) -> None:
        if self._controller is not None:
            self._controller[1].close()
            self._controller = None

"""The connections of one client: one for each address, opened when it is needed."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

from tidelog.client.addresses import Address, address_text
from tidelog.client.settings import ClientSettings
from tidelog.client.waits import Waits
from tidelog.net.calling import Connection, ConnectionClosedError


class Connections:
    """Always: at most one connection per address; a connection that ended is replaced when the address is needed."""

    def __init__(self, settings: ClientSettings, waits: Waits) -> None:
        self._settings = settings
        self._waits = waits
        self._open: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._closed = False

    def close(self) -> None:
        self._closed = True
        for task in self._opening.values():
            task.cancel()
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def is_open(self, address: Address) -> bool:
        connection = self._open.get(address)
        return connection is not None and not connection.closed

    async def to(self, address: Address) -> Connection:
        """The one that is open, or a new one, with the broker's versions known."""
        if self._closed:
            raise ConnectionClosedError("the client is closed")
        connection = self._open.get(address)
        if connection is not None and not connection.closed:
            return connection
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.create_task(self._open_one(address))
            opening.add_done_callback(lambda task: self._keep_opened(address, task))
        with self._unanswered(address):
            # Shielded, for others may wait for the same.
            return await asyncio.shield(opening)

    async def opened(self, address: Address) -> Connection:
        """A new one, with the broker's versions known, that is the caller's to `keep` or to close."""
        with self._unanswered(address):
            return await self._open_one(address)

    def _unanswered(self, address: Address) -> AbstractContextManager[None]:
        """A caller enters this while it waits for the connection. One that is opened for no caller is no wait."""
        return self._waits.unanswered(
            f"{address_text(address)} does not answer a new connection", asyncio.get_running_loop().time()
        )

    async def _open_one(self, address: Address) -> Connection:
        host, port = address
        settings, now_s = self._settings, asyncio.get_running_loop().time()
        connection = await Connection.open(
            host,
            port,
            client_id=settings.client_id,
            connect_timeout_ms=self._waits.patience_ms(settings.socket_connection_setup_timeout_ms, now_s),
        )
        try:
            await connection.negotiate(timeout_ms=self._waits.patience_ms(settings.request_timeout_ms, now_s))
        except BaseException:
            connection.close()
            raise
        return connection

    def keep(self, address: Address, connection: Connection) -> None:
        """Use it for this address from now on, unless there is another already."""
        if self._closed or self.is_open(address):
            connection.close()
        else:
            self._open[address] = connection

    def drop(self, address: Address) -> None:
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.close()

    def _keep_opened(self, address: Address, task: asyncio.Task[Connection]) -> None:
        del self._opening[address]
        if not task.cancelled() and task.exception() is None:
            self.keep(address, task.result())

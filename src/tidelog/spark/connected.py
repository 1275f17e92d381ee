"""A cluster and the event loop it lives on, for Spark's calls, which come from outside of any loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeVar

from tidelog.client.addresses import Address, address_text
from tidelog.client.cluster import Cluster
from tidelog.client.settings import ClientSettings
from tidelog.host.clock import system_random
from tidelog.net.calling import CannotConnectError
from tidelog.spark.errors import OptionError
from tidelog.spark.settings import BOOTSTRAP, PREFIX

T = TypeVar("T")


class Connected:
    """Runs coroutines to their end, one after the other, on one loop; connections stay open in between.

    While nothing runs, nothing moves: what comes from brokers waits in the sockets.
    """

    def __init__(self, addresses: Sequence[Address], settings: ClientSettings) -> None:
        self._addresses = list(addresses)
        self._settings = settings
        self._runner = asyncio.Runner()
        self._cluster: Cluster | None = None

    def run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """What it returns. OptionError if no broker answers at all."""
        return self._runner.run(self._run(work))

    async def _run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        if self._cluster is None:
            try:
                self._cluster = await Cluster.open(self._addresses, random=system_random(), settings=self._settings)
            except CannotConnectError as failure:
                where = ",".join(map(address_text, self._addresses))
                raise OptionError(PREFIX + BOOTSTRAP, f"no broker answers at {where} ({failure})") from failure
        return await work(self._cluster)

    def close(self) -> None:
        async def end() -> None:
            if self._cluster is not None:
                self._cluster.close()

        self._runner.run(end())
        self._runner.close()

    def __enter__(self) -> Connected:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

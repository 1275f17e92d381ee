"""A cluster and the event loop it lives on, for Spark's calls, which come from outside of any loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeVar

from tidelog.client.addresses import Address, address_text
from tidelog.client.cluster import Cluster
from tidelog.client.errors import DeadlineError
from tidelog.client.settings import ClientSettings
from tidelog.host.clock import system_random
from tidelog.host.loop_thread import LoopThread
from tidelog.spark.client_names import PREFIX
from tidelog.spark.errors import OptionError
from tidelog.spark.settings import BOOTSTRAP

T = TypeVar("T")

_MET: dict[tuple[Address, ...], list[Address]] = {}
"""The brokers that this process has met, by the addresses that it was given.

Spark keeps its Python workers from task to task. So a task, of a sink too, that runs after the only bootstrap broker
died finds the others.
"""


class Connected:
    """Runs coroutines to their end, one after the other, on one loop; connections stay open in between.

    While nothing runs, nothing moves: what comes from brokers waits in the sockets. With a LoopThread as its runner,
    what was begun goes on. `brokers` are addresses that are known besides those that the user gave.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        settings: ClientSettings,
        brokers: Sequence[Address] = (),
        *,
        runner: LoopThread | None = None,
    ) -> None:
        self._addresses = tuple(addresses)
        self._brokers = tuple(brokers)
        self._settings = settings
        self._runner = runner or asyncio.Runner()
        self._cluster: Cluster | None = None

    def run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """What it returns. OptionError if no broker answers at all, in default.api.timeout.ms."""
        return self._runner.run(self._run(work))

    @property
    def brokers(self) -> list[Address]:
        """The addresses of brokers that are known, for others that read the same topics."""
        return list(_MET.get(self._addresses, self._brokers))

    async def _run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        cluster = self._cluster = self._cluster or await self._open()
        try:
            return await work(cluster)
        finally:
            _MET[self._addresses] = cluster.known_addresses

    async def _open(self) -> Cluster:
        known = dict.fromkeys([*self._addresses, *self._brokers, *_MET.get(self._addresses, ())])
        timeout_ms = self._settings.default_api_timeout_ms
        try:
            return await Cluster.open(
                list(known), random=system_random(), settings=self._settings, timeout_ms=timeout_ms
            )
        except DeadlineError as failure:
            where = ",".join(map(address_text, known))
            told = f"no broker answers at {where} in {timeout_ms} ms ({failure.__cause__})"
            raise OptionError(PREFIX + BOOTSTRAP, told) from failure

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

"""A cluster and the event loop it lives on, for Spark's calls, which come from outside of any loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeVar

from tidelog.client.addresses import NONE_KNOWN, Address, KnownBrokers, address_text
from tidelog.client.cluster import Cluster
from tidelog.client.errors import DeadlineError, WrongClusterError
from tidelog.client.settings import ClientSettings
from tidelog.host.clock import system_random
from tidelog.host.loop_thread import LoopThread
from tidelog.spark.client_names import PREFIX
from tidelog.spark.errors import OptionError
from tidelog.spark.met import remember, remembered
from tidelog.spark.settings import BOOTSTRAP

T = TypeVar("T")


class Connected:
    """Runs coroutines to their end, one after the other, on one loop; connections stay open in between.

    While nothing runs, nothing moves: what comes from brokers waits in the sockets. With a LoopThread as its runner,
    what was begun goes on. `known` is the cluster that it must be, and brokers that are tried if none of the user's
    addresses answers.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        settings: ClientSettings,
        known: KnownBrokers = NONE_KNOWN,
        *,
        runner: LoopThread | None = None,
    ) -> None:
        self._addresses = tuple(addresses)
        self._known = known
        self._settings = settings
        self._runner = runner or asyncio.Runner()
        self._cluster: Cluster | None = None

    def run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """What it returns. OptionError if no broker of the cluster answers at all, in default.api.timeout.ms."""
        return self._runner.run(self._run(work))

    @property
    def known(self) -> KnownBrokers:
        """The cluster and its brokers, for others that read and write the same topics."""
        if self._cluster is None:
            return self._known
        return KnownBrokers(tuple(self._cluster.known_addresses), self._cluster.metadata.cluster_id)

    async def _run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        cluster = self._cluster = self._cluster or await self._open()
        try:
            return await work(cluster)
        finally:
            remember(self._addresses, self.known)

    async def _open(self) -> Cluster:
        known = self._fallback()
        timeout_ms = self._settings.default_api_timeout_ms
        try:
            return await Cluster.open(
                self._addresses,
                random=system_random(),
                settings=self._settings,
                known=known,
                cluster_id=self._known.cluster_id,
                timeout_ms=timeout_ms,
            )
        except DeadlineError as failure:
            where = ",".join(map(address_text, dict.fromkeys([*self._addresses, *known.addresses])))
            told = f"no broker answers at {where} in {timeout_ms} ms ({failure.__cause__})"
            raise OptionError(PREFIX + BOOTSTRAP, told) from failure
        except WrongClusterError as failure:
            raise OptionError(PREFIX + BOOTSTRAP, f"no broker of the query's cluster is left: {failure}") from failure

    def _fallback(self) -> KnownBrokers:
        """With the brokers that this application has met, unless they are of another cluster.

        What the user's addresses answer goes before these: they may name another cluster by now.
        """
        met = remembered(self._addresses)
        if self._known == NONE_KNOWN:
            return met
        if met.cluster_id != self._known.cluster_id:
            return self._known
        return self._known._replace(addresses=tuple(dict.fromkeys([*self._known.addresses, *met.addresses])))

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

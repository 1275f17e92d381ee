"""The addresses of one cluster: which of them is asked next, and which are not its brokers any more."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from tidelog.client.addresses import Address, FormerAddresses, KnownBrokers, LastAsked, address_text
from tidelog.client.connections import Connections
from tidelog.client.errors import WrongClusterError, check, unreachable
from tidelog.client.metadata import ClusterMetadata
from tidelog.client.racing import NoneSucceededError, first_success
from tidelog.client.settings import ClientSettings
from tidelog.client.waits import Waits
from tidelog.errors import TidelogError
from tidelog.net.calling import Connection, ConnectionClosedError
from tidelog.ports import Random
from tidelog.wire.api import API
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.schema import Message
from tidelog.wire.versions import Versions

_METADATA = Versions(4, 13)
_NEXT_S = 1.0
"""Where any broker can answer, the next one is asked beside the first if that one has been silent for so long."""


class Contacts:
    """Calls that any broker can answer, and the connections of all calls.

    Always: what brokers of another cluster say is not heard. Their addresses are not asked again, unless metadata of
    this cluster names them.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        known: KnownBrokers,
        metadata: ClusterMetadata,
        settings: ClientSettings,
        random: Random,
        waits: Waits,
    ) -> None:
        self.connections = Connections(settings, waits)
        self._bootstrap = list(bootstrap)
        self._known_cluster_id = known.cluster_id
        self._metadata = metadata
        self._settings = settings
        self._random = random
        self._waits = waits
        self._last_asked = LastAsked()
        self._former = FormerAddresses(known.addresses)
        self._strangers: dict[Address, WrongClusterError] = {}
        """Addresses at which another cluster answered."""

    @property
    def known_addresses(self) -> list[Address]:
        """Of the brokers that metadata names, then of those that it named before."""
        return [address for address in [*self._metadata.addresses, *self._former] if address not in self._strangers]

    # Calls

    async def call_any(self, request: Message, versions: Versions | None, timeout_ms: float | None) -> Any:
        """What some broker answers: one with an open connection if there is one."""
        address, connection = await self._any_connection(elsewhere=False)
        return await self._call_at(address, connection, request, versions, timeout_ms)

    async def call_on(
        self,
        connection: Connection,
        request: Message,
        versions: Versions | None,
        timeout_ms: float | None,
        waits_for: str = "",
    ) -> Any:
        """`waits_for`: what a healthy broker may wait for itself before it answers, for a user to know."""
        api_key, now_s = request.__schema__.api_key, asyncio.get_running_loop().time()
        version = connection.pick(api_key, versions)
        given_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        with self._waits.unanswered(unanswered_text(connection, API[api_key].name, waits_for), now_s):
            return await connection.call(request, version, timeout_ms=self._waits.patience_ms(given_ms, now_s))

    async def _call_at(
        self,
        address: Address,
        connection: Connection,
        request: Message,
        versions: Versions | None,
        timeout_ms: float | None = None,
    ) -> Any:
        self._last_asked.asked(address, asyncio.get_running_loop().time())
        try:
            return await self.call_on(connection, request, versions, timeout_ms)
        except ConnectionClosedError:
            self._failed(address)
            raise

    async def _any_connection(self, *, elsewhere: bool) -> tuple[Address, Connection]:
        """To the first broker, in the order of `_addresses`, that takes it. One error tells of all if none does."""
        failures: list[TidelogError] = []
        for address in self._addresses(elsewhere=elsewhere):
            try:
                return address, await self.connections.to(address)
            except ConnectionClosedError as failure:
                failures.append(failure)
                self._failed(address)
        raise unreachable([*failures, *self._strangers.values()])

    def _addresses(self, *, elsewhere: bool) -> list[Address]:
        """Those with an open connection come first, then other brokers that are known now, and bootstrap addresses.

        Among them those that failed come last.

        `elsewhere`: first the one that was asked longest ago, open or not. Former brokers come last: all brokers that
        metadata named may be away, and those back that were away then.
        """
        addresses = _shuffled(self._metadata.addresses, self._random) + _shuffled(self._bootstrap, self._random)
        addresses.sort(key=self._last_asked)
        if not elsewhere:
            addresses.sort(key=lambda address: not self.connections.is_open(address))
        return [address for address in dict.fromkeys([*addresses, *self._former]) if address not in self._strangers]

    def _failed(self, *addresses: Address) -> None:
        for address in addresses:
            self._last_asked.failed(address, asyncio.get_running_loop().time())

    # Metadata

    async def learn(self, request: MetadataRequest, *, elsewhere: bool, of_all_topics: bool) -> None:
        """Ask a broker of this cluster, and apply its answer to the metadata."""
        response = await self._asked(request, elsewhere)
        before = self._metadata.addresses
        self._metadata.apply(response, of_all_topics=of_all_topics)
        self._former.learnt(before, self._metadata.addresses)
        for address in self._metadata.addresses:
            self._strangers.pop(address, None)

    async def _asked(self, request: MetadataRequest, elsewhere: bool) -> MetadataResponse:
        """What the first broker answers. One that hangs costs a second, not the time of a request.

        At a bootstrap no broker is known to be well. So connections that are overtaken there are closed; later on,
        requests of others may be under way on them.
        """
        addresses = self._addresses(elsewhere=elsewhere)
        is_bootstrap = not self._metadata.brokers

        def give_up(connection: Connection) -> None:
            if is_bootstrap:
                connection.close()

        async def ask(address: Address) -> tuple[Connection, MetadataResponse]:
            connection = await (self.connections.opened if is_bootstrap else self.connections.to)(address)
            try:
                response: MetadataResponse = await self._call_at(address, connection, request, _METADATA)
                check(response.error_code, "metadata")
                self._check_cluster(address, response)
            except BaseException:
                give_up(connection)
                raise
            return connection, response

        attempts = [functools.partial(ask, address) for address in addresses]
        try:
            number, (connection, response) = await first_success(attempts, _NEXT_S, lambda found: give_up(found[0]))
        except NoneSucceededError as none:
            self._failed(*addresses)
            others = [failure for failure in none.failures if not isinstance(failure, WrongClusterError)]
            raise unreachable([*others, *self._strangers.values()]) from none
        self._failed(*addresses[:number])
        if is_bootstrap:
            self.connections.keep(addresses[number], connection)
        return response

    def _check_cluster(self, address: Address, response: MetadataResponse) -> None:
        """WrongClusterError if the broker is of another cluster; then the address is dropped."""
        metadata = self._metadata
        if metadata.cluster_id is None and address not in self._bootstrap:
            metadata = ClusterMetadata(self._known_cluster_id)
        if metadata.takes(response):
            return
        told = f"{address_text(address)} is a broker of cluster {response.cluster_id}, not of {metadata.cluster_id}"
        self._strangers[address] = WrongClusterError(told)
        self.connections.drop(address)
        raise self._strangers[address]


def unanswered_text(connection: Connection, api: str, waits_for: str = "") -> str:
    """What is said while a broker has not answered such a request."""
    told = f"{address_text((connection.host, connection.port))} has not answered {api}"
    return f"{told}; it may be waiting for {waits_for}" if waits_for else told


def _shuffled(addresses: Sequence[Address], random: Random) -> list[Address]:
    """Begun somewhere, so that clients spread over the brokers."""
    if not addresses:
        return []
    start = random.randrange(0, len(addresses))
    return [*addresses[start:], *addresses[:start]]

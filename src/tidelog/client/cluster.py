"""A cluster as its clients see it: found by bootstrap addresses, one connection per broker, calls tried again.

Which errors are tried again is Kafka's table (`ErrorCode.retriable`); before that, metadata that may be the reason is
learnt anew. A deadline bounds it all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from tidelog.client.addresses import NONE_KNOWN, Address, KnownBrokers
from tidelog.client.contacts import Contacts
from tidelog.client.errors import STALE_METADATA, BrokerError, DeadlineError, UnknownTopicError, check
from tidelog.client.metadata import ClusterMetadata, TopicMetadata
from tidelog.client.settings import DEFAULT_SETTINGS, ClientSettings
from tidelog.client.waits import Waits
from tidelog.errors import ErrorCode, TidelogError
from tidelog.net.calling import Connection
from tidelog.ports import Random
from tidelog.types import BrokerId, TopicPartition
from tidelog.wire.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
)
from tidelog.wire.schema import Message
from tidelog.wire.versions import Versions

T = TypeVar("T")

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""

_FIND_COORDINATOR = Versions(4, 6)


class Cluster:
    """The way to the brokers. One event loop, any number of tasks.

    `known` brokers are asked if no bootstrap address answers, and are believed only if they are still of their cluster.
    With a `cluster_id`, bootstrap addresses must be of that cluster too. Otherwise the first answer says which it is.
    `waits` is told what keeps its calls, and may have a deadline for all of them.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        random: Random,
        settings: ClientSettings = DEFAULT_SETTINGS,
        known: KnownBrokers = NONE_KNOWN,
        cluster_id: str | None = None,
        waits: Waits | None = None,
    ) -> None:
        self.settings = settings
        self.waits = Waits() if waits is None else waits
        self.metadata = ClusterMetadata(cluster_id)
        self.random = random
        self._contacts = Contacts(bootstrap, known, self.metadata, settings, random, self.waits)

    @classmethod
    async def open(
        cls,
        bootstrap: Sequence[Address],
        *,
        random: Random,
        settings: ClientSettings = DEFAULT_SETTINGS,
        known: KnownBrokers = NONE_KNOWN,
        cluster_id: str | None = None,
        timeout_ms: float | None = None,
        waits: Waits | None = None,
    ) -> Cluster:
        """Knows the brokers when it returns; CannotConnectError at once if no address answers.

        With a timeout, all addresses are tried again until it is over; then DeadlineError. WrongClusterError if all
        addresses belong to other clusters.
        """
        cluster = cls(bootstrap, random=random, settings=settings, known=known, cluster_id=cluster_id, waits=waits)
        try:
            if timeout_ms is None:
                await cluster._learn([])
            else:
                await cluster.retrying(lambda: cluster._learn([]), "bootstrap", topics=None, timeout_ms=timeout_ms)
        except BaseException:
            cluster.close()
            raise
        return cluster

    def close(self) -> None:
        self._contacts.connections.close()

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Connections

    async def connection(self, broker: BrokerId) -> Connection:
        """To a broker that metadata names, with its versions known."""
        node = self.metadata.brokers.get(broker)
        if node is None:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker}", "not among the live brokers")
        return await self._contacts.connections.to(node.address)

    @property
    def known_addresses(self) -> list[Address]:
        """Of the brokers that metadata names, then of those that it named before."""
        return self._contacts.known_addresses

    # Calls

    async def call(
        self,
        request: Message,
        *,
        to: BrokerId | None = None,
        versions: Versions | None = None,
        timeout_ms: float | None = None,
        waits_for: str = "",
    ) -> Any:
        """Once, to that broker or to any; the response may hold errors.

        `waits_for` is for requests that a healthy broker may answer late: what it waits for itself, for a user to know.
        """
        if to is None:
            return await self._contacts.call_any(request, versions, timeout_ms)
        return await self._contacts.call_on(await self.connection(to), request, versions, timeout_ms, waits_for)

    async def call_controller(self, request: Message, *, versions: Versions | None = None) -> Any:
        """Once; BrokerError with NOT_CONTROLLER if nobody is known to be it."""
        controller = self.metadata.controller
        if controller not in self.metadata.brokers:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, "the controller", "none is elected")
        return await self.call(request, to=controller, versions=versions)

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        about: str,
        *,
        topics: Iterable[str] | None = (),
        timeout_ms: float | None = None,
    ) -> T:
        """What the attempt returns, once it does: retriable failures are tried again until the deadline.

        After a failure that may come from old metadata, brokers and these topics are learnt first; None for an
        attempt that does so itself.
        """
        loop = asyncio.get_running_loop()
        patience_ms = self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        began_s = loop.time()
        deadline_s, told_ms = self.waits.bounds(patience_ms, began_s)
        failures, stale, waiting = 0, False, object()
        self.waits.begins(waiting, about, began_s)
        try:
            while True:
                try:
                    if stale and topics is not None:
                        await self.refresh_once(topics, elsewhere=failures > 1)
                    stale = False
                    return await attempt()
                except TidelogError as failure:
                    failures += 1
                    code = failure.code
                    if not code.retriable:
                        raise
                    rest_s = self.settings.backoff_s(failures, self.random)
                    if loop.time() + rest_s > deadline_s:
                        raise DeadlineError.of(about, told_ms, failure) from failure
                    stale = stale or code in STALE_METADATA
                    self.waits.failed(waiting, about, failure, began_s)
                await asyncio.sleep(rest_s)
        finally:
            self.waits.over(waiting)

    # Metadata

    async def refresh_once(self, topics: Iterable[str] = (), *, elsewhere: bool = False) -> None:
        """Learn the brokers and these topics; what is wrong with a topic stands in `metadata.errors`.

        `elsewhere`: what was learnt last did not help. A broker that is cut off from the others tells clients what was
        true before, so another one is asked.
        """
        await self._learn(list(topics), elsewhere=elsewhere)

    async def topic(
        self, name: str, *, led: bool = True, fresh: bool = False, timeout_ms: float | None = None
    ) -> TopicMetadata:
        """A topic, `led` means once each partition has a leader; UnknownTopicError soon if it does not exist.

        That it does not is asked twice: a topic just made may not be known everywhere.
        """
        known = self.metadata.topics.get(name)
        if known is not None and not fresh and not (led and self._leaderless(known)):
            return known
        attempts = unknown = 0

        async def attempt() -> TopicMetadata | None:
            nonlocal attempts, unknown
            attempts += 1
            await self.refresh_once([name], elsewhere=attempts > 1)
            code = self.metadata.errors.get(name, ErrorCode.NONE)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                unknown += 1
                if unknown > 1:
                    return None
            check(code, f"topic {name}")
            topic = self.metadata.topics[name]
            leaderless = self._leaderless(topic) if led else None
            if leaderless is not None:
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {leaderless}", "it has no leader")
            return topic

        found = await self.retrying(attempt, f"topic {name}", topics=None, timeout_ms=timeout_ms)
        if found is None:
            raise UnknownTopicError(name)
        return found

    async def led_somewhere(self, name: str) -> None:
        """Once one partition of it, at least, has a leader."""

        numbers = (await self.topic(name, led=False)).partitions

        async def attempt() -> None:
            if all(self.metadata.leader(TopicPartition(name, number)) is None for number in numbers):
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name}", "no partition has a leader")

        await self.retrying(attempt, f"topic {name}", topics=[name])

    def _leaderless(self, topic: TopicMetadata) -> TopicPartition | None:
        partitions = (TopicPartition(topic.name, number) for number in topic.partitions)
        return next((partition for partition in partitions if self.metadata.leader(partition) is None), None)

    async def all_topics(self) -> dict[str, TopicMetadata]:
        """By name, ascending."""
        await self.retrying(lambda: self._learn(None), "the list of topics", topics=None)
        return dict(sorted(self.metadata.topics.items()))

    async def coordinator(self, key: str, kind: int = GROUP) -> BrokerId:
        """Who coordinates a group or a transactional id; found out anew at each call."""

        async def attempt() -> BrokerId:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            response: FindCoordinatorResponse = await self.call(request, versions=_FIND_COORDINATOR)
            found = response.coordinators[0]
            check(found.error_code, f"coordinator of {key}", found.error_message)
            if found.node_id not in self.metadata.brokers:
                await self.refresh_once()
            return found.node_id

        return await self.retrying(attempt, f"coordinator of {key}")

    async def _learn(self, topics: list[str] | None, *, elsewhere: bool = False) -> None:
        """None is all topics. Nothing is created by asking."""
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        await self._contacts.learn(request, elsewhere=elsewhere, of_all_topics=topics is None)

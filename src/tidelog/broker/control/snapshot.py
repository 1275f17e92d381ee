"""Reading the cluster's nodes: all of them at a take-over, some of them when they changed.

Each path has one watch at a time, set with the read: a change after that read leads to another look, however many
changes there were. What is under a watch that has not fired is not read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import TypeVar

from tidelog.controller import nodes
from tidelog.controller.image import Broker, PartitionState, Snapshot, TopicFacts
from tidelog.coordination.port import Event, Node, NoNodeError, Session, Watch
from tidelog.types import BrokerId, TopicPartition

_log = logging.getLogger(__name__)

UNCLEAN_ELECTION = "unclean.leader.election.enable"

_AT_ONCE = 128
"""Reads under way at the same time."""

T = TypeVar("T")
K = TypeVar("K")


class Look(Enum):
    """What has to be looked at again."""

    CONTROLLER = auto()
    BROKERS = auto()
    TOPICS = auto()
    ISR_CHANGES = auto()
    LOG_DIR_EVENTS = auto()


class ClusterReader:
    """One session's view of the nodes. `changed` is called on the loop when a watch fires."""

    def __init__(self, session: Session, changed: Callable[[Look], None]) -> None:
        self._session = session
        self._changed = changed
        self._armed: set[str] = set()
        self._topics: dict[str, TopicFacts] = {}
        """As last read, while nothing was heard of a change."""

    async def snapshot(self) -> Snapshot:
        to_delete = await self.to_delete()
        topics = await self.topics()
        partitions = [TopicPartition(name, index) for name, facts in topics.items() for index in facts.assignments]
        states = await self.states(partitions)
        return Snapshot(await self.brokers(), topics, states, to_delete)

    async def brokers(self) -> dict[BrokerId, Broker]:
        names = await self._children(nodes.BROKER_IDS, Look.BROKERS)
        ids = sorted(int(name) for name in names if name.isdigit())
        found = await _gather(ids, self._broker)
        return {broker.id: broker for broker in found if broker is not None}

    async def _broker(self, broker_id: BrokerId) -> Broker | None:
        node = await self._get(nodes.broker_path(broker_id), Look.BROKERS)
        if node is None:
            return None
        try:
            registration = nodes.decode_broker(broker_id, node.data)
        except nodes.BadNodeError as failure:
            _log.error("broker %d is ignored: %s", broker_id, failure)
            return None
        return Broker(broker_id, node.stat.created_id, registration.endpoints, registration.rack)

    async def to_delete(self) -> tuple[str, ...]:
        return tuple(await self._children(nodes.DELETE_TOPICS, Look.TOPICS))

    async def topics(self) -> dict[str, TopicFacts]:
        names = await self._children(nodes.TOPICS, Look.TOPICS)
        unknown = [name for name in names if name not in self._topics]
        for name, facts in zip(unknown, await _gather(unknown, self._topic), strict=True):
            if facts is not None:
                self._topics[name] = facts
        for name in [name for name in self._topics if name not in set(names)]:
            del self._topics[name]
        return {name: self._topics[name] for name in names if name in self._topics}

    def forget_topic(self, name: str) -> None:
        """It was written, and the watch may not have told yet."""
        self._topics.pop(name, None)

    async def _topic(self, name: str) -> TopicFacts | None:
        node = await self._get(nodes.topic_path(name), Look.TOPICS, lambda: self.forget_topic(name))
        if node is None:
            return None
        try:
            topic = nodes.decode_topic(name, node.data)
        except nodes.BadNodeError as failure:
            _log.error("topic %s is ignored: %s", name, failure)
            return None
        return TopicFacts(topic.topic_id, topic.assignments, await self.unclean(name))

    async def unclean(self, topic: str) -> bool | None:
        """What the topic's own config says; it has no watch, config changes are notified to all brokers."""
        path = nodes.config_path("topics", topic)
        try:
            value = nodes.decode_config(path, (await self._session.get(path)).data).get(UNCLEAN_ELECTION)
        except NoNodeError:
            return None
        except nodes.BadNodeError as failure:
            _log.error("the config of topic %s is ignored: %s", topic, failure)
            return None
        return None if value is None else value.strip().lower() == "true"

    async def states(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionState]:
        found = zip(partitions, await _gather(partitions, self._state), strict=True)
        return {partition: state for partition, state in found if state is not None}

    async def _state(self, partition: TopicPartition) -> PartitionState | None:
        try:
            node = await self._session.get(nodes.state_path(partition))
        except NoNodeError:
            return None
        return nodes.decode_state(partition, node.data, node.stat.version, node.stat.modified_id)

    async def isr_changes(self) -> tuple[list[str], list[TopicPartition]]:
        """The notifications, and the partitions they name."""
        paths, data = await self._notifications(nodes.ISR_CHANGES, Look.ISR_CHANGES)
        named: dict[TopicPartition, None] = {}
        for path, content in zip(paths, data, strict=True):
            named.update(dict.fromkeys(_readable(nodes.decode_isr_change, path, content) or ()))
        return paths, list(named)

    async def log_dir_events(self) -> tuple[list[str], list[BrokerId]]:
        """The notifications, and the brokers they name."""
        paths, data = await self._notifications(nodes.LOG_DIR_EVENTS, Look.LOG_DIR_EVENTS)
        named: dict[BrokerId, None] = {}
        for path, content in zip(paths, data, strict=True):
            broker = _readable(nodes.decode_log_dir_event, path, content)
            if broker is not None:
                named[broker] = None
        return paths, list(named)

    async def _notifications(self, parent: str, look: Look) -> tuple[list[str], list[bytes]]:
        paths = [f"{parent}/{name}" for name in await self._children(parent, look)]
        found = await _gather(paths, self._peek)
        there = [(path, node.data) for path, node in zip(paths, found, strict=True) if node is not None]
        return [path for path, _ in there], [data for _, data in there]

    async def exists(self, path: str) -> bool:
        return await self._session.exists(path) is not None

    # Watches

    async def _peek(self, path: str) -> Node | None:
        try:
            return await self._session.get(path)
        except NoNodeError:
            return None

    async def _get(self, path: str, look: Look, fired: Callable[[], None] | None = None) -> Node | None:
        watch = self._arm(path, look, fired)
        try:
            return await self._session.get(path, watch)
        except NoNodeError:
            if watch is not None:
                self._armed.discard(path)
            return None

    async def _children(self, path: str, look: Look) -> list[str]:
        # Named apart from the watch on the node's own data.
        return await self._session.children(path, self._arm(f"{path}/*", look, None))

    def _arm(self, key: str, look: Look, fired: Callable[[], None] | None) -> Watch | None:
        if key in self._armed:
            return None
        self._armed.add(key)

        def fire(event: Event) -> None:
            self._armed.discard(key)
            if fired is not None:
                fired()
            self._changed(look)

        return fire


def _readable(decode: Callable[[str, bytes], T], path: str, data: bytes) -> T | None:
    """A notification that nobody can read is removed like the others."""
    try:
        return decode(path, data)
    except nodes.BadNodeError as failure:
        _log.error("a notification is ignored: %s", failure)
        return None


async def _gather(keys: Sequence[K], read: Callable[[K], Awaitable[T]]) -> list[T]:
    found: list[T] = []
    for start in range(0, len(keys), _AT_ONCE):
        found += await asyncio.gather(*map(read, keys[start : start + _AT_ONCE]))
    return found

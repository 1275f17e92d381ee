"""Reading the cluster's nodes: all of them at a take-over, some of them when they changed.

Each path has one watch at a time, set with the read: a change after that read leads to another look, however many
changes there were. What is under a watch that has not fired is not read again.

A node that cannot be read makes one broker, topic or partition unavailable, not the cluster (edge case 36): it is named
in the log, watched until somebody mends it, and never written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from tidelog.broker.control.faults import Complaints, checked_broker, checked_state, checked_topic
from tidelog.controller import nodes
from tidelog.controller.image import NO_RULES, Broker, ElectionRules, PartitionState, Snapshot, TopicFacts
from tidelog.coordination.port import Event, Node, NoNodeError, Session, Watch
from tidelog.types import BrokerId, TopicPartition
from tidelog.wire import ZERO_UUID

UNCLEAN_ELECTION = "unclean.leader.election.enable"
MIN_INSYNC_REPLICAS = "min.insync.replicas"

_AT_ONCE = 128
"""Reads under way at the same time."""

_MAX_INT32 = 2**31 - 1

T = TypeVar("T")
K = TypeVar("K")


class Look(Enum):
    """What has to be looked at again."""

    CONTROLLER = auto()
    BROKERS = auto()
    TOPICS = auto()
    ISR_CHANGES = auto()
    LOG_DIR_EVENTS = auto()
    FAULTS = auto()
    """States that could not be read or written."""


class States(NamedTuple):
    known: dict[TopicPartition, PartitionState]
    faults: dict[TopicPartition, str]
    """Why the others, which exist, cannot be read."""


class ClusterReader:
    """One session's view of the nodes. `changed` is called on the loop when a watch fires."""

    def __init__(
        self,
        session: Session,
        changed: Callable[[Look], None],
        complaints: Complaints,
        last_known: dict[str, TopicFacts],
    ) -> None:
        self._session = session
        self._changed = changed
        self._complaints = complaints
        self._last_known = last_known
        """Topics as they were when they could be read. It outlives the reader: a topic that this controller has known
        is served on when its node becomes unreadable."""
        self._armed: set[str] = set()
        self._topics: dict[str, TopicFacts] = {}
        """As last read, while nothing was heard of a change."""

    async def snapshot(self) -> Snapshot:
        to_delete = await self.to_delete()
        topics = await self.topics()
        partitions = [TopicPartition(name, index) for name, facts in topics.items() for index in facts.assignments]
        states = await self.states(partitions)
        return Snapshot(await self.brokers(), topics, states.known, to_delete, states.faults)

    async def brokers(self) -> dict[BrokerId, Broker]:
        names = await self._children(nodes.BROKER_IDS, Look.BROKERS)
        ids = sorted(int(name) for name in names if name.isascii() and name.isdigit() and int(name) <= _MAX_INT32)
        found = await _gather(ids, self._broker)
        return {broker.id: broker for broker in found if broker is not None}

    async def _broker(self, broker_id: BrokerId) -> Broker | None:
        node = await self._get(nodes.broker_path(broker_id), Look.BROKERS)
        if node is None:
            return None
        path = nodes.broker_path(broker_id)
        registration = self._readable(path, lambda: checked_broker(nodes.decode_broker(broker_id, node.data)))
        if registration is None:
            return None
        return Broker(
            broker_id,
            node.stat.created_id,
            registration.endpoints,
            registration.rack,
            registration.intact_since,
            registration.last_epoch,
            registration.has_failed_directory,
        )

    async def to_delete(self) -> tuple[str, ...]:
        return tuple(await self._children(nodes.DELETE_TOPICS, Look.TOPICS))

    async def topics(self) -> dict[str, TopicFacts]:
        names = await self._children(nodes.TOPICS, Look.TOPICS)
        unknown = [name for name in names if name not in self._topics]
        for name, facts in zip(unknown, await _gather(unknown, self._topic), strict=True):
            if facts is not None:
                self._topics[name] = facts
        present = set(names)
        for known in (self._topics, self._last_known):
            for name in [name for name in known if name not in present]:
                del known[name]
        return {name: self._topics[name] for name in names if name in self._topics}

    def forget_topic(self, name: str) -> None:
        """It was written, and the watch may not have told yet."""
        self._topics.pop(name, None)

    async def _topic(self, name: str) -> TopicFacts | None:
        node = await self._get(nodes.topic_path(name), Look.TOPICS, lambda: self.forget_topic(name))
        if node is None:
            return None
        topic = self._readable(nodes.topic_path(name), lambda: checked_topic(name, nodes.decode_topic(name, node.data)))
        if topic is None:
            known = self._last_known.get(name, TopicFacts(ZERO_UUID, {}))
            return known._replace(fault=self._complaints.of(nodes.topic_path(name)), remains=await self._remains(name))
        facts = self._last_known[name] = TopicFacts(topic.topic_id, topic.assignments, await self.election_rules(name))
        return facts

    async def _remains(self, topic: str) -> tuple[int, ...]:
        try:
            names = await self._session.children(nodes.partitions_path(topic))
        except NoNodeError:
            return ()
        return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))

    async def election_rules(self, topic: str) -> ElectionRules:
        """What the topic's own config says; it has no watch, config changes are notified to all brokers."""
        path = nodes.config_path("topics", topic)
        try:
            node = await self._session.get(path)
        except NoNodeError:
            return NO_RULES
        config = self._readable(path, lambda: nodes.decode_config(path, node.data))
        if config is None:
            known = self._last_known.get(topic)
            return NO_RULES if known is None else known.rules
        unclean, min_insync = config.get(UNCLEAN_ELECTION), config.get(MIN_INSYNC_REPLICAS, "").strip()
        return ElectionRules(
            None if unclean is None else unclean.strip().lower() == "true",
            int(min_insync) if min_insync.isdecimal() else None,
        )

    async def states(self, partitions: Sequence[TopicPartition]) -> States:
        found = list(zip(partitions, await _gather(partitions, self._state), strict=True))
        return States(
            {partition: state for partition, state in found if isinstance(state, PartitionState)},
            {partition: fault for partition, fault in found if isinstance(fault, str)},
        )

    async def _state(self, partition: TopicPartition) -> PartitionState | str | None:
        """None if there is none; a text says why it cannot be read."""
        path = nodes.state_path(partition)
        node = await self._peek(path)
        state = None if node is None else self._decoded_state(partition, node)
        if node is None or state is not None:
            return state
        # Only such nodes have a watch. What was changed before it was set is seen here.
        node = await self._get(path, Look.FAULTS)
        state = None if node is None else self._decoded_state(partition, node)
        return self._complaints.of(path) if node is not None and state is None else state

    def _decoded_state(self, partition: TopicPartition, node: Node) -> PartitionState | None:
        def decode() -> PartitionState:
            return checked_state(
                partition, nodes.decode_state(partition, node.data, node.stat.version, node.stat.modified_id)
            )

        return self._readable(nodes.state_path(partition), decode)

    async def watch_state(self, partition: TopicPartition) -> None:
        """A look at FAULTS follows when the node changes, comes or goes."""
        path = nodes.state_path(partition)
        await self._session.exists(path, self._arm(path, Look.FAULTS, None))

    async def isr_changes(self) -> tuple[list[str], list[TopicPartition]]:
        """The notifications, and the partitions they name."""
        paths, data = await self._notifications(nodes.ISR_CHANGES, Look.ISR_CHANGES)
        named: dict[TopicPartition, None] = {}
        for path, content in zip(paths, data, strict=True):
            named.update(dict.fromkeys(self._notified(nodes.decode_isr_change, path, content) or ()))
        return paths, list(named)

    async def log_dir_events(self) -> tuple[list[str], list[BrokerId]]:
        """The notifications, and the brokers they name."""
        paths, data = await self._notifications(nodes.LOG_DIR_EVENTS, Look.LOG_DIR_EVENTS)
        named: dict[BrokerId, None] = {}
        for path, content in zip(paths, data, strict=True):
            broker = self._notified(nodes.decode_log_dir_event, path, content)
            if broker is not None:
                named[broker] = None
        return paths, list(named)

    async def _notifications(self, parent: str, look: Look) -> tuple[list[str], list[bytes]]:
        paths = [f"{parent}/{name}" for name in await self._children(parent, look)]
        found = await _gather(paths, self._peek)
        there = [(path, node.data) for path, node in zip(paths, found, strict=True) if node is not None]
        return [path for path, _ in there], [data for _, data in there]

    def _readable(self, path: str, decode: Callable[[], T]) -> T | None:
        """None if the node is not what belongs there, whatever is wrong with it: that is said once."""
        try:
            found = decode()
        except Exception as failure:
            self._complaints.about(path, failure)
            return None
        self._complaints.over(path)
        return found

    def _notified(self, decode: Callable[[str, bytes], T], path: str, data: bytes) -> T | None:
        """A notification that cannot be read is removed like the others."""
        return self._readable(path, lambda: decode(path, data))

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


async def _gather(keys: Sequence[K], read: Callable[[K], Awaitable[T]]) -> list[T]:
    found: list[T] = []
    for start in range(0, len(keys), _AT_ONCE):
        found += await asyncio.gather(*map(read, keys[start : start + _AT_ONCE]))
    return found

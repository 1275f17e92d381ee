"""Settings that change while a broker runs: kept in coordination, cached here, told to whom they concern.

Nodes are Kafka 3.9's: /config/topics/<topic>, /config/brokers/<id> and /config/brokers/<default> hold what was set,
and a sequential node under /config/changes names what changed. A broker watches the latter alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tidelog.config.broker import BrokerConfig
from tidelog.config.topic import TopicConfig, topic_config
from tidelog.controller import nodes
from tidelog.coordination.port import (
    BadVersionError,
    CoordinationError,
    Create,
    Event,
    NodeExistsError,
    NoNodeError,
    Session,
    SessionLostError,
    Set,
)
from tidelog.ports import Clock
from tidelog.types import BrokerId

_log = logging.getLogger(__name__)

TOPICS = "topics"
BROKERS = "brokers"
DEFAULT_ENTITY = "<default>"
_KEEP_ALL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_PURGE_AFTER_NS = 15 * 60 * 10**9
_RETRY_S = 0.5
_AT_A_TIME = 64

Overrides: TypeAlias = Mapping[str, str]
Edit: TypeAlias = Callable[[Overrides], dict[str, str]]
"""From what is stored to what shall be; may run again if somebody else was faster, and may refuse by raising."""


class DynamicConfig:
    """The settings of this broker and of all topics, as they are now.

    `load` comes before anything else: logs are opened with the settings of their topics. Listeners are called on the
    loop, after the cache has changed, and only when a value really differs.
    """

    def __init__(self, session: Session, broker_id: BrokerId, static: BrokerConfig, clock: Clock) -> None:
        self.broker_config = static
        self._static = static
        self._session = session
        self._clock = clock
        self._own = str(broker_id)
        self._brokers: dict[str, Overrides] = {self._own: {}, DEFAULT_ENTITY: {}}
        self._topics: dict[str, Overrides] = {}
        self._unreadable: dict[str, str] = {}
        """Topics whose node cannot be read, and why. What was known of them before still holds."""
        self._resolved: dict[str, TopicConfig] = {}
        self._inherited: TopicConfig | None = None
        self._topic_listeners: list[Callable[[str, TopicConfig], None]] = []
        self._broker_listeners: list[Callable[[BrokerConfig], None]] = []
        self._seen_ns: dict[str, int] = {}
        """When this broker first saw each notification that is still there: the tree keeps no times."""
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    # Reading

    def topic_config(self, topic: str) -> TopicConfig:
        """From the cache; a topic without overrides has what the broker gives. One whose overrides were never readable
        deletes nothing: they may have said so."""
        found = self._resolved.get(topic)
        if found is None:
            is_unknown = topic in self._unreadable and topic not in self._topics
            overrides = _KEEP_ALL if is_unknown else self.topic_overrides(topic)
            found = self._resolved[topic] = topic_config(self.broker_config, overrides) if overrides else self._plain()
        return found

    def _plain(self) -> TopicConfig:
        """Of all topics without overrides."""
        if self._inherited is None:
            self._inherited = topic_config(self.broker_config, {})
        return self._inherited

    def topic_overrides(self, topic: str) -> Overrides:
        return self._topics.get(topic, {})

    def on_topic(self, listener: Callable[[str, TopicConfig], None]) -> None:
        self._topic_listeners.append(listener)

    def on_broker(self, listener: Callable[[BrokerConfig], None]) -> None:
        """A change of broker settings may change those of topics too: ask `topic_config` again."""
        self._broker_listeners.append(listener)

    # Life

    async def load(self) -> None:
        """Read all there is, and follow what changes from then on."""
        await self._read_all()
        self._following = asyncio.create_task(self._follow())

    async def rebind(self, session: Session) -> None:
        """Go on with a new session. What changed in between is told to the listeners."""
        await self.stop()
        self._session = session
        await self.load()

    async def stop(self) -> None:
        if self._following is None:
            return
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        self._following = None

    # Writing

    async def stored(self, kind: str, name: str) -> Overrides:
        """What is set now for a topic, a broker or DEFAULT_ENTITY, read from coordination."""
        try:
            return await self._read(kind, name)
        except nodes.BadNodeError as failure:
            _log.warning("settings are passed over: %s", failure)
            return {}

    async def _read(self, kind: str, name: str) -> Overrides:
        """BadNodeError if the node does not hold settings."""
        path = nodes.config_path(kind, name)
        try:
            return nodes.decode_config(path, (await self._session.get(path)).data)
        except NoNodeError:
            return {}

    async def alter(self, kind: str, name: str, edit: Edit) -> None:
        """Change what is stored for a topic, a broker or DEFAULT_ENTITY, and tell all brokers.

        Node and notification are written together. This broker knows the change when the call returns.
        """
        path = nodes.config_path(kind, name)
        notice = Create(nodes.CONFIG_CHANGE_PREFIX, nodes.encode_config_change(f"{kind}/{name}"), sequential=True)
        while True:
            try:
                node = await self._session.get(path)
            except NoNodeError:
                write: Create | Set = Create(path, nodes.encode_config(edit({})))
            else:
                data = nodes.encode_config(edit(_decode(path, node.data)))
                write = Set(path, data, node.stat.version)
            try:
                await self._session.multi([write, notice])
                break
            except (BadVersionError, NodeExistsError):
                continue
            except NoNodeError as missing:
                if missing.path != path or isinstance(write, Create):
                    raise
        await self._refresh(kind, name)

    # Following

    async def refresh_topic(self, topic: str) -> TopicConfig:
        """Read a topic's node now: a topic comes and goes without a notification. For who creates its first log here,
        and for who describes it. BadNodeError if the node cannot be read."""
        await self._refresh(TOPICS, topic)
        if topic in self._unreadable:
            raise nodes.BadNodeError(self._unreadable[topic])
        return self.topic_config(topic)

    async def _read_all(self) -> None:
        self._changed.clear()
        await self._note_notifications()
        for name in (DEFAULT_ENTITY, self._own):
            await self._refresh(BROKERS, name)
        try:
            topics = await self._session.children(f"{nodes.CONFIG}/{TOPICS}")
        except NoNodeError:
            topics = []
        for start in range(0, len(topics), _AT_A_TIME):
            await asyncio.gather(*(self._refresh(TOPICS, topic) for topic in topics[start : start + _AT_A_TIME]))
        present = dict.fromkeys(topics)
        for topic in [topic for topic in (*self._topics, *self._unreadable) if topic not in present]:
            self._take_topic(topic, {})

    async def _note_notifications(self) -> list[str]:
        """The notifications not seen before, oldest first; from now on the next one wakes us."""
        await self._session.ensure(nodes.CONFIG_CHANGES)
        names = await self._session.children(nodes.CONFIG_CHANGES, self._woken)
        now_ns = self._clock.monotonic_ns()
        new = [name for name in names if name not in self._seen_ns]
        self._seen_ns = {name: self._seen_ns.get(name, now_ns) for name in names}
        return new

    def _woken(self, event: Event) -> None:
        self._changed.set()

    async def _follow(self) -> None:
        """Until the session is over; `rebind` starts anew."""
        is_failing = False
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                for name in await self._note_notifications():
                    await self._hear(f"{nodes.CONFIG_CHANGES}/{name}")
                await self._purge()
                is_failing = False
            except SessionLostError:
                return
            except CoordinationError as failure:
                # Nothing may be missed: what was noted as seen is forgotten, and all of it is read again.
                if not is_failing:  # the store may be away for hours
                    _log.warning("settings that changed cannot be read yet: %s", failure)
                is_failing = True
                await asyncio.sleep(_RETRY_S)
                self._seen_ns.clear()
                self._changed.set()
            except Exception:
                # A listener's fault: the cache is right, and later changes must still be heard.
                _log.exception("a change of settings was not taken in by all parts of the broker")

    async def _hear(self, path: str) -> None:
        try:
            kind, _, name = nodes.decode_config_change(path, (await self._session.get(path)).data).partition("/")
        except NoNodeError:
            return
        except nodes.BadNodeError as failure:
            _log.warning("a notification is passed over: %s", failure)
            return
        await self._refresh(kind, name)

    async def _purge(self) -> None:
        """Every broker may: a notification is old when all have had their time to see it."""
        now_ns = self._clock.monotonic_ns()
        for name in [name for name, seen_ns in self._seen_ns.items() if now_ns - seen_ns > _PURGE_AFTER_NS]:
            with contextlib.suppress(NoNodeError):
                await self._session.delete(f"{nodes.CONFIG_CHANGES}/{name}")
            self._seen_ns.pop(name, None)

    async def _refresh(self, kind: str, name: str) -> None:
        """Read one node and take what is in it. Kinds that do not concern a broker are none of ours."""
        if kind != TOPICS and (kind != BROKERS or name not in self._brokers):
            return
        try:
            overrides = await self._read(kind, name)
        except nodes.BadNodeError as failure:
            self._keep(kind, name, str(failure))
            return
        if kind == TOPICS:
            self._take_topic(name, overrides)
        else:
            self._take_broker(name, overrides)

    def _keep(self, kind: str, name: str, reason: str) -> None:
        """What cannot be read changes nothing: settings that were known still hold."""
        if kind != TOPICS:
            _log.error("the settings of %s %s stay as they are: %s", kind, name, reason)
        elif self._unreadable.get(name) != reason:
            _log.error("the settings of topic %s stay as they are known: %s", name, reason)
            self._unreadable[name] = reason
            self._resolved.pop(name, None)

    def _take_topic(self, topic: str, overrides: Overrides) -> None:
        before = self.topic_overrides(topic)
        was_unreadable = self._unreadable.pop(topic, None) is not None
        if overrides:
            self._topics[topic] = overrides
        else:
            self._topics.pop(topic, None)
        if overrides == before and not was_unreadable:
            return
        self._resolved.pop(topic, None)
        for listener in self._topic_listeners:
            listener(topic, self.topic_config(topic))

    def _take_broker(self, name: str, overrides: Overrides) -> None:
        if overrides == self._brokers[name]:
            return
        self._brokers[name] = overrides
        warned = set(self.broker_config.warnings)
        self.broker_config = self._static.with_dynamic(self._brokers[DEFAULT_ENTITY], self._brokers[self._own])
        for warning in self.broker_config.warnings:
            if warning not in warned:  # with an earlier change
                _log.warning("%s", warning)
        self._resolved.clear()
        self._inherited = None
        for listener in self._broker_listeners:
            listener(self.broker_config)


def _decode(path: str, data: bytes) -> dict[str, str]:
    """What cannot be read is as if nothing were set: the next change puts it right."""
    try:
        return nodes.decode_config(path, data)
    except nodes.BadNodeError as failure:
        _log.warning("settings are passed over: %s", failure)
        return {}

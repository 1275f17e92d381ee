"""DynamicConfig on the coordination in memory: what is stored, cached, told and cleared away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidelog.broker.dynamic_config import BROKERS, DEFAULT_ENTITY, TOPICS, DynamicConfig
from tidelog.config.broker import BrokerConfig
from tidelog.config.topic import TopicConfig
from tidelog.controller import nodes
from tidelog.coordination.memory import MemoryCoordination
from tidelog.coordination.port import Event, EventKind, Session
from tidelog.host.clock import SystemClock

STATIC = BrokerConfig.load({"broker.id": "1", "log.retention.ms": "1000"})
TIMEOUT_MS = 10_000
_MINUTE_NS = 60 * 10**9


class JumpingClock(SystemClock):
    """Real time, and a jump now and then; only DynamicConfig reads it."""

    jump_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.jump_ns


class Cluster:
    """A store with the nodes that are always there, and brokers that read it."""

    def __init__(self) -> None:
        self.store = MemoryCoordination(SystemClock())
        self.clock = JumpingClock()
        self.session: Session

    async def open(self) -> None:
        self.session = await self.store.connect(TIMEOUT_MS)
        for path in nodes.PERSISTENT_PATHS:
            await self.session.ensure(path)

    async def broker(self, broker_id: int = 1) -> DynamicConfig:
        config = DynamicConfig(await self.store.connect(TIMEOUT_MS), broker_id, STATIC, self.clock)
        await config.load()
        return config


def run(story: Callable[[Cluster], Awaitable[None]]) -> None:
    async def whole() -> None:
        cluster = Cluster()
        await cluster.open()
        await story(cluster)

    asyncio.run(asyncio.wait_for(whole(), 10))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def set_to(**values: str) -> Callable[[object], dict[str, str]]:
    given = {name.replace("_", "."): value for name, value in values.items()}
    return lambda stored: given


def test_nodes_are_kafkas() -> None:
    async def story(cluster: Cluster) -> None:
        config = await cluster.broker()
        await config.alter(TOPICS, "t", set_to(retention_ms="5"))
        await config.alter(BROKERS, DEFAULT_ENTITY, set_to(log_retention_ms="6"))
        await config.alter(BROKERS, "1", lambda stored: {})
        get = cluster.session.get
        assert (await get("/config/topics/t")).data == b'{"version":1,"config":{"retention.ms":"5"}}'
        assert (await get("/config/brokers/<default>")).data == b'{"version":1,"config":{"log.retention.ms":"6"}}'
        assert (await get("/config/brokers/1")).data == b'{"version":1,"config":{}}'
        first, second, _ = await cluster.session.children("/config/changes")
        assert first == "config_change_0000000000"
        assert (await get(f"/config/changes/{first}")).data == b'{"version":2,"entity_path":"topics/t"}'
        assert (await get(f"/config/changes/{second}")).data == b'{"version":2,"entity_path":"brokers/<default>"}'

    run(story)


def test_layers_and_listeners_here_and_on_another_broker() -> None:
    async def story(cluster: Cluster) -> None:
        here, there = await cluster.broker(1), await cluster.broker(2)
        topics: list[tuple[str, TopicConfig]] = []
        brokers: list[BrokerConfig] = []
        there.on_topic(lambda topic, config: topics.append((topic, config)))
        there.on_broker(brokers.append)
        await here.alter(TOPICS, "t", set_to(retention_ms="5"))
        assert here.topic_config("t").retention_ms == 5, "who changed it knows at once"
        await until(lambda: len(topics) == 1)
        assert topics == [("t", there.topic_config("t"))]
        assert there.topic_config("t").retention_ms == 5
        assert there.topic_config("other").retention_ms == 1000
        await here.alter(BROKERS, DEFAULT_ENTITY, set_to(log_retention_ms="7"))
        await until(lambda: len(brokers) == 1)
        assert there.topic_config("other").retention_ms == 7
        await there.alter(BROKERS, "2", set_to(log_retention_ms="8"))
        assert there.broker_config["log.retention.ms"] == 8
        assert there.topic_config("other").retention_ms == 8
        assert here.broker_config["log.retention.ms"] == 7, "another broker's settings are none of ours"
        await there.alter(BROKERS, "2", lambda stored: {})
        assert there.broker_config["log.retention.ms"] == 7
        assert len(topics) == 1

    run(story)


def test_what_is_there_at_the_start_is_loaded() -> None:
    async def story(cluster: Cluster) -> None:
        for number in range(150):
            data = nodes.encode_config({"retention.ms": str(number + 1)})
            await cluster.session.create(f"/config/topics/t{number}", data)
        await cluster.session.create("/config/brokers/1", nodes.encode_config({"log.segment.bytes": "99"}))
        config = await cluster.broker()
        assert config.topic_config("t149").retention_ms == 150
        assert config.topic_config("t0").segment_bytes == 99
        assert config.topic_overrides("t3") == {"retention.ms": "4"}

    run(story)


def test_changes_at_the_same_time_are_all_kept() -> None:
    async def story(cluster: Cluster) -> None:
        brokers = [await cluster.broker(number) for number in range(1, 6)]
        names = ["retention.ms", "segment.ms", "flush.ms", "segment.bytes", "max.message.bytes"]
        await asyncio.gather(
            *(
                broker.alter(TOPICS, "t", lambda stored, name=name: {**stored, name: "77"})  # type: ignore[misc]
                for broker, name in zip(brokers, names, strict=True)
            )
        )
        assert await brokers[0].stored(TOPICS, "t") == dict.fromkeys(names, "77")

    run(story)


def test_an_edit_that_refuses_writes_nothing() -> None:
    async def story(cluster: Cluster) -> None:
        config = await cluster.broker()

        def refuse(stored: object) -> dict[str, str]:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await config.alter(TOPICS, "t", refuse)
        assert await cluster.session.children("/config/changes") == []
        assert await cluster.session.exists("/config/topics/t") is None

    run(story)


def test_a_topic_made_anew_is_read_anew() -> None:
    async def story(cluster: Cluster) -> None:
        config = await cluster.broker()
        await config.alter(TOPICS, "t", set_to(retention_ms="5"))
        await cluster.session.delete("/config/topics/t")
        assert (await config.refresh_topic("t")).retention_ms == 1000
        await cluster.session.create("/config/topics/t", nodes.encode_config({"retention.ms": "6"}))
        assert (await config.refresh_topic("t")).retention_ms == 6

    run(story)


def test_a_new_session_catches_up_and_follows() -> None:
    async def story(cluster: Cluster) -> None:
        config = await cluster.broker(1)
        other = await cluster.broker(2)
        await config.alter(TOPICS, "gone", set_to(retention_ms="4"))
        told: list[str] = []
        config.on_topic(lambda topic, now: told.append(topic))
        cluster.store.expire(config._session.id)
        await other.alter(TOPICS, "t", set_to(retention_ms="5"))
        await other.alter(BROKERS, DEFAULT_ENTITY, set_to(log_segment_bytes="99"))
        await cluster.session.delete("/config/topics/gone")
        await config.rebind(await cluster.store.connect(TIMEOUT_MS))
        assert config.topic_config("t").retention_ms == 5
        assert config.topic_config("gone").retention_ms == 1000
        assert config.broker_config["log.segment.bytes"] == 99
        assert told == ["t", "gone"]
        await other.alter(TOPICS, "later", set_to(retention_ms="6"))
        await until(lambda: told[-1] == "later")
        await config.stop()

    run(story)


def test_a_store_that_does_not_answer_for_a_while_loses_no_change() -> None:
    async def story(cluster: Cluster) -> None:
        config, other = await cluster.broker(1), await cluster.broker(2)
        cluster.store.suspend(config._session.id)
        await other.alter(TOPICS, "t", set_to(retention_ms="5"))
        cluster.store.resume(config._session.id)
        await until(lambda: config.topic_config("t").retention_ms == 5)

    run(story)


def test_reading_is_tried_again_until_the_store_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def story(cluster: Cluster) -> None:
        config, other = await cluster.broker(1), await cluster.broker(2)
        cluster.store.suspend(config._session.id)
        config._woken(Event(EventKind.CHILDREN, nodes.CONFIG_CHANGES))
        await until(lambda: "cannot be read yet" in caplog.text)
        await other.alter(TOPICS, "t", set_to(retention_ms="5"))
        cluster.store.resume(config._session.id)
        await until(lambda: config.topic_config("t").retention_ms == 5)

    run(story)


def test_a_listener_that_fails_does_not_end_the_following(caplog: pytest.LogCaptureFixture) -> None:
    async def story(cluster: Cluster) -> None:
        config, other = await cluster.broker(1), await cluster.broker(2)

        def fail(topic: str, now: TopicConfig) -> None:
            raise ValueError(topic)

        config.on_topic(fail)
        await other.alter(TOPICS, "a", set_to(retention_ms="5"))
        await until(lambda: "not taken in" in caplog.text)
        await other.alter(TOPICS, "b", set_to(retention_ms="6"))
        await until(lambda: config.topic_config("b").retention_ms == 6)
        assert config.topic_config("a").retention_ms == 5

    run(story)


def test_old_notifications_are_cleared_away_after_15_minutes() -> None:
    async def story(cluster: Cluster) -> None:
        config = await cluster.broker()
        await config.alter(TOPICS, "a", set_to(retention_ms="5"))
        await until(lambda: len(config._seen_ns) == 1)
        cluster.clock.jump_ns = 14 * _MINUTE_NS
        await config.alter(TOPICS, "b", set_to(retention_ms="5"))
        await until(lambda: len(config._seen_ns) == 2)
        assert len(await cluster.session.children("/config/changes")) == 2
        cluster.clock.jump_ns = 16 * _MINUTE_NS
        await config.alter(TOPICS, "c", set_to(retention_ms="5"))
        await until(lambda: list(config._seen_ns) == ["config_change_0000000001", "config_change_0000000002"])
        assert len(await cluster.session.children("/config/changes")) == 2

    run(story)


def test_nodes_that_make_no_sense_are_passed_over() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.session.create("/config/topics/t", b"not json")
        await cluster.session.create("/config/brokers/1", nodes.encode_config({"message.max.bytes": "x"}))
        config = await cluster.broker()
        assert config.topic_config("t").retention_ms == -1, "the node may have said so: nothing is deleted"
        with pytest.raises(nodes.BadNodeError, match="/config/topics/t is not JSON"):
            await config.refresh_topic("t")
        assert config.broker_config["message.max.bytes"] == 1_048_588
        await cluster.session.create("/config/changes/config_change_", b"[]", sequential=True)
        users = nodes.encode_config_change("users/alice")
        await cluster.session.create("/config/changes/config_change_", users, sequential=True)
        await config.alter(TOPICS, "t", set_to(retention_ms="5"))
        await until(lambda: len(config._seen_ns) == 3)
        assert config.topic_config("t").retention_ms == 5
        assert (await config.refresh_topic("t")).retention_ms == 5
        await cluster.session.set("/config/topics/t", b"not json")
        with pytest.raises(nodes.BadNodeError):
            await config.refresh_topic("t")
        assert config.topic_config("t").retention_ms == 5, "what was known still holds"
        await cluster.session.set("/config/topics/t", nodes.encode_config({}))
        assert (await config.refresh_topic("t")).retention_ms == 1000

    run(story)


def test_a_setting_that_is_left_out_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def warned() -> int:
        return sum("message.max.bytes" in message for message in caplog.messages)

    async def story(cluster: Cluster) -> None:
        config = await cluster.broker()
        bad = {"message.max.bytes": "x"}
        for number in range(3):
            await config.alter(BROKERS, "1", lambda stored, number=number: {**bad, "log.retention.ms": str(9 + number)})
            await until(lambda number=number: config.broker_config["log.retention.ms"] == 9 + number)
            assert warned() == 1
        await config.alter(BROKERS, "1", lambda stored: {"log.retention.ms": "20"})
        await until(lambda: config.broker_config["log.retention.ms"] == 20)
        await config.alter(BROKERS, "1", lambda stored: {**bad, "log.retention.ms": "21"})
        await until(lambda: config.broker_config["log.retention.ms"] == 21)
        assert warned() == 2, "it had been mended in between"

    run(story)

"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: answers and errors as Kafka 3.9.1 and 4.1.0 gave them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.dynamic_config import BROKERS, TOPICS, DynamicConfig
from tidelog.broker.handlers import configs
from tidelog.broker.metadata import MetadataCache, TopicMetadata
from tidelog.broker.pacing import SlowLane
from tidelog.config.broker import BrokerConfig
from tidelog.controller import nodes
from tidelog.coordination.memory import MemoryCoordination
from tidelog.errors import ErrorCode
from tidelog.host.clock import SystemClock
from tidelog.wire import ZERO_UUID, decode, encode
from tidelog.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
OK = (ErrorCode.NONE, None)
INVALID_REQUEST, INVALID_CONFIG = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG


class FakeBroker(SimpleNamespace):
    """What the handlers see of a broker: id 1, with the topic `t`."""

    dynamic_config: DynamicConfig

    @property
    def config(self) -> BrokerConfig:
        return self.dynamic_config.broker_config

    async def describe(self, kind: int, name: str, keys: list[str] | None = None, **options: bool) -> Any:
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        request = DescribeConfigsRequest(resources=[resource], **options)
        (result,) = (await configs.describe_configs(self, request, None)).results  # type: ignore[arg-type]
        return result

    async def single(self, kind: int, name: str, *changes: tuple[str, int, str | None], dry: bool = False) -> Any:
        one = IncrementalAlterConfigsRequestAlterableConfig
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[one(name=key, config_operation=operation, value=value) for key, operation, value in changes],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry)
        response = await configs.incremental_alter_configs(self, request, None)  # type: ignore[arg-type]
        (result,) = response.responses
        assert (result.resource_type, result.resource_name) == (kind, name)
        return (result.error_code, result.error_message)

    async def replace(self, kind: int, name: str, dry: bool = False, **values: str | None) -> Any:
        given = [AlterConfigsRequestAlterableConfig(name=key.replace("_", "."), value=v) for key, v in values.items()]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=given)
        request = AlterConfigsRequest(resources=[resource], validate_only=dry)
        (result,) = (await configs.alter_configs(self, request, None)).responses  # type: ignore[arg-type]
        return (result.error_code, result.error_message)


def run(story: Callable[[FakeBroker], Awaitable[None]]) -> None:
    async def whole() -> None:
        clock = SystemClock()
        session = await MemoryCoordination(clock).connect(10_000)
        for path in nodes.PERSISTENT_PATHS:
            await session.ensure(path)
        static = BrokerConfig.load({"broker.id": "1", "num.io.threads": "2"})
        dynamic = DynamicConfig(session, 1, static, clock)
        await dynamic.load()
        metadata = MetadataCache(SystemClock())
        metadata.topics["t"], metadata.is_complete = TopicMetadata("t", ZERO_UUID, {}), True
        await story(FakeBroker(id=1, dynamic_config=dynamic, metadata=metadata, session=session, lane=SlowLane()))
        await dynamic.stop()

    asyncio.run(asyncio.wait_for(whole(), 10))


def values(result: DescribeConfigsResult) -> dict[str, str | None]:
    return {config.name: config.value for config in result.configs}


def test_describe_topic() -> None:
    async def story(broker: FakeBroker) -> None:
        assert await broker.single(TOPIC, "t", ("retention.ms", SET, "1000")) == OK
        result = await broker.describe(TOPIC, "t")
        assert (result.error_code, result.error_message, len(result.configs)) == (0, "", 36)
        keys = ["nope", "retention.ms"]
        (entry,) = (await broker.describe(TOPIC, "t", keys, include_synonyms=True, include_documentation=True)).configs
        assert (entry.value, entry.config_source, entry.config_type, entry.read_only) == ("1000", 1, 5, False)
        assert [(s.name, s.value, s.source) for s in entry.synonyms] == [("retention.ms", "1000", 1)]
        assert entry.documentation == "Age at which segments go; -1 for no limit."
        (bare,) = (await broker.describe(TOPIC, "t", ["retention.ms"])).configs
        assert (bare.synonyms, bare.documentation) == ([], None)
        assert len((await broker.describe(TOPIC, "t", [])).configs) == 36

    run(story)


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
        (TOPIC, "b ad", ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        (BROKER, "2", INVALID_REQUEST, "Unexpected broker id, expected 1 or empty string, but received 2"),
        (BROKER, "x", INVALID_REQUEST, "Broker id must be an integer, but it is: x"),
        (LOGGER, "", INVALID_REQUEST, "Broker id must not be empty"),
        (LOGGER, "2", INVALID_REQUEST, "Unexpected broker id, expected 1 but received 2"),
        (3, "x", INVALID_REQUEST, "Unsupported resource type 3"),
    ],
)
def test_describe_refuses(kind: int, name: str, code: ErrorCode, message: str) -> None:
    async def story(broker: FakeBroker) -> None:
        result = await broker.describe(kind, name)
        assert (result.error_code, result.configs) == (code, [])
        assert result.error_message.startswith(message)

    run(story)


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_can_be_encoded_in_every_version(version: int) -> None:
    async def story(broker: FakeBroker) -> None:
        resources = [DescribeConfigsResource(resource_type=kind, resource_name="1") for kind in (BROKER, LOGGER)]
        for resource in resources:
            resource.configuration_keys = None
        request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
        response = await configs.describe_configs(broker, request, None)  # type: ignore[arg-type]
        decoded = decode(type(response), encode(response, version), version)
        assert len(decoded.results[0].configs) > 300

    run(story)


def test_describe_broker_and_the_default_of_all() -> None:
    async def story(broker: FakeBroker) -> None:
        assert values(await broker.describe(BROKER, "")) == {}
        assert await broker.single(BROKER, "", ("log.retention.ms", SET, "7000")) == OK
        assert await broker.single(BROKER, "1", ("log.retention.ms", SET, "5000")) == OK
        assert values(await broker.describe(BROKER, "")) == {"log.retention.ms": "7000"}
        (entry,) = (await broker.describe(BROKER, "1", ["log.retention.ms"], include_synonyms=True)).configs
        assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
            ("log.retention.ms", "5000", 2),
            ("log.retention.ms", "7000", 3),
            ("log.retention.hours", "168", 5),
        ]
        assert (entry.value, entry.read_only) == ("5000", False)
        (fixed,) = (await broker.describe(BROKER, "1", ["log.dirs"])).configs
        assert fixed.read_only

    run(story)


def test_single_changes_of_a_topic() -> None:
    async def story(broker: FakeBroker) -> None:
        async def policy() -> str | None:
            return values(await broker.describe(TOPIC, "t"))["cleanup.policy"]

        assert await broker.single(TOPIC, "t", ("cleanup.policy", APPEND, "compact")) == OK
        assert await policy() == "delete,compact"
        assert await broker.single(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == OK
        assert await policy() == "compact"
        assert await broker.single(TOPIC, "t", ("cleanup.policy", DELETE, None), ("segment.ms", SET, "5")) == OK
        assert await broker.dynamic_config.stored(TOPICS, "t") == {"segment.ms": "5"}
        assert await broker.single(TOPIC, "t") == OK
        assert await broker.single(TOPIC, "t", ("nope", DELETE, None)) == OK

    run(story)


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize(
    ("kind", "name", "changes", "code", "message"),
    [
        (
            TOPIC,
            "t",
            [("retention.ms", SET, "abc")],
            INVALID_CONFIG,
            "Invalid value abc for configuration retention.ms",
        ),
        (TOPIC, "t", [("nope", SET, "1")], INVALID_CONFIG, "Unknown topic config name: nope"),
        (TOPIC, "t", [("", SET, "1")], INVALID_CONFIG, "Unknown topic config name: "),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], INVALID_CONFIG, "Config value append is not allowed"),
        (TOPIC, "t", [("retention.ms", 9, "1")], INVALID_REQUEST, "Unknown config operation 9"),
        (TOPIC, "t", [("retention.ms", SET, None)], INVALID_REQUEST, "Null value not supported for : retention.ms"),
        (TOPIC, "t", [("a", SET, "1"), ("a", SET, "2")], INVALID_REQUEST, "Error due to duplicate config keys"),
        (TOPIC, "absent", [], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'absent' does not exist."),
        (TOPIC, "b ad", [], ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        (TOPIC, "", [], INVALID_REQUEST, "Default topic resources are not allowed."),
        (BROKER, "1", [("log.dirs", SET, "/x")], INVALID_REQUEST, "Cannot update these configs dynamically: log.dirs"),
        (
            BROKER,
            "1",
            [("log.segment.bytes", SET, "1")],
            INVALID_REQUEST,
            "Invalid value 1 for configuration log.segment",
        ),
        (BROKER, "", [("ssl.protocol", SET, "x")], INVALID_REQUEST, "Cannot update these configs at default cluster"),
        (BROKER, "2", [], INVALID_REQUEST, "Unexpected broker id, expected 1, but received 2"),
        (BROKER, "x", [], INVALID_REQUEST, "Node id must be an integer, but it is: x"),
        (LOGGER, "1", [("nope.nope", SET, "DEBUG")], INVALID_CONFIG, "Logger nope.nope does not exist!"),
        (LOGGER, "1", [("root", SET, "LOUD")], INVALID_CONFIG, "Cannot set the log level of root to LOUD"),
        (
            LOGGER,
            "1",
            [("root", APPEND, "INFO")],
            INVALID_REQUEST,
            "APPEND operation is not allowed for the BROKER_LOGGER",
        ),
        (LOGGER, "1", [("root", DELETE, None)], INVALID_REQUEST, "Removing the log level of the root logger"),
        (LOGGER, "", [("root", SET, "INFO")], INVALID_REQUEST, "Node id must be an integer, but it is: "),
        (3, "x", [], INVALID_REQUEST, "Unknown resource type 3"),
    ],
)
def test_single_changes_refused(
    dry: bool, kind: int, name: str, changes: list[Any], code: ErrorCode, message: str
) -> None:
    async def story(broker: FakeBroker) -> None:
        got, text = await broker.single(kind, name, *changes, dry=dry)
        assert got is code
        assert text.startswith(message)
        assert await broker.session.children("/config/changes") == []

    run(story)


def test_validate_only_changes_nothing() -> None:
    async def story(broker: FakeBroker) -> None:
        assert await broker.single(TOPIC, "t", ("retention.ms", SET, "5"), dry=True) == OK
        assert await broker.replace(TOPIC, "t", dry=True, retention_ms="5") == OK
        assert await broker.single(BROKER, "1", ("log.retention.ms", SET, "5"), dry=True) == OK
        assert await broker.session.children("/config/topics") == []
        assert await broker.session.children("/config/brokers") == []

    run(story)


def test_alter_replaces_everything() -> None:
    async def story(broker: FakeBroker) -> None:
        assert await broker.replace(TOPIC, "t", retention_ms="9000", segment_ms="1000") == OK
        assert await broker.replace(TOPIC, "t", retention_ms="5") == OK
        assert await broker.dynamic_config.stored(TOPICS, "t") == {"retention.ms": "5"}
        assert await broker.replace(BROKER, "1", log_retention_ms="400") == OK
        assert broker.config["log.retention.ms"] == 400
        assert await broker.replace(BROKER, "1") == OK
        assert await broker.dynamic_config.stored(BROKERS, "1") == {}
        assert (await broker.replace(TOPIC, "t", segment_ms="0"))[0] is INVALID_CONFIG
        assert await broker.replace(TOPIC, "t", segment_ms=None) == (
            INVALID_REQUEST,
            "Null value not supported for : segment.ms",
        )
        assert (await broker.replace(BROKER, "1", log_dirs="/x"))[0] is INVALID_REQUEST
        assert await broker.replace(LOGGER, "1", root="INFO") == (INVALID_REQUEST, "Unknown resource type 8")

    run(story)


def test_a_resource_named_twice_is_refused_and_others_are_served() -> None:
    async def story(broker: FakeBroker) -> None:
        def resource(kind: int, name: str) -> IncrementalAlterConfigsRequestAlterConfigsResource:
            return IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name)

        request = IncrementalAlterConfigsRequest(
            resources=[resource(TOPIC, "t"), resource(BROKER, ""), resource(TOPIC, "t")]
        )
        response = await configs.incremental_alter_configs(broker, request, None)  # type: ignore[arg-type]
        assert [one.error_code for one in response.responses] == [INVALID_REQUEST, 0, INVALID_REQUEST]
        assert response.responses[0].error_message == "Each resource must appear at most once."

    run(story)


def test_levels_of_loggers() -> None:
    name = "tidelog.test.levels"
    logger = logging.getLogger(name)

    async def story(broker: FakeBroker) -> None:
        assert await broker.single(LOGGER, "1", (name, SET, "DEBUG"), dry=True) == OK
        assert logger.level == logging.NOTSET
        assert await broker.single(LOGGER, "1", (name, SET, "WARN")) == OK
        (entry,) = (await broker.describe(LOGGER, "1", [name])).configs
        assert (entry.value, entry.config_source, entry.read_only) == ("WARN", 6, False)
        assert await broker.single(LOGGER, "1", (name, DELETE, None)) == OK
        assert logger.level == logging.NOTSET

    run(story)


def test_a_coordination_that_is_gone_is_a_retriable_error() -> None:
    async def story(broker: FakeBroker) -> None:
        await broker.session.close()
        code, _ = await broker.single(TOPIC, "t", ("retention.ms", SET, "5"))
        assert code.retriable
        assert ErrorCode((await broker.describe(TOPIC, "t")).error_code).retriable

    run(story)

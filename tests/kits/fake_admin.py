"""A fake broker that also takes admin calls, on a loop of its own thread: for commands that are run beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kits.fake_broker import FakeBroker, FakeCluster
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition
from tidelog.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)
from tidelog.wire.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from tidelog.wire.schema import Message

TOPIC = 2
BOOLEAN, LONG, LIST = 1, 5, 7
DEFAULTS = {
    "flush.ms": ("9", LONG),
    "retention.ms": ("604800000", LONG),
    "preallocate": ("false", BOOLEAN),
    "cleanup.policy": ("delete", LIST),
}
"""Values and their types."""

DYNAMIC_TOPIC, DYNAMIC_DEFAULT_BROKER, DEFAULT = 1, 3, 5


class FakeAdminBroker(FakeBroker):
    """Broker 1, alone; settings are kept as they come, and every resource has those of `DEFAULTS`."""

    def __init__(self) -> None:
        super().__init__(FakeCluster(), 1)
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.log_directories: list[DescribeLogDirsResult] = []

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add_topic(self, name: str, partitions: int) -> None:
        for number in range(partitions):
            self.cluster.leaders[TopicPartition(name, number)] = 1

    def _answer(self, request: Message) -> Message | None:
        if isinstance(request, CreateTopicsRequest):
            return self._create(request)
        if isinstance(request, DeleteTopicsRequest):
            name = request.topics[0].name or ""
            for partition in [partition for partition in self.cluster.leaders if partition.topic == name]:
                del self.cluster.leaders[partition]
            return DeleteTopicsResponse(responses=[DeletableTopicResult(name=name)])
        if isinstance(request, CreatePartitionsRequest):
            self.add_topic(request.topics[0].name, request.topics[0].count)
            return CreatePartitionsResponse(results=[CreatePartitionsTopicResult(name=request.topics[0].name)])
        if isinstance(request, DescribeConfigsRequest):
            return self._describe(request)
        if isinstance(request, DescribeLogDirsRequest):
            return DescribeLogDirsResponse(results=self.log_directories)
        if isinstance(request, IncrementalAlterConfigsRequest):
            return self._alter(request)
        return super()._answer(request)

    def _create(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        topic = request.topics[0]
        result = CreatableTopicResult(name=topic.name)
        if TopicPartition(topic.name, 0) in self.cluster.leaders:
            result.error_code, result.error_message = ErrorCode.TOPIC_ALREADY_EXISTS, "it is there"
        else:
            self.add_topic(topic.name, max(topic.num_partitions, 1))
            self.configs[TOPIC, topic.name] = {config.name: config.value or "" for config in topic.configs}
        return CreateTopicsResponse(topics=[result])

    def _describe(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        resource = request.resources[0]
        source = DYNAMIC_TOPIC if resource.resource_type == TOPIC else DYNAMIC_DEFAULT_BROKER
        entries = {name: (value, DEFAULT) for name, (value, _) in DEFAULTS.items()}
        own = self.configs.get((resource.resource_type, resource.resource_name), {})
        entries |= {name: (value, source) for name, value in own.items()}
        configs = [
            DescribeConfigsResourceResult(
                name=name, value=value, config_source=where, config_type=DEFAULTS.get(name, ("", 0))[1]
            )
            for name, (value, where) in entries.items()
            if resource.configuration_keys is None or name in resource.configuration_keys
        ]
        return DescribeConfigsResponse(results=[DescribeConfigsResult(configs=configs)])

    def _alter(self, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
        resource = request.resources[0]
        own = self.configs.setdefault((resource.resource_type, resource.resource_name), {})
        for config in resource.configs:
            if config.config_operation == 0:
                own[config.name] = config.value or ""
            else:
                own.pop(config.name, None)
        return IncrementalAlterConfigsResponse(
            responses=[IncrementalAlterConfigsResponseAlterConfigsResourceResponse()]
        )


@contextmanager
def served_broker() -> Iterator[FakeAdminBroker]:
    """The broker, listening; what a test reads or sets of it while a command runs is its own risk."""
    broker = FakeAdminBroker()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(broker.serve(), loop).result(10)
        yield broker
    finally:
        loop.call_soon_threadsafe(broker.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

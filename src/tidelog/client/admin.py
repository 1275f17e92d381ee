"""Administration: topics, configurations, the log start, and what the brokers hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.errors import check
from tidelog.client.leaders import by_topic, call_leaders
from tidelog.client.metadata import Node
from tidelog.errors import ErrorCode, TidelogError
from tidelog.types import BrokerId, Offset, TopicPartition
from tidelog.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from tidelog.wire.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from tidelog.wire.schema import Message
from tidelog.wire.versions import Versions

DEFAULT_COUNT = -1
"""For partitions and replicas: the broker's num.partitions and default.replication.factor."""

HIGH_WATERMARK = -1
"""For `delete_records`: all that is committed."""


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigSource(IntEnum):
    """Where a value comes from; the first that has one wins."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


class Resource(NamedTuple):
    """What has a configuration. The broker with the empty name stands for all brokers together."""

    type: ResourceType
    name: str

    @property
    def broker(self) -> BrokerId | None:
        """Who must be asked: a broker alone knows its own configuration."""
        return int(self.name) if self.type is not ResourceType.TOPIC and self.name else None

    def __str__(self) -> str:
        if self.type is ResourceType.BROKER_LOGGER:
            return f"the loggers of broker {self.name}"
        kind = self.type.name.lower()
        return f"{kind} {self.name}" if self.name else f"all {kind}s"


class _Operation(IntEnum):
    SET = 0
    DELETE = 1


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller: BrokerId
    brokers: list[Node]


class Admin:
    """Admin calls of a cluster. Retriable errors are tried again; what remains is a BrokerError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._timeout_ms = cluster.settings.request_timeout_ms

    # Topics

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = DEFAULT_COUNT,
        replication_factor: int = DEFAULT_COUNT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> CreatableTopicResult:
        """BrokerError with TOPIC_ALREADY_EXISTS if it is there."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=self._timeout_ms, validate_only=validate_only)

        async def attempt() -> CreatableTopicResult:
            response: CreateTopicsResponse = await self._controller(request, Versions(4, 7))
            result = response.topics[0]
            check(result.error_code, f"topic {name}", result.error_message)
            return result

        return await self._cluster.retrying(attempt, f"creating topic {name}")

    async def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=self._timeout_ms)
        await self._cluster.topic(name, led=False, fresh=True)
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            response: DeleteTopicsResponse = await self._controller(request, Versions(6, 6))
            result = response.responses[0]
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and attempts > 1:
                return  # the answer to an earlier attempt was lost
            check(result.error_code, f"topic {name}", result.error_message)

        await self._cluster.retrying(attempt, f"deleting topic {name}")

    async def create_partitions(self, name: str, count: int) -> None:
        """Grow to that many."""
        topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=self._timeout_ms)
        await self._cluster.topic(name, led=False)

        async def attempt() -> None:
            response: CreatePartitionsResponse = await self._controller(request)
            result = response.results[0]
            check(result.error_code, f"topic {name}", result.error_message)

        await self._cluster.retrying(attempt, f"growing topic {name}")

    # Configurations

    async def describe_configs(
        self, resource: Resource, names: Iterable[str] | None = None
    ) -> list[DescribeConfigsResourceResult]:
        """All of them, or those named, with where each value comes from."""
        asked = DescribeConfigsResource(
            resource_type=resource.type,
            resource_name=resource.name,
            configuration_keys=None if names is None else list(names),
        )
        request = DescribeConfigsRequest(resources=[asked], include_synonyms=True)
        await self._must_exist(resource)

        async def attempt() -> list[DescribeConfigsResourceResult]:
            response: DescribeConfigsResponse = await self._cluster.call(
                request, to=resource.broker, versions=Versions(1, 4)
            )
            result = response.results[0]
            check(result.error_code, str(resource), result.error_message)
            return result.configs

        return await self._cluster.retrying(attempt, f"configuration of {resource}")

    async def alter_configs(
        self, resource: Resource, *, changed: Mapping[str, str] | None = None, deleted: Sequence[str] = ()
    ) -> None:
        """Set some and reset others to what lies below; all or nothing."""
        changes = [(name, _Operation.SET, value) for name, value in (changed or {}).items()]
        resets = [(name, _Operation.DELETE, None) for name in deleted]
        altered = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=resource.type,
            resource_name=resource.name,
            configs=[
                IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=operation, value=value)
                for name, operation, value in [*changes, *resets]
            ],
        )
        request = IncrementalAlterConfigsRequest(resources=[altered])
        await self._must_exist(resource)

        async def attempt() -> None:
            broker = resource.broker
            response: IncrementalAlterConfigsResponse = await (
                self._controller(request) if broker is None else self._cluster.call(request, to=broker)
            )
            result = response.responses[0]
            check(result.error_code, str(resource), result.error_message)

        await self._cluster.retrying(attempt, f"configuration of {resource}")

    # Logs

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, Offset]:
        """Cut the start of logs; the new log start offsets."""

        def build(partitions: Sequence[TopicPartition]) -> DeleteRecordsRequest:
            return DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(partition_index=number, offset=before[TopicPartition(topic, number)])
                            for number in numbers
                        ],
                    )
                    for topic, numbers in by_topic(partitions).items()
                ],
                timeout_ms=self._timeout_ms,
            )

        def read(response: DeleteRecordsResponse) -> Iterator[tuple[TopicPartition, int, Offset]]:
            for topic in response.topics:
                for result in topic.partitions:
                    yield TopicPartition(topic.name, result.partition_index), result.error_code, result.low_watermark

        return await call_leaders(self._cluster, before, build, read, "deleting records")

    async def describe_log_dirs(self, broker: BrokerId) -> list[DescribeLogDirsResult]:
        """Everything in each log directory of one broker."""

        async def attempt() -> list[DescribeLogDirsResult]:
            response: DescribeLogDirsResponse = await self._cluster.call(DescribeLogDirsRequest(topics=None), to=broker)
            check(response.error_code, f"log directories of broker {broker}")
            return response.results

        return await self._cluster.retrying(attempt, f"log directories of broker {broker}")

    # The cluster

    async def describe_cluster(self) -> ClusterDescription:
        async def attempt() -> ClusterDescription:
            response: DescribeClusterResponse = await self._cluster.call(DescribeClusterRequest())
            check(response.error_code, "the cluster", response.error_message)
            brokers = sorted(response.brokers, key=lambda broker: broker.broker_id)
            nodes = [
                Node(broker.broker_id, broker.host, broker.port, broker.rack)
                for broker in brokers
                if not broker.is_fenced
            ]
            return ClusterDescription(response.cluster_id, response.controller_id, nodes)

        return await self._cluster.retrying(attempt, "the cluster")

    async def answering_brokers(self, patience_s: float = 2.0) -> dict[BrokerId, str | None]:
        """The brokers of the cluster, and why one does not answer; None if it does.

        A broker that has just died is one of the cluster until its session ends, so each is asked itself.
        """
        ids = [node.id for node in (await self.describe_cluster()).brokers]

        async def ask(broker: BrokerId) -> str | None:
            try:
                async with asyncio.timeout(patience_s):
                    connection = await self._cluster.connection(broker)
                    await connection.negotiate(timeout_ms=patience_s * 1000)
            except TimeoutError:
                return f"no answer within {patience_s:.0f} s"
            except (TidelogError, OSError) as failure:
                return str(failure)
            return None

        return dict(zip(ids, await asyncio.gather(*map(ask, ids)), strict=True))

    async def _must_exist(self, resource: Resource) -> None:
        """Brokers call an unknown topic a retriable error; here it is looked up before."""
        if resource.type is ResourceType.TOPIC:
            await self._cluster.topic(resource.name, led=False)

    async def _controller(self, request: Message, versions: Versions | None = None) -> Any:
        return await self._cluster.call_controller(request, versions=versions)

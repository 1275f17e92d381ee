"""CreateTopics, DeleteTopics and CreatePartitions, as a client sees them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from tests.kits.controlkit import Cluster, play
from tidelog.broker.handlers.topics import create_partitions, create_topics, delete_topics
from tidelog.broker.pacing import SlowLane
from tidelog.config.broker import BrokerConfig
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.wire import ZERO_UUID, encode
from tidelog.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

LATEST = {create_topics: 7, delete_topics: 6, create_partitions: 3}


class Client:
    """Calls the handlers of one broker, which is controller if it says so."""

    def __init__(self, cluster: Cluster, shell: Any, **config: str) -> None:
        properties = {"broker.id": "1", "log.dirs": "/data"} | config
        self.broker: Any = SimpleNamespace(
            id=1,
            config=BrokerConfig.load(properties),
            metadata=cluster.brokers[1].metadata,
            controller=shell,
            lane=SlowLane(),
            waiting=lambda call, give_up: nullcontext(),
            topic_admin=cluster.admin(shell),
        )

    async def call(self, handler: Any, request: Any, version: int | None = None) -> Any:
        version = LATEST[handler] if version is None else version
        response = await handler(self.broker, request, SimpleNamespace(version=version))
        encode(response, version)
        return response

    async def create(self, *topics: CreatableTopic, timeout_ms: int = 5000, validate_only: bool = False) -> Any:
        request = CreateTopicsRequest(topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only)
        return (await self.call(create_topics, request)).topics

    async def delete(self, *topics: DeleteTopicState, timeout_ms: int = 5000) -> Any:
        request = DeleteTopicsRequest(topics=list(topics), timeout_ms=timeout_ms)
        return (await self.call(delete_topics, request)).responses


def new(name: str, partitions: int = 1, replication_factor: int = 1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


async def one_broker(cluster: Cluster, **config: str) -> Client:
    await cluster.start_broker(1)
    shell = await cluster.start_shell(1)
    await eventually(lambda: shell.is_active and 1 in cluster.brokers[1].metadata.brokers)
    return Client(cluster, shell, **config)


def codes(results: Any) -> list[ErrorCode]:
    return [ErrorCode(result.error_code) for result in results]


def test_a_topic_is_there_when_its_creation_is_answered() -> None:
    async def story(cluster: Cluster) -> None:
        client = await one_broker(cluster)
        (result,) = await client.create(new("t", 3, retention_ms="77"))
        assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
        assert result.error_message is None
        configs = {config.name: config for config in result.configs}
        assert configs["retention.ms"].value == "77"
        assert configs["retention.ms"].config_source == 1
        assert configs["cleanup.policy"].value == "delete"
        topic = client.broker.metadata.topic("t")
        assert len(topic.partitions) == 3
        assert topic.has_leaders
        assert topic.topic_id == result.topic_id != ZERO_UUID

    play(story)


def test_topics_are_refused_one_by_one() -> None:
    async def story(cluster: Cluster) -> None:
        client = await one_broker(cluster)
        assigned = CreatableTopic(
            name="given",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
        )
        results = await client.create(
            new("t"), new("twice"), new("bad name"), new("wide", 1, 3), assigned, new("twice"), new("dflt", -1, -1)
        )
        assert [result.name for result in results] == ["t", "twice", "bad name", "wide", "given", "dflt"]
        assert codes(results) == [
            ErrorCode.NONE,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.NONE,
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ]
        assert all(result.error_message for result in results if result.error_code)
        assert codes(await client.create(new("t"))) == [ErrorCode.TOPIC_ALREADY_EXISTS]

    play(story)


def test_too_many_partitions_are_refused_before_any_is_made() -> None:
    async def story(cluster: Cluster) -> None:
        client = await one_broker(cluster)
        results = await client.create(new("t"), new("u", 2**31 - 1))
        assert codes(results) == [ErrorCode.POLICY_VIOLATION] * 2
        await client.create(new("t"))
        more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=10_002)], timeout_ms=1000)
        assert codes((await client.call(create_partitions, more)).results) == [ErrorCode.POLICY_VIOLATION]

    play(story)


def test_a_rehearsal_creates_nothing() -> None:
    async def story(cluster: Cluster) -> None:
        client = await one_broker(cluster)
        (result,) = await client.create(new("t", 2), validate_only=True)
        assert (result.error_code, result.num_partitions) == (0, 2)
        assert client.broker.metadata.topic("t") is None

    play(story)


def test_what_takes_too_long_is_timed_out_and_happens_all_the_same() -> None:
    async def story(cluster: Cluster) -> None:
        client = await one_broker(cluster)
        cluster.brokers[1].drops_answers = 20
        assert codes(await client.create(new("t"), timeout_ms=0)) == [ErrorCode.REQUEST_TIMED_OUT]
        assert codes(await client.create(new("u"), timeout_ms=50)) == [ErrorCode.REQUEST_TIMED_OUT]
        await eventually(lambda: cluster.shows("t", 1) and cluster.shows("u", 1))

    play(story)


def test_partitions_are_added() -> None:
    async def story(cluster: Cluster) -> None:
        client = await one_broker(cluster)
        await client.create(new("t"))
        topics = [CreatePartitionsTopic(name=name, count=3, assignments=None) for name in ("t", "nope", "x", "x")]
        response = await client.call(create_partitions, CreatePartitionsRequest(topics=topics, timeout_ms=5000))
        assert {result.name: result.error_code for result in response.results} == {
            "t": ErrorCode.NONE,
            "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "x": ErrorCode.INVALID_REQUEST,
        }
        assert len(client.broker.metadata.topic("t").partitions) == 3

    play(story)


def test_topics_are_deleted_by_name_and_by_id_and_may_be_made_again_at_once() -> None:
    async def story(cluster: Cluster) -> None:
        client = await one_broker(cluster)
        (_, u) = await client.create(new("t"), new("u"))
        for _ in range(3):
            assert codes(await client.delete(DeleteTopicState(name="t"))) == [ErrorCode.NONE]
            assert client.broker.metadata.topic("t") is None
            assert codes(await client.create(new("t"))) == [ErrorCode.NONE]
        (result,) = await client.delete(DeleteTopicState(topic_id=u.topic_id))
        assert (result.name, result.topic_id, result.error_code) == ("u", u.topic_id, 0)
        results = await client.delete(
            DeleteTopicState(topic_id=u.topic_id),
            DeleteTopicState(name="u"),
            DeleteTopicState(name="t", topic_id=b"x" * 16),
            DeleteTopicState(name="v"),
            DeleteTopicState(name="v"),
            DeleteTopicState(),
        )
        assert sorted(codes(results)) == sorted(
            [
                ErrorCode.UNKNOWN_TOPIC_ID,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.INVALID_REQUEST,
                ErrorCode.INVALID_REQUEST,
                ErrorCode.INVALID_REQUEST,
            ]
        )
        response = await client.call(delete_topics, DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), 1)
        assert codes(response.responses) == [ErrorCode.NONE]

    play(story)


def test_a_deletion_that_waits_for_a_dead_broker_is_answered() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.start_broker(2)
        client = await one_broker(cluster)
        await client.create(new("t", 1, 2))
        await cluster.stop_broker(2)
        await eventually(lambda: list(cluster.brokers[1].metadata.brokers) == [1])
        assert codes(await client.delete(DeleteTopicState(name="t"))) == [ErrorCode.NONE]
        assert codes(await client.create(new("t"))) == [ErrorCode.TOPIC_ALREADY_EXISTS]
        await cluster.start_broker(2)
        await eventually(lambda: not client.broker.controller.image.topics)
        assert codes(await client.create(new("t"))) == [ErrorCode.NONE]

    play(story)


def test_deletion_may_be_disabled() -> None:
    async def story(cluster: Cluster) -> None:
        client = await one_broker(cluster, **{"delete.topic.enable": "false"})
        await client.create(new("t"))
        assert codes(await client.delete(DeleteTopicState(name="t"))) == [ErrorCode.TOPIC_DELETION_DISABLED]
        response = await client.call(delete_topics, DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), 2)
        assert codes(response.responses) == [ErrorCode.INVALID_REQUEST]

    play(story)


def test_only_the_controller_does_it() -> None:
    async def story(cluster: Cluster) -> None:
        await one_broker(cluster)
        client = Client(cluster, await cluster.start_shell(2))
        assert codes(await client.create(new("t"))) == [ErrorCode.NOT_CONTROLLER]
        assert codes(await client.delete(DeleteTopicState(name="t"))) == [ErrorCode.NOT_CONTROLLER]
        more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=2)], timeout_ms=1)
        assert codes((await client.call(create_partitions, more)).results) == [ErrorCode.NOT_CONTROLLER]

    play(story)

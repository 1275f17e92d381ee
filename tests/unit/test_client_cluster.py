"""Finding a cluster: addresses, metadata that never goes back, retries with a deadline, controller and coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from tests.kits.clientkit import P0, simulate
from tests.kits.fake_broker import CLOSE, SILENCE, FakeBroker, FakeCluster
from tidelog.client.addresses import FormerAddresses, address_text, parse_bootstrap
from tidelog.client.admin import Admin, Resource, ResourceType
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError, DeadlineError, UnknownTopicError, error_code
from tidelog.client.metadata import ClusterMetadata
from tidelog.client.settings import ClientSettings
from tidelog.errors import ErrorCode
from tidelog.net.calling import CannotConnectError, RequestTimedOutError
from tidelog.wire.messages.configs import DescribeConfigsResponse, DescribeConfigsResult
from tidelog.wire.messages.metadata import (
    Coordinator,
    FindCoordinatorResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse

METADATA, FIND_COORDINATOR, CREATE_TOPICS, DESCRIBE_CONFIGS = 3, 10, 19, 32


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("h:1", [("h", 1)]),
        ("h", [("h", 9092)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("[::1]:5", [("::1", 5)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", ",", "h:0", "h:x", ":1", "::1", "h:70000"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_bootstrap(text)


def test_address_text() -> None:
    assert address_text(("::1", 1)) == "[::1]:1"
    assert address_text(("h", 1)) == "h:1"


def answer(leader: int, epoch: int, topic_id: bytes = b"a" * 16, error: int = 0) -> MetadataResponse:
    partition = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    topic = MetadataResponseTopic(name="orders", topic_id=topic_id, partitions=[partition], error_code=error)
    brokers = [MetadataResponseBroker(node_id=number, host="h", port=number) for number in (2, 1)]
    return MetadataResponse(brokers=brokers, controller_id=2, topics=[topic])


def test_metadata_does_not_go_back_to_an_old_leader() -> None:
    metadata = ClusterMetadata()
    metadata.apply(answer(1, 4))
    metadata.apply(answer(2, 3))
    assert metadata.leader(P0) == 1
    metadata.apply(answer(2, 0, topic_id=b"b" * 16))  # made anew
    assert (metadata.leader(P0), metadata.leader_epoch(P0)) == (2, 0)
    metadata.led_elsewhere(P0, 1, 1)
    metadata.led_elsewhere(P0, 2, 1)
    metadata.led_elsewhere(P0, 9, 7)
    assert (metadata.leader(P0), metadata.leader_epoch(P0)) == (1, 1)
    metadata.apply(answer(9, 2, topic_id=b"b" * 16))
    assert metadata.leader(P0) is None
    metadata.apply(answer(0, 0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert metadata.errors == {"orders": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert list(metadata.brokers) == [1, 2]


def test_backoff_doubles_up_to_its_maximum() -> None:
    settings = ClientSettings(retry_backoff_ms=100, retry_backoff_max_ms=1000)
    for failures, about in [(1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (5000, 1.0)]:
        assert settings.backoff_s(failures, random.Random(failures)) == pytest.approx(about, rel=0.2)


def test_codes_from_the_future_are_unknown_errors() -> None:
    assert error_code(9999) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_nobody_at_any_address_is_told_at_once() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        began = asyncio.get_running_loop().time()
        with pytest.raises(CannotConnectError, match=r"b1:1.*b1:2"):
            await Cluster.open([("b1", 1), ("b1", 2)], random=random.Random(3))
        assert asyncio.get_running_loop().time() - began < 1
        async with await Cluster.open([("b1", 1), ("b1", 9092)], random=random.Random(3)) as other:
            assert other.metadata.cluster_id == "fake"

    simulate(story)


def test_a_bootstrap_with_a_timeout_waits_for_a_broker() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        loop = asyncio.get_running_loop()
        late = FakeBroker(fake, 2, "client")
        serving = loop.create_task(_serve_later(late, 3))
        began = loop.time()
        async with await Cluster.open([("client", 7)], random=random.Random(3), timeout_ms=60_000) as other:
            assert set(other.known_addresses) == {("b1", 9092), ("client", 7)}
        assert 3 <= loop.time() - began < 5
        await serving
        began = loop.time()
        with pytest.raises(DeadlineError, match="bootstrap: gave up after 2 s"):
            await Cluster.open([("b1", 1)], random=random.Random(3), timeout_ms=2_000)
        assert 1 < loop.time() - began <= 2.1

    simulate(story)


async def _serve_later(broker: FakeBroker, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await broker.serve(7)


def test_brokers_that_were_away_are_asked_when_the_others_are() -> None:
    """Only broker 1 is named and known when broker 2 comes back and broker 1 goes."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        assert set(cluster.known_addresses) == {("b1", 9092), ("b2", 9092)}
        away = fake.brokers.pop(2)
        await cluster.refresh_once()
        assert list(cluster.metadata.brokers) == [1]
        fake.brokers[2] = away
        fake.brokers.pop(1).close()
        (await cluster.connection(1)).close()
        await cluster.refresh_once()
        assert list(cluster.metadata.brokers) == [2]

    simulate(story, brokers=2)


def test_former_addresses_are_few_and_none_is_named_now() -> None:
    former = FormerAddresses()
    for number in range(40):
        former.learnt([("h", number)], [("h", number + 1)])
    assert list(former) == [("h", number) for number in range(39, 23, -1)]
    former.learnt([("h", 40)], [("h", 39), ("h", 38)])
    assert list(former)[:2] == [("h", 40), ("h", 37)]


def test_connections_are_shared() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        first, second = await asyncio.gather(cluster.connection(2), cluster.connection(2))
        assert first is second
        first.close()
        third = await cluster.connection(2)
        assert third is not first
        with pytest.raises(BrokerError, match="broker 7: BROKER_NOT_AVAILABLE"):
            await cluster.connection(7)

    simulate(story, brokers=2)


def test_an_unknown_topic_is_asked_for_twice() -> None:
    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        before = len(fake.brokers[1].of_key(METADATA))
        with pytest.raises(UnknownTopicError, match=r"topic nope.*does not exist"):
            await cluster.topic("nope")
        assert len(fake.brokers[1].of_key(METADATA)) == before + 2
        assert list(await cluster.all_topics()) == ["orders"]

    simulate(story)


def test_the_controller_is_found_again() -> None:
    def not_controller(request: CreateTopicsRequest) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=ErrorCode.NOT_CONTROLLER)])

    def created(request: CreateTopicsRequest) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=request.topics[0].name, num_partitions=3)])

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[CREATE_TOPICS] = [not_controller, CLOSE, created]
        assert (await Admin(cluster).create_topic("t", partitions=3)).num_partitions == 3

    simulate(story)


def test_what_cannot_be_mended_is_raised_at_once_and_the_rest_at_the_deadline() -> None:
    def failing(code: ErrorCode) -> DescribeConfigsResponse:
        result = DescribeConfigsResult(error_code=code, error_message="so", resource_type=2, resource_name="orders")
        return DescribeConfigsResponse(results=[result])

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        resource = Resource(ResourceType.TOPIC, "orders")
        fake.brokers[1].script[DESCRIBE_CONFIGS] = [lambda request: failing(ErrorCode.INVALID_REQUEST)]
        with pytest.raises(BrokerError, match=r"topic orders: INVALID_REQUEST \(so\)"):
            await Admin(cluster).describe_configs(resource)
        fake.brokers[1].script[DESCRIBE_CONFIGS] = [lambda request: failing(ErrorCode.REQUEST_TIMED_OUT)] * 1000
        began = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineError, match=r"gave up after 60 s; last: topic orders: REQUEST_TIMED_OUT"):
            await Admin(cluster).describe_configs(resource)
        assert 55 < asyncio.get_running_loop().time() - began < 61

    simulate(story)


def test_a_coordinator_that_loads_is_waited_for() -> None:
    def found(code: ErrorCode) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key="g", node_id=1, host="b1", port=9092, error_code=code)]
        )

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        fake.brokers[1].script[FIND_COORDINATOR] = [
            lambda request: found(ErrorCode.COORDINATOR_NOT_AVAILABLE),
            lambda request: found(ErrorCode.NONE),
        ]
        assert await cluster.coordinator("g") == 1

    simulate(story)


def test_a_broker_whose_metadata_did_not_help_is_not_asked_again_and_again() -> None:
    """Seed 1542: the one open connection went to a broker that was cut off and told what had been true before."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        old = answer(2, 0, topic_id=fake.topic_id("orders"))
        old.brokers = [
            MetadataResponseBroker(node_id=broker.id, host=broker.host, port=broker.port)
            for broker in fake.brokers.values()
        ]
        fake.brokers[1].script[METADATA] = [lambda request: old] * 1000
        fake.leaders[P0], fake.leader_epochs[P0] = 3, 1

        async def attempt() -> None:
            if cluster.metadata.leader(P0) != 3:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "orders-0")

        await cluster.retrying(attempt, "orders-0", topics=["orders"], timeout_ms=2_000)
        assert len(fake.brokers[1].script[METADATA]) > 990

    simulate(story, brokers=3)


def test_a_broker_that_says_nothing_is_asked_last() -> None:
    """Seed 1623: a broker that waits for its controller keeps requests for metadata for ten seconds."""

    async def story(cluster: Cluster, fake: FakeCluster) -> None:
        await cluster.connection(2)
        fake.brokers[1].script[METADATA] = [SILENCE] * 1000
        before = len(fake.brokers[1].of_key(METADATA))
        for _ in range(8):
            with contextlib.suppress(RequestTimedOutError):
                await cluster.refresh_once()
            await cluster.connection(1)
        assert len(fake.brokers[1].of_key(METADATA)) <= before + 1

    simulate(story, brokers=2)

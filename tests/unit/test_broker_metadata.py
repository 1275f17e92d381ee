"""Metadata, DescribeCluster, DescribeTopicPartitions: what a client learns of the cluster."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import Kit, run, within
from tidelog.broker.metadata import FULL_UPDATE, LEADER_DURING_DELETE, MetadataCache, TopicMetadata
from tidelog.errors import ErrorCode
from tidelog.host.clock import SystemClock
from tidelog.lab.broker import eventually
from tidelog.net.calling import Connection
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.wire.messages.controller import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tidelog.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)


def ask(*names: str | bytes, create: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=[
            MetadataRequestTopic(name=None, topic_id=name)
            if isinstance(name, bytes)
            else MetadataRequestTopic(name=name)
            for name in names
        ],
        allow_auto_topic_creation=create,
    )


@pytest.mark.parametrize("version", range(14))
def test_every_version(version: int) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic("t", 2)
        request = ask("t", "nobody", create=True) if version < 4 else ask("t", "nobody")
        answer: MetadataResponse = await kit.call(request, version)
        assert [(one.node_id, one.host, one.port) for one in answer.brokers] == [(1, "b1", 9092)]
        assert answer.controller_id == (1 if version >= 1 else -1)
        assert answer.cluster_id == (kit.broker.cluster_id if version >= 2 else None)
        topic, missing = answer.topics
        assert (topic.error_code, topic.name) == (0, "t")
        assert topic.topic_id == (topic_id if version >= 10 else ZERO_UUID)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [one.partition_index for one in topic.partitions] == [0, 1]
        for one in topic.partitions:
            assert (one.leader_id, one.replica_nodes, one.isr_nodes, one.offline_replicas) == (1, [1], [1], [])
            assert one.leader_epoch == (0 if version >= 7 else -1)

    run(story, auto_create_topics_enable="false")


@pytest.mark.parametrize("version", range(14))
def test_all_topics_and_no_topics(version: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("a")
        await kit.create_topic("b")
        everything = MetadataRequest(topics=[] if version == 0 else None)
        answer = await kit.call(everything, version)
        assert sorted(topic.name for topic in answer.topics) == ["a", "b"]
        if version >= 1:
            assert (await kit.call(MetadataRequest(topics=[]), version)).topics == []

    run(story)


@pytest.mark.parametrize("version", [12, 13])
def test_topics_by_id(version: int) -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        answer = await kit.call(ask(topic_id, b"?" * 16), version)
        known, unknown = answer.topics
        assert (known.error_code, known.name, known.topic_id) == (0, "t", topic_id)
        assert (unknown.error_code, unknown.name, unknown.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, b"?" * 16)

    run(story)


def test_authorized_operations_are_told_to_who_asks() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        request = ask("t", "nobody")
        request.include_topic_authorized_operations = True
        request.include_cluster_authorized_operations = True
        answer = await kit.call(request, 8)
        assert [topic.topic_authorized_operations for topic in answer.topics] == [3576, -(2**31)]
        assert answer.cluster_authorized_operations == 8096
        plain = await kit.call(ask("t"), 8)
        assert plain.topics[0].topic_authorized_operations == -(2**31)

    run(story)


# Auto creation


@pytest.mark.parametrize("version", [0, 3, 4, 13])
def test_a_missing_topic_is_created(version: int) -> None:
    async def story(kit: Kit) -> None:
        answer = await kit.call(ask("new", create=True), version)
        assert answer.topics[0].error_code in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE)
        await kit.leads("new", 3)
        again = await kit.call(ask("new", create=True), version)
        assert (again.topics[0].error_code, len(again.topics[0].partitions)) == (0, 3)

    run(story, num_partitions="3")


def test_who_does_not_want_it_gets_no_topic() -> None:
    async def story(kit: Kit) -> None:
        answer = await kit.call(ask("new"), 13)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert kit.broker.metadata.topics == {}

    run(story)


def test_many_clients_ask_for_one_topic_at_once() -> None:
    async def story(kit: Kit) -> None:
        connections: list[Connection] = [await kit.connect() for _ in range(20)]
        calls = [one.call(ask("new", f"own{n}", create=True), 13) for n, one in enumerate(connections)]
        answers = await asyncio.gather(*calls)
        codes = {topic.error_code for answer in answers for topic in answer.topics}
        assert codes <= {ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE}
        await kit.leads("new")
        for number in range(20):
            await kit.leads(f"own{number}")
        assert not kit.broker.auto_creation._under_way

    run(story)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "x" * 250, "sl/ash", "ü"])
def test_names_that_are_none(name: str) -> None:
    async def story(kit: Kit) -> None:
        for create in (False, True):
            answer = await kit.call(ask(name, create=create), 9)
            assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert kit.broker.metadata.topics == {}

    run(story)


def test_a_creation_that_cannot_be() -> None:
    async def story(kit: Kit) -> None:
        answer = await kit.call(ask("new", create=True), 13)
        assert answer.topics[0].error_code in (
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
        assert kit.broker.metadata.topics == {}

    run(story, default_replication_factor="3")


def test_a_creation_that_takes_long_does_not_keep_metadata_waiting() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        kit.store.suspend()
        async with within(2.0):
            answer = await kit.call(ask("t", "new", create=True), 13)
        assert [topic.error_code for topic in answer.topics] == [0, ErrorCode.LEADER_NOT_AVAILABLE]
        kit.store.resume()
        for _ in range(100):
            await kit.call(ask("new", create=True), 13)
            await asyncio.sleep(0.1)
            if kit.broker.metadata.topic("new") is not None:
                break
        await kit.leads("new")

    run(story)


# Several listeners


def test_a_client_is_told_the_addresses_of_its_listener() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for port in (9092, 9093):
            connection = await Connection.open("b1", port, client_id="kit")
            answer = await connection.call(ask("t"), 13)
            assert [(one.host, one.port) for one in answer.brokers] == [("b1", port)]
            assert (answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].leader_id) == (0, 1)
            cluster = await connection.call(DescribeClusterRequest(), 2)
            assert [(one.host, one.port) for one in cluster.brokers] == [("b1", port)]

    run(
        story,
        listeners="PLAINTEXT://b1:9092,SECOND://b1:9093",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT",
    )


# The cache


def _update(
    topics: dict[str, tuple[bytes, dict[int, int]]], *, full: bool = False, listeners: tuple[str, ...] = ("PLAINTEXT",)
) -> UpdateMetadataRequest:
    brokers = [
        UpdateMetadataBroker(
            id=number,
            endpoints=[UpdateMetadataEndpoint(host=f"b{number}", port=9092, listener=name) for name in listeners],
        )
        for number in (1, 2)
    ]
    states = [
        UpdateMetadataTopicState(
            topic_name=name,
            topic_id=topic_id,
            partition_states=[
                UpdateMetadataPartitionState(partition_index=index, leader=leader, isr=[1], replicas=[1, 3])
                for index, leader in partitions.items()
            ],
        )
        for name, (topic_id, partitions) in topics.items()
    ]
    return UpdateMetadataRequest(
        controller_id=2, type=FULL_UPDATE if full else 1, topic_states=states, live_brokers=brokers
    )


def test_the_cache_follows_topics_that_come_and_go() -> None:
    cache = MetadataCache(SystemClock())
    a, b, c = b"a" * 16, b"b" * 16, b"c" * 16
    cache.apply(_update({"a": (a, {0: 1, 1: 2}), "b": (b, {0: 1})}))
    assert (cache.name_of(a), cache.name_of(b), cache.controller_id) == ("a", "b", 2)
    cache.apply(_update({"a": (a, {1: 1})}))
    found = cache.topic("a")
    assert found is not None
    assert {index: one.leader for index, one in found.partitions.items()} == {0: 1, 1: 1}
    cache.apply(_update({"a": (a, {0: LEADER_DURING_DELETE, 1: LEADER_DURING_DELETE})}))
    assert (cache.topic("a"), cache.name_of(a)) == (None, None)
    cache.apply(_update({"a": (c, {0: 1})}))
    assert (cache.name_of(c), cache.name_of(a)) == ("a", None)
    cache.apply(_update({"b": (c, {0: 1})}, full=True))
    assert (cache.topic("a"), cache.name_of(b), cache.name_of(c)) == (None, None, "b")


def test_deletions_are_told_with_the_ids_of_what_is_no_more() -> None:
    cache = MetadataCache(SystemClock())
    a, b, c = b"a" * 16, b"b" * 16, b"c" * 16
    assert cache.apply(_update({"a": (a, {0: 1}), "b": (b, {0: 1})})) == {}
    assert cache.apply(_update({"a": (a, {0: LEADER_DURING_DELETE})})) == {"a": a}
    assert cache.apply(_update({"b": (c, {0: 1})})) == {"b": b}
    assert cache.apply(_update({"b": (b, {0: LEADER_DURING_DELETE})})) == {}, "told late"
    assert cache.id_of("b") == c
    assert cache.apply(_update({"d": (a, {0: LEADER_DURING_DELETE})})) == {"d": a}, "of it only the end is told"
    assert cache.topic("d") is None


def test_a_topic_that_a_full_update_leaves_out_is_deleted_when_its_name_comes_back_with_another_id() -> None:
    cache = MetadataCache(SystemClock())
    a, b, c = b"a" * 16, b"b" * 16, b"c" * 16
    cache.apply(_update({"a": (a, {0: 1}), "b": (b, {0: 1})}))
    assert cache.apply(_update({}, full=True)) == {}, "it may know too little"
    assert cache.apply(_update({"a": (a, {0: 1})})) == {}
    assert cache.apply(_update({"b": (c, {0: 1})})) == {"b": b}
    assert cache.apply(_update({"b": (c, {0: 2})})) == {}


def test_a_broker_that_is_gone_is_listed_for_clients_a_while_longer() -> None:
    now_ns = 5

    class StillClock(SystemClock):
        def monotonic_ns(self) -> int:
            return now_ns

    cache = MetadataCache(StillClock())
    both, alone = _update({}), _update({})
    del alone.live_brokers[0]
    stayed, gone = (broker.id for broker in reversed(both.live_brokers))

    def listed() -> list[int]:
        return [broker.id for broker in cache.listed_on("PLAINTEXT")]

    cache.apply(both)
    cache.apply(alone)
    assert list(cache.brokers) == [broker.id for broker in cache.brokers_on("PLAINTEXT")] == [stayed]
    assert listed() == sorted([stayed, gone])
    now_ns += 2_900_000_000
    cache.apply(alone)
    assert listed() == sorted([stayed, gone]), "counted from when it went"
    now_ns += 200_000_000
    assert listed() == [stayed]
    cache.apply(both)
    assert listed() == sorted([stayed, gone])


def test_leaders_that_cannot_be_reached() -> None:
    async def story(kit: Kit) -> None:
        update = _update({"x": (b"x" * 16, {0: -1, 1: 3, 2: 2})})
        update.controller_epoch = kit.controller_epoch
        update.controller_id, update.broker_epoch = kit.broker_id, kit.broker.epoch
        update.live_brokers[1].endpoints[0].listener = "ELSEWHERE"
        update.live_brokers[0].endpoints[0].host = "b1"
        await kit.call(update, 8)
        answer = await kit.call(ask("x"), 13)
        found = [(one.error_code, one.leader_id, one.offline_replicas) for one in answer.topics[0].partitions]
        assert found == [
            (ErrorCode.LEADER_NOT_AVAILABLE, -1, [3]),
            (ErrorCode.LEADER_NOT_AVAILABLE, -1, [3]),
            (ErrorCode.LISTENER_NOT_FOUND, -1, [3]),
        ]
        assert [one.node_id for one in answer.brokers] == [1]

    run(story)


def test_who_comes_before_the_controller_waits_for_it() -> None:
    """The others name a broker as soon as it has joined: it must not deny what it has not been told of yet."""

    async def story(kit: Kit) -> None:
        await kit.create_topic("t")
        known, kit.broker.metadata.is_complete = kit.broker.metadata.topics, False
        kit.broker.metadata.topics = {}
        config = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name="t")])
        asked = [
            asyncio.ensure_future(kit.call(request, version))
            for request, version in ((ask("t"), 12), (_page("t"), 0), (DescribeClusterRequest(), 1), (config, 4))
        ]
        await asyncio.sleep(1)
        assert not any(one.done() for one in asked)
        kit.broker.metadata.topics = known
        kit.broker.metadata.apply(UpdateMetadataRequest(type=FULL_UPDATE, controller_id=1, topic_states=_states(known)))
        metadata, page, cluster, configs = await asyncio.gather(*asked)
        assert [topic.error_code for topic in (*metadata.topics, *page.topics)] == [0, 0]
        assert cluster.error_code == 0
        assert configs.results[0].error_code == 0

    run(story)


def _states(topics: dict[str, TopicMetadata]) -> list[UpdateMetadataTopicState]:
    """As the controller would tell of them."""
    return [
        UpdateMetadataTopicState(
            topic_name=topic.name,
            topic_id=topic.topic_id,
            partition_states=[
                UpdateMetadataPartitionState(partition_index=index, leader=one.leader, replicas=list(one.replicas))
                for index, one in topic.partitions.items()
            ],
        )
        for topic in topics.values()
    ]


# DescribeCluster


@pytest.mark.parametrize("version", [0, 1, 2])
def test_describe_cluster(version: int) -> None:
    async def story(kit: Kit) -> None:
        answer = await kit.call(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, kit.broker.cluster_id, 1)
        assert [(one.broker_id, one.host, one.port, one.rack) for one in answer.brokers] == [(1, "b1", 9092, "r1")]
        assert answer.cluster_authorized_operations == 8096
        if version >= 1:
            wrong = await kit.call(DescribeClusterRequest(endpoint_type=2), version)
            assert wrong.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE

    run(story, broker_rack="r1")


# DescribeTopicPartitions


def _page(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else DescribeTopicPartitionsRequestCursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 7, 100])
def test_pages_of_partitions(limit: int) -> None:
    async def story(kit: Kit) -> None:
        for name, count in (("a", 3), ("b", 1), ("c", 3)):
            await kit.create_topic(name, count)
        found: list[tuple[str, int]] = []
        cursor: tuple[str, int] | None = None
        for _ in range(10):
            answer = await kit.call(_page(limit=limit, cursor=cursor), 0)
            page = [(topic.name, one.partition_index) for topic in answer.topics for one in topic.partitions]
            assert len(page) <= max(limit, 1)
            found += page
            if answer.next_cursor is None:
                break
            cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
        assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2)]

    run(story)


def test_described_partitions() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic("t")
        answer = await kit.call(_page("t", "nobody", "b a d"), 0)
        bad, nobody, topic = answer.topics
        assert (bad.error_code, nobody.error_code) == (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        assert (topic.name, topic.topic_id, topic.topic_authorized_operations) == ("t", topic_id, 3576)
        one = topic.partitions[0]
        assert (one.leader_id, one.leader_epoch, one.isr_nodes, one.replica_nodes) == (1, 0, [1], [1])
        assert (one.eligible_leader_replicas, one.last_known_elr) == ([], [])

    run(story)


def test_waiting_for_the_cache() -> None:
    async def main() -> None:
        cache = MetadataCache(SystemClock())
        waiting = asyncio.ensure_future(cache.wait_until(lambda: cache.topic("a") is not None, 5))
        assert not await cache.wait_until(lambda: cache.topic("a") is not None, 0.01)
        assert not waiting.done()
        cache.apply(_update({"a": (b"a" * 16, {0: 1})}))
        assert await waiting
        gone = asyncio.ensure_future(cache.wait_until(lambda: False, 5))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert not cache._waiting

    asyncio.run(main())


def test_a_deleted_topic_is_not_known_any_more() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        await kit.delete_topic()
        await eventually(lambda: kit.broker.metadata.name_of(topic_id) is None)
        answer = await kit.call(ask("t", topic_id), 13)
        assert [topic.error_code for topic in answer.topics] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ]

    run(story)

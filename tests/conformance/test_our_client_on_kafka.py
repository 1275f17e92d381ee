"""Our client and our commands on Apache Kafka 4.1.0: what they do on tidelog they do there too."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer as ConfluentProducer

from peers.clients import consume, create_topic
from peers.kafka import CLUSTER_ID, KraftBroker
from tidelog.cli.main import main
from tidelog.client.addresses import parse_bootstrap
from tidelog.client.admin import HIGH_WATERMARK, Admin, ConfigSource, Resource, ResourceType
from tidelog.client.cluster import GROUP, Cluster
from tidelog.client.committed import visible_records
from tidelog.client.errors import BrokerError
from tidelog.client.fetch import Fetcher, FetchSettings
from tidelog.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, Isolation, list_offsets
from tidelog.client.partitioner import partition_of_key
from tidelog.client.produce import Producer
from tidelog.errors import ErrorCode
from tidelog.records.build import build_batch
from tidelog.records.header import Codec
from tidelog.types import TopicPartition

pytestmark = pytest.mark.jvm

T = TypeVar("T")
DEADLINE_S = 30


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftBroker]:
    with KraftBroker(tmp_path_factory.mktemp("our-client-on-kafka")) as broker:
        yield broker


def on(kafka: KraftBroker, story: Callable[[Cluster], Awaitable[T]]) -> T:
    async def run() -> T:
        async with asyncio.timeout(DEADLINE_S):
            addresses = parse_bootstrap(kafka.bootstrap)
            async with await Cluster.open(addresses, random=random.Random(1)) as cluster:
                return await story(cluster)

    return asyncio.run(run())


def tidelog(kafka: KraftBroker, *arguments: str, input: str | bytes = b"", exits: int = 0) -> str:
    result = CliRunner().invoke(main, arguments, input=input, env={"TIDELOG_BOOTSTRAP": kafka.bootstrap})
    assert result.exit_code == exits, result.output
    return result.stdout if exits == 0 else result.stderr


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def broker_setting(kafka: KraftBroker, name: str) -> object:
    found = rows(tidelog(kafka, "configs", "describe", "--broker", "1", "--json", name))
    return found[0]["value"] if found else None


def test_the_commands(kafka: KraftBroker) -> None:
    created = tidelog(kafka, "topics", "create", "cli", "--partitions", "3", "--config", "retention.ms=600000")
    assert created == "created topic cli: 3 partitions, replication factor 1\n"
    assert "TOPIC_ALREADY_EXISTS" in tidelog(kafka, "topics", "create", "cli", exits=1)
    lines = "".join(f"key-{number}:value-{number}\n" for number in range(100))
    tidelog(kafka, "produce", "cli", "--key-separator", ":", "--header", "h=1", "--compression", "lz4", input=lines)
    found = rows(tidelog(kafka, "consume", "cli", "--json"))
    assert {row["key"]: row["value"] for row in found} == {f"key-{n}": f"value-{n}" for n in range(100)}
    assert all(row["headers"] == [{"key": "h", "value": "1"}] for row in found)
    assert all(row["partition"] == partition_of_key(row["key"].encode(), 3) for row in found)
    assert len(rows(tidelog(kafka, "consume", "cli", "--json", "--offset=-2"))) == 6
    tidelog(kafka, "topics", "alter", "cli", "--partitions", "4", "--config", "retention.ms=700000")
    (described,) = rows(tidelog(kafka, "topics", "describe", "cli", "--json"))
    assert (described["partitions"], described["configs"]["retention.ms"]) == (4, 700_000)
    tidelog(kafka, "configs", "delete", "--topic", "cli", "retention.ms")
    assert "INVALID_CONFIG" in tidelog(kafka, "configs", "alter", "--topic", "cli", "retention.ms=x", exits=1)
    tidelog(kafka, "configs", "alter", "--broker", "1", "log.retention.ms=99999999")
    give_up_at = time.monotonic() + DEADLINE_S
    while broker_setting(kafka, "log.retention.ms") != 99_999_999:  # the broker hears of it later than the controller
        assert time.monotonic() < give_up_at
    tidelog(kafka, "topics", "delete", "cli", "--yes")
    assert "cli" not in [row["topic"] for row in rows(tidelog(kafka, "topics", "list", "--json"))]


def test_every_codec_is_read_back_by_librdkafka(kafka: KraftBroker) -> None:
    create_topic(kafka.bootstrap, "codecs")
    headers = [("a", b"1"), ("a", None)]

    async def story(cluster: Cluster) -> None:
        await cluster.topic("codecs")
        producer = Producer(cluster)
        for codec in Codec:
            records = [(1000 + codec, None, None, headers), (1000 + codec, b"k", b"v" * 2000, ())]
            produced = await producer.send(TopicPartition("codecs", 0), build_batch(records, codec=codec))
            assert produced.base_offset == 2 * codec
        producer.close()

    on(kafka, story)
    found = consume(kafka.bootstrap, "codecs")
    assert [(record.key, record.value) for record in found] == [(None, None), (b"k", b"v" * 2000)] * len(Codec)
    assert [record.timestamp for record in found] == [1000 + codec for codec in Codec for _ in range(2)]
    assert found[0].headers == tuple(headers)


def test_a_lost_answer_is_a_duplicate_to_kafka(kafka: KraftBroker) -> None:
    create_topic(kafka.bootstrap, "once")
    partition = TopicPartition("once", 0)

    async def story(cluster: Cluster) -> list[int]:
        await cluster.topic("once")
        producer = Producer(cluster)
        await producer.send(partition, build_batch([(1, None, b"0")]))
        futures = []
        for number in range(1, 200):
            futures.append(producer.send(partition, build_batch([(1, None, b"%d" % number)])))
            await asyncio.sleep(0)
            if number % 20 == 0:
                (await cluster.connection(1)).close()
        await producer.flush()
        producer.close()
        return [(await future).base_offset for future in futures]

    assert on(kafka, story) == list(range(1, 200))
    assert [int(record.value or b"") for record in consume(kafka.bootstrap, "once")] == list(range(200))


def test_a_refused_batch_does_not_stop_those_behind_it(kafka: KraftBroker) -> None:
    create_topic(kafka.bootstrap, "refusing", config={"max.message.bytes": 1000})
    partition = TopicPartition("refusing", 0)

    async def story(cluster: Cluster) -> None:
        await cluster.topic("refusing")
        producer = Producer(cluster)
        sizes = [10, 10, 5000, 10, 10]
        futures = [producer.send(partition, build_batch([(1, None, b"v" * size)])) for size in sizes]
        await producer.flush()
        producer.close()
        with pytest.raises(BrokerError) as failure:
            await futures[2]
        assert failure.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert [(await futures[number]).base_offset for number in (0, 1, 3, 4)] == [0, 1, 2, 3]

    on(kafka, story)


def test_fetching_many_partitions_in_a_session_by_isolation(kafka: KraftBroker) -> None:
    create_topic(kafka.bootstrap, "transacted", partitions=20)
    producer = ConfluentProducer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(DEADLINE_S)
    for commit in (True, False, True):
        producer.begin_transaction()
        for number in range(20):
            producer.produce("transacted", value=b"%d" % commit, partition=number)
        producer.flush(DEADLINE_S)
        if commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)

    async def read(cluster: Cluster, isolation: Isolation) -> list[bytes | None]:
        await cluster.topic("transacted")
        positions = {TopicPartition("transacted", number): 0 for number in range(20)}
        fetcher = Fetcher(cluster, positions, FetchSettings(isolation=isolation, max_partition_fetch_bytes=1))
        values: list[bytes | None] = []
        while any(position < 6 for position in positions.values()):
            for fetched in await fetcher.next():
                aborted = fetched.aborted if isolation is Isolation.READ_COMMITTED else ()
                values += [record.value for record in visible_records(fetched.records, aborted, fetched.fetch_offset)]
                positions[fetched.partition] = fetched.next_offset
        fetcher.close()
        return values

    assert on(kafka, lambda cluster: read(cluster, Isolation.READ_COMMITTED)) == [b"1"] * 40
    assert len(on(kafka, lambda cluster: read(cluster, Isolation.READ_UNCOMMITTED))) == 60
    shown = tidelog(kafka, "consume", "transacted")
    assert sorted(shown.split()) == ["0"] * 20 + ["1"] * 40
    assert tidelog(kafka, "consume", "transacted", "--isolation", "read_committed").split() == ["1"] * 40


def test_offsets_and_the_start_of_the_log(kafka: KraftBroker) -> None:
    create_topic(kafka.bootstrap, "offsets", partitions=2)
    first, second = TopicPartition("offsets", 0), TopicPartition("offsets", 1)

    async def story(cluster: Cluster) -> None:
        await cluster.topic("offsets")
        producer = Producer(cluster)
        await producer.send(first, build_batch([(time, None, b"v") for time in (100, 300, 200)]))
        producer.close()

        async def at(time: int, partition: TopicPartition = first) -> tuple[int, int]:
            found = (await list_offsets(cluster, {partition: time}))[partition]
            return found.offset, found.timestamp

        assert [await at(time) for time in (100, 101, 300)] == [(0, 100), (1, 300), (1, 300)]
        assert (await at(301), await at(EARLIEST), await at(LATEST)) == ((-1, -1), (0, -1), (3, -1))
        assert await at(MAX_TIMESTAMP) == (1, 300)
        assert await Admin(cluster).delete_records({first: 2, second: HIGH_WATERMARK}) == {first: 2, second: 0}
        assert (await at(EARLIEST))[0] == 2
        fetcher = Fetcher(cluster, {first: 0}, FetchSettings(out_of_range=EARLIEST))
        (fetched,) = await fetcher.next()
        assert (fetched.fetch_offset, fetched.next_offset) == (2, 3)
        assert [record.offset for record in visible_records(fetched.records, (), fetched.fetch_offset)] == [2]
        fetcher.close()

    on(kafka, story)


async def _topics_with_logs(admin: Admin) -> list[str]:
    (log_dir,) = await admin.describe_log_dirs(1)
    return [topic.name for topic in log_dir.topics]


def test_describing(kafka: KraftBroker) -> None:
    create_topic(kafka.bootstrap, "described", config={"cleanup.policy": "compact"})

    async def story(cluster: Cluster) -> None:
        admin = Admin(cluster)
        cluster_description = await admin.describe_cluster()
        assert (cluster_description.cluster_id, [node.id for node in cluster_description.brokers]) == (CLUSTER_ID, [1])
        async with asyncio.timeout(30):  # Kafka knows the topic before its log is made
            while "described" not in await _topics_with_logs(admin):
                await asyncio.sleep(0.05)
        (config,) = await admin.describe_configs(Resource(ResourceType.TOPIC, "described"), ["cleanup.policy"])
        assert (config.value, config.config_source) == ("compact", ConfigSource.DYNAMIC_TOPIC)
        assert await cluster.coordinator("a-group", GROUP) == 1

    on(kafka, story)

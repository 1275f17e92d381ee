"""Whoever can connect can send what brokers send, and can make a broker keep things: what that does and does not do."""

from __future__ import annotations

import asyncio
import urllib.request
from collections import Counter
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.kits.logkit import batch
from tests.kits.processclusterkit import FOLLOWER, LEADER, TOPIC, process_cluster
from tests.kits.processkit import BrokerProcess, broker_process
from tidelog.errors import ErrorCode
from tidelog.net.calling import Connection, ConnectionClosedError
from tidelog.wire.messages.controller import (
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchRequestReplicaState, FetchTopic
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.groups import DescribeGroupsRequest, JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest, MetadataRequestTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidelog.wire.schema import Message

_ANSWER_MS = 10_000
_AT_ONCE = 100
_FAR = 2**31 - 1
_ONE_COPY = {
    "offsets_topic_replication_factor": "1",
    "offsets_topic_num_partitions": "4",
    "transaction_state_log_replication_factor": "1",
    "transaction_state_log_min_isr": "1",
    "transaction_state_log_num_partitions": "1",
    "tidelog_metrics_port": "0",
}


async def connect(port: int, client_id: str = "stranger") -> Connection:
    return await Connection.open("127.0.0.1", port, client_id=client_id)


async def call(connection: Connection, request: Message, version: int) -> Any:
    return await connection.call(request, version, timeout_ms=_ANSWER_MS)


async def create_topic(connection: Connection, name: str, **config: str) -> None:
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    answer = await call(connection, CreateTopicsRequest(topics=[topic], timeout_ms=_ANSWER_MS), 7)
    assert answer.topics[0].error_code == 0, answer.topics[0]


def produce_request(topic: str, records: bytes) -> ProduceRequest:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    return ProduceRequest(acks=-1, timeout_ms=_ANSWER_MS, topic_data=[data])


async def produced(connection: Connection, topic: str, records: bytes) -> ErrorCode:
    answer = await call(connection, produce_request(topic, records), 9)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def is_refused(port: int, request: Message, version: int) -> bool:
    """By an error, or by a connection that is closed."""
    stranger = await connect(port)
    try:
        return bool((await call(stranger, request, version)).error_code)
    except ConnectionClosedError:
        return True
    finally:
        stranger.close()


def control_requests(epoch: int, broker_epoch: int) -> Iterable[tuple[Message, int]]:
    head = {"controller_id": 1, "controller_epoch": epoch, "broker_epoch": broker_epoch}
    endpoint = UpdateMetadataEndpoint(port=6666, host="elsewhere.example", listener="PLAINTEXT")
    yield UpdateMetadataRequest(**head, live_brokers=[UpdateMetadataBroker(id=1, endpoints=[endpoint])]), 8
    yield LeaderAndIsrRequest(**head, type=2), 7
    state = StopReplicaPartitionState(partition_index=0, leader_epoch=-2, delete_partition=True)
    yield StopReplicaRequest(**head, topic_states=[StopReplicaTopicState(topic_name="t", partition_states=[state])]), 4


@pytest.mark.long
def test_a_stranger_is_not_taken_for_the_controller(tmp_path: Path) -> None:
    async def story(broker: BrokerProcess) -> None:
        client = await connect(broker.port, "client")
        await create_topic(client, "t")
        assert await produced(client, "t", batch([b"precious"])) is ErrorCode.NONE
        for epoch in (1, 1_000, _FAR):
            for broker_epoch in (-1, 0, _FAR):
                for request, version in control_requests(epoch, broker_epoch):
                    assert await is_refused(broker.port, request, version), request
        assert await is_refused(broker.port, ControlledShutdownRequest(broker_id=1, broker_epoch=-1), 3)
        metadata = await call(client, MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        assert [(one.node_id, one.host, one.port) for one in metadata.brokers] == [(1, "127.0.0.1", broker.port)]
        assert [path.name for path in (broker.directory / "data").glob("t-*")] == ["t-0"]
        assert await produced(client, "t", batch([b"more"])) is ErrorCode.NONE
        await create_topic(client, "heard-of")  # the real controller is believed as before
        client.close()

    with broker_process(tmp_path) as broker:
        asyncio.run(story(broker))
        assert broker.stop() == 0
        assert not broker.lines("Traceback")


def spoofed_fetch(topic_id: bytes, offset: int, version: int, epoch: int) -> FetchRequest:
    wanted = FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[FetchPartition(partition=0, fetch_offset=offset)])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[wanted])
    if version < 15:
        request.replica_id = FOLLOWER
    else:
        request.replica_state = FetchRequestReplicaState(replica_id=FOLLOWER, replica_epoch=epoch)
    return request


def test_a_stranger_acknowledges_nothing_for_a_follower(tmp_path: Path) -> None:
    with process_cluster(tmp_path, "embedded") as cluster:

        async def story() -> None:
            client, stranger = await connect(cluster.ports[LEADER]), await connect(cluster.ports[LEADER])
            assert await produced(client, TOPIC, batch([b"one"])) is ErrorCode.NONE
            metadata = await call(client, MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 12)
            topic_id = metadata.topics[0].topic_id
            cluster.freeze(FOLLOWER)
            waiting = client.send(produce_request(TOPIC, batch([b"two"])), 9, timeout_ms=30_000)
            for version, epoch in ((11, -1), (14, -1), (17, -1), (17, 1), (17, 2**40)):
                await call(stranger, spoofed_fetch(topic_id, 2, version, epoch), version)
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done, "acknowledged without the follower"
            cluster.thaw(FOLLOWER)
            answer = await waiting
            assert answer.responses[0].partition_responses[0].error_code == 0
            client.close()
            stranger.close()

        asyncio.run(story())
        cluster.check()


async def all_of(connection: Connection, requests: Iterable[tuple[Message, int]]) -> list[Any]:
    """The answers, with so many requests under way at a time."""
    answers: list[Any] = []
    pairs = list(requests)
    for start in range(0, len(pairs), _AT_ONCE):
        answers += await asyncio.gather(
            *(
                connection.send(request, version, timeout_ms=_ANSWER_MS)
                for request, version in pairs[start : start + _AT_ONCE]
            )
        )
    return answers


def metric(broker: BrokerProcess, name: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['metrics']}/metrics") as answer:
        text = answer.read().decode()
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return int(line.split()[1])


def tell(broker: BrokerProcess, story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)
    assert broker.stop() == 0
    assert not broker.lines("Traceback")


def test_producer_ids_are_bounded(tmp_path: Path) -> None:
    async def story() -> None:
        client = await connect(broker.port)
        await create_topic(client, "t")

        def sent(producer_id: int, sequence: int) -> tuple[Message, int]:
            facts = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            return produce_request("t", batch([b"v"], **facts)), 9

        def codes(answers: Iterable[Any]) -> Counter[int]:
            return Counter(answer.responses[0].partition_responses[0].error_code for answer in answers)

        assert codes(await all_of(client, [sent(7, 0)])) == {0: 1}
        flood = codes(await all_of(client, (sent(producer_id, 0) for producer_id in range(1_000, 2_000))))
        assert flood == {0: 499, ErrorCode.NOT_ENOUGH_REPLICAS: 501}
        again = (await all_of(client, [sent(7, 0)]))[0].responses[0].partition_responses[0]
        assert (again.error_code, again.base_offset) == (0, 0), "a retry of one that is at work is still known"
        assert metric(broker, "tidelog_producer_ids") == 500
        assert metric(broker, "tidelog_refused_producer_ids_total") == 501
        client.close()

    with broker_process(tmp_path, tidelog_partition_producer_ids_max="500", **_ONE_COPY) as broker:
        tell(broker, story())


def join_request(group: str, session_ms: int = 6_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=6_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="p")],
    )


async def coordinator(connection: Connection) -> None:
    """Until this broker coordinates the groups of all partitions."""
    deadline = asyncio.get_running_loop().time() + 30
    while True:
        found = await call(connection, FindCoordinatorRequest(key_type=0, coordinator_keys=["a"]), 4)
        if not found.coordinators[0].error_code:
            answers = await all_of(connection, ((DescribeGroupsRequest(groups=[f"g{n}"]), 5) for n in range(40)))
            if not any(answer.groups[0].error_code for answer in answers):
                return
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)


def test_what_groups_keep_is_bounded(tmp_path: Path) -> None:
    async def story() -> None:
        client = await connect(broker.port)
        await create_topic(client, "t")
        await coordinator(client)
        answers = await all_of(client, ((join_request(f"g{number}"), 5) for number in range(500)))
        assert Counter(answer.error_code for answer in answers) == {ErrorCode.MEMBER_ID_REQUIRED: 500}
        assert metric(broker, "tidelog_group_pending_member_ids") == 200
        assert metric(broker, "tidelog_group_evicted_pending_member_ids_total") == 300
        answers = await all_of(client, ((commit_request(f"s{number}"), 8) for number in range(200)))
        codes = Counter(answer.topics[0].partitions[0].error_code for answer in answers)
        kept = metric(broker, "tidelog_group_offset_metadata_bytes")
        assert codes[0] * 4_096 == kept
        assert codes.keys() == {0, ErrorCode.INVALID_COMMIT_OFFSET_SIZE}, codes
        groups = "kafka_coordinator_group_groupmetadatamanager_numgroups"
        assert metric(broker, groups) == 200 + codes[0], "what is refused makes no group"
        assert kept <= 65_536 + _AT_ONCE * 4_096, "what is under way is not counted yet"
        stranger = await connect(broker.port, "c" * 32_767)
        answer = await call(stranger, join_request("s0"), 3)
        assert answer.error_code == 0
        described = await call(client, DescribeGroupsRequest(groups=["s0"]), 0)
        assert len(described.groups[0].members) == 1
        client.close()
        stranger.close()

    settings = {
        "tidelog_broker_pending_members_max": "200",
        "tidelog_broker_offset_metadata_max_bytes": "65536",
        "group_initial_rebalance_delay_ms": "0",
    }
    with broker_process(tmp_path, **settings, **_ONE_COPY) as broker:
        tell(broker, story())


def commit_request(group: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="m" * 4_096)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )

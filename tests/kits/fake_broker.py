"""Brokers for client tests: real frames over a real or simulated network, a log in memory, and scripted mishaps."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tidelog.errors import ErrorCode
from tidelog.records.header import assign, headers, read_header
from tidelog.types import TopicPartition
from tidelog.wire.api import API
from tidelog.wire.frames import RequestFrame, decode_request, encode_response
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)
from tidelog.wire.messages.headers import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.schema import Message

CLOSE = object()
"""A scripted answer: none, and the connection ends, before the request was carried out."""

CLOSE_AFTER = object()
"""The same, after it was carried out."""

SILENCE = object()
"""No answer, and the connection stays."""

SILENCE_AFTER = object()
"""The same, after it was carried out."""

_POLL_S = 0.05
"""How long a fetch that finds nothing waits."""

Scripted = object | Callable[[Any], Message]


class FakeCluster:
    """What all brokers know: who they are, the topics with their leaders, and what is in the partitions."""

    def __init__(self, cluster_id: str | None = "fake") -> None:
        self.cluster_id = cluster_id
        """Old brokers tell none."""
        self.brokers: dict[int, FakeBroker] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self.leader_epochs: dict[TopicPartition, int] = defaultdict(int)
        self.logs: dict[TopicPartition, list[bytes]] = defaultdict(list)
        self.producers: dict[tuple[TopicPartition, int], tuple[int, list[tuple[int, int, int]]]] = {}
        """By partition and producer id: the epoch, and (first sequence, next sequence, offset) of its last batches."""
        self.next_producer_id = 1000
        self.max_message_bytes: dict[str, int] = {}
        """By topic; the others take batches of any size."""
        self.refused_bytes: list[int] = []
        """The sizes of batches that were too large."""
        self.renewals: dict[str, int] = defaultdict(int)
        """How often a topic was made anew."""

    def topic_id(self, topic: str) -> bytes:
        return topic.encode().ljust(15, b".")[:15] + bytes([ord(".") + self.renewals[topic]])

    def make_anew(self, topic: str) -> None:
        """It is deleted and made again, empty, with another id."""
        self.renewals[topic] += 1
        for partition in [partition for partition in self.logs if partition.topic == topic]:
            del self.logs[partition]

    def end(self, partition: TopicPartition) -> int:
        batches = self.logs[partition]
        return read_header(batches[-1]).next_offset if batches else 0

    def append(self, partition: TopicPartition, records: bytes) -> tuple[ErrorCode, int]:
        batch = bytearray(records)
        header = read_header(batch)
        offset = self.end(partition)
        if len(batch) > self.max_message_bytes.get(partition.topic, len(batch)):
            self.refused_bytes.append(len(batch))
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if header.producer_id >= 0:
            epoch, last = self.producers.get((partition, header.producer_id), (header.producer_epoch, []))
            if header.producer_epoch > epoch:
                last = []
                if header.base_sequence:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            next_sequence = header.base_sequence + header.record_count
            for first, after, at in last:
                if (first, after) == (header.base_sequence, next_sequence):
                    return ErrorCode.NONE, at
            if last and last[-1][1] != header.base_sequence:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            entry = (header.base_sequence, next_sequence, offset)
            self.producers[partition, header.producer_id] = (header.producer_epoch, [*last, entry][-5:])
        assign(batch, 0, offset, 0)
        self.logs[partition].append(bytes(batch))
        return ErrorCode.NONE, offset


class FakeBroker(asyncio.Protocol):
    """One broker. `script[api_key]` is answered first, in order; after that it behaves."""

    def __init__(self, cluster: FakeCluster, broker_id: int, host: str = "127.0.0.1") -> None:
        self.cluster = cluster
        self.id = broker_id
        self.host = host
        self.port = 0
        self.requests: list[tuple[int, Message]] = []
        """(version, request), as they came."""
        self.script: dict[int, list[Scripted]] = defaultdict(list)
        self.max_versions: dict[int, int] = {}
        self.transports: list[asyncio.BaseTransport] = []
        """Of the open connections."""
        self._server: asyncio.AbstractServer | None = None
        cluster.brokers[broker_id] = self

    async def serve(self, port: int = 0) -> FakeBroker:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Served(self), self.host, port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def close(self) -> None:
        assert self._server is not None
        self._server.close()

    def drop_connections(self) -> None:
        for transport in self.transports:
            transport.close()

    def of_key(self, api_key: int) -> list[Any]:
        return [request for _, request in self.requests if request.__schema__.api_key == api_key]

    def handle(self, frame: RequestFrame) -> tuple[object, Message | None]:
        """(what to do, the response)."""
        request = frame.request
        key = request.__schema__.api_key
        self.requests.append((frame.header.request_api_version, request))
        scripted = self.script[key].pop(0) if self.script[key] else None
        if scripted in (CLOSE, SILENCE):
            return scripted, None
        if callable(scripted):
            return None, scripted(request)
        return scripted, self._answer(request)

    def _answer(self, request: Message) -> Message | None:
        if isinstance(request, ApiVersionsRequest):
            keys = [
                ApiVersion(
                    api_key=api.key,
                    min_version=api.versions.first,
                    max_version=self.max_versions.get(api.key, api.versions.last),
                )
                for api in API.values()
            ]
            return ApiVersionsResponse(api_keys=keys)
        if isinstance(request, MetadataRequest):
            return self._metadata(request)
        if isinstance(request, DescribeClusterRequest):
            brokers = [
                DescribeClusterBroker(broker_id=broker.id, host=broker.host, port=broker.port)
                for broker in self.cluster.brokers.values()
            ]
            return DescribeClusterResponse(
                cluster_id=self.cluster.cluster_id or "", controller_id=min(self.cluster.brokers), brokers=brokers
            )
        if isinstance(request, InitProducerIdRequest):
            self.cluster.next_producer_id += 1
            return InitProducerIdResponse(producer_id=self.cluster.next_producer_id, producer_epoch=0)
        if isinstance(request, ProduceRequest):
            return self._produce(request)
        if isinstance(request, FetchRequest):
            return self._fetch(request)
        if isinstance(request, ListOffsetsRequest):
            return self._list_offsets(request)
        raise NotImplementedError(type(request).__name__)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = dict.fromkeys(partition.topic for partition in self.cluster.leaders)
        asked = list(names) if request.topics is None else [topic.name or "" for topic in request.topics]
        topics = []
        for name in asked:
            partitions = [
                MetadataResponsePartition(
                    partition_index=partition.partition,
                    leader_id=leader,
                    leader_epoch=self.cluster.leader_epochs[partition],
                    replica_nodes=[leader],
                    isr_nodes=[leader],
                )
                for partition, leader in self.cluster.leaders.items()
                if partition.topic == name
            ]
            code = ErrorCode.NONE if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topic_id = self.cluster.topic_id(name) if partitions else bytes(16)
            internal = (name or "").startswith("__")
            row = MetadataResponseTopic(
                error_code=code, name=name, topic_id=topic_id, is_internal=internal, partitions=partitions
            )
            topics.append(row)
        brokers = [
            MetadataResponseBroker(node_id=broker.id, host=broker.host, port=broker.port)
            for broker in self.cluster.brokers.values()
        ]
        controller = min(self.cluster.brokers)
        cluster_id = self.cluster.cluster_id
        return MetadataResponse(brokers=brokers, cluster_id=cluster_id, controller_id=controller, topics=topics)

    def _name(self, name: str, topic_id: bytes) -> str:
        return name or topic_id[:15].rstrip(b".").decode()

    def _produce(self, request: ProduceRequest) -> ProduceResponse | None:
        topics = []
        for topic in request.topic_data:
            name = self._name(topic.name, topic.topic_id)
            partitions = []
            for data in topic.partition_data:
                partition = TopicPartition(name, data.index)
                code, offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
                if self.cluster.leaders.get(partition) == self.id:
                    code, offset = self.cluster.append(partition, bytes(data.records or b""))
                partitions.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset))
            topics.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions)
            )
        return None if request.acks == 0 else ProduceResponse(responses=topics)

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        """Without sessions; with a batch at a time."""
        topics = []
        for topic in request.topics:
            name = self._name(topic.topic, topic.topic_id)
            partitions = []
            for wanted in topic.partitions:
                partition = TopicPartition(name, wanted.partition)
                end = self.cluster.end(partition)
                data = FetchResponsePartitionData(partition_index=wanted.partition, high_watermark=end, records=b"")
                if not topic.topic and topic.topic_id != self.cluster.topic_id(name):
                    data.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                elif self.cluster.leaders.get(partition) != self.id:
                    data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                elif wanted.fetch_offset > end:
                    data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    data.records = next(
                        (
                            batch
                            for batch in self.cluster.logs[partition]
                            if read_header(batch).last_offset >= wanted.fetch_offset
                        ),
                        b"",
                    )
                partitions.append(data)
            topics.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))
        return FetchResponse(responses=topics)

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                partition = TopicPartition(topic.name, asked.partition_index)
                found = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
                found.offset = self.cluster.end(partition) if asked.timestamp == -1 else 0
                if self.cluster.leaders.get(partition) != self.id:
                    found.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                partitions.append(found)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=topics)


class _Served(asyncio.Protocol):
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._received = b""
        self._unsent = b""
        self._polling = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._broker.transports.append(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker.transports.remove(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            frame, self._received = decode_request(self._received[4 : 4 + size]), self._received[4 + size :]
            what, response = self._broker.handle(frame)
            if what in (CLOSE, CLOSE_AFTER):
                self._transport.close()
                self._received = b""
                return
            if response is not None and what is not SILENCE_AFTER:
                header = frame.header
                parts = encode_response(response, header.request_api_version, header.correlation_id)
                self._answer(b"".join(parts), _long_poll(response))

    def _answer(self, data: bytes, delayed: bool) -> None:
        """In the order of the requests: what comes behind a long poll waits with it."""
        self._unsent += data
        if delayed and not self._polling:
            self._polling = True
            asyncio.get_running_loop().call_later(_POLL_S, self._send)
        elif not self._polling:
            self._send()

    def _send(self) -> None:
        self._polling = False
        self._transport.write(self._unsent)
        self._unsent = b""


def _long_poll(response: Message) -> bool:
    """A fetch that found nothing."""
    if not isinstance(response, FetchResponse):
        return False
    return not any(data.records or data.error_code for topic in response.responses for data in topic.partitions)


def record_counts(cluster: FakeCluster, partition: TopicPartition) -> list[int]:
    """How many records each written batch has."""
    return [header.record_count for batch in cluster.logs[partition] for _, header in headers(batch)]

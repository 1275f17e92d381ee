"""Metadata (3), DescribeTopicPartitions (75) and DescribeCluster (60).

Metadata: 1 controller, racks, null for all topics; 2 cluster id; 3 throttle time; 4 asks for auto creation; 5 offline
replicas; 7 leader epochs; 8 authorized operations; 9 flexible; 10 topic ids; 12 topics by id; 13 an error for all.
DescribeCluster: 1 endpoint types; 2 fenced brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.metadata import LiveBroker, PartitionMetadata, TopicMetadata
from tidelog.broker.pacing import Pace
from tidelog.controller.topics import TopicError, is_internal, validate_name
from tidelog.errors import ErrorCode
from tidelog.net.channel import Call
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

ALL_OPERATIONS_ON_A_TOPIC = 3576
ALL_OPERATIONS_ON_THE_CLUSTER = 8096
"""Bits of the operations that there are on each; without an authorizer everybody may do them all."""
_NOT_ASKED = -(2**31)
_NO_NULL_NAMES_BELOW = 12
_BROKERS = 1
_PATIENCE_S = 10.0
MOST_CREATED = 100
"""Topics that one Metadata creates. The client comes again for the topics that are not led yet, and then more of them
are created."""


class PartitionView(NamedTuple):
    """A partition as a client of one listener sees it."""

    error_code: ErrorCode
    leader: int
    offline_replicas: list[int]


def view(broker: Broker, partition: PartitionMetadata, listener: str) -> PartitionView:
    brokers = broker.metadata.brokers
    offline = [replica for replica in partition.replicas if replica not in brokers]
    offline += [replica for replica in partition.offline_replicas if replica in brokers]
    leader = brokers.get(partition.leader)
    if leader is None:
        return PartitionView(ErrorCode.LEADER_NOT_AVAILABLE, -1, offline)
    if listener not in leader.endpoints:
        return PartitionView(ErrorCode.LISTENER_NOT_FOUND, -1, offline)
    return PartitionView(ErrorCode.NONE, partition.leader, offline)


async def told_of_the_cluster(broker: Broker) -> None:
    """Returns when the controller has told this broker of every topic, or has kept it waiting for too long.

    The others name a broker as soon as it has joined, so a client may come to it before the controller's first
    UpdateMetadata does: it would hear of no topics and of no brokers, and believe it.
    """
    await broker.metadata.wait_until(lambda: broker.metadata.is_complete, _PATIENCE_S)


async def metadata(broker: Broker, request: MetadataRequest, call: Call) -> MetadataResponse:
    """Each topic once, however often it is named, as Kafka does. Which topics there are is decided before the first
    slice; each is described as it is when its slice comes."""
    await told_of_the_cluster(broker)
    pace = Pace(broker.lane)
    asks_for_all = request.topics is None or (call.version == 0 and not request.topics)
    cluster_operations, topic_operations = _NOT_ASKED, _NOT_ASKED
    if request.include_cluster_authorized_operations:
        cluster_operations = ALL_OPERATIONS_ON_THE_CLUSTER
    if request.include_topic_authorized_operations:
        topic_operations = ALL_OPERATIONS_ON_A_TOPIC
    if asks_for_all:
        known = list(broker.metadata.topics.values())
        topics = [await _described(broker, topic, call.listener, pace) for topic in known]
    else:
        topics = [await _asked_for(broker, topic, call, pace) for topic in await _wanted(request, pace)]
        await _create_missing(broker, request, topics)
    for topic in topics:
        if not topic.error_code:
            topic.topic_authorized_operations = topic_operations
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=one.id, host=host, port=port, rack=one.rack)
            for one in broker.metadata.listed_on(call.listener)
            for host, port in (one.endpoints[call.listener],)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.metadata.controller_id,
        topics=topics,
        cluster_authorized_operations=cluster_operations,
    )


async def _wanted(request: MetadataRequest, pace: Pace) -> list[MetadataRequestTopic]:
    """Each topic once."""
    found: dict[tuple[str | None, bytes], MetadataRequestTopic] = {}
    async for part in pace.slices(request.topics or ()):
        for topic in part:
            found.setdefault((topic.name, topic.topic_id), topic)
    return list(found.values())


async def _asked_for(broker: Broker, wanted: MetadataRequestTopic, call: Call, pace: Pace) -> MetadataResponseTopic:
    await pace.spend()
    if wanted.name is None or (not wanted.name and wanted.topic_id != ZERO_UUID):
        name = broker.metadata.name_of(wanted.topic_id)
        if name is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None if call.version >= _NO_NULL_NAMES_BELOW else "",
                topic_id=wanted.topic_id,
            )
    else:
        name = wanted.name
    topic = broker.metadata.topic(name)
    if topic is not None:
        return await _described(broker, topic, call.listener, pace)
    return MetadataResponseTopic(error_code=_why_unknown(name), name=name, is_internal=is_internal(name))


def _why_unknown(name: str) -> ErrorCode:
    try:
        validate_name(name)
    except TopicError as failure:
        return failure.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _described(broker: Broker, topic: TopicMetadata, listener: str, pace: Pace) -> MetadataResponseTopic:
    partitions: list[MetadataResponsePartition] = []
    async for part in pace.slices(list(topic.partitions.items())):
        partitions += [_partition(broker, index, partition, listener) for index, partition in part]
    return MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, is_internal=is_internal(topic.name), partitions=partitions
    )


def _partition(broker: Broker, index: int, partition: PartitionMetadata, listener: str) -> MetadataResponsePartition:
    seen = view(broker, partition, listener)
    return MetadataResponsePartition(
        error_code=seen.error_code,
        partition_index=index,
        leader_id=seen.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=seen.offline_replicas,
    )


async def _create_missing(broker: Broker, request: MetadataRequest, topics: Iterable[MetadataResponseTopic]) -> None:
    """auto.create.topics.enable: the client comes again and finds it (LEADER_NOT_AVAILABLE tells it to)."""
    if not request.allow_auto_topic_creation or not broker.config["auto.create.topics.enable"]:
        return
    missing = [topic for topic in topics if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic.name]
    if missing:
        await broker.auto_creation.create([topic.name for topic in missing[:MOST_CREATED] if topic.name])
        for topic in missing:
            topic.error_code = ErrorCode.LEADER_NOT_AVAILABLE


async def describe_cluster(broker: Broker, request: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker; there are no controllers to be reached beside the brokers",
            cluster_id=broker.cluster_id,
            endpoint_type=request.endpoint_type,
        )
    await told_of_the_cluster(broker)
    response = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.metadata.controller_id,
        brokers=[_cluster_broker(one, call.listener) for one in broker.metadata.brokers_on(call.listener)],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = ALL_OPERATIONS_ON_THE_CLUSTER
    return response


def _cluster_broker(one: LiveBroker, listener: str) -> DescribeClusterBroker:
    host, port = one.endpoints[listener]
    return DescribeClusterBroker(broker_id=one.id, host=host, port=port, rack=one.rack)


async def describe_topic_partitions(
    broker: Broker, request: DescribeTopicPartitionsRequest, call: Call
) -> DescribeTopicPartitionsResponse:
    """Page by page: at most so many partitions, and a cursor to where the next page begins. Each topic once."""
    await told_of_the_cluster(broker)
    pace = Pace(broker.lane)
    limit = max(min(request.response_partition_limit, broker.config["max.request.partition.size.limit"]), 1)
    names = sorted({topic.name for topic in request.topics} or broker.metadata.topics)
    start = 0
    if request.cursor is not None:
        cursor = request.cursor
        names = [name for name in names if name >= cursor.topic_name]
        start = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    response = DescribeTopicPartitionsResponse()
    async for name in pace.each(names):
        topic = broker.metadata.topic(name)
        if topic is None:
            response.topics.append(DescribeTopicPartitionsResponseTopic(error_code=_why_unknown(name), name=name))
            continue
        if limit <= 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=0)
            break
        wanted = [index for index in topic.partitions if index >= start]
        start = 0
        response.topics.append(await _page(broker, topic, wanted[:limit], call.listener, pace))
        if len(wanted) > limit:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=wanted[limit])
            break
        limit -= len(wanted)
    return response


async def _page(
    broker: Broker, topic: TopicMetadata, indexes: list[int], listener: str, pace: Pace
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    async for index in pace.each(indexes):
        partition = topic.partitions[index]
        seen = view(broker, partition, listener)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=seen.error_code,
                partition_index=index,
                leader_id=seen.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=seen.offline_replicas,
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=partitions,
        topic_authorized_operations=ALL_OPERATIONS_ON_A_TOPIC,
    )

"""What a produce hears of a partition whose batch was refused, and what is remembered of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.refusals import PASSING, Sent
from tidelog.controller.topics import is_valid_name
from tidelog.errors import ErrorCode, TidelogError
from tidelog.net.channel import Call
from tidelog.records.header import BatchHeader
from tidelog.records.validate import validate
from tidelog.types import TopicPartition
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceResponse,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
    TopicProduceData,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def sent(topic: str, topic_id: bytes, index: int, header: BatchHeader) -> Sent:
    """A broker may not know the name of a topic id yet, so a topic is what the client calls it."""
    called = topic if topic_id == ZERO_UUID else topic_id.hex()
    return Sent(called, index, header.producer_id, header.producer_epoch, header.base_sequence)


def refusal(
    broker: Broker, topic: TopicProduceData, data: PartitionProduceData, failure: TidelogError, call: Call
) -> PartitionProduceResponse:
    if failure.code in PASSING:
        _remember(broker, topic, data, failure.code, call)
    name = topic.name or broker.metadata.name_of(topic.topic_id)
    is_here = name is not None and TopicPartition(name, data.index) in broker.replicas.partitions
    broker.counts.refused(name if is_here else None, failure.code)
    return PartitionProduceResponse(
        index=data.index,
        error_code=failure.code,
        base_offset=-1,
        error_message=None if str(failure) == failure.code.name else str(failure),
    )


def _remember(broker: Broker, topic: TopicProduceData, data: PartitionProduceData, code: ErrorCode, call: Call) -> None:
    """What is refused of an idempotent producer and will come again, and that the producer is at work.

    Nothing is kept for a name that no topic can have: it may be long, and no topic of that name will take the batch.
    """
    if topic.topic_id == ZERO_UUID and not is_valid_name(topic.name):
        return
    try:
        header = validate(data.records or b"")  # the batch may have been refused before its header was read
    except TidelogError:
        return
    if header.producer_id < 0:
        return
    broker.refusals.refused(sent(topic.name, topic.topic_id, data.index, header), code, call.connection)
    name = topic.name or broker.metadata.name_of(topic.topic_id)
    partition = None if name is None else broker.replicas.partitions.get(TopicPartition(name, data.index))
    if partition is not None:
        partition.heard(header.producer_id)


def add_leaders(broker: Broker, response: ProduceResponse, call: Call) -> None:
    """Where to go instead, for partitions that have another leader (KIP-951)."""
    hints: dict[int, ProduceResponseNodeEndpoint] = {}
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                continue
            name = topic.name or broker.metadata.name_of(topic.topic_id) or ""
            leader = broker.metadata.leader_at(name, partition.index, call.listener)
            if leader is not None:
                partition.current_leader = ProduceResponseLeaderIdAndEpoch(
                    leader_id=leader.broker.id, leader_epoch=leader.epoch
                )
                hints[leader.broker.id] = ProduceResponseNodeEndpoint(
                    node_id=leader.broker.id,
                    host=leader.endpoint.host,
                    port=leader.endpoint.port,
                    rack=leader.broker.rack,
                )
    response.node_endpoints = list(hints.values())

"""LeaderAndIsr (4), StopReplica (5) and UpdateMetadata (6): what the controller tells every broker (S12.2).

Only the versions that Kafka 3.9 sends are served: LeaderAndIsr from 5 (topic ids; 6 recovery state; 7 KRaft flag),
StopReplica from 3 (leader epochs; 4 KRaft flag), UpdateMetadata from 7 (topic ids; 8 KRaft flag).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import HangUpError
from tidelog.broker.metadata import FULL_UPDATE
from tidelog.broker.partition import RequestError
from tidelog.broker.replicas import Unwanted
from tidelog.errors import ErrorCode
from tidelog.net.channel import Call
from tidelog.types import NO_EPOCH, Epoch, TopicPartition
from tidelog.wire.messages.controller import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def _check(broker: Broker, controller_epoch: Epoch, broker_epoch: Epoch) -> None:
    """A request meant for an earlier life of this broker, or from a controller that was replaced, is void.

    Between two lives nobody can tell which one is meant: the controller has to come again.
    """
    if broker.epoch == NO_EPOCH:
        raise HangUpError(f"broker {broker.id} is not registered")
    if 0 <= broker_epoch < broker.epoch:
        raise RequestError(ErrorCode.STALE_BROKER_EPOCH)
    broker.replicas.check_controller(controller_epoch)


async def leader_and_isr(broker: Broker, request: LeaderAndIsrRequest, call: Call) -> LeaderAndIsrResponse:
    try:
        _check(broker, request.controller_epoch, request.broker_epoch)
    except RequestError as failure:
        return LeaderAndIsrResponse(error_code=failure.code)
    results = await broker.replicas.apply(request.topic_states, names_all=request.type == FULL_UPDATE)
    return LeaderAndIsrResponse(
        topics=[
            LeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=[
                    LeaderAndIsrPartitionError(
                        partition_index=state.partition_index,
                        error_code=results[TopicPartition(topic.topic_name, state.partition_index)],
                    )
                    for state in topic.partition_states
                ],
            )
            for topic in request.topic_states
        ]
    )


async def stop_replica(broker: Broker, request: StopReplicaRequest, call: Call) -> StopReplicaResponse:
    try:
        _check(broker, request.controller_epoch, request.broker_epoch)
    except RequestError as failure:
        return StopReplicaResponse(error_code=failure.code)
    unwanted = [
        Unwanted(TopicPartition(topic.topic_name, state.partition_index), state.leader_epoch, state.delete_partition)
        for topic in request.topic_states
        for state in topic.partition_states
    ]
    codes = await broker.replicas.stop(unwanted)
    for topic in request.topic_states:
        if not any(True for _ in broker.replicas.of_topic(topic.topic_name)):
            broker.counts.forget(topic.topic_name)
    return StopReplicaResponse(
        partition_errors=[
            StopReplicaPartitionError(topic_name=name.topic, partition_index=name.partition, error_code=code)
            for (name, _, _), code in zip(unwanted, codes, strict=True)
        ]
    )


def update_metadata(broker: Broker, request: UpdateMetadataRequest, call: Call) -> UpdateMetadataResponse:
    try:
        _check(broker, request.controller_epoch, request.broker_epoch)
    except RequestError as failure:
        return UpdateMetadataResponse(error_code=failure.code)
    known = broker.metadata.brokers
    deleted = broker.metadata.apply(request)
    if deleted:
        broker.groups.topics_deleted(deleted)
    if broker.metadata.brokers.keys() != known.keys():
        broker.replicas.brokers_changed()
    return UpdateMetadataResponse()

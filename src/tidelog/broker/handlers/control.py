"""LeaderAndIsr (4), StopReplica (5) and UpdateMetadata (6): what the controller tells every broker (S12.2).

Only the versions that Kafka 3.9 sends are served: LeaderAndIsr from 5 (topic ids; 6 recovery state; 7 KRaft flag),
StopReplica from 3 (leader epochs; 4 KRaft flag), UpdateMetadata from 7 (topic ids; 8 KRaft flag).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeAlias

from tidelog.broker.dispatch import HangUpError
from tidelog.broker.metadata import FULL_UPDATE
from tidelog.broker.partition import RequestError
from tidelog.broker.replicas import Unwanted
from tidelog.controller.stop_tags import topic_id_of
from tidelog.errors import ErrorCode
from tidelog.net.channel import Call
from tidelog.types import NO_EPOCH, TopicPartition
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


_log = logging.getLogger(__name__)

ControlRequest: TypeAlias = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest


async def _checked(broker: Broker, request: ControlRequest) -> ErrorCode:
    """The same as `_check`, after the store was asked for a controller epoch that is not known yet."""
    if not broker.known_controller.is_known(request.controller_epoch):
        await broker.known_controller.learn(request.controller_epoch)
    return _check(broker, request)


def _check(broker: Broker, request: ControlRequest) -> ErrorCode:
    """The error for a request that must change nothing: one that is meant for an earlier registration of this broker,
    one that is not of the controller that the store knows, or one that a newer request of the same controller has
    overtaken.

    A broker that is not registered, or does not know of the registration that is meant, hangs up: if the request is of
    the controller, it comes again.
    """
    if broker.epoch == NO_EPOCH:
        raise HangUpError(f"broker {broker.id} is not registered")
    if request.broker_epoch > broker.epoch:
        raise HangUpError(f"broker {broker.id} has epoch {broker.epoch}, not {request.broker_epoch}")
    if request.broker_epoch < broker.epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    try:
        broker.known_controller.check(request.controller_id, request.controller_epoch)
        broker.request_order.admit(request.controller_epoch, request)
    except RequestError as failure:
        _log.info("%s of controller %d is refused: %s", type(request).__name__, request.controller_id, failure)
        return failure.code
    return ErrorCode.NONE


async def leader_and_isr(broker: Broker, request: LeaderAndIsrRequest, call: Call) -> LeaderAndIsrResponse:
    refused = await _checked(broker, request)
    if refused:
        return LeaderAndIsrResponse(error_code=refused)
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
    refused = await _checked(broker, request)
    if refused:
        return StopReplicaResponse(error_code=refused)
    unwanted = [
        Unwanted(
            TopicPartition(topic.topic_name, state.partition_index),
            state.leader_epoch,
            state.delete_partition,
            topic_id_of(topic),
        )
        for topic in request.topic_states
        for state in topic.partition_states
    ]
    codes = await broker.replicas.stop(unwanted)
    still_here = {name.topic for name in broker.replicas.partitions}
    for topic in request.topic_states:
        if topic.topic_name not in still_here:
            broker.counts.forget(topic.topic_name)
    return StopReplicaResponse(
        partition_errors=[
            StopReplicaPartitionError(topic_name=name.topic, partition_index=name.partition, error_code=code)
            for (name, _, _, _), code in zip(unwanted, codes, strict=True)
        ]
    )


def update_metadata(
    broker: Broker, request: UpdateMetadataRequest, call: Call
) -> UpdateMetadataResponse | Awaitable[UpdateMetadataResponse]:
    """At once, except for the first request of a controller: there the store is asked before."""
    if broker.known_controller.is_known(request.controller_epoch):
        return _update_metadata(broker, request)
    return _update_metadata_later(broker, request)


async def _update_metadata_later(broker: Broker, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
    await broker.known_controller.learn(request.controller_epoch)
    return _update_metadata(broker, request)


def _update_metadata(broker: Broker, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
    refused = _check(broker, request)
    if refused:
        return UpdateMetadataResponse(error_code=refused)
    known = broker.metadata.brokers
    deleted = broker.metadata.apply(request)
    broker.neighbours.controller_changed()
    broker.registrations.learn(broker.metadata.brokers)
    if deleted:
        broker.groups.topics_deleted(deleted)
    if broker.metadata.brokers.keys() != known.keys():
        broker.replicas.brokers_changed()
    return UpdateMetadataResponse()

"""LeaderAndIsr (4), StopReplica (5) and UpdateMetadata (6): what the controller tells every broker (S12.2).

Only the versions that Kafka 3.9 sends are served: LeaderAndIsr from 5 (topic ids; 6 recovery state; 7 KRaft flag),
StopReplica from 3 (leader epochs; 4 KRaft flag), UpdateMetadata from 7 (topic ids; 8 KRaft flag).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidelog.broker.dispatch import HangUpError
from tidelog.broker.metadata import FULL_UPDATE
from tidelog.broker.partition import RequestError
from tidelog.broker.replicas import Unwanted
from tidelog.controller.stop_tags import topic_id_of
from tidelog.errors import ErrorCode
from tidelog.net.channel import Call
from tidelog.types import NO_EPOCH, BrokerId, Epoch, TopicPartition
from tidelog.wire import Message
from tidelog.wire.api import API
from tidelog.wire.frames import request_body
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

LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA = (
    request.__schema__.api_key for request in (LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest)
)
ControlRequest: TypeAlias = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest


class _Sender(NamedTuple):
    """Who sent a request, and for which registration of this broker it is meant: its first fields."""

    controller_id: BrokerId
    controller_epoch: Epoch
    broker_epoch: Epoch


_KRAFT_SINCE = {LEADER_AND_ISR: 7, STOP_REPLICA: 4, UPDATE_METADATA: 8}
"""The versions that brought a flag of one byte behind the controller's id."""
_WITHOUT_FLAG, _WITH_FLAG = struct.Struct(">iiq"), struct.Struct(">ixiq")


async def peek(broker: Broker, call: Call) -> Message | None:
    """Looks at the sender of a large request before it gets a place. None if the request is to be served.

    Otherwise whoever sends such requests for a controller that the store does not know would keep the real controller's
    waiting.
    """
    assert call.frame is not None
    fields = _WITH_FLAG if call.version >= _KRAFT_SINCE[call.api_key] else _WITHOUT_FLAG
    body = request_body(call.frame)
    if len(body) < fields.size:
        return None  # it cannot be read, and is refused for that
    sender = _Sender(*fields.unpack_from(body))
    await _learn(broker, sender.controller_epoch)
    refused = _check_sender(broker, sender)
    return API[call.api_key].response(error_code=refused) if refused else None


async def _checked(broker: Broker, request: ControlRequest) -> ErrorCode:
    """The same as `_check`, after the store was asked for a controller epoch that is not known yet."""
    await _learn(broker, request.controller_epoch)
    return _check(broker, request)


async def _learn(broker: Broker, controller_epoch: Epoch) -> None:
    if not broker.known_controller.is_known(controller_epoch):
        await broker.known_controller.learn(controller_epoch)


def _check(broker: Broker, request: ControlRequest) -> ErrorCode:
    """The error for a request that must change nothing: its sender is not believed, or a newer request of the same
    controller has overtaken it."""
    sender = _Sender(request.controller_id, request.controller_epoch, request.broker_epoch)
    refused = _check_sender(broker, sender)
    if refused:
        return refused
    try:
        broker.request_order.admit(request.controller_epoch, request)
    except RequestError as failure:
        _log.info("%s of controller %d is refused: %s", type(request).__name__, request.controller_id, failure)
        return failure.code
    return ErrorCode.NONE


def _check_sender(broker: Broker, sender: _Sender) -> ErrorCode:
    """The error for a request that is meant for an earlier registration of this broker, or that is not of the
    controller that the store knows.

    A broker that is not registered, or does not know of the registration that is meant, hangs up: if the request is of
    the controller, it comes again.
    """
    if broker.epoch == NO_EPOCH:
        raise HangUpError(f"broker {broker.id} is not registered")
    if sender.broker_epoch > broker.epoch:
        raise HangUpError(f"broker {broker.id} has epoch {broker.epoch}, not {sender.broker_epoch}")
    if sender.broker_epoch < broker.epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    try:
        broker.known_controller.check(sender.controller_id, sender.controller_epoch)
    except RequestError as failure:
        _log.info("a request of controller %d is refused: %s", sender.controller_id, failure)
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

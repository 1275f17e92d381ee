"""AlterPartitionReassignments (45) and ListPartitionReassignments (46): served by the broker that is controller.

| API                         | versions | what they added                                       |
|-----------------------------|----------|-------------------------------------------------------|
| AlterPartitionReassignments | 0 - 1    | 1 whether the replication factor may change (KIP-860)  |
| ListPartitionReassignments  | 0        |                                                       |

A reassignment is answered when it has begun; its end shows in the list. Very many partitions are asked for in pieces,
each of which is one event of the controller.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from tidelog.broker.control.shell import NotControllerError
from tidelog.broker.control.term import Term
from tidelog.broker.pacing import PIECE, Pace
from tidelog.controller.events import ReassignmentAsked
from tidelog.controller.image import Image
from tidelog.controller.topics import TopicError
from tidelog.errors import ErrorCode
from tidelog.net.channel import Call
from tidelog.types import BrokerId, TopicPartition
from tidelog.wire.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tidelog.wording import counted, listed, shown

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = logging.getLogger(__name__)


async def alter_partition_reassignments(
    broker: Broker, request: AlterPartitionReassignmentsRequest, call: Call
) -> AlterPartitionReassignmentsResponse:
    pace = Pace(broker.lane)
    named: Counter[TopicPartition] = Counter()
    targets: dict[TopicPartition, tuple[BrokerId, ...] | None] = {}
    for topic in request.topics:
        async for asked in pace.each(topic.partitions):
            partition = TopicPartition(topic.name, asked.partition_index)
            named[partition] += 1
            targets[partition] = None if asked.replicas is None else tuple(asked.replicas)
    answers: dict[TopicPartition, TopicError | None] = {
        partition: TopicError(ErrorCode.INVALID_REQUEST, f"{partition} is named more than once.")
        for partition, times in named.items()
        if times > 1
    }
    once = [(partition, target) for partition, target in targets.items() if partition not in answers]
    allow = request.allow_replication_factor_change
    if once:
        names = listed(once, lambda asked: f"{shown(asked[0].topic)}-{asked[0].partition}")
        _log.info("%s asked to reassign %s: %s", call.sender, counted(len(once), "partition"), names)
    try:
        for start in range(0, len(once) or 1, PIECE):
            answers |= await broker.controller.ask(ReassignmentAsked(dict(once[start : start + PIECE]), allow))
    except NotControllerError as failure:
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allow, error_code=failure.code, error_message=str(failure)
        )
    return await _altered(request, {partition: answers[partition] for partition in targets}, pace)


async def _altered(
    request: AlterPartitionReassignmentsRequest, answers: dict[TopicPartition, TopicError | None], pace: Pace
) -> AlterPartitionReassignmentsResponse:
    topics: dict[str, ReassignableTopicResponse] = {}
    async for partition, failure in pace.each(answers.items()):
        topic = topics.setdefault(partition.topic, ReassignableTopicResponse(name=partition.topic))
        topic.partitions.append(
            ReassignablePartitionResponse(
                partition_index=partition.partition,
                error_code=ErrorCode.NONE if failure is None else failure.code,
                error_message=None if failure is None else str(failure),
            )
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=list(topics.values()),
    )


async def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    asked: set[TopicPartition] | None = None
    if request.topics is not None:
        asked = set()
        pace = Pace(broker.lane)
        for topic in request.topics:
            async for indexes in pace.slices(topic.partition_indexes):
                asked.update(TopicPartition(topic.name, index) for index in indexes)

    async def look(term: Term) -> ListPartitionReassignmentsResponse:
        return _listed(term.controller.image, asked)

    try:
        # In its turn: a controller that is still taking over would know of none.
        return await broker.controller.run(look, writes_topics=False)
    except NotControllerError as failure:
        return ListPartitionReassignmentsResponse(error_code=failure.code, error_message=str(failure))


def _listed(image: Image, asked: set[TopicPartition] | None) -> ListPartitionReassignmentsResponse:
    topics: dict[str, OngoingTopicReassignment] = {}
    for partition, assignment in image.reassigning():
        if asked is not None and partition not in asked:
            continue
        topic = topics.setdefault(partition.topic, OngoingTopicReassignment(name=partition.topic))
        topic.partitions.append(
            OngoingPartitionReassignment(
                partition_index=partition.partition,
                replicas=list(assignment.replicas),
                adding_replicas=list(assignment.adding),
                removing_replicas=list(assignment.removing),
            )
        )
    return ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))

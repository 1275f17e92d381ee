"""ElectLeaders (43), versions 0 - 2: 0 preferred leaders; 1 the type of election, and an error for all; 2 flexible.

Served by the broker that is controller. It waits, up to the request's timeout, until this broker's metadata shows the
leaders; what takes longer is REQUEST_TIMED_OUT, and happens all the same. Very many partitions are asked for in pieces,
each of which is one event of the controller.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.control.shell import NotControllerError
from tidelog.broker.long_waits import Waits
from tidelog.broker.pacing import PIECE, Pace
from tidelog.controller.events import Elected, ElectionAsked, ElectionType
from tidelog.controller.image import NO_LEADER
from tidelog.controller.topics import kept_names
from tidelog.errors import ErrorCode
from tidelog.net.channel import Call
from tidelog.types import TopicPartition
from tidelog.wire.messages.topics import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ReplicaElectionResult,
)
from tidelog.wording import counted

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = logging.getLogger(__name__)

_KINDS = {ElectionType.PREFERRED: "preferred", ElectionType.UNCLEAN: "possibly unclean"}
_MESSAGES = {
    ErrorCode.ELECTION_NOT_NEEDED: "The partition has the leader it should have.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred replica is not in sync, or its broker is not alive.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "No replica of the partition is alive.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "The partition does not exist.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "The topic is being deleted.",
    ErrorCode.REQUEST_TIMED_OUT: "The leader was elected, but this broker has not heard of it in time.",
    ErrorCode.NOT_CONTROLLER: "This broker is not the controller.",
    ErrorCode.INVALID_REQUEST: "The type of election is neither preferred (0) nor unclean (1).",
}


async def elect_leaders(broker: Broker, request: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    asked = _asked(request)
    if request.election_type not in ElectionType.__members__.values():
        return _refused(asked, ErrorCode.INVALID_REQUEST)
    kind = ElectionType(request.election_type)
    what = "all partitions" if asked is None else counted(len(asked), "partition")
    _log.info("%s asked for an election of %s leaders of %s", call.sender, _KINDS[kind], what)
    try:
        if asked is None:
            results = await broker.controller.ask(ElectionAsked(kind, None))
        else:
            results = {}
            for start in range(0, len(asked), PIECE):
                results |= await broker.controller.ask(ElectionAsked(kind, asked[start : start + PIECE]))
    except NotControllerError:
        return _refused(asked, ErrorCode.NOT_CONTROLLER)
    timeout_ms, keep = request.timeout_ms, kept_names(topic.topic for topic in request.topic_partitions or ())
    del request, asked  # while it waits, only the results are needed
    results = {TopicPartition(keep(name), index): elected for (name, index), elected in results.items()}
    results = await _wait(broker, results, timeout_ms, partial(broker.waiting, call))
    return await _response_in_slices(broker, results)


def _asked(request: ElectLeadersRequest) -> tuple[TopicPartition, ...] | None:
    """Each once, in the order of the request."""
    if request.topic_partitions is None:
        return None
    named = (TopicPartition(asked.topic, index) for asked in request.topic_partitions for index in asked.partitions)
    return tuple(dict.fromkeys(named))


async def _wait(
    broker: Broker, results: dict[TopicPartition, Elected], timeout_ms: int, waits: Waits
) -> dict[TopicPartition, Elected]:
    def is_seen(partition: TopicPartition, elected: Elected) -> bool:
        known = broker.metadata.partition(partition.topic, partition.partition)
        return bool(elected.code) or (known is not None and known.leader == elected.leader)

    def all_are_seen() -> bool:
        return all(is_seen(partition, elected) for partition, elected in results.items())

    await broker.metadata.wait_until(all_are_seen, timeout_ms / 1000, waits)
    return {
        partition: elected if is_seen(partition, elected) else elected._replace(code=ErrorCode.REQUEST_TIMED_OUT)
        for partition, elected in results.items()
    }


def _refused(asked: tuple[TopicPartition, ...] | None, code: ErrorCode) -> ElectLeadersResponse:
    """Told for all and for each, since version 0 has only the latter."""
    return _response({partition: Elected(code, NO_LEADER) for partition in asked or ()}, code)


async def _response_in_slices(broker: Broker, results: dict[TopicPartition, Elected]) -> ElectLeadersResponse:
    response = ElectLeadersResponse()
    topics: dict[str, ReplicaElectionResult] = {}
    async for part in Pace(broker.lane).slices(list(results.items())):
        _add(topics, part)
    response.replica_election_results = list(topics.values())
    return response


def _response(results: dict[TopicPartition, Elected], code: ErrorCode = ErrorCode.NONE) -> ElectLeadersResponse:
    topics: dict[str, ReplicaElectionResult] = {}
    _add(topics, results.items())
    return ElectLeadersResponse(error_code=code, replica_election_results=list(topics.values()))


def _add(topics: dict[str, ReplicaElectionResult], results: Iterable[tuple[TopicPartition, Elected]]) -> None:
    for partition, elected in results:
        topic = topics.setdefault(partition.topic, ReplicaElectionResult(topic=partition.topic))
        topic.partition_result.append(
            ElectLeadersResponsePartitionResult(
                partition_id=partition.partition, error_code=elected.code, error_message=_MESSAGES.get(elected.code)
            )
        )

"""FindCoordinator (10): 1 kinds of keys; 3 flexible; 4 many keys; 5, 6 errors and kinds that are new.

The coordinator of a key is the leader of its partition of an internal topic, which is created when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.pacing import Pace, cost_of_id
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.errors import ErrorCode
from tidelog.groups import MAX_GROUP_ID, partition_of
from tidelog.net.channel import Call
from tidelog.wire.messages.metadata import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_MANY_KEYS = 4
_NOBODY = -1
_PATIENCE_S = 1.0
"""For the leaders of a topic that has just been created; a client asks again."""


_GROUP, _TRANSACTION = 0, 1
_TOPICS = {_GROUP: GROUP_OFFSETS_TOPIC, _TRANSACTION: TRANSACTION_STATE_TOPIC}


async def find_coordinator(broker: Broker, request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    """Each key once, however often it is named. A key that is too long is cut in the answer: an answer that repeats
    many of these could be very large."""
    keys = [request.key] if call.version < _MANY_KEYS else request.coordinator_keys
    topic = _TOPICS.get(request.key_type)
    if topic is not None and any(keys):
        await _make_sure_of(broker, topic)
    pace = Pace(broker.lane)
    found: dict[str, Coordinator] = {}
    for key in keys:
        await pace.spend(cost_of_id(key))
        if key not in found:
            found[key] = _coordinator(broker, topic, key, call.listener)
    if call.version >= _MANY_KEYS:
        return FindCoordinatorResponse(coordinators=list(found.values()))
    (one,) = found.values()
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


async def _make_sure_of(broker: Broker, topic: str) -> None:
    """Create it if it is not there, and wait for a moment until it is led.

    Otherwise the answer comes at once, also if there is no coordinator: what the client asks for on the same connection
    is answered after this.
    """
    if broker.metadata.topic(topic) is not None or not await broker.auto_creation.create([topic]):
        return

    def is_led() -> bool:
        known = broker.metadata.topic(topic)
        return known is not None and known.has_leaders

    await broker.metadata.wait_until(is_led, _PATIENCE_S)


def _coordinator(broker: Broker, topic: str | None, key: str, listener: str) -> Coordinator:
    if topic is None:
        return _nobody(key, ErrorCode.INVALID_REQUEST, "only groups and transactions have coordinators here")
    if not key or len(key) > MAX_GROUP_ID:
        code = ErrorCode.INVALID_GROUP_ID if topic == GROUP_OFFSETS_TOPIC else ErrorCode.INVALID_REQUEST
        why = f"the key has {len(key)} characters; up to {MAX_GROUP_ID} are allowed" if key else "the key is empty"
        return _nobody(key, code, why)
    known = broker.metadata.topic(topic)
    if known is None:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} does not exist yet")
    leader = broker.metadata.leader_at(topic, partition_of(key, len(known.partitions)), listener)
    if leader is None:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"its partition of {topic} has no leader")
    endpoint = leader.endpoint
    return Coordinator(key=key, node_id=leader.broker.id, host=endpoint.host, port=endpoint.port, error_message="")


def _nobody(key: str, code: ErrorCode, why: str) -> Coordinator:
    return Coordinator(key=key[:MAX_GROUP_ID], node_id=_NOBODY, host="", port=-1, error_code=code, error_message=why)

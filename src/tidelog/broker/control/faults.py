"""Nodes that cannot be used: what is wrong with them, said once, and what no decoder asks for but the wire does.

A number that no request can carry would keep the controller from telling any broker anything, for ever.
"""

from __future__ import annotations

import logging

from tidelog.controller import nodes
from tidelog.controller.image import PartitionState
from tidelog.controller.topics import is_valid_name
from tidelog.types import TopicPartition

_log = logging.getLogger(__name__)

_INT32 = range(-1, 2**31)
_PORTS = range(-1, 2**16)
_MAX_REPLICAS = 1000


class Complaints:
    """What one controller term has logged: it logs each path once, and again when the reason changes."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def about(self, path: str, failure: Exception) -> None:
        reason = str(failure) if path in str(failure) else f"{path}: {failure!r}"
        if self._reasons.get(path) != reason:
            self._reasons[path] = reason
            _log.error("a node cannot be read and is left alone until somebody mends it: %s", reason)

    def over(self, path: str) -> None:
        if self._reasons.pop(path, None) is not None:
            _log.info("%s can be read again", path)

    def of(self, path: str) -> str:
        return self._reasons.get(path, f"{path} cannot be read")


def checked_broker(registration: nodes.Registration) -> nodes.Registration:
    if registration.rack is not None and not isinstance(registration.rack, str):
        raise nodes.BadNodeError(f"its rack is {registration.rack!r}")
    for endpoint in registration.endpoints:
        if endpoint.port not in _PORTS:
            raise nodes.BadNodeError(f"it has an endpoint with port {endpoint.port}")
    return registration


def checked_topic(name: str, topic: nodes.TopicNode) -> nodes.TopicNode:
    if not is_valid_name(name):
        raise nodes.BadNodeError(f"{name[:300]!r} is no name for a topic")
    for index, assignment in topic.assignments.items():
        brokers = (*assignment.replicas, *assignment.adding, *assignment.removing)
        if not assignment.replicas or len(brokers) > _MAX_REPLICAS:
            raise nodes.BadNodeError(f"partition {index} has {len(assignment.replicas)} replicas")
        if index not in _INT32[1:] or any(broker not in _INT32[1:] for broker in brokers):
            raise nodes.BadNodeError(f"partition {index} is assigned to {brokers}")
    return topic


def checked_state(partition: TopicPartition, state: PartitionState) -> PartitionState:
    numbers = (state.leader, state.leader_epoch, state.controller_epoch, *state.eligible)
    if not all(type(number) is int and number in _INT32 for number in numbers):
        raise nodes.BadNodeError(f"{partition} has the leader, epochs, ISR and ELR {numbers}")
    # A member without an epoch would pass for intact, whatever it has lost.
    if not all(type(state.lives.get(member)) is int for member in state.eligible):
        raise nodes.BadNodeError(f"{partition} has an ISR with the broker epochs {dict(state.lives)}")
    return state

"""What the controller is told, and what it answers with.

Events carry the facts as read, not what changed: the same event twice does nothing the second time. Writes are in the
words of the cluster; the shell turns them into nodes, each under a check that this controller still is the controller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from tidelog.controller.image import Assignment, Broker, ElectionRules, PartitionState, Snapshot, TopicFacts
from tidelog.controller.log_ends import LogEnd
from tidelog.errors import ErrorCode
from tidelog.types import BrokerId, Epoch, TopicPartition
from tidelog.wire.messages.controller import AlterPartitionRequest, LeaderAndIsrResponse, StopReplicaResponse
from tidelog.wire.schema import Message

# Events


class TookOver(NamedTuple):
    """This broker is the controller now, or has to look at everything again."""

    snapshot: Snapshot


class BrokersChanged(NamedTuple):
    """All brokers that live."""

    brokers: dict[BrokerId, Broker]


class TopicsChanged(NamedTuple):
    """All topics there are, and all that are to be deleted. The latter were read first."""

    topics: dict[str, TopicFacts]
    to_delete: tuple[str, ...]


class StatesChanged(NamedTuple):
    """States of partitions that somebody else wrote."""

    states: dict[TopicPartition, PartitionState]


class LogDirFailed(NamedTuple):
    """Some log directory of these brokers is gone; their answers will tell which replicas went with it."""

    brokers: tuple[BrokerId, ...]


class ElectionRulesChanged(NamedTuple):
    """unclean.leader.election.enable or min.insync.replicas may be others now, of topics or for all."""

    topics: dict[str, ElectionRules]


class LeaderAndIsrAnswered(NamedTuple):
    broker: BrokerId
    broker_epoch: int
    response: LeaderAndIsrResponse
    is_after_failure: bool = True
    """When it was asked, it was known whether the broker has a failed log directory: an answer that was under way while
    the directory failed does not say that a log is there now."""


class LogEndsTold(NamedTuple):
    """Where the logs of replicas end that may have lost records."""

    broker: BrokerId
    broker_epoch: int
    log_ends: dict[TopicPartition, LogEnd | None]
    """None: the broker could not tell."""
    asked_in: dict[TopicPartition, Epoch]
    """The leader epochs in which the broker was asked: since an earlier one its logs may have moved."""


class LogEndsUntold(NamedTuple):
    """A broker was asked long ago where these logs end."""

    broker: BrokerId
    broker_epoch: int
    asked_in: dict[TopicPartition, Epoch]


class ReplicasPutOff(NamedTuple):
    """A broker could not take these replicas yet, and is to be told again: True for those that are new to it."""

    broker: BrokerId
    broker_epoch: int
    partitions: dict[TopicPartition, bool]


class StopReplicaAnswered(NamedTuple):
    broker: BrokerId
    broker_epoch: int
    partitions: tuple[TopicPartition, ...]
    """Those that the request told the broker to delete."""
    response: StopReplicaResponse


class AlterPartitionAsked(NamedTuple):
    """A leader asks for another ISR of its partitions. The answer is an AlterPartitionResponse."""

    request: AlterPartitionRequest
    version: int


class ShutdownAsked(NamedTuple):
    """A broker is about to stop. The answer is a ControlledShutdownResponse."""

    broker: BrokerId
    broker_epoch: int


class ElectionType(IntEnum):
    """By Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectionAsked(NamedTuple):
    """The answer is a dict of Elected by partition."""

    kind: ElectionType
    partitions: tuple[TopicPartition, ...] | None
    """None: all there are, and those that need no election are not in the answer."""


class Elected(NamedTuple):
    code: ErrorCode
    leader: BrokerId
    """Whom the brokers should see leading, if all is well."""


class ImbalanceChecked(NamedTuple):
    """It is time to hand leadership back to preferred replicas, of brokers that miss more than so much of it."""

    percentage: int
    """leader.imbalance.per.broker.percentage"""


class ReassignmentAsked(NamedTuple):
    """The answer is a dict of a TopicError or None by partition."""

    targets: dict[TopicPartition, tuple[BrokerId, ...] | None]
    """None: back to where the replicas were."""
    allow_replication_factor_change: bool = True


Event: TypeAlias = (
    TookOver
    | BrokersChanged
    | TopicsChanged
    | StatesChanged
    | LogDirFailed
    | ElectionRulesChanged
    | LeaderAndIsrAnswered
    | LogEndsTold
    | LogEndsUntold
    | ReplicasPutOff
    | StopReplicaAnswered
    | AlterPartitionAsked
    | ShutdownAsked
    | ElectionAsked
    | ImbalanceChecked
    | ReassignmentAsked
)


# Writes


class CreateState(NamedTuple):
    """The first state of a partition, with the nodes above it as far as they are missing."""

    partition: TopicPartition
    state: PartitionState


class UpdateState(NamedTuple):
    """A new state in place of the one that had `state.version - 1`."""

    partition: TopicPartition
    state: PartitionState


class UpdateTopic(NamedTuple):
    """The topic's replicas, with what is being reassigned. Written after the states: see reassignment."""

    topic: str
    topic_id: bytes
    assignments: dict[int, Assignment]


class RemoveTopic(NamedTuple):
    """All nodes of the topic, its config, and last the wish to delete it."""

    topic: str


class ForgetDeletion(NamedTuple):
    """The wish to delete a topic: it is not there, or must not be deleted."""

    topic: str


Write: TypeAlias = CreateState | UpdateState | UpdateTopic | RemoveTopic | ForgetDeletion


class UncleanElection(NamedTuple):
    """Committed records may be lost: the leader was not in the ISR, or no member of the ISR is surely intact."""

    partition: TopicPartition
    leader: BrokerId
    last_isr: tuple[BrokerId, ...]
    log_ends: dict[BrokerId, LogEnd]
    """Where the logs ended of the replicas that told so."""

    def __str__(self) -> str:
        ends = ", ".join(f"broker {broker} at {end.offset}" for broker, end in sorted(self.log_ends.items()))
        return f"{self.partition}: broker {self.leader} leads, the last ISR was {list(self.last_isr)}; " + (
            f"logs end: {ends}" if ends else "where logs end is not known"
        )


class LeaderChange(NamedTuple):
    """A partition's state before and after an event that changed its leader, its leader epoch or its ISR."""

    partition: TopicPartition
    before: PartitionState
    after: PartitionState
    replicas: tuple[BrokerId, ...]


class Move(NamedTuple):
    """A partition's replicas before and after an event."""

    partition: TopicPartition
    before: Assignment
    after: Assignment


@dataclass
class Outcome:
    """What an event led to: first all writes, then the requests, in the order of each broker's list."""

    writes: list[Write] = field(default_factory=list)
    requests: dict[BrokerId, list[Message]] = field(default_factory=dict)
    """`Controller.tell` adds them."""
    elections: int = 0
    """How many partitions got another leader."""
    unclean: list[UncleanElection] = field(default_factory=list)
    """To be logged and counted."""
    changes: list[LeaderChange] = field(default_factory=list)
    """For the log: states that the controller changed by itself."""
    moves: list[Move] = field(default_factory=list)
    """For the log: replicas that began to move, or have moved."""
    answer: Any = None
    """To whoever asked; true only when all is written."""

"""What the controller holds: brokers, topics, who leads what, and what is to be deleted (S12.3).

The image is what the coordination nodes say, as of the last look, with the controller's own writes applied. It is
thrown away and read again whenever a write did not go as planned, so it is never repaired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from tidelog.controller.log_ends import LogEnds
from tidelog.types import NO_EPOCH, BrokerId, Epoch, TopicPartition
from tidelog.wire import ZERO_UUID

NO_LEADER = -1
LEADER_DURING_DELETE = -2
"""Told to brokers as the leader of a partition that is being deleted: they forget it."""
EPOCH_DURING_DELETE = -2
INITIAL_LEADER_EPOCH = 0


class Endpoint(NamedTuple):
    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class Broker(NamedTuple):
    """A living broker."""

    id: BrokerId
    epoch: int
    """The created_id of its node: another life has another, higher one."""
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    intact_since: Epoch = NO_EPOCH
    """Since this broker epoch its log directories have lost nothing; NO_EPOCH: since its own."""
    last_epoch: Epoch = NO_EPOCH
    """The broker epoch that its log directories noted last; NO_EPOCH if there is none."""
    has_failed_directory: bool = False
    """One of its log directories cannot be used; which replicas are gone with it only the broker knows."""

    def has_kept(self, epoch: Epoch) -> bool:
        """Whether it surely still has what it had when it was registered with that epoch (S6.2, edge case 9)."""
        if epoch >= self.epoch:
            return True
        return 0 <= self.intact_since <= epoch <= self.last_epoch

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


class Assignment(NamedTuple):
    """Where the replicas of a partition are; the first one is the preferred leader."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[BrokerId, ...]:
        """Where they were before the reassignment under way, and will be again if it is cancelled."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """Where they will be in the end."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    def reassign_to(self, target: Sequence[BrokerId]) -> Assignment:
        """All of the target, then what is left of the origin until the target is in sync (KIP-455)."""
        origin = self.origin
        replicas = (*target, *(broker for broker in origin if broker not in target))
        return Assignment(
            replicas,
            tuple(broker for broker in replicas if broker not in origin),
            tuple(broker for broker in replicas if broker not in target),
        )


class PartitionState(NamedTuple):
    """Who leads, and who is in sync: the data of a partition's state node."""

    leader: BrokerId
    leader_epoch: Epoch
    isr: tuple[BrokerId, ...]
    controller_epoch: Epoch
    version: int
    """The version of the node; brokers know it as the partition epoch."""
    lives: Mapping[BrokerId, Epoch]
    """The broker epochs in which the members of ISR and ELR surely had every committed record, as far as the writer
    knew. A member with a higher epoch has bounced since, even if that was before this came into the store."""
    leader_recovery_state: int = 0
    elr: tuple[BrokerId, ...] = ()
    """Eligible leader replicas (KIP-966): they left the ISR when it fell below min.insync.replicas. Nothing is
    committed from then on until it is large enough again, so they still have every committed record."""

    @property
    def eligible(self) -> tuple[BrokerId, ...]:
        """Everyone that has every committed record, unless it lost some since."""
        return (*self.isr, *self.elr)


class ElectionRules(NamedTuple):
    """What a topic's own config says about its leaders; None where the brokers' default holds."""

    unclean: bool | None = None
    """unclean.leader.election.enable"""
    min_insync_replicas: int | None = None


class ElectionDefaults(NamedTuple):
    """What the brokers' config says about leaders of topics that say nothing themselves."""

    unclean: bool = False
    min_insync_replicas: int = 1


NO_RULES = ElectionRules()


class TopicFacts(NamedTuple):
    """A topic as its nodes have it."""

    topic_id: bytes
    assignments: dict[int, Assignment]
    rules: ElectionRules = NO_RULES
    fault: str | None = None
    """Why the topic's node cannot be read. The rest is what was known before, if anything was."""
    remains: tuple[int, ...] = ()
    """The partitions that have nodes, if the topic has a fault: so it can be deleted all the same."""


@dataclass
class Topic:
    """A topic in the image. Partitions that have neither a state nor a fault have never had a leader."""

    name: str
    topic_id: bytes
    assignments: dict[int, Assignment]
    rules: ElectionRules = NO_RULES
    states: dict[int, PartitionState] = field(default_factory=dict)
    fault: str | None = None
    """Why its node cannot be read: it is not written either. What was known before still holds (edge case 36)."""
    remains: tuple[int, ...] = ()
    faults: dict[int, str] = field(default_factory=dict)
    """Partitions whose state exists but cannot be read or written, and why. They are offline, and left alone."""

    def fault_of(self, index: int) -> str | None:
        return self.fault or self.faults.get(index)

    def partitions(self) -> Iterator[TopicPartition]:
        for index in self.assignments:
            yield TopicPartition(self.name, index)

    def replicas(self) -> list[tuple[TopicPartition, BrokerId]]:
        return [
            (TopicPartition(self.name, index), broker)
            for index, assignment in self.assignments.items()
            for broker in assignment.replicas
        ]


class Snapshot(NamedTuple):
    """Everything a controller reads when it takes over."""

    brokers: dict[BrokerId, Broker]
    topics: dict[str, TopicFacts]
    states: dict[TopicPartition, PartitionState]
    to_delete: tuple[str, ...]
    faults: Mapping[TopicPartition, str] = MappingProxyType({})
    """Partitions whose states are there but cannot be read or written, and why."""


class Image:
    """See the module. Always: a topic to delete is in `topics` until its nodes are gone."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.brokers = dict(snapshot.brokers)
        self.topics: dict[str, Topic] = {}
        self._names: dict[bytes, str] = {}
        self.deleting: dict[str, set[tuple[TopicPartition, BrokerId]]] = {}
        """Topics to delete, with the replicas that are deleted already."""
        self.offline: dict[BrokerId, set[TopicPartition]] = {}
        """Replicas on failed log directories, by broker, until the broker says that they are there again."""
        self.confirmed: dict[BrokerId, set[TopicPartition]] = {}
        """Replicas that are there, as brokers with a failed log directory have said in this life of theirs."""
        self.shutting_down: dict[BrokerId, int] = {}
        """Brokers that asked to hand over what they lead, with the epoch of the life that is about to end."""
        self.log_ends = LogEnds()
        for name, facts in snapshot.topics.items():
            self.put_topic(name, facts)
        for partition, state in snapshot.states.items():
            self.topics[partition.topic].states[partition.partition] = state
        for partition, fault in snapshot.faults.items():
            self.topics[partition.topic].states.pop(partition.partition, None)
            self.topics[partition.topic].faults[partition.partition] = fault

    def put_topic(self, name: str, facts: TopicFacts) -> Topic:
        """The topic as it is now; states stay, unless it is another topic of the same name."""
        known = self.topics.get(name)
        topic = Topic(
            name, facts.topic_id, dict(facts.assignments), facts.rules, fault=facts.fault, remains=facts.remains
        )
        if known is not None and known.topic_id == facts.topic_id:
            topic.states, topic.faults = known.states, known.faults
        elif known is not None:
            self._forget_log_ends(known)
        self._forget_id(known)
        self.topics[name] = topic
        if topic.fault is None or topic.topic_id != ZERO_UUID:
            self._names[topic.topic_id] = name
        return topic

    def remove_topic(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        self._forget_id(topic)
        if topic is not None:
            self._forget_log_ends(topic)
        self.deleting.pop(name, None)
        for partitions in (*self.offline.values(), *self.confirmed.values()):
            partitions.difference_update([partition for partition in partitions if partition.topic == name])

    def _forget_log_ends(self, topic: Topic) -> None:
        for partition in topic.partitions():
            self.log_ends.forget_partition(partition)

    def name_of(self, topic_id: bytes) -> str | None:
        return self._names.get(topic_id)

    def _forget_id(self, topic: Topic | None) -> None:
        if topic is not None and self._names.get(topic.topic_id) == topic.name:
            del self._names[topic.topic_id]

    def state(self, partition: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.states.get(partition.partition)

    def assignment(self, partition: TopicPartition) -> Assignment | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.assignments.get(partition.partition)

    def is_online(self, partition: TopicPartition, broker: BrokerId) -> bool:
        """The broker lives, and the log directory of this replica works as far as is known."""
        return broker in self.brokers and partition not in self.offline.get(broker, ())

    def is_surely_there(self, partition: TopicPartition, broker: BrokerId) -> bool:
        """False of a replica that may be in a failed log directory, until its broker has answered LeaderAndIsr.

        Answers name topics by their ids: of a topic without one there is nothing to wait for.
        """
        known = self.brokers.get(broker)
        if known is None or not known.has_failed_directory:
            return known is not None
        return partition in self.confirmed.get(broker, ()) or self.topics[partition.topic].topic_id == ZERO_UUID

    def is_shutting_down(self, broker: BrokerId) -> bool:
        return broker in self.brokers and self.shutting_down.get(broker) == self.brokers[broker].epoch

    def is_serving(self, partition: TopicPartition, broker: BrokerId) -> bool:
        """Online and about to stay: fit to lead, or to join an ISR."""
        return self.is_online(partition, broker) and not self.is_shutting_down(broker)

    def holders(self, name: str) -> list[tuple[TopicPartition, BrokerId]]:
        """The brokers that may hold replicas of a topic: every living one if its node was never readable."""
        topic = self.topics[name]
        if topic.fault is None or topic.assignments:
            return topic.replicas()
        return [(TopicPartition(name, index), broker) for index in topic.remains for broker in self.brokers]

    def has_bounced(self, state: PartitionState, broker: BrokerId) -> bool:
        """It has another broker epoch than the one that the writer of the ISR knew."""
        epoch = state.lives.get(broker)
        return epoch is not None and broker in self.brokers and self.brokers[broker].epoch > epoch

    def has_lost(self, state: PartitionState, broker: BrokerId) -> bool:
        """It has bounced, and may have lost records that it had when the ISR was written (edge case 9)."""
        return self.has_bounced(state, broker) and not self.brokers[broker].has_kept(state.lives[broker])

    def standing(self) -> Iterator[Topic]:
        """Topics that are not to be deleted."""
        for topic in self.topics.values():
            if topic.name not in self.deleting:
                yield topic

    def reassigning(self) -> Iterator[tuple[TopicPartition, Assignment]]:
        for topic in self.standing():
            for index, assignment in topic.assignments.items():
                if assignment.is_being_reassigned:
                    yield TopicPartition(topic.name, index), assignment

    @property
    def offline_partitions(self) -> int:
        """Partitions that have no leader, or one that is not there."""
        return sum(
            state is None or not self.is_online(partition, state.leader) for partition, _, state in self._leaders()
        )

    @property
    def preferred_replica_imbalance(self) -> int:
        """Partitions that another than their preferred replica leads."""
        return sum(
            state is not None and state.leader != assignment.replicas[0] for _, assignment, state in self._leaders()
        )

    def _leaders(self) -> Iterator[tuple[TopicPartition, Assignment, PartitionState | None]]:
        for topic in self.standing():
            for index, assignment in topic.assignments.items():
                yield TopicPartition(topic.name, index), assignment, topic.states.get(index)

"""What the controller holds: brokers, topics, who leads what, and what is to be deleted (S12.3).

The image is what the coordination nodes say, as of the last look, with the controller's own writes applied. It is
thrown away and read again whenever a write did not go as planned, so it is never repaired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.types import BrokerId, Epoch, TopicPartition

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
    """Of the node; brokers know it as the partition epoch."""
    lives: Mapping[BrokerId, Epoch]
    """Of the ISR's members: the broker epochs that the writer knew. One with a higher epoch has bounced, even if that
    was before this came into the store: whoever wrote it had not heard."""
    leader_recovery_state: int = 0


class TopicFacts(NamedTuple):
    """A topic as its nodes have it."""

    topic_id: bytes
    assignments: dict[int, Assignment]
    unclean: bool | None = None
    """unclean.leader.election.enable of the topic, None if it has no word of its own."""


@dataclass
class Topic:
    """A topic in the image. Partitions that have no state yet have never had a leader."""

    name: str
    topic_id: bytes
    assignments: dict[int, Assignment]
    unclean: bool | None = None
    states: dict[int, PartitionState] = field(default_factory=dict)

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


class Image:
    """See the module. Always: a topic to delete is in `topics` until its nodes are gone."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.brokers = dict(snapshot.brokers)
        self.topics: dict[str, Topic] = {}
        self._names: dict[bytes, str] = {}
        self.deleting: dict[str, set[tuple[TopicPartition, BrokerId]]] = {}
        """Topics to delete, with the replicas that are deleted already."""
        self.offline: dict[BrokerId, set[TopicPartition]] = {}
        """Replicas on failed log directories, by broker; forgotten when the broker starts anew."""
        self.shutting_down: dict[BrokerId, int] = {}
        """Brokers that asked to hand over what they lead, with the epoch of the life that is about to end."""
        for name, facts in snapshot.topics.items():
            self.put_topic(name, facts)
        for partition, state in snapshot.states.items():
            self.topics[partition.topic].states[partition.partition] = state

    def put_topic(self, name: str, facts: TopicFacts) -> Topic:
        """The topic as it is now; states stay, unless it is another topic of the same name."""
        known = self.topics.get(name)
        states = known.states if known is not None and known.topic_id == facts.topic_id else {}
        topic = Topic(name, facts.topic_id, dict(facts.assignments), facts.unclean, states)
        self._forget_id(known)
        self.topics[name] = topic
        self._names[topic.topic_id] = name
        return topic

    def remove_topic(self, name: str) -> None:
        self._forget_id(self.topics.pop(name, None))
        self.deleting.pop(name, None)
        for partitions in self.offline.values():
            partitions.difference_update([partition for partition in partitions if partition.topic == name])

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

    def is_shutting_down(self, broker: BrokerId) -> bool:
        return broker in self.brokers and self.shutting_down.get(broker) == self.brokers[broker].epoch

    def is_serving(self, partition: TopicPartition, broker: BrokerId) -> bool:
        """Online and about to stay: fit to lead, or to join an ISR."""
        return self.is_online(partition, broker) and not self.is_shutting_down(broker)

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

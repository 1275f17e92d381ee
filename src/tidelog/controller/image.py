"""What the controller holds: brokers, topics, who leads what, and what is to be deleted (S12.3).

The image is what the coordination nodes say, as of the last look, with the controller's own writes applied. It is
thrown away and read again whenever a write did not go as planned, so it is never repaired.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class PartitionState(NamedTuple):
    """Who leads, and who is in sync: the data of a partition's state node."""

    leader: BrokerId
    leader_epoch: Epoch
    isr: tuple[BrokerId, ...]
    controller_epoch: Epoch
    version: int
    """Of the node; brokers know it as the partition epoch."""
    written_id: int
    """Not later than the change that wrote it. An ISR member whose broker epoch is higher has bounced since."""
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
        self.deleting: dict[str, set[tuple[TopicPartition, BrokerId]]] = {}
        """Topics to delete, with the replicas that are deleted already."""
        self.offline: dict[BrokerId, set[TopicPartition]] = {}
        """Replicas on failed log directories, by broker; forgotten when the broker starts anew."""
        for name, facts in snapshot.topics.items():
            self.put_topic(name, facts)
        for partition, state in snapshot.states.items():
            self.topics[partition.topic].states[partition.partition] = state

    def put_topic(self, name: str, facts: TopicFacts) -> Topic:
        """The topic as it is now; states stay, unless it is another topic of the same name."""
        known = self.topics.get(name)
        states = known.states if known is not None and known.topic_id == facts.topic_id else {}
        topic = Topic(name, facts.topic_id, dict(facts.assignments), facts.unclean, states)
        self.topics[name] = topic
        return topic

    def remove_topic(self, name: str) -> None:
        self.topics.pop(name, None)
        self.deleting.pop(name, None)
        for partitions in self.offline.values():
            partitions.difference_update([partition for partition in partitions if partition.topic == name])

    def name_of(self, topic_id: bytes) -> str | None:
        return next((topic.name for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def state(self, partition: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.states.get(partition.partition)

    def assignment(self, partition: TopicPartition) -> Assignment | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.assignments.get(partition.partition)

    def is_online(self, partition: TopicPartition, broker: BrokerId) -> bool:
        """The broker lives, and the log directory of this replica works as far as is known."""
        return broker in self.brokers and partition not in self.offline.get(broker, ())

    def standing(self) -> Iterator[Topic]:
        """Topics that are not to be deleted."""
        for topic in self.topics.values():
            if topic.name not in self.deleting:
                yield topic

    @property
    def last_broker_epoch(self) -> int:
        """No broker that is known came later than this; what is written now is later."""
        return max((broker.epoch for broker in self.brokers.values()), default=0)

"""One event's worth of changes: who leads, who is in sync, and what has to be written and told because of it.

The rules for each kind of event change the image through a turn, so that an image, the writes and the requests always
say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidelog.controller.elections import Election, elect, first_leader
from tidelog.controller.events import CreateState, Outcome, UpdateState, UpdateTopic
from tidelog.controller.image import INITIAL_LEADER_EPOCH, NO_LEADER, Assignment, Image, PartitionState, Topic
from tidelog.controller.requests import Batch
from tidelog.types import NO_EPOCH, BrokerId, Epoch, TopicPartition


@dataclass
class Turn:
    """Always: each change of leader or ISR that the controller decides raises the leader epoch by one."""

    image: Image
    epoch: Epoch
    """The controller's."""
    batch: Batch
    unclean_by_default: Callable[[], bool]
    outcome: Outcome = field(default_factory=Outcome)
    _topics: dict[str, None] = field(default_factory=dict)
    """Whose assignment changed."""

    def finish(self) -> Outcome:
        for name in self._topics:
            topic = self.image.topics[name]
            self.outcome.writes.append(UpdateTopic(name, topic.topic_id, dict(topic.assignments)))
        self.outcome.requests = self.batch.requests()
        return self.outcome

    def settle(self, topics: Iterable[Topic]) -> None:
        """Give every partition of the topics the leader and ISR it should have."""
        for topic in topics:
            for partition in topic.partitions():
                self.settle_partition(topic, partition)

    def settle_partition(self, topic: Topic, partition: TopicPartition) -> None:
        state = topic.states.get(partition.partition)
        if state is None:
            self._begin(topic, partition)
            return
        elected = self.choose(topic, partition, state)
        # A leader in a new life leads a new term: what its last one may have lost must not be taken for its own.
        if (elected.leader, elected.isr) == (state.leader, state.isr) and not self.has_bounced(state, elected.leader):
            return
        self.update(topic, partition, state, elected)

    def choose(
        self, topic: Topic, partition: TopicPartition, state: PartitionState, unclean: bool | None = None
    ) -> Election:
        """Who should lead, and with which ISR. `unclean` overrules the setting."""
        if unclean is None:
            unclean = self.unclean_by_default() if topic.unclean is None else topic.unclean
        can_hand_over = any(
            self.image.is_serving(partition, member) and not self.has_bounced(state, member)
            for member in state.isr
            if member != state.leader
        )

        def is_online(broker: BrokerId) -> bool:
            """A leader that is shutting down leads on only if there is nobody to hand over to."""
            if broker == state.leader and not can_hand_over:
                return self.image.is_online(partition, broker)
            return self.image.is_serving(partition, broker)

        replicas = topic.assignments[partition.partition].replicas
        return elect(
            state.leader, state.isr, replicas, is_online, lambda broker: self.has_bounced(state, broker), unclean
        )

    def has_bounced(self, state: PartitionState, broker: BrokerId) -> bool:
        """It began another life than the one that the writer of the ISR knew."""
        life = state.lives.get(broker)
        return life is not None and broker in self.image.brokers and self.image.brokers[broker].epoch > life

    def update(
        self,
        topic: Topic,
        partition: TopicPartition,
        state: PartitionState,
        elected: Election,
        new_on: Sequence[BrokerId] = (),
    ) -> PartitionState:
        """Another term of leadership, told to all replicas."""
        if elected.is_unclean:
            self.outcome.unclean.append(partition)
        if elected.leader not in (state.leader, NO_LEADER):
            self.outcome.elections += 1
        new = self.write(
            topic,
            partition,
            state._replace(leader=elected.leader, leader_epoch=state.leader_epoch + 1, isr=elected.isr),
        )
        self.batch.partition_changed(partition, new_on=new_on)
        return new

    def write(self, topic: Topic, partition: TopicPartition, changed: PartitionState) -> PartitionState:
        """`changed` still has the version of the state it replaces."""
        new = changed._replace(
            controller_epoch=self.epoch,
            version=changed.version + 1,
            lives={member: self._life_of(member, changed) for member in changed.isr},
        )
        topic.states[partition.partition] = new
        self.outcome.writes.append(UpdateState(partition, new))
        return new

    def _life_of(self, member: BrokerId, state: PartitionState) -> Epoch:
        """Of one that is dead: the last that was known. None at all is less than any."""
        broker = self.image.brokers.get(member)
        return state.lives.get(member, NO_EPOCH) if broker is None else broker.epoch

    def assign(self, topic: Topic, partition: TopicPartition, assignment: Assignment) -> None:
        if topic.assignments[partition.partition] != assignment:
            topic.assignments[partition.partition] = assignment
            self._topics[topic.name] = None

    def _begin(self, topic: Topic, partition: TopicPartition) -> None:
        replicas = topic.assignments[partition.partition].replicas
        first = first_leader(replicas, lambda broker: self.image.is_serving(partition, broker))
        if first is None:
            return
        lives = {member: self.image.brokers[member].epoch for member in first.isr}
        state = PartitionState(first.leader, INITIAL_LEADER_EPOCH, first.isr, self.epoch, 0, lives)
        topic.states[partition.partition] = state
        self.outcome.writes.append(CreateState(partition, state))
        self.batch.partition_changed(partition, new_on=replicas)

"""One event's worth of changes: who leads, who is in sync, and what has to be written and told because of it.

The rules for each kind of event change the image through a turn, so that an image, the writes and the requests always
say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidelog.controller.elections import Candidates, Election, elect, first_leader
from tidelog.controller.events import (
    CreateState,
    LeaderChange,
    Move,
    Outcome,
    UncleanElection,
    UpdateState,
    UpdateTopic,
)
from tidelog.controller.image import (
    INITIAL_LEADER_EPOCH,
    NO_LEADER,
    Assignment,
    ElectionDefaults,
    Image,
    PartitionState,
    Topic,
)
from tidelog.controller.requests import Batch
from tidelog.types import NO_EPOCH, BrokerId, Epoch, TopicPartition


@dataclass
class Turn:
    """Always: each change of leader or ISR that the controller decides raises the leader epoch by one."""

    image: Image
    epoch: Epoch
    """The controller's."""
    batch: Batch
    defaults: Callable[[], ElectionDefaults]
    deletion_enabled: bool
    outcome: Outcome = field(default_factory=Outcome)
    _topics: dict[str, None] = field(default_factory=dict)
    """Whose assignment changed."""

    def begin_anew(self, image: Image) -> None:
        """With another image; nothing was changed or told yet."""
        self.image = image
        self.batch = self.batch.about(image)

    def finish(self) -> Outcome:
        for name in self._topics:
            topic = self.image.topics[name]
            self.outcome.writes.append(UpdateTopic(name, topic.topic_id, dict(topic.assignments)))
        return self.outcome

    def settle(self, topics: Iterable[Topic]) -> None:
        """Give every partition of the topics the leader and ISR it should have."""
        for topic in topics:
            for partition in topic.partitions():
                self.settle_partition(topic, partition)

    def settle_partition(self, topic: Topic, partition: TopicPartition) -> None:
        state = topic.states.get(partition.partition)
        if partition.partition in topic.faults:
            return  # its state cannot be read, and another one must not take its place
        if state is None:
            self._begin(topic, partition)
            return
        elected = self.choose(topic, partition, state)
        self._ask_for_log_ends(partition, elected.unheard)
        # A leader in a new life leads a new term: what its last one may have lost must not be taken for its own.
        is_the_same = (elected.leader, elected.isr) == (state.leader, state.isr)
        is_the_same = is_the_same and (not state.elr or self._elr(topic, partition, state) == state.elr)
        if is_the_same and not self.image.has_bounced(state, elected.leader):
            return
        self.update(topic, partition, state, elected)

    def choose(
        self, topic: Topic, partition: TopicPartition, state: PartitionState, unclean: bool | None = None
    ) -> Election:
        """Who should lead, and with which ISR. An operator may set `unclean`: then the setting does not count."""
        at_once = unclean is True
        if unclean is None:
            unclean = self.defaults().unclean if topic.rules.unclean is None else topic.rules.unclean
        can_hand_over = any(
            self.image.is_serving(partition, member) and not self.image.has_lost(state, member)
            for member in state.isr
            if member != state.leader
        )

        def is_online(broker: BrokerId) -> bool:
            """A leader that is shutting down leads on only if there is nobody to hand over to."""
            if broker == state.leader and not can_hand_over:
                return self.image.is_online(partition, broker)
            return self.image.is_serving(partition, broker)

        candidates = Candidates(
            topic.assignments[partition.partition].replicas,
            is_online,
            lambda broker: self.image.has_lost(state, broker),
            self.image.log_ends.of(partition),
            lambda broker: self.image.is_surely_there(partition, broker),
            lambda broker: self.image.log_ends.cannot_tell(partition, broker),
        )
        return elect(state, candidates, unclean, at_once=at_once)

    def _ask_for_log_ends(self, partition: TopicPartition, brokers: Iterable[BrokerId]) -> None:
        """Each of them once, until it has answered."""
        for broker in brokers:
            if self.image.log_ends.ask(partition, broker):
                self.batch.ask_log_end(broker, partition)

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
            ends = self.image.log_ends.of(partition)
            self.outcome.unclean.append(UncleanElection(partition, elected.leader, state.isr, dict(ends)))
        if elected.leader != NO_LEADER:
            self.image.log_ends.forget_partition(partition)
        if elected.leader not in (state.leader, NO_LEADER):
            self.outcome.elections += 1
        new = self.write(
            topic,
            partition,
            state._replace(leader=elected.leader, leader_epoch=state.leader_epoch + 1, isr=elected.isr),
            is_unclean=elected.is_unclean,
        )
        self.batch.partition_changed(partition, new_on=new_on)
        replicas = topic.assignments[partition.partition].replicas
        self.outcome.changes.append(LeaderChange(partition, state, new, replicas))
        return new

    def write(
        self, topic: Topic, partition: TopicPartition, changed: PartitionState, *, is_unclean: bool = False
    ) -> PartitionState:
        """`changed` still has the version of the state it replaces. After an unclean election its leader's log is the
        truth, and none that has another one is eligible."""
        elr = () if is_unclean else self._elr(topic, partition, changed)
        new = changed._replace(
            controller_epoch=self.epoch,
            version=changed.version + 1,
            lives={member: self._life_of(member, changed) for member in (*changed.isr, *elr)},
            elr=elr,
        )
        topic.states[partition.partition] = new
        self.outcome.writes.append(UpdateState(partition, new))
        return new

    def _elr(self, topic: Topic, partition: TopicPartition, changed: PartitionState) -> tuple[BrokerId, ...]:
        """Those that leave an ISR that is too small to commit anything stay eligible until it is large enough again.

        So do those that may have lost records. They do not lead by themselves, but are waited for if the leader has
        lost some too, which may be heard late: its registration may be from before a power loss.
        Without a leader all stay, also if min.insync.replicas is lowered: one of them may be the only one that has
        every committed record.
        """
        replicas = topic.assignments[partition.partition].replicas
        if changed.leader != NO_LEADER and len(changed.isr) >= self.needed_replicas(topic, len(replicas)):
            return ()
        before = topic.states[partition.partition]
        return tuple(member for member in before.eligible if member not in changed.isr and member in replicas)

    def needed_replicas(self, topic: Topic, replicas: int) -> int:
        """How many have to be in sync so that something is committed: not more than there are (S2.6)."""
        own = topic.rules.min_insync_replicas
        return min(self.defaults().min_insync_replicas if own is None else own, replicas)

    def _life_of(self, member: BrokerId, state: PartitionState) -> Epoch:
        """The epoch in which the member has every committed record, for all that is known.

        Of a dead one that is the last known; none at all is less than any. One that may have lost records keeps the
        old epoch while the partition waits for a leader, or if it is not in the ISR: the next look must come to the
        same verdict.
        """
        broker = self.image.brokers.get(member)
        is_waited_for = state.leader == NO_LEADER or member not in state.isr
        if broker is None or (is_waited_for and self.image.has_lost(state, member)):
            return state.lives.get(member, NO_EPOCH)
        return broker.epoch

    def assign(self, topic: Topic, partition: TopicPartition, assignment: Assignment) -> None:
        before = topic.assignments[partition.partition]
        if before != assignment:
            self.outcome.moves.append(Move(partition, before, assignment))
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

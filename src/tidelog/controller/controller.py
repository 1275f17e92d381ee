"""The controller: an event comes in, writes and requests go out (S12).

It keeps the image and applies its own writes to it at once. If one of them fails the shell reads everything again and
says so with TookOver; so nothing here has to know how a write can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tidelog.controller.events import (
    AlterPartitionAsked,
    BrokersChanged,
    ElectionAsked,
    ElectionRulesChanged,
    Event,
    ForgetDeletion,
    ImbalanceChecked,
    LeaderAndIsrAnswered,
    LogDirFailed,
    LogEndsTold,
    LogEndsUntold,
    Outcome,
    ReassignmentAsked,
    RemoveTopic,
    ReplicasPutOff,
    ShutdownAsked,
    StatesChanged,
    StopReplicaAnswered,
    TookOver,
    TopicsChanged,
)
from tidelog.controller.image import NO_LEADER, ElectionDefaults, Image, Snapshot, Topic
from tidelog.controller.isr import alter_partitions
from tidelog.controller.leadership import hold_elections, restore_balance
from tidelog.controller.reassignment import end_if_in_sync, end_where_in_sync, reassign, take_up
from tidelog.controller.requests import Batch
from tidelog.controller.shutdown import shut_down
from tidelog.controller.turn import Turn
from tidelog.errors import ErrorCode
from tidelog.types import BrokerId, Epoch, TopicPartition

_RULES: dict[type, Callable[[Turn, Any], None]] = {
    AlterPartitionAsked: alter_partitions,
    ShutdownAsked: shut_down,
    ElectionAsked: hold_elections,
    ImbalanceChecked: restore_balance,
    ReassignmentAsked: reassign,
}
"""Of what is asked for; what is observed is handled below."""


class Controller:
    """One term of one controller.

    Always: a state in the image was written by this term or read, and each change of leader or ISR raises the leader
    epoch by one, but for the ISRs that leaders ask for. Topics to delete are left alone but for their deletion.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        epoch: Epoch,
        listener: str,
        *,
        defaults: Callable[[], ElectionDefaults] = ElectionDefaults,
        deletion_enabled: bool = True,
    ) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self.image = Image(Snapshot({}, {}, {}, ()))
        self._listener = listener
        self._defaults = defaults
        self._deletion_enabled = deletion_enabled
        self._turn = self._new_turn()
        self._handlers: dict[type, Callable[..., None]] = {
            TookOver: self._took_over,
            BrokersChanged: self._brokers_changed,
            TopicsChanged: self._topics_changed,
            StatesChanged: self._states_changed,
            LogDirFailed: self._log_dir_failed,
            ElectionRulesChanged: self._election_rules_changed,
            LeaderAndIsrAnswered: self._leader_and_isr_answered,
            LogEndsTold: self._log_ends_told,
            LogEndsUntold: self._log_ends_untold,
            ReplicasPutOff: self._replicas_put_off,
            StopReplicaAnswered: self._stop_replica_answered,
        }

    def handle(self, event: Event) -> Outcome:
        self._turn = self._new_turn()
        rule = _RULES.get(type(event))
        if rule is None:
            self._handlers[type(event)](event)
        else:
            rule(self._turn, event)
        end_where_in_sync(self._turn)
        return self._turn.finish()

    def tell(self, outcome: Outcome) -> Outcome:
        """Adds what the brokers have to be told, of the last event that was handled.

        To describe many partitions takes as long as to decide on them. The shell has written the nodes in between, and
        others had their turn.
        """
        assert outcome is self._turn.outcome, "the image has changed since"
        outcome.requests = self._turn.batch.requests()
        return outcome

    def _new_turn(self) -> Turn:
        batch = Batch(self.image, self.broker_id, self.epoch, self._listener)
        return Turn(self.image, self.epoch, batch, self._defaults)

    # Events

    def _took_over(self, event: TookOver) -> None:
        # What brokers said of themselves is in no node. It holds until they say otherwise.
        former, self.image = self.image, Image(event.snapshot)
        self.image.shutting_down, self.image.offline = former.shutting_down, former.offline
        self.image.log_ends.keep_given_up(former.log_ends, partial(self._is_as_before, former))
        self._turn = self._new_turn()
        self._turn.batch.brokers_changed()
        for broker in self.image.brokers:
            self._turn.batch.tell_everything(broker)
        self._mark_for_deletion(event.snapshot.to_delete)
        self._turn.settle(self.image.standing())
        take_up(self._turn)
        self._delete_replicas(self.image.deleting)

    def _is_as_before(self, former: Image, partition: TopicPartition, broker: BrokerId) -> bool:
        """The partition still waits for a leader in the same epoch, and the broker has not registered anew."""
        then, now = former.state(partition), self.image.state(partition)
        if then is None or now is None or now.leader != NO_LEADER or now.leader_epoch != then.leader_epoch:
            return False
        return broker in former.brokers and self._is_current(broker, former.brokers[broker].epoch)

    def _brokers_changed(self, event: BrokersChanged) -> None:
        known, living = self.image.brokers, event.brokers
        # One that bounced between two looks, or that moved, starts anew as well.
        born = [id for id, broker in living.items() if known.get(id) != broker]
        dead = [id for id in known if id not in living]
        if known == living:
            return
        self.image.brokers = dict(living)
        for broker in (*born, *dead):
            self.image.log_ends.forget_broker(broker)
            self.image.confirmed.pop(broker, None)
        # A replica on a failed log directory stays offline in the broker's next life, until an answer says otherwise.
        self._turn.batch.brokers_changed()
        for broker in born:
            self._turn.batch.tell_everything(broker)
        # Which replicas are offline has changed, also in partitions that do not.
        self._turn.batch.metadata_changed(self._partitions_on([*born, *dead]))
        self._turn.settle(self.image.standing())
        self._delete_replicas(self.image.deleting, only=born)

    def _topics_changed(self, event: TopicsChanged) -> None:
        image = self.image
        for name in [name for name in image.topics if name not in event.topics]:
            image.remove_topic(name)
        changed: list[Topic] = []
        for name, facts in event.topics.items():
            known = image.topics.get(name)
            if facts.fault is not None and known is not None:
                known.fault, known.remains = facts.fault, facts.remains  # it goes on as it was known
            elif known is None or known.topic_id != facts.topic_id or known.assignments != facts.assignments:
                changed.append(image.put_topic(name, facts))
        marked = self._mark_for_deletion(event.to_delete)
        self._turn.settle(topic for topic in changed if topic.name not in image.deleting)
        for name in marked:
            self._turn.batch.metadata_changed(image.topics[name].partitions())
        self._delete_replicas(marked)

    def _states_changed(self, event: StatesChanged) -> None:
        for partition, state in event.states.items():
            topic = self.image.topics.get(partition.topic)
            known = self.image.state(partition)
            if topic is None or topic.name in self.image.deleting or (known and known.version >= state.version):
                continue
            if partition.partition in topic.faults:
                continue  # its return is looked for apart: brokers have to hear of it
            topic.states[partition.partition] = state
            self._turn.batch.metadata_changed([partition])
            end_if_in_sync(self._turn, partition)

    def _log_dir_failed(self, event: LogDirFailed) -> None:
        for broker in event.brokers:
            if broker in self.image.brokers:
                self._turn.batch.ask_about(broker, self._partitions_on([broker]))

    def _election_rules_changed(self, event: ElectionRulesChanged) -> None:
        for name, rules in event.topics.items():
            if name in self.image.topics:
                self.image.topics[name].rules = rules
        self._turn.settle(self.image.standing())

    def _leader_and_isr_answered(self, event: LeaderAndIsrAnswered) -> None:
        """KAFKA_STORAGE_ERROR says that the replica's log directory failed; no error, that it is there again."""
        if not self._is_current(event.broker, event.broker_epoch):
            return
        names = {topic.topic_id: topic.name for topic in self.image.topics.values()}
        offline = self.image.offline.setdefault(event.broker, set())
        confirmed = self.image.confirmed.setdefault(event.broker, set())
        changed: dict[str, None] = {}
        for topic in event.response.topics:
            name = names.get(topic.topic_id)
            for answer in topic.partition_errors:
                partition = TopicPartition(name or "", answer.partition_index)
                if name is None:
                    continue
                is_there = answer.error_code == ErrorCode.NONE and event.is_after_failure
                if is_there and not self.image.is_surely_there(partition, event.broker):
                    confirmed.add(partition)
                    changed[name] = None
                if answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR and partition not in offline:
                    offline.add(partition)
                elif answer.error_code == ErrorCode.NONE and partition in offline:
                    offline.remove(partition)
                else:
                    continue
                changed[name] = None
                self._turn.batch.metadata_changed([partition])
        standing = [name for name in changed if name not in self.image.deleting]
        self._turn.settle(self.image.topics[name] for name in standing)
        for partition in [partition for name in standing for partition in self.image.topics[name].partitions()]:
            end_if_in_sync(self._turn, partition)  # a move may have waited for this answer

    def _log_ends_told(self, event: LogEndsTold) -> None:
        """A replica that could not tell, or was asked before something changed, is asked again."""
        if not self._is_current(event.broker, event.broker_epoch):
            return
        for partition, end in event.log_ends.items():
            self.image.log_ends.answered(partition, event.broker)
            topic = self._waiting_for_a_leader(partition)
            if topic is None:
                continue
            is_news = topic.states[partition.partition].leader_epoch == event.asked_in[partition]
            if end is not None and is_news:
                self.image.log_ends.told(partition, event.broker, end)
            self._turn.settle_partition(topic, partition)

    def _log_ends_untold(self, event: LogEndsUntold) -> None:
        if not self._is_current(event.broker, event.broker_epoch):
            return
        for partition, asked_in in event.asked_in.items():
            topic = self._waiting_for_a_leader(partition)
            if topic is None:
                continue
            if topic.states[partition.partition].leader_epoch == asked_in:
                self.image.log_ends.give_up(partition, event.broker)
            else:
                # The epoch has grown without a leader. Its time begins anew; to be asked twice does no harm.
                self.image.log_ends.answered(partition, event.broker)
            self._turn.settle_partition(topic, partition)

    def _waiting_for_a_leader(self, partition: TopicPartition) -> Topic | None:
        """The topic of a partition that stays and has no leader."""
        topic, state = self.image.topics.get(partition.topic), self.image.state(partition)
        is_waiting = state is not None and state.leader == NO_LEADER
        return topic if topic is not None and topic.name not in self.image.deleting and is_waiting else None

    def _replicas_put_off(self, event: ReplicasPutOff) -> None:
        if not self._is_current(event.broker, event.broker_epoch):
            return
        still = set(self._partitions_on([event.broker]))
        again = {partition: is_new for partition, is_new in event.partitions.items() if partition in still}
        self._turn.batch.tell_again(event.broker, again)

    def _stop_replica_answered(self, event: StopReplicaAnswered) -> None:
        if not self._is_current(event.broker, event.broker_epoch) or event.response.error_code:
            return
        failed = {
            TopicPartition(answer.topic_name, answer.partition_index)
            for answer in event.response.partition_errors
            if answer.error_code
        }
        touched: dict[str, None] = {}
        for partition in event.partitions:
            done = self.image.deleting.get(partition.topic)
            if done is not None and partition not in failed:
                done.add((partition, event.broker))
                touched[partition.topic] = None
        self._finish_deletions(touched)

    def _is_current(self, broker: BrokerId, epoch: int) -> bool:
        """An answer of an earlier life says nothing of this one."""
        return broker in self.image.brokers and self.image.brokers[broker].epoch == epoch

    # Deletion

    def _mark_for_deletion(self, names: Iterable[str]) -> list[str]:
        """Those that were not marked before. A wish that cannot be granted is taken back."""
        marked: list[str] = []
        for name in names:
            if name not in self.image.topics or not self._deletion_enabled:
                self._turn.outcome.writes.append(ForgetDeletion(name))
            elif name not in self.image.deleting:
                self.image.deleting[name] = set()
                marked.append(name)
        return marked

    def _delete_replicas(self, names: Iterable[str], only: Iterable[BrokerId] | None = None) -> None:
        """Tell the living brokers; the others when they come back. Until then the deletion waits."""
        names = list(names)
        among = self.image.brokers if only is None else list(only)
        for name in names:
            done = self.image.deleting[name]
            for partition, broker in self.image.holders(name):
                if broker in among and (partition, broker) not in done:
                    self._turn.batch.delete_replica(broker, partition)
        self._finish_deletions(names)

    def _finish_deletions(self, names: Iterable[str]) -> None:
        for name in names:
            if all(replica in self.image.deleting[name] for replica in self.image.holders(name)):
                self._turn.outcome.writes.append(RemoveTopic(name))
                self.image.remove_topic(name)

    # Pieces

    def _partitions_on(self, brokers: Iterable[BrokerId]) -> list[TopicPartition]:
        """Of topics that stand, with a replica on one of the brokers and a state to tell."""
        wanted = set(brokers)
        return [
            TopicPartition(topic.name, index)
            for topic in self.image.standing()
            for index, assignment in topic.assignments.items()
            if index in topic.states and not wanted.isdisjoint(assignment.replicas)
        ]

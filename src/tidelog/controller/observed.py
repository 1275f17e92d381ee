"""What the controller sees: brokers, topics and states that changed in the store, and what brokers answer (S12)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tidelog.controller.deletion import delete_replicas, finish_deletions, mark_for_deletion
from tidelog.controller.events import (
    BrokersChanged,
    ElectionRulesChanged,
    LeaderAndIsrAnswered,
    LogDirFailed,
    LogEndsTold,
    LogEndsUntold,
    ReplicasPutOff,
    StatesChanged,
    StopReplicaAnswered,
    TookOver,
    TopicsChanged,
)
from tidelog.controller.image import NO_LEADER, Image, Topic
from tidelog.controller.reassignment import end_if_in_sync, take_up
from tidelog.controller.turn import Turn
from tidelog.errors import ErrorCode
from tidelog.types import BrokerId, TopicPartition


def took_over(turn: Turn, event: TookOver) -> None:
    # What brokers said of themselves is in no node. It holds until they say otherwise.
    former, image = turn.image, Image(event.snapshot)
    image.shutting_down, image.offline = former.shutting_down, former.offline
    image.log_ends.keep_given_up(former.log_ends, partial(_is_as_before, image, former))
    turn.begin_anew(image)
    turn.batch.brokers_changed()
    for broker in turn.image.brokers:
        turn.batch.tell_everything(broker)
    mark_for_deletion(turn, event.snapshot.to_delete)
    turn.settle(turn.image.standing())
    take_up(turn)
    delete_replicas(turn, turn.image.deleting)


def _is_as_before(image: Image, former: Image, partition: TopicPartition, broker: BrokerId) -> bool:
    """The partition still waits for a leader in the same epoch, and the broker has not registered anew."""
    then, now = former.state(partition), image.state(partition)
    if then is None or now is None or now.leader != NO_LEADER or now.leader_epoch != then.leader_epoch:
        return False
    return broker in former.brokers and _is_current(image, broker, former.brokers[broker].epoch)


def brokers_changed(turn: Turn, event: BrokersChanged) -> None:
    known, living = turn.image.brokers, event.brokers
    # One that bounced between two looks, or that moved, starts anew as well.
    born = [id for id, broker in living.items() if known.get(id) != broker]
    dead = [id for id in known if id not in living]
    if known == living:
        return
    turn.image.brokers = dict(living)
    for broker in (*born, *dead):
        turn.image.log_ends.forget_broker(broker)
        turn.image.confirmed.pop(broker, None)
    # A replica on a failed log directory stays offline in the broker's next life, until an answer says otherwise.
    turn.batch.brokers_changed()
    for broker in born:
        turn.batch.tell_everything(broker)
    # Which replicas are offline has changed, also in partitions that do not.
    turn.batch.metadata_changed(_partitions_on(turn.image, [*born, *dead]))
    turn.settle(turn.image.standing())
    delete_replicas(turn, turn.image.deleting, only=born)


def topics_changed(turn: Turn, event: TopicsChanged) -> None:
    image = turn.image
    for name in [name for name in image.topics if name not in event.topics]:
        image.remove_topic(name)
    changed: list[Topic] = []
    for name, facts in event.topics.items():
        known = image.topics.get(name)
        if facts.fault is not None and known is not None:
            known.fault, known.remains = facts.fault, facts.remains  # it goes on as it was known
        elif known is None or known.topic_id != facts.topic_id or known.assignments != facts.assignments:
            changed.append(image.put_topic(name, facts))
    marked = mark_for_deletion(turn, event.to_delete)
    turn.settle(topic for topic in changed if topic.name not in image.deleting)
    for name in marked:
        turn.batch.metadata_changed(image.topics[name].partitions())
    delete_replicas(turn, marked)


def states_changed(turn: Turn, event: StatesChanged) -> None:
    for partition, state in event.states.items():
        topic = turn.image.topics.get(partition.topic)
        known = turn.image.state(partition)
        if topic is None or topic.name in turn.image.deleting or (known and known.version >= state.version):
            continue
        if partition.partition in topic.faults:
            continue  # its return is looked for apart: brokers have to hear of it
        topic.states[partition.partition] = state
        turn.batch.metadata_changed([partition])
        end_if_in_sync(turn, partition)


def log_dir_failed(turn: Turn, event: LogDirFailed) -> None:
    for broker in event.brokers:
        if broker in turn.image.brokers:
            turn.batch.ask_about(broker, _partitions_on(turn.image, [broker]))


def election_rules_changed(turn: Turn, event: ElectionRulesChanged) -> None:
    for name, rules in event.topics.items():
        if name in turn.image.topics:
            turn.image.topics[name].rules = rules
    turn.settle(turn.image.standing())


def leader_and_isr_answered(turn: Turn, event: LeaderAndIsrAnswered) -> None:
    """KAFKA_STORAGE_ERROR says that the replica's log directory failed; no error, that it is there again."""
    if not _is_current(turn.image, event.broker, event.broker_epoch):
        return
    names = {topic.topic_id: topic.name for topic in turn.image.topics.values()}
    offline = turn.image.offline.setdefault(event.broker, set())
    confirmed = turn.image.confirmed.setdefault(event.broker, set())
    changed: dict[str, None] = {}
    for topic in event.response.topics:
        name = names.get(topic.topic_id)
        for answer in topic.partition_errors:
            partition = TopicPartition(name or "", answer.partition_index)
            if name is None:
                continue
            is_there = answer.error_code == ErrorCode.NONE and event.is_after_failure
            if is_there and not turn.image.is_surely_there(partition, event.broker):
                confirmed.add(partition)
                changed[name] = None
            if answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR and partition not in offline:
                offline.add(partition)
            elif answer.error_code == ErrorCode.NONE and partition in offline:
                offline.remove(partition)
            else:
                continue
            changed[name] = None
            turn.batch.metadata_changed([partition])
    standing = [name for name in changed if name not in turn.image.deleting]
    turn.settle(turn.image.topics[name] for name in standing)
    for partition in [partition for name in standing for partition in turn.image.topics[name].partitions()]:
        end_if_in_sync(turn, partition)  # a move may have waited for this answer


def log_ends_told(turn: Turn, event: LogEndsTold) -> None:
    """A replica that could not tell, or was asked before something changed, is asked again."""
    if not _is_current(turn.image, event.broker, event.broker_epoch):
        return
    for partition, end in event.log_ends.items():
        turn.image.log_ends.answered(partition, event.broker)
        topic = _waiting_for_a_leader(turn.image, partition)
        if topic is None:
            continue
        is_news = topic.states[partition.partition].leader_epoch == event.asked_in[partition]
        if end is not None and is_news:
            turn.image.log_ends.told(partition, event.broker, end)
        turn.settle_partition(topic, partition)


def log_ends_untold(turn: Turn, event: LogEndsUntold) -> None:
    if not _is_current(turn.image, event.broker, event.broker_epoch):
        return
    for partition, asked_in in event.asked_in.items():
        topic = _waiting_for_a_leader(turn.image, partition)
        if topic is None:
            continue
        if topic.states[partition.partition].leader_epoch == asked_in:
            turn.image.log_ends.give_up(partition, event.broker)
        else:
            # The epoch has grown without a leader. Its time begins anew; to be asked twice does no harm.
            turn.image.log_ends.answered(partition, event.broker)
        turn.settle_partition(topic, partition)


def _waiting_for_a_leader(image: Image, partition: TopicPartition) -> Topic | None:
    """The topic of a partition that stays and has no leader."""
    topic, state = image.topics.get(partition.topic), image.state(partition)
    is_waiting = state is not None and state.leader == NO_LEADER
    return topic if topic is not None and topic.name not in image.deleting and is_waiting else None


def replicas_put_off(turn: Turn, event: ReplicasPutOff) -> None:
    if not _is_current(turn.image, event.broker, event.broker_epoch):
        return
    still = set(_partitions_on(turn.image, [event.broker]))
    again = {partition: is_new for partition, is_new in event.partitions.items() if partition in still}
    turn.batch.tell_again(event.broker, again)


def stop_replica_answered(turn: Turn, event: StopReplicaAnswered) -> None:
    if not _is_current(turn.image, event.broker, event.broker_epoch) or event.response.error_code:
        return
    failed = {
        TopicPartition(answer.topic_name, answer.partition_index)
        for answer in event.response.partition_errors
        if answer.error_code
    }
    touched: dict[str, None] = {}
    for partition in event.partitions:
        done = turn.image.deleting.get(partition.topic)
        if done is not None and partition not in failed:
            done.add((partition, event.broker))
            touched[partition.topic] = None
    finish_deletions(turn, touched)


def _is_current(image: Image, broker: BrokerId, epoch: int) -> bool:
    """An answer of an earlier life says nothing of this one."""
    return broker in image.brokers and image.brokers[broker].epoch == epoch


def _partitions_on(image: Image, brokers: Iterable[BrokerId]) -> list[TopicPartition]:
    """Of topics that stand, with a replica on one of the brokers and a state to tell."""
    wanted = set(brokers)
    return [
        TopicPartition(topic.name, index)
        for topic in image.standing()
        for index, assignment in topic.assignments.items()
        if index in topic.states and not wanted.isdisjoint(assignment.replicas)
    ]

"""AlterPartition: a leader asks for another ISR (S3.1, S3.4).

The leader decides who is in sync, the controller whether it may: it must lead in this very epoch, know the state it
changes, and name only members that live and stay (edge case 8). Granted, the leader epoch stays and the partition epoch
grows by one.
"""

from __future__ import annotations

from tidelog.controller.asked_before import was_asked_before
from tidelog.controller.elr_tags import set_elr
from tidelog.controller.events import AlterPartitionAsked
from tidelog.controller.image import Assignment, Broker, Image, PartitionState
from tidelog.controller.turn import Turn
from tidelog.errors import ErrorCode
from tidelog.types import BrokerId, TopicPartition
from tidelog.wire.messages.controller import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)

TOPIC_IDS_SINCE = 2
BROKER_EPOCHS_SINCE = 3
UNKNOWN_EPOCH = -1
"""Of an ISR member whose broker epoch the leader does not know."""

RECOVERED, RECOVERING = 0, 1
"""Leader recovery states: whether the leader is still to make up for an unclean election."""


def alter_partitions(turn: Turn, event: AlterPartitionAsked) -> None:
    request, image = event.request, turn.image
    sender = image.brokers.get(request.broker_id)
    if sender is None or sender.epoch != request.broker_epoch:
        turn.outcome.answer = AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        return
    turn.outcome.answer = AlterPartitionResponse(
        topics=[_alter_topic(turn, request, asked, event.version) for asked in request.topics]
    )


def _alter_topic(
    turn: Turn, request: AlterPartitionRequest, asked: AlterPartitionRequestTopicData, version: int
) -> AlterPartitionResponseTopicData:
    by_id = version >= TOPIC_IDS_SINCE
    name = turn.image.name_of(asked.topic_id) if by_id else asked.topic_name
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answered = AlterPartitionResponseTopicData(topic_name=asked.topic_name, topic_id=asked.topic_id)
    for data in asked.partitions:
        if name is None or name not in turn.image.topics or name in turn.image.deleting:
            result: ErrorCode | PartitionState = unknown
        else:
            partition = TopicPartition(name, data.partition_index)
            result = _alter(turn, partition, request.broker_id, data, version)
        answered.partitions.append(_answer(data.partition_index, result))
    return answered


def _alter(
    turn: Turn,
    partition: TopicPartition,
    sender: BrokerId,
    data: AlterPartitionRequestPartitionData,
    version: int,
) -> ErrorCode | PartitionState:
    topic = turn.image.topics[partition.topic]
    state, assignment = topic.states.get(partition.partition), topic.assignments.get(partition.partition)
    if state is None or assignment is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    epochs = isr_of(data, version)
    is_old = version < BROKER_EPOCHS_SINCE
    code = judge(turn.image, partition, state, assignment, sender, data, epochs, may_be_unknown=is_old)
    if code is ErrorCode.INELIGIBLE_REPLICA and was_asked_before(data):
        # The leader will not count this member any more, so no late copy of its question may be granted.
        turn.write(topic, partition, state)
        turn.batch.partition_changed(partition)
    if code is ErrorCode.INELIGIBLE_REPLICA and version < TOPIC_IDS_SINCE:
        return ErrorCode.OPERATION_NOT_ATTEMPTED
    if code:
        return code
    if _is_so(state, epochs, data):
        # The answer to the first try was lost.
        return state
    changed = state._replace(isr=tuple(epochs), leader_recovery_state=data.leader_recovery_state)
    new = turn.write(topic, partition, changed)
    turn.batch.metadata_changed([partition])
    return new


def isr_of(data: AlterPartitionRequestPartitionData, version: int) -> dict[BrokerId, int]:
    """The members asked for, with their broker epochs."""
    if version < BROKER_EPOCHS_SINCE:
        return dict.fromkeys(data.new_isr, UNKNOWN_EPOCH)
    return {member.broker_id: member.broker_epoch for member in data.new_isr_with_epochs}


def judge(
    image: Image,
    partition: TopicPartition,
    state: PartitionState,
    assignment: Assignment,
    sender: BrokerId,
    data: AlterPartitionRequestPartitionData,
    epochs: dict[BrokerId, int],
    *,
    may_be_unknown: bool,
) -> ErrorCode:
    """NONE if it may be; in the order in which Kafka looks. `may_be_unknown`: the request cannot name broker epochs."""
    recovery = data.leader_recovery_state
    if data.leader_epoch > state.leader_epoch or data.partition_epoch > state.version:
        # Who knows more than the controller has heard of a newer one.
        return ErrorCode.NOT_CONTROLLER
    if data.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != state.leader:
        return ErrorCode.INVALID_REQUEST
    if _is_so(state, epochs, data):
        return ErrorCode.NONE
    if data.partition_epoch < state.version:
        return ErrorCode.INVALID_UPDATE_VERSION
    if sender not in epochs or not epochs.keys() <= set(assignment.replicas):
        return ErrorCode.INVALID_REQUEST
    if recovery == RECOVERING and (len(epochs) > 1 or state.leader_recovery_state == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    for member, epoch in epochs.items():
        if not _is_reachable(image, partition, sender, member):
            return ErrorCode.INELIGIBLE_REPLICA
        if not may_be_unknown and not _is_known(state, epoch, image.brokers[member]):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _is_so(state: PartitionState, epochs: dict[BrokerId, int], data: AlterPartitionRequestPartitionData) -> bool:
    """What is asked for is there already; it does not matter then how old the state is that the leader knows."""
    return epochs.keys() == set(state.isr) and data.leader_recovery_state == state.leader_recovery_state


def _is_reachable(image: Image, partition: TopicPartition, leader: BrokerId, member: BrokerId) -> bool:
    """A leader that is shutting down may still let others in, so that it can hand over to them."""
    return image.is_online(partition, member) if member == leader else image.is_serving(partition, member)


def _is_known(state: PartitionState, epoch: int, member: Broker) -> bool:
    """Whether the leader means the member as it is registered now, and no earlier life of it.

    One that joins must be named with its current broker epoch: another life may have lost what it had (edge case 32).
    One that stays may be unknown to a leader whose term is young, or may have registered anew without a fetch since.
    Then it is enough that it has lost nothing since it came into the ISR, so that a follower that is slow to fetch does
    not keep another from leaving or joining.
    """
    is_the_same = member.id in state.isr and member.has_kept(state.lives.get(member.id, UNKNOWN_EPOCH))
    return is_the_same or epoch == member.epoch


def _answer(index: int, result: ErrorCode | PartitionState) -> AlterPartitionResponsePartitionData:
    if isinstance(result, ErrorCode):
        return AlterPartitionResponsePartitionData(partition_index=index, error_code=result)
    answer = AlterPartitionResponsePartitionData(
        partition_index=index,
        leader_id=result.leader,
        leader_epoch=result.leader_epoch,
        isr=list(result.isr),
        leader_recovery_state=result.leader_recovery_state,
        partition_epoch=result.version,
    )
    set_elr(answer, result.elr)
    return answer

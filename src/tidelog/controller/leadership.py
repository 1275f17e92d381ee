"""Elections that are asked for: of preferred replicas, by somebody or by the clock, and unclean ones (S6.2, S6.3)."""

from __future__ import annotations

from tidelog.controller.elections import Election
from tidelog.controller.events import Elected, ElectionAsked, ElectionType, ImbalanceChecked
from tidelog.controller.image import NO_LEADER, Image
from tidelog.controller.turn import Turn
from tidelog.errors import ErrorCode
from tidelog.types import BrokerId, TopicPartition


def hold_elections(turn: Turn, event: ElectionAsked) -> None:
    asked = event.partitions
    if asked is None:
        asked = tuple(partition for topic in turn.image.standing() for partition in topic.partitions())
    answers = {partition: _elect(turn, partition, event.kind) for partition in asked}
    if event.partitions is None:
        answers = {at: answer for at, answer in answers.items() if answer.code is not ErrorCode.ELECTION_NOT_NEEDED}
    turn.outcome.answer = answers


def _elect(turn: Turn, partition: TopicPartition, kind: ElectionType) -> Elected:
    topic = turn.image.topics.get(partition.topic)
    if topic is None or partition.partition not in topic.assignments:
        return Elected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_LEADER)
    if topic.name in turn.image.deleting:
        return Elected(ErrorCode.INVALID_TOPIC_EXCEPTION, NO_LEADER)
    is_preferred = kind is ElectionType.PREFERRED
    state = topic.states.get(partition.partition)
    leader = NO_LEADER if state is None else state.leader
    preferred = topic.assignments[partition.partition].replicas[0]
    if leader == preferred if is_preferred else turn.image.is_online(partition, leader):
        return Elected(ErrorCode.ELECTION_NOT_NEEDED, leader)
    if is_preferred:
        # Where its log has to be confirmed first, the ISR may hold members that lost records, and not all of them stay.
        is_sure = turn.image.is_surely_there(partition, preferred)
        can = is_sure and can_lead(turn.image, partition, preferred)
        if state is None or not can or turn.image.has_lost(state, preferred):
            return Elected(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, leader)
        elected = Election(preferred, state.isr)
    else:
        elected = Election(NO_LEADER, ()) if state is None else turn.choose(topic, partition, state, unclean=True)
        if state is None or elected.leader == NO_LEADER:
            return Elected(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, leader)
    turn.update(topic, partition, state, elected)
    return Elected(ErrorCode.NONE, elected.leader)


def can_lead(image: Image, partition: TopicPartition, broker: BrokerId) -> bool:
    state = image.state(partition)
    return state is not None and broker in state.isr and image.is_serving(partition, broker)


def restore_balance(turn: Turn, event: ImbalanceChecked) -> None:
    """Brokers that do not lead more than so much of what they should, lead it again where they can."""
    preferred: dict[BrokerId, list[TopicPartition]] = {}
    for topic in turn.image.standing():
        for index, assignment in topic.assignments.items():
            preferred.setdefault(assignment.replicas[0], []).append(TopicPartition(topic.name, index))
    for broker, partitions in preferred.items():
        missed = [at for at in partitions if (state := turn.image.state(at)) is not None and state.leader != broker]
        if len(missed) * 100 <= event.percentage * len(partitions):
            continue
        for partition in missed:
            placed = turn.image.assignment(partition)
            if placed is not None and not placed.is_being_reassigned:
                _elect(turn, partition, ElectionType.PREFERRED)

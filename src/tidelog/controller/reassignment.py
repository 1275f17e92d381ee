"""Moving replicas to other brokers (KIP-455).

First the new replicas join the old ones, in a new term, so that all brokers learn of them. When the whole target is in
the ISR, the others leave: the leader is one of the target then, the ISR is in it, and what is left over is deleted.
Between the two everything stands in the nodes, so the next controller goes on where this one stopped (S12.4).

States are written before the topic's node. Half done, a beginning is a new term and nothing else; an end is an ISR
within the target, of a reassignment that is still to be ended; a cancellation is a reassignment that goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from tidelog.controller.events import CreateState, ReassignmentAsked, UpdateState
from tidelog.controller.image import NO_LEADER, Assignment, Image, PartitionState
from tidelog.controller.topics import TopicError, check_readable
from tidelog.controller.turn import Turn
from tidelog.errors import ErrorCode
from tidelog.types import BrokerId, TopicPartition


def reassign(turn: Turn, event: ReassignmentAsked) -> None:
    answers: dict[TopicPartition, TopicError | None] = {}
    for partition, target in event.targets.items():
        answers[partition] = None
        try:
            wanted = plan(turn.image, partition, target, event.allow_replication_factor_change)
            move(turn, partition, wanted)
        except TopicError as failure:
            answers[partition] = failure
    turn.outcome.answer = answers


def plan(
    image: Image, partition: TopicPartition, target: Sequence[BrokerId] | None, allow_replication_factor_change: bool
) -> Assignment:
    """The assignment while the replicas move to the target; None is the way back. TopicError if it cannot be."""
    topic = image.topics.get(partition.topic)
    now = None if topic is None else topic.assignments.get(partition.partition)
    if now is None or partition.topic in image.deleting:
        raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {partition}.")
    if target is None:
        if not now.is_being_reassigned:
            raise TopicError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{partition} is not being reassigned.")
        return now.reassign_to(now.origin)
    wanted = now.reassign_to(target)
    missing = [broker for broker in wanted.adding if broker not in image.brokers or image.is_shutting_down(broker)]
    if not target:
        fault = "no replica is named"
    elif len(set(target)) != len(target):
        fault = "a broker is named more than once"
    elif min(target) < 0:
        fault = f"{min(target)} is no broker id"
    elif missing:
        fault = f"broker {missing[0]} is not alive"
    elif not allow_replication_factor_change and len(target) != len(now.target):
        raise TopicError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{partition} has {len(now.target)} replica(s), {len(target)} would be another replication factor.",
        )
    else:
        return wanted
    raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{partition} cannot be reassigned: {fault}.")


def move(turn: Turn, partition: TopicPartition, wanted: Assignment) -> None:
    """Begin, change, end or cancel: whatever `wanted` comes to, given who is in sync."""
    topic = turn.image.topics[partition.topic]
    check_readable(topic, partition.partition)
    now, state = topic.assignments[partition.partition], topic.states.get(partition.partition)
    if state is None:
        # Nobody has ever held a record of it.
        turn.assign(topic, partition, Assignment(wanted.target))
        turn.settle_partition(topic, partition)
        return
    has_leader = state.leader != NO_LEADER
    if has_leader and _has_arrived(turn.image, partition, wanted.target, state):
        wanted = Assignment(wanted.target)
    isr = tuple(member for member in state.isr if member in wanted.replicas)
    if not has_leader and not set(state.eligible) <= set(wanted.replicas):
        raise TopicError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{partition} cannot be reassigned: it has no leader, and each of its last in-sync replicas "
            f"{list(state.eligible)} may be the one with all records. Start their brokers, or give records up with "
            "`tidelog elect --unclean`.",
        )
    if has_leader and len(isr) < turn.needed_replicas(topic, len(wanted.replicas)) <= len(state.isr):
        raise TopicError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{partition} cannot be reassigned: of its ISR {list(state.isr)} only {list(isr)} would be left, fewer "
            "than min.insync.replicas. Try again when more of the replicas that stay are in sync.",
        )
    if not isr:
        raise TopicError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{partition} cannot be reassigned: none of the replicas that would be left is in sync.",
        )
    if has_leader and len(isr) < len(state.isr) and not _is_one_there(turn.image, partition, isr):
        raise TopicError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{partition} cannot be reassigned: the replicas that would be left may all be in failed log directories. "
            "Try again when their brokers have told.",
        )
    turn.assign(topic, partition, wanted)
    added = [broker for broker in wanted.replicas if broker not in now.replicas]
    elected = turn.choose(topic, partition, state._replace(isr=isr))
    after = turn.update(topic, partition, state, elected, new_on=added)
    for broker in now.replicas:
        if broker not in wanted.replicas:
            turn.batch.stop_replica(broker, partition, after.leader_epoch, delete=True)


def _has_arrived(image: Image, partition: TopicPartition, target: Sequence[BrokerId], state: PartitionState) -> bool:
    """Whether the other replicas can be deleted."""
    return set(target) <= set(state.isr) and _is_one_there(image, partition, target)


def _is_one_there(image: Image, partition: TopicPartition, members: Iterable[BrokerId]) -> bool:
    return any(image.is_surely_there(partition, member) for member in members)


def take_up(turn: Turn) -> None:
    """At a take-over nobody knows who has heard of what: each reassignment has a new term, or its end."""
    for partition, assignment in list(turn.image.reassigning()):
        # Nodes that make no sense, with an ISR outside the replicas, or that cannot be read are left as they are.
        with suppress(TopicError):
            move(turn, partition, assignment)


def end_where_in_sync(turn: Turn) -> None:
    """End the reassignments whose target came into the ISR in this turn."""
    changed = dict.fromkeys(
        write.partition for write in turn.outcome.writes if isinstance(write, CreateState | UpdateState)
    )
    for partition in changed:
        end_if_in_sync(turn, partition)


def end_if_in_sync(turn: Turn, partition: TopicPartition) -> None:
    assignment, state = turn.image.assignment(partition), turn.image.state(partition)
    if assignment is None or state is None or state.leader == NO_LEADER or not assignment.is_being_reassigned:
        return
    if turn.image.topics[partition.topic].fault_of(partition.partition) is not None:
        return
    if _has_arrived(turn.image, partition, assignment.target, state):
        move(turn, partition, assignment)

"""What the controller's log says of each event: brokers, leaders, topics, reassignments.

One event may change thousands of partitions. It writes a few lines with the first of them, and each one at DEBUG.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.controller.events import (
    BrokersChanged,
    CreateState,
    ElectionAsked,
    ElectionRulesChanged,
    ElectionType,
    Event,
    ImbalanceChecked,
    LeaderAndIsrAnswered,
    LeaderChange,
    LogEndsTold,
    LogEndsUntold,
    Move,
    Outcome,
    ReassignmentAsked,
    RemoveTopic,
    ShutdownAsked,
    TookOver,
    UncleanElection,
)
from tidelog.controller.image import NO_LEADER, Broker, Image
from tidelog.types import BrokerId
from tidelog.wire.messages.controller import ControlledShutdownResponse
from tidelog.wording import counted, listed

_log = logging.getLogger(__name__)

_MOST_TOLD = 10
"""Unclean elections that one event logs one by one."""


class Before(NamedTuple):
    """What an event is compared with."""

    brokers: Mapping[BrokerId, Broker]
    shutting_down: Mapping[BrokerId, int]


class Story:
    """Of one term. `is_stopping`: the controller's own broker is, so that others leave is no surprise."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._has_taken_over = False

    @staticmethod
    def before(image: Image) -> Before | None:
        """None if the log does not want the story."""
        return Before(image.brokers, dict(image.shutting_down)) if _log.isEnabledFor(logging.INFO) else None

    def tell(self, before: Before | None, event: Event, outcome: Outcome, image: Image) -> None:
        """The event's outcome is written."""
        if outcome.unclean:
            tell_unclean(outcome.unclean)
        if before is None:
            return
        if isinstance(event, TookOver):
            self._tell_of_take_over(image)
        elif isinstance(event, BrokersChanged):
            _tell_of_brokers(before, image)
        elif isinstance(event, ShutdownAsked):
            _tell_of_shutdown(before, event, outcome)
        if outcome.moves:
            _tell_of_moves(outcome.moves)
        if outcome.changes:
            self._tell_of_changes(outcome.changes, _reason(before, event, image), _is_expected(before, image))
        if outcome.writes:
            _tell_of_topics(outcome)

    def _tell_of_take_over(self, image: Image) -> None:
        _log.info(
            "the controller %s: brokers %s, %s, %s, %s without a leader",
            "has read the state of the cluster again" if self._has_taken_over else "has taken over",
            _ids(sorted(image.brokers)),
            counted(len(image.topics), "topic"),
            counted(sum(len(topic.assignments) for topic in image.topics.values()), "partition"),
            f"{image.offline_partitions:,}",
        )
        self._has_taken_over = True

    def _tell_of_changes(self, changes: Sequence[LeaderChange], reason: str, is_expected: bool) -> None:
        elected = [one for one in changes if one.after.leader not in (one.before.leader, NO_LEADER)]
        offline = [one for one in changes if one.after.leader == NO_LEADER != one.before.leader]
        renewed = [one for one in changes if one.after.leader == one.before.leader]
        if elected:
            _log.info("%s a new leader, %s: %s", _have(elected), reason, listed(elected, _change))
        if renewed:
            _log.info("%s a new leader epoch, %s: %s", _have(renewed), reason, listed(renewed, _change))
        if offline:
            # A broker that was controller has told its shutdown to nobody else. What only it held is offline then.
            is_expected = is_expected or self._is_stopping() or all(len(one.replicas) == 1 for one in offline)
            level = logging.INFO if is_expected else logging.WARNING
            _log.log(level, "%s no leader any more, %s: %s", _have(offline), reason, listed(offline, _change))
        if _log.isEnabledFor(logging.DEBUG):
            for change in changes:
                _log.debug("%s, %s", _change(change), reason)


def tell_unclean(elections: Sequence[UncleanElection]) -> None:
    """An empty log that leads where another one led is the worst: nothing may be left. So it is told first."""
    empty = [election for election in elections if _is_empty(election)]
    for election in empty[:_MOST_TOLD]:
        _log.error(
            "all records of %s may be lost: broker %d leads it with an empty log, the last ISR was %s. If an old "
            "disk of theirs or a backup can be read, stop the broker and put the log back",
            election.partition,
            election.leader,
            list(election.last_isr),
        )
    if len(empty) > _MOST_TOLD:
        _log.error("all records of %s more may be lost in the same way", counted(len(empty) - _MOST_TOLD, "partition"))
    others = [election for election in elections if not _is_empty(election)]
    for election in others[:_MOST_TOLD]:
        _log.warning("committed records may be lost, an unclean election of %s", election)
    if len(others) > _MOST_TOLD:
        _log.warning("and the same in %d more partitions", len(others) - _MOST_TOLD)


def _is_empty(election: UncleanElection) -> bool:
    end = election.log_ends.get(election.leader)
    return end is not None and end.offset == 0


def _tell_of_brokers(before: Before, image: Image) -> None:
    for id, broker in image.brokers.items():
        known = before.brokers.get(id)
        if known is None:
            _log.info("broker %d joined the cluster, broker epoch %d", id, broker.epoch)
        elif known.epoch != broker.epoch:
            _log.info("broker %d registered anew, broker epoch %d (before: %d)", id, broker.epoch, known.epoch)
    for id, broker in before.brokers.items():
        if id not in image.brokers:
            is_planned = before.shutting_down.get(id) == broker.epoch
            how = "after a controlled shutdown" if is_planned else "since its session has ended"
            _log.info("broker %d left the cluster, broker epoch %d, %s", id, broker.epoch, how)


def _tell_of_shutdown(before: Before, event: ShutdownAsked, outcome: Outcome) -> None:
    answer = outcome.answer
    if not isinstance(answer, ControlledShutdownResponse) or answer.error_code:
        return
    if before.shutting_down.get(event.broker) == event.broker_epoch and not outcome.changes:
        return  # it asks again
    left = [f"{one.topic_name}-{one.partition_index}" for one in answer.remaining_partitions]
    on = f"; no other replica can lead {listed(left)}" if left else ""
    _log.info("broker %d shuts down: others lead its partitions%s", event.broker, on)


def _tell_of_moves(moves: Sequence[Move]) -> None:
    begun = [move for move in moves if move.after.is_being_reassigned]
    ended = [move for move in moves if not move.after.is_being_reassigned]
    for text, some in (("has begun", begun), ("is complete", ended)):
        if some:
            _log.info("the reassignment of %s %s: %s", counted(len(some), "partition"), text, listed(some, _move))
    if _log.isEnabledFor(logging.DEBUG):
        for move in moves:
            _log.debug("replicas of %s", _move(move))


def _tell_of_topics(outcome: Outcome) -> None:
    made: dict[str, list[CreateState]] = {}
    gone: list[str] = []
    for write in outcome.writes:
        if isinstance(write, CreateState):
            made.setdefault(write.partition.topic, []).append(write)
        elif isinstance(write, RemoveTopic):
            gone.append(write.topic)
    if made:
        _log.info("%s first leaders: %s", _have_topics(made), listed(list(made.items()), _first_leaders))
    if gone:
        _log.info("the deletion of %s is complete: %s", counted(len(gone), "topic"), listed(gone))
    if _log.isEnabledFor(logging.DEBUG):
        for item in made.items():
            _log.debug("topic %s has its first leaders", _first_leaders(item))
        for name in gone:
            _log.debug("the deletion of topic %s is complete", name)


# Words


def _reason(before: Before, event: Event, image: Image) -> str:
    match event:
        case BrokersChanged():
            gone = [id for id in before.brokers if id not in image.brokers]
            come = [id for id, broker in image.brokers.items() if before.brokers.get(id) != broker]
            texts = [f"{_brokers(gone)} left"] if gone else []
            return "since " + " and ".join([*texts, *([f"{_brokers(come)} joined"] if come else [])])
        case TookOver():
            return "decided at the take-over"
        case ShutdownAsked():
            return f"since broker {event.broker} shuts down"
        case ElectionAsked():
            return "an unclean election that was asked for" if event.kind is ElectionType.UNCLEAN else _PREFERRED
        case ImbalanceChecked():
            return "the preferred leader, by leader.imbalance.per.broker.percentage"
        case ReassignmentAsked():
            return "since replicas move"
        case LeaderAndIsrAnswered():
            return f"since broker {event.broker} told of its log directories"
        case LogEndsTold():
            return f"since broker {event.broker} told where its logs end"
        case LogEndsUntold():
            return f"since broker {event.broker} did not tell where its logs end"
        case ElectionRulesChanged():
            return "since settings of topics changed"
        case _:
            return "since the replicas of a partition changed"


_PREFERRED = "the preferred leader that was asked for"


def _is_expected(before: Before, image: Image) -> bool:
    """Every broker that left had asked for a controlled shutdown, or shuts down now."""
    gone = {id: broker.epoch for id, broker in before.brokers.items() if id not in image.brokers}
    return all(before.shutting_down.get(id) == epoch for id, epoch in gone.items())


def _have(changes: Sequence[LeaderChange]) -> str:
    return f"{counted(len(changes), 'partition')} {'has' if len(changes) == 1 else 'have'}"


def _have_topics(made: Mapping[str, object]) -> str:
    return f"{counted(len(made), 'new topic')} {'has' if len(made) == 1 else 'have'}"


def _change(change: LeaderChange) -> str:
    before, after = change.before, change.after
    leader = f"broker {_leader(before.leader)} -> {_leader(after.leader)}"
    if before.leader == after.leader:
        leader = f"broker {_leader(after.leader)}"
    return f"{change.partition} {leader} (leader epoch {after.leader_epoch}, ISR {_ids(after.isr)})"


def _leader(leader: BrokerId) -> str:
    return "none" if leader == NO_LEADER else str(leader)


def _move(move: Move) -> str:
    before = move.before.replicas if move.after.is_being_reassigned else move.before.origin
    return f"{move.partition} replicas {_ids(before)} -> {_ids(move.after.target)}"


def _first_leaders(item: tuple[str, list[CreateState]]) -> str:
    name, made = item
    replicas = max(len(write.state.isr) for write in made)
    leaders = _ids(sorted({write.state.leader for write in made}))
    return f"{name} ({counted(len(made), 'partition')}, {counted(replicas, 'replica')} in sync, led by {leaders})"


def _brokers(ids: Sequence[BrokerId]) -> str:
    return f"broker {_ids(ids)}"


def _ids(ids: Iterable[BrokerId]) -> str:
    return listed(list(ids), most=20).replace(", ", ",") or "none"

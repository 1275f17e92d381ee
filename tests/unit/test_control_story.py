"""What the controller's log says of an event: a few lines with the reason, however many partitions it changes."""

from __future__ import annotations

import logging

import pytest

from tests.kits.controlkit import broker, brokers, controller, state, topic
from tidelog.broker.control.story import Story
from tidelog.controller.controller import Controller
from tidelog.controller.events import (
    BrokersChanged,
    ElectionAsked,
    ElectionType,
    Event,
    Outcome,
    ReassignmentAsked,
    ShutdownAsked,
    TookOver,
    TopicsChanged,
    UncleanElection,
)
from tidelog.controller.image import Snapshot
from tidelog.controller.log_ends import LogEnd
from tidelog.types import TopicPartition

MANY = 2_000


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def handle(made: Controller, event: Event, story: Story | None = None, *, is_stopping: bool = False) -> Outcome:
    story = story or Story(lambda: is_stopping)
    before = story.before(made.image)
    outcome = made.handle(event)
    story.tell(before, event, outcome, made.image)
    return outcome


def many_led_by(leader: int, follower: int, *, alone: int = 0) -> Controller:
    """A controller with partitions that two brokers have, and some that only the leader has."""
    replicas = [(leader, follower)] * (MANY - alone) + [(leader,)] * alone
    states = {TopicPartition("t", index): state(leader, assigned) for index, assigned in enumerate(replicas)}
    made, _ = controller(1, 2, 3, topics={"t": topic(*replicas)}, states=states)
    return made


def test_thousands_of_partitions_that_change_leader_have_a_line(told: pytest.LogCaptureFixture) -> None:
    made = many_led_by(2, 3)
    handle(made, BrokersChanged(brokers(1, 3)))
    assert told.messages == [
        "broker 2 left the cluster, broker epoch 12, since its session has ended",
        "2,000 partitions have a new leader, since broker 2 left: t-0 broker 2 -> 3 (leader epoch 1, ISR 3), "
        "t-1 broker 2 -> 3 (leader epoch 1, ISR 3), t-2 broker 2 -> 3 (leader epoch 1, ISR 3) and 1,997 more",
    ]


def test_each_of_them_has_a_line_at_debug(told: pytest.LogCaptureFixture) -> None:
    told.set_level(logging.DEBUG)
    handle(many_led_by(2, 3), BrokersChanged(brokers(1, 3)))
    assert sum(record.levelno == logging.DEBUG for record in told.records) == MANY


def test_partitions_without_a_leader_are_a_warning_unless_it_was_planned(told: pytest.LogCaptureFixture) -> None:
    def levels(made: Controller, *, is_stopping: bool = False) -> list[str]:
        told.clear()
        handle(made, BrokersChanged(brokers(1)), is_stopping=is_stopping)
        return [record.levelname for record in told.records if "no leader any more" in record.getMessage()]

    assert levels(many_led_by(2, 3)) == ["WARNING"]
    assert levels(many_led_by(2, 3), is_stopping=True) == ["INFO"]
    planned = many_led_by(2, 3)
    for id in (2, 3):
        handle(planned, ShutdownAsked(id, 10 + id))
    assert levels(planned) == ["INFO"]
    made = many_led_by(2, 3, alone=MANY)
    assert levels(made) == ["INFO"], "who stopped may have been the controller, and only it knew"


def test_a_shutdown_is_told_once(told: pytest.LogCaptureFixture) -> None:
    made = many_led_by(2, 3, alone=1)
    handle(made, ShutdownAsked(2, 12))
    handle(made, ShutdownAsked(2, 12))
    assert told.messages[0] == "broker 2 shuts down: others lead its partitions"
    assert [message for message in told.messages if "shuts down: others" in message] == told.messages[:1]
    told.clear()
    handle(made, BrokersChanged(brokers(1, 3)))
    assert told.messages[0] == "broker 2 left the cluster, broker epoch 12, after a controlled shutdown"


def test_brokers_that_join_or_register_anew(told: pytest.LogCaptureFixture) -> None:
    made, _ = controller(1, 2)
    handle(made, BrokersChanged({1: broker(1), 2: broker(2, 22), 3: broker(3)}))
    assert told.messages == [
        "broker 2 registered anew, broker epoch 22 (before: 12)",
        "broker 3 joined the cluster, broker epoch 13",
    ]


def test_topics_that_come(told: pytest.LogCaptureFixture) -> None:
    made, _ = controller(1, 2, 3)
    handle(made, TopicsChanged({f"t{number}": topic((1, 2), (2, 3)) for number in range(1_000)}, ()))
    (line,) = told.messages
    assert line.startswith("1,000 new topics have first leaders: t0 (2 partitions, 2 replicas in sync, led by 1,2), ")
    assert line.endswith(" and 997 more")


def test_elections_that_were_asked_for_and_reassignments_say_so(told: pytest.LogCaptureFixture) -> None:
    states = {TopicPartition("t", 0): state(2, (1, 2))}
    made, _ = controller(1, 2, 3, topics={"t": topic((1, 2))}, states=states)
    handle(made, ElectionAsked(ElectionType.PREFERRED, None))
    handle(made, ReassignmentAsked({TopicPartition("t", 0): (3,)}))
    assert told.messages == [
        "1 partition has a new leader, the preferred leader that was asked for: "
        "t-0 broker 2 -> 1 (leader epoch 1, ISR 1,2)",
        "the reassignment of 1 partition has begun: t-0 replicas 1,2 -> 3",
        "1 partition has a new leader epoch, since replicas move: t-0 broker 1 (leader epoch 2, ISR 1,2)",
    ]


def test_a_take_over_counts_what_there_is(told: pytest.LogCaptureFixture) -> None:
    made = Controller(1, 5, "PLAINTEXT")
    story = Story(lambda: False)
    snapshot = Snapshot(brokers(2, 1), {"t": topic((1,), (2,))}, {}, ())
    handle(made, TookOver(snapshot), story)
    handle(made, TookOver(snapshot), story)
    assert told.messages[0] == ("the controller has taken over: brokers 1,2, 1 topic, 2 partitions, 0 without a leader")
    assert any(
        message.startswith("the controller has read the state of the cluster again: ") for message in told.messages
    )


def test_an_empty_log_that_leads_is_an_error_and_another_unclean_election_a_warning(
    told: pytest.LogCaptureFixture,
) -> None:
    made, _ = controller(1, 2)
    outcome = Outcome(
        unclean=[
            UncleanElection(TopicPartition("t", 0), 2, (1,), {1: LogEnd(0, 7), 2: LogEnd(0, 6)}),
            *(UncleanElection(TopicPartition("thin", n), 1, (1,), {1: LogEnd(-1, 0)}) for n in range(12)),
        ]
    )
    Story(lambda: False).tell(None, BrokersChanged(brokers(1, 2)), outcome, made.image)
    errors = [record.getMessage() for record in told.records if record.levelno == logging.ERROR]
    assert len(errors) == 11
    assert errors[0].startswith("all records of thin-0 may be lost: broker 1 leads it with an empty log, ")
    assert errors[-1] == "all records of 2 partitions more may be lost in the same way"
    (warning,) = [record.getMessage() for record in told.records if record.levelno == logging.WARNING]
    assert warning.startswith("committed records may be lost, an unclean election of t-0: broker 2 leads")


def test_a_log_that_does_not_want_it_is_not_asked_for_anything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    made = many_led_by(2, 3)
    assert Story.before(made.image) is None
    handle(made, BrokersChanged(brokers(1, 3)))
    assert caplog.messages == []

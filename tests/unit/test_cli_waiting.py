"""What a command says while it waits (`cli.waiting`), as a table; and --timeout as an option of all client commands."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tidelog.cli.main import main
from tidelog.cli.waiting import Teller, error_text, wait_text
from tidelog.client.errors import BrokerError, DeadlineError
from tidelog.client.waits import Wait
from tidelog.errors import ErrorCode
from tidelog.net.calling import CannotConnectError

LEADERLESS = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "partition orders-0", "it has no leader")
TOO_FEW = BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, "produce to orders-0")
GONE = CannotConnectError("cannot connect to b1:9092: Connection refused")

NO_LEADER = Wait("topic orders", LEADERLESS, 10.0)
NO_BROKER = Wait("topic orders", GONE, 10.0)


def test_a_wait_is_told_once_and_again_when_its_cause_changes() -> None:
    teller = Teller()
    told = [(now_s, teller.line(wait, now_s)) for now_s, wait in (
        (11.0, None), (12.0, NO_LEADER), (12.2, NO_LEADER), (30.0, NO_LEADER), (31.0, NO_BROKER), (31.2, NO_BROKER),
        (40.0, None), (41.0, None), (43.0, None), (44.0, None),
    )]  # fmt: skip
    assert [line for line in told if line[1] is not None] == [
        (12.0, "waiting: topic orders: partition orders-0: LEADER_NOT_AVAILABLE (it has no leader)"),
        (31.0, "waiting: topic orders: cannot connect to b1:9092: Connection refused"),
        (43.0, "the wait is over, after 30 s"),
    ]


def test_one_wait_after_another_is_one_wait() -> None:
    teller = Teller()
    assert teller.line(NO_BROKER, 12.0) is not None
    assert teller.line(None, 20.0) is None
    assert teller.line(Wait("topic orders", LEADERLESS, 20.0), 22.0) is not None
    assert teller.line(None, 30.0) is None
    assert teller.line(None, 33.0) == "the wait is over, after 20 s"


def test_causes_that_take_turns_are_not_told_at_every_turn() -> None:
    teller = Teller()
    turns = [(NO_LEADER if number % 2 else NO_BROKER, 12.0 + number / 5) for number in range(150)]
    lines = [line for wait, now_s in turns if (line := teller.line(wait, now_s)) is not None]
    assert 4 <= len(lines) <= 7


def test_the_same_cause_of_something_else_is_not_told_again() -> None:
    teller = Teller()
    assert teller.line(Wait("finding coordinators", GONE, 10.0), 12.0) is not None
    given_up = DeadlineError.of("finding coordinators", 4000, GONE)
    assert teller.line(Wait("joining group billing", given_up, 10.0), 20.0) is None


def test_a_code_is_explained_where_the_broker_does_not() -> None:
    assert wait_text(Wait("produce to orders-0", TOO_FEW, 0.0)) == (
        "produce to orders-0: NOT_ENOUGH_REPLICAS: fewer replicas are in sync than the topic's min.insync.replicas"
    )
    explained = BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, "produce to orders-0", "1 of 2 are in sync")
    assert wait_text(Wait("produce to orders-0", explained, 0.0)) == str(explained)


@pytest.mark.parametrize(
    ("failure", "what_to_do"),
    [
        (DeadlineError.of("topic orders", 4000, LEADERLESS), "`tidelog cluster describe`"),
        (DeadlineError.of("topic orders", 4000, GONE), "`tidelog cluster describe`"),
        (DeadlineError.of("produce to orders-0", 4000, TOO_FEW), "lower min.insync.replicas"),
        (BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "coordinator of group a"), "describe __consumer_offsets"),
        (BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, "topic orders"), "--if-not-exists"),
    ],
)
def test_an_error_ends_with_its_last_cause_and_what_to_do(failure: BaseException, what_to_do: str) -> None:
    text = error_text(failure)
    assert text.startswith(str(failure))
    assert what_to_do in text


COMMANDS = (
    "topics create a", "topics list", "topics describe", "topics alter a --partitions 2", "topics delete a --yes",
    "produce a", "consume a",
    "groups list", "groups describe g", "groups delete g --yes", "groups export g",
    "groups reset-offsets g --all-topics --to-latest",
    "configs describe --topic a", "configs alter a=b --topic a", "configs delete a --topic a",
    "cluster describe", "elect preferred --all", "reassign --list",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_client_command_takes_a_timeout_and_says_what_it_waited_for(command: str) -> None:
    """Port 1 refuses. For so short a time nothing is told before the end."""
    result = CliRunner().invoke(main, [*command.split(), "--bootstrap", "127.0.0.1:1", "--timeout", "0.2"])
    assert result.exit_code == 1, result.output
    assert "no broker answers at 127.0.0.1:1 (cannot connect to 127.0.0.1:1: Connection refused)" in result.stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_what_is_no_time(seconds: str) -> None:
    result = CliRunner().invoke(main, ["topics", "list", "--bootstrap", "127.0.0.1:1", "--timeout", seconds])
    assert result.exit_code == 2, result.output

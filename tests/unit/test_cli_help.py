"""What every command offers: help with examples that work, short options, hints for mistyped words, completion."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from tests.kits.fake_admin import FakeAdminBroker, served_broker
from tidelog.cli.commands import CONTEXT
from tidelog.cli.main import main
from tidelog.wire.messages.groups import ListedGroup, ListGroupsResponse

LIST_GROUPS = 16
FILES = (
    "server.properties",
    "00000000000000000000.log",
    "billing.csv",
    "plan.json",
    "tidelog-data/broker-1/orders-0/0.log",
)


def commands(command: click.Command = main, *path: str) -> Iterator[tuple[str, ...]]:
    """All of them, groups too, by their words."""
    yield path
    if isinstance(command, click.Group):
        ctx = click.Context(command, **CONTEXT)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from commands(below, *path, name)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words, env={"TIDELOG_BOOTSTRAP": "127.0.0.1:1"})


def parse(words: list[str]) -> None:
    """As far as a command goes before it does anything; UsageError if it would refuse the line."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command, **CONTEXT), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    command.make_context("tidelog", words, parent=click.Context(main, **CONTEXT))


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_help_has_examples_that_the_command_line_takes(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run(*path, "-h")
    assert shown.exit_code == 0
    assert shown.output == run(*path, "--help").output
    examples = shown.output.partition("Examples:\n")[2].splitlines()
    lines = [line.strip().split("   ")[0] for line in examples if "tidelog" in line]
    assert lines, shown.output
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("orders,0,1\n")
    monkeypatch.chdir(tmp_path)
    for part in (part for line in lines for part in line.replace(";", "|").split("|")):
        words = shlex.split(part.partition(" > ")[0])
        if words[0] == "tidelog":
            parse(words[1:])
    assert any(" ".join(("tidelog", *path)) in line for line in lines)


@pytest.mark.parametrize("option", ["-b", "--bootstrap", "--bootstrap-server"])
def test_where_the_cluster_is_has_three_names(option: str) -> None:
    with served_broker() as broker:
        broker.add_topic("orders", 1)
        assert "orders" in run("topics", "list", option, broker.bootstrap).output
        assert "cluster fake" in run("cluster", "describe", option, broker.bootstrap).output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("topic",), "No such command 'topic'. Did you mean 'topics'?"),
        (("consum",), "No such command 'consum'. Did you mean 'consume'?"),
        (("topics", "lst"), "No such command 'lst'. Did you mean 'list'?"),
        (("topics", "list", "--jsn"), "No such option '--jsn'. Did you mean '--json'?"),
        (("consume", "t", "--from-begining"), "Did you mean '--from-beginning'?"),
        (("zzz",), "No such command 'zzz'."),
    ],
)
def test_what_was_meant_by_a_mistyped_word(words: tuple[str, ...], says: str) -> None:
    refused = run(*words)
    assert refused.exit_code == 2
    assert refused.stderr.splitlines()[-1].endswith(says)


# Completion


@pytest.fixture
def broker() -> Iterator[FakeAdminBroker]:
    with served_broker() as broker:
        for topic in ("orders", "orders-eu", "payments", "__consumer_offsets"):
            broker.add_topic(topic, 1)
        yield broker


def completed(*words: str) -> list[str]:
    *before, incomplete = words
    shell = ShellComplete(main, {}, "tidelog", "_TIDELOG_COMPLETE")
    return [item.value for item in shell.get_completions(before, incomplete)]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("topics", "describe", "ord"), ["orders", "orders-eu"]),
        (("topics", "describe", "orders", "pa"), ["payments"]),
        (("topics", "delete", ""), ["orders", "orders-eu", "payments"]),
        (("consume", "__"), ["__consumer_offsets"]),
        (("produce", "p"), ["payments"]),
        (("configs", "describe", "--topic", "p"), ["payments"]),
        (("reassign", "--topic", "p"), ["payments"]),
        (("groups", "describe", "bil"), ["billing"]),
        (("consume", "orders", "--group", ""), ["billing", "shipping"]),
        (("top",), ["topics"]),
    ],
)
def test_names_are_completed(
    broker: FakeAdminBroker, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], names: list[str]
) -> None:
    groups = [ListedGroup(group_id=group, protocol_type="consumer") for group in ("billing", "shipping")]
    broker.script[LIST_GROUPS].append(lambda request: ListGroupsResponse(groups=groups))
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.bootstrap)
    assert completed(*words) == names


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("topics", "create", "t", "--config", "retention."), ["retention.bytes=", "retention.ms="]),
        (("topics", "alter", "t", "--config", "min.ins"), ["min.insync.replicas="]),
        (("topics", "alter", "t", "--delete-config", "min.ins"), ["min.insync.replicas"]),
        (("configs", "alter", "--topic", "t", "retention."), ["retention.bytes=", "retention.ms="]),
        (("configs", "alter", "--broker-default", "num.io"), ["num.io.threads="]),
        (("configs", "alter", "--broker", "1", "num.io"), ["num.io.threads="]),
        (("configs", "alter", "--broker-logger", "1", ""), []),
        (("configs", "delete", "--broker", "1", "num.io"), ["num.io.threads"]),
        (("configs", "describe", "--topic", "t", "retention.m"), ["retention.ms"]),
        (("up", "--set", "num.part"), ["num.partitions="]),
        (("broker", "--set", "num.part"), ["num.partitions="]),
    ],
)
def test_names_of_settings_are_completed(words: tuple[str, ...], names: list[str]) -> None:
    assert completed(*words) == names


def test_completion_asks_the_cluster_that_the_line_names(broker: FakeAdminBroker) -> None:
    assert completed("topics", "describe", "-b", broker.bootstrap, "pay") == ["payments"]


def test_completion_says_nothing_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for where in ("127.0.0.1:1", f"127.0.0.1:{silent.getsockname()[1]}", "nonsense:x"):
            monkeypatch.setenv("TIDELOG_BOOTSTRAP", where)
            began = time.monotonic()
            assert completed("topics", "describe", "o") == []
            assert time.monotonic() - began < 10


def test_a_shell_asks_the_command(broker: FakeAdminBroker) -> None:
    environment = {
        **os.environ,
        "TIDELOG_BOOTSTRAP": broker.bootstrap,
        "_TIDELOG_COMPLETE": "bash_complete",
        "COMP_WORDS": "tidelog topics describe ord",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tidelog"], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "plain,orders\nplain,orders-eu\n"
    assert done.stderr == ""

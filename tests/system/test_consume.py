"""`tidelog consume` as a user runs it: several topics, ends, groups, and terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.kits.processkit import BrokerProcess, broker_process

TIDELOG = (sys.executable, "-m", "tidelog")
DEADLINE_S = 60.0
ONE = {
    "offsets_topic_replication_factor": "1",
    "offsets_topic_num_partitions": "2",
    "group_initial_rebalance_delay_ms": "0",
}


class Shell:
    def __init__(self, broker: BrokerProcess) -> None:
        self.bootstrap = ("--bootstrap", f"127.0.0.1:{broker.port}")

    def run(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [*TIDELOG, *words, *self.bootstrap]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=DEADLINE_S, check=False)

    def lines(self, *words: str, stdin: bytes = b"") -> list[str]:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().splitlines()

    def refused(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode in (1, 2)
        assert b"Traceback" not in done.stderr
        return done.stderr.decode()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with broker_process(tmp_path_factory.mktemp("broker"), **ONE) as broker:
        shell = Shell(broker)
        shell.lines("topics", "create", "orders-a", "--partitions", "2")
        shell.lines("topics", "create", "orders-b", "--partitions", "1")
        shell.lines("produce", "orders-a", "--partition", "0", stdin=b"1\n2\n3\n")
        shell.lines("produce", "orders-a", "--partition", "1", stdin=b"4\n5\n")
        rows = [{"value": f"b{at}", "timestamp": 1_000_000 + 1000 * at} for at in range(5)]
        shell.lines("produce", "orders-b", "--json", stdin=b"\n".join(json.dumps(row).encode() for row in rows))
        yield shell


def test_several_topics_are_told_apart(shell: Shell) -> None:
    both = shell.lines("consume", "orders-a", "orders-b", "--offsets")
    assert sorted(both) == sorted(shell.lines("consume", "--regex", "orders-[ab]", "--offsets"))
    assert "orders-a:1:0\t4" in both
    assert len(both) == 10
    assert "no topic matches" in shell.refused("consume", "--regex", "orders")
    assert "not a regular expression" in shell.refused("consume", "--regex", "(")
    assert "name topics" in shell.refused("consume")
    assert "has no partition 1" in shell.refused("consume", "orders-a", "orders-b", "--partition", "1")


def test_it_ends_at_an_offset_or_a_time(shell: Shell) -> None:
    assert shell.lines("consume", "orders-b", "--until-offset", "2") == ["b0", "b1"]
    assert shell.lines("consume", "orders-b", "--until", "1003000") == ["b0", "b1", "b2"]
    assert shell.lines("consume", "orders-b", "--until", "1003000", "--follow", "--since", "1001000") == ["b1", "b2"]
    assert shell.lines("consume", "orders-b", "--until-offset", "9") == ["b0", "b1", "b2", "b3", "b4"]
    assert shell.lines("consume", "orders-b", "--until-offset", "3", "--follow", "--offset", "1") == ["b1", "b2"]
    assert shell.lines("consume", "orders-b", "--until", "1970-01-01T00:00+00:00") == []


def test_times_are_iso_with_a_zone_and_lines_end_once(shell: Shell) -> None:
    iso = re.compile(r"1970-01-01T\d\d:16:40\.000[+-]\d\d:\d\d")
    time_shown, value = shell.lines("consume", "orders-b", "--times", "-n", "1")[0].split("\t")
    assert iso.fullmatch(time_shown)
    assert value == "b0"
    for template in ("{time} {value}", r"{time} {value}\n"):
        done = shell.run("consume", "orders-b", "-n", "2", "--format", template)
        assert done.stdout.count(b"\n") == 2
        assert iso.match(done.stdout.decode())
    assert "--format knows" in shell.refused("consume", "orders-b", "--format", "{nothing}")


def test_a_group_goes_on_where_it_was(shell: Shell) -> None:
    read = shell.lines("consume", "orders-a", "--group", "billing", "-n", "2")
    assert len(read) == 2
    rest = shell.lines("consume", "orders-a", "--group", "billing")
    assert sorted(read + rest) == ["1", "2", "3", "4", "5"]
    assert shell.lines("consume", "orders-a", "--group", "billing") == []
    described = json.loads(shell.lines("groups", "describe", "billing", "--json")[0])
    assert [row["lag"] for row in described["offsets"]] == [0, 0]
    assert shell.lines("consume", "orders-a", "--group", "late", "--offset", "latest") == []
    assert "reset-offsets" in shell.refused("consume", "orders-a", "--group", "g", "--offset", "3")
    assert "--partition" in shell.refused("consume", "orders-a", "--group", "g", "--partition", "0")


def test_members_of_a_group_share_what_comes(shell: Shell) -> None:
    shell.lines("topics", "create", "shared", "--partitions", "2")
    command = [*TIDELOG, "consume", "shared", "--group", "both", "--follow", *shell.bootstrap]
    members = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            done = shell.run("groups", "describe", "both", "--json")
            described = json.loads(done.stdout) if done.returncode == 0 else {"members": []}
            if [len(member["assignment"]) for member in described["members"]] == [1, 1]:
                break
        for partition in ("0", "1"):
            shell.lines("produce", "shared", "--partition", partition, stdin=f"p{partition}\n".encode())
        first = [member.stdout.readline() for member in members if member.stdout is not None]
        assert sorted(first) == [b"p0\n", b"p1\n"]
    finally:
        for member in members:
            member.kill()
            member.wait()


def test_a_terminal_gets_no_control_bytes(shell: Shell) -> None:
    shell.lines("topics", "create", "evil", "--partitions", "1")
    evil = b"\x1b]0;owned\x07\x9b31m\xc2\x9b \xff end"
    shell.lines("produce", "evil", "--key-separator", ":", stdin=b"k\x1b[2J:" + evil + b"\n")

    def shown(*words: str) -> bytes:
        reader, terminal = pty.openpty()
        subprocess.run(
            [*TIDELOG, "consume", "evil", *words, *shell.bootstrap], stdout=terminal, timeout=DEADLINE_S, check=True
        )
        os.close(terminal)
        found = b""
        try:
            while piece := os.read(reader, 65536):
                found += piece
        except OSError:  # the terminal is closed, and all is read
            pass
        finally:
            os.close(reader)
        return found.replace(b"\r\n", b"\n")

    for words in (["--keys"], ["--json"], ["--format", "{key} {value}"]):
        line = shown(*words)
        assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]", line), line
    assert rb"\x1b]0;owned\x07" in shown()
    assert evil in shown("--raw")
    assert shell.run("consume", "evil").stdout == evil + b"\n"


def test_the_oldest_records_are_trimmed(shell: Shell) -> None:
    shell.lines("topics", "create", "trimmed", "--partitions", "1", "--config", "retention.ms=-1")
    rows = [{"value": f"v{at}", "timestamp": 1_000_000 + 1000 * at} for at in range(5)]
    shell.lines("produce", "trimmed", "--json", stdin=b"\n".join(json.dumps(row).encode() for row in rows))
    trim = ("topics", "trim", "trimmed")
    (row,) = map(json.loads, shell.lines(*trim, "--before-time", "1002000", "--json"))
    assert (row["log_start_offset"], row["new_start_offset"], row["high_watermark"]) == (0, 2, 5)
    assert shell.lines("consume", "trimmed") == ["v0", "v1", "v2", "v3", "v4"]
    shell.lines(*trim, "--before-time", "1002000", "--execute")
    assert shell.lines("consume", "trimmed") == ["v2", "v3", "v4"]
    (row,) = map(json.loads, shell.lines(*trim, "--before-time", "2000-01-01", "--json"))
    assert row["new_start_offset"] == 5, "all records are earlier"
    shell.lines(*trim, "--all", "--execute")
    assert shell.lines("consume", "trimmed") == []
    assert "UNKNOWN_TOPIC_OR_PARTITION" in shell.refused("topics", "trim", "nope", "--all")
    (described,) = map(json.loads, shell.lines("topics", "describe", "trimmed", "--sizes", "--json"))
    (replica,) = described["detail"][0]["sizes"]
    assert replica["bytes"] >= 0
    (directory,) = map(json.loads, shell.lines("cluster", "log-dirs", "--json"))
    assert directory["volume_bytes"] > directory["free_bytes"] > 0


def test_a_group_that_does_not_exist_is_not_reset(shell: Shell) -> None:
    reset = ("groups", "reset-offsets", "mistyped", "--topic", "orders-b", "--to-earliest", "--execute")
    assert "group mistyped: GROUP_ID_NOT_FOUND" in shell.refused(*reset)
    assert "mistyped" not in "".join(shell.lines("groups", "list"))
    shell.lines(*reset, "--new-group")
    assert "mistyped" in "".join(shell.lines("groups", "list"))


@pytest.mark.parametrize("command", ["consume", "produce"])
def test_a_name_that_no_topic_can_have_is_explained(shell: Shell, command: str) -> None:
    said = shell.refused(command, "bad topic!")
    assert "topic bad topic!: INVALID_TOPIC_EXCEPTION: a topic's name has up to 249 ASCII letters, digits" in said


def test_what_groups_are_is_looked_at_before_their_deletion_is_asked_for(shell: Shell) -> None:
    shell.lines("groups", "reset-offsets", "old", "--topic", "orders-b", "--to-earliest", "--execute", "--new-group")
    said = shell.refused("groups", "delete", "old", "olde")
    assert "group olde: GROUP_ID_NOT_FOUND" in said
    assert "Delete" not in said
    kept = shell.run("groups", "delete", "old", stdin=b"n\n")
    assert kept.returncode == 1
    assert b"Delete group old and all that it has committed?" in kept.stdout
    assert "old" in "".join(shell.lines("groups", "list"))
    assert shell.run("groups", "delete", "old", stdin=b"y\n").returncode == 0
    assert "old" not in "".join(shell.lines("groups", "list"))


def test_a_group_is_watched_until_ctrl_c(shell: Shell) -> None:
    shell.lines("topics", "create", "watched", "--partitions", "1")
    shell.lines("produce", "watched", stdin=b"1\n")
    shell.lines("consume", "watched", "--group", "watchers")
    shell.lines("produce", "watched", stdin=b"2\n3\n")
    command = ("groups", "describe", "watchers")
    assert "--watch needs a terminal" in shell.refused(*command, "--watch")
    reader, terminal = pty.openpty()
    with subprocess.Popen([*TIDELOG, *command, "--watch", *shell.bootstrap], stdout=terminal) as process:
        os.close(terminal)
        try:
            shown = _read_until(reader, r"watched +0 +1 +3 +2 ")
            shell.lines("consume", "watched", "--group", "watchers")
            shown = _read_until(reader, r"watched +0 +3 +3 +0 ")
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 130
        finally:
            process.kill()
            os.close(reader)
    assert b"Traceback" not in shown


def _read_until(terminal: int, pattern: str) -> bytes:
    """What a terminal has shown when that stands there, without colours."""
    shown = b""
    deadline = time.monotonic() + DEADLINE_S
    while not re.search(pattern.encode(), re.sub(rb"\x1b\[[0-9;]*m", b"", shown)):
        assert time.monotonic() < deadline, shown
        shown += os.read(terminal, 65536)
    return shown

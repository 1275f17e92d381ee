"""Procedures of docs/OPERATIONS.md, command by command as they stand there, on real processes.

Only the ports are others, and free ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kits.docskit import ROOT, console_lines, section
from tests.kits.processkit import free_port, wait_for
from tidelog.host.listening import is_free

PAGE = ROOT / "docs" / "OPERATIONS.md"
COMMAND_S = 100.0
METRIC = re.compile(r"`((?:kafka|tidelog)_[a-z_]+)`")
RECORDS, READ = 300, 10
ROW = 4

pytestmark = pytest.mark.long


def free_row() -> int:
    """The first of a row of free ports: `tidelog up` counts from its first port on."""
    while True:
        first = free_port()
        if all(is_free("127.0.0.1", first + at) for at in range(1, ROW)):
            return first


class Shell:
    """A user who types what the page says, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        program = directory / "bin" / "tidelog"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tidelog "$@"\n')
        program.chmod(0o755)
        self._ports = {
            str(shown + at): str(ours + at)
            for shown, ours in ((9092, free_row()), (9404, free_row()))
            for at in range(ROW)
        }
        self._environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        self._environment["TIDELOG_BOOTSTRAP"] = self.here("127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094")

    def here(self, text: str) -> str:
        return re.sub(r"\b(909[2-5]|940[4-7])\b", lambda match: self._ports[match[1]], text)

    def run(self, line: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["bash", "-c", self.here(line)],
            cwd=self.directory,
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def play(self, title: str) -> None:
        lines = console_lines(section(PAGE, title))
        assert lines
        for line in lines:
            self.run(line)

    def status(self) -> list[dict[str, Any]]:
        brokers: list[dict[str, Any]] = json.loads(self.run("tidelog status --data cluster --json || true"))["brokers"]
        return brokers

    def kill(self, broker: int) -> None:
        (process,) = [row["process"] for row in self.status() if row["broker"] == broker]
        os.kill(process, signal.SIGKILL)
        wait_for(lambda: not next(row for row in self.status() if row["broker"] == broker)["runs"], "its end")

    def cluster(self) -> dict[str, Any]:
        described: dict[str, Any] = json.loads(self.run("tidelog cluster describe --json"))
        return described

    def committed(self) -> int:
        group = json.loads(self.run("tidelog groups describe billing --json"))
        return sum(offset["current_offset"] or 0 for offset in group["offsets"])

    def values(self) -> list[str]:
        return sorted(self.run("tidelog consume orders").split(), key=int)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """The cluster of the page, with records, and a group that has committed some."""
    shell = Shell(tmp_path)
    try:
        _, up, create = console_lines(section(PAGE, "The cluster of this page"))
        shell.run(
            up.replace("--detach", "--port 9092 --metrics-port 9404 --set offsets.topic.num.partitions=5 --detach")
        )
        shell.run(create)
        lines = "".join(f"{number}:{number}\n" for number in range(RECORDS))
        shell.run("tidelog produce orders --key-separator :", stdin=lines)
        shell.run(f"tidelog consume orders --group billing -n {READ}")
        yield shell
    finally:
        shell.run("tidelog down --data cluster")


def test_bring_one_broker_back(shell: Shell) -> None:
    shell.kill(2)
    shell.run("tidelog produce orders", stdin=f"{RECORDS}\n")
    shell.play("Bring one broker back")
    assert [(row["broker"], row["runs"], row["by_hand"]) for row in shell.status()] == [
        (1, True, False),
        (2, True, True),
        (3, True, False),
    ]
    described = shell.cluster()
    assert (described["under_replicated"], described["offline"]) == ([], [])
    assert all(row["leads"] > 0 for row in described["brokers"])
    assert shell.values() == [str(number) for number in range(RECORDS + 1)]


def test_add_a_broker_and_remove_it(shell: Shell) -> None:
    shell.play("Add a broker")
    described = shell.cluster()
    assert [row["broker"] for row in described["brokers"]] == [1, 2, 3, 4]
    assert all(row["leads"] > 0 for row in described["brokers"])
    held = [row["holds"] for row in described["brokers"]]
    assert max(held) - min(held) <= 1
    assert (described["under_replicated"], described["offline"]) == ([], [])
    assert shell.values() == [str(number) for number in range(RECORDS)]

    move, describe, stop, remove = console_lines(section(PAGE, "Remove a broker"))[:4]
    shell.run(move)
    shell.run(describe)
    assert [row["holds"] > 0 for row in shell.cluster()["brokers"]] == [True, True, True, False]
    shell.run(stop)
    shell.run(remove)
    assert [row["broker"] for row in shell.cluster()["brokers"]] == [1, 2, 3]
    assert shell.values() == [str(number) for number in range(RECORDS)]
    assert shell.committed() == READ


def test_the_metrics_of_the_page_are_there(shell: Shell) -> None:
    named = set(METRIC.findall(section(PAGE, "Metrics")))
    assert len(named) > 10
    shown = set()  # only the coordinator of a group shows it
    for address in ("http://127.0.0.1:9404/metrics", "http://127.0.0.1:9405/metrics", "http://127.0.0.1:9406/metrics"):
        with urllib.request.urlopen(shell.here(address), timeout=COMMAND_S) as page:
            shown |= {re.split("[ {]", line)[0] for line in page.read().decode().splitlines()}
    assert not named - shown

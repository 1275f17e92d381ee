"""Processes with sessions on a real ZooKeeper are stopped for longer than these last, and killed."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.coordinationkit import zookeeper_server
from tests.kits.processkit import wait_for

pytestmark = pytest.mark.jvm

TIMEOUT_MS = 1_000
ROUNDS = 3


class Member:
    def __init__(self, file: Path, chroot: str) -> None:
        self._file = file
        file.touch()
        connect = f"{zookeeper_server().connect}/{chroot}"
        command = [sys.executable, "-m", "tests.kits.zookeeper_member", connect, str(TIMEOUT_MS), str(file)]
        self.process = subprocess.Popen(command, cwd=Path(__file__).parents[2])

    def reports(self, kind: str) -> list[list[str]]:
        lines = [line.split() for line in self._file.read_text().splitlines()]
        return [line for line in lines if line[:1] == [kind]]

    @property
    def times_sure(self) -> int:
        return len(self.reports("sure"))

    def becomes_sure(self) -> None:
        before = self.times_sure
        wait_for(lambda: self.times_sure > before, "it to lead")


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    found = [Member(tmp_path / name, tmp_path.name) for name in ("a", "b")]
    yield found
    for member in found:
        member.process.kill()
        member.process.wait()


def leader_of(members: list[Member]) -> Member:
    before = {member: member.times_sure for member in members}
    wait_for(lambda: any(member.times_sure > before[member] for member in members), "one to lead")
    return next(member for member in members if member.times_sure > before[member])


def test_a_leader_that_was_frozen_is_not_sure_when_another_is(members: list[Member]) -> None:
    for _ in range(ROUNDS):
        leader = leader_of(members)
        [other] = [member for member in members if member is not leader]
        losses = len(leader.reports("lost"))
        leader.process.send_signal(signal.SIGSTOP)
        other.becomes_sure()
        leader.process.send_signal(signal.SIGCONT)
        wait_for(lambda leader=leader, losses=losses: len(leader.reports("lost")) > losses, "it to find out")
    terms: dict[str, list[int]] = {}
    for member in members:
        for _, session, moment in member.reports("sure"):
            terms.setdefault(session, []).append(int(moment))
    assert len(terms) == ROUNDS + 1
    in_order = sorted((moments[0], moments[-1]) for moments in terms.values())
    assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(in_order))


def test_a_leader_that_was_killed_is_followed_when_its_time_is_over(members: list[Member]) -> None:
    leader = leader_of(members)
    [other] = [member for member in members if member is not leader]
    leader.process.kill()
    other.becomes_sure()

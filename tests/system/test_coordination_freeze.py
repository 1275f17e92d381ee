"""Processes that share the embedded store are killed and stopped, at the worst moments too: the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.kits.coordinationkit import becomes_true
from tidelog.coordination.embedded import EmbeddedCoordination
from tidelog.coordination.local_machine import LocalMachine
from tidelog.coordination.port import NoNodeError, Session, SessionState
from tidelog.host.clock import SystemClock

TIMEOUT_MS = 600
PATIENCE_S = 1.5
"""How long anything the others do may take, on a busy machine. A single process stops for ever, so it is no lease."""


class Process:
    """A member, and what it has reported."""

    def __init__(self, directory: Path, name: str, *options: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self.name = name
        self.reports: list[list[str]] = []
        command = [
            sys.executable,
            "-m",
            "tests.kits.coordination_member",
            str(directory),
            name,
            str(timeout_ms),
            *options,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, cwd=Path(__file__).parents[2])
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._unread = b""

    def read(self, kind: str) -> list[list[str]]:
        while data := self._output.read(65536):
            *lines, self._unread = (self._unread + data).split(b"\n")
            self.reports += [line.decode().split() for line in lines]
        return [report for report in self.reports if report[0] == kind]

    async def reported(self, kind: str, count: int = 1) -> list[str]:
        async def there() -> bool:
            assert self._process.poll() is None, "the member has died"
            return len(self.read(kind)) >= count

        await becomes_true(there)
        return self.read(kind)[count - 1]

    async def is_stopped(self) -> bool:
        assert self._process.poll() is None, "the member has died"
        return Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()


class Cluster:
    """Members in processes, and a session in this one that looks on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.members: dict[str, Process] = {}
        self.session: Session

    async def join(self, name: str, *options: str, timeout_ms: int = TIMEOUT_MS) -> Process:
        member = self.members[name] = Process(self.directory, name, *options, timeout_ms=timeout_ms)
        return member

    async def look_on(self) -> None:
        self.session = await EmbeddedCoordination(str(self.directory), SystemClock()).connect(20_000)
        await self.session.ensure("/ids")

    async def wait_for_ids(self, *names: str, patience_s: float = 10.0) -> float:
        """Returns after how many seconds."""
        started = time.monotonic()

        async def as_wanted() -> bool:
            return await self.session.children("/ids") == sorted(names)

        await becomes_true(as_wanted, patience_s)
        return time.monotonic() - started

    async def count(self) -> int:
        await self.session.set("/ids", b"")
        try:
            return int((await self.session.get("/counter")).data or b"0")
        except NoNodeError:
            return 0

    async def goes_on(self) -> None:
        """Somebody in another process still counts, and this one can write."""
        before = await asyncio.wait_for(self.count(), PATIENCE_S)

        async def has_grown() -> bool:
            return await self.count() > before

        await becomes_true(has_grown, PATIENCE_S)

    def was_led_by_one_at_a_time(self) -> None:
        terms: dict[str, tuple[int, int]] = {}
        for path in self.directory.parent.glob(f"{self.directory.name}.leading-*"):
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # torn by a kill
                    moment, session = line.split()
                    first, last = terms.get(session, (int(moment), int(moment)))
                    terms[session] = min(first, int(moment)), max(last, int(moment))
        in_order = sorted(terms.values())
        assert in_order
        assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(in_order))

    def close(self) -> None:
        for member in self.members.values():
            member.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "store")
    yield cluster
    cluster.close()


Story = Callable[[], Awaitable[None]]


def run(cluster: Cluster, story: Story, *, first: Story | None = None) -> None:
    async def main() -> None:
        if first is not None:
            await first()
        await cluster.look_on()
        await story()
        assert cluster.session.state is SessionState.CONNECTED
        assert await cluster.session.exists("/harm") is None
        await cluster.session.close()

    asyncio.run(main())
    cluster.was_led_by_one_at_a_time()


def test_a_killed_member_is_gone_at_once_and_the_store_stays_whole(cluster: Cluster) -> None:
    chance = random.Random(11)

    async def story() -> None:
        seal = ("--seal-bytes", "30000")
        for name in ("a", "b", "c"):
            await cluster.join(name, *seal, timeout_ms=20_000)
        await cluster.wait_for_ids("a", "b", "c")
        for _ in range(5):
            await asyncio.sleep(chance.random() / 10)
            name = chance.choice(["a", "b", "c"])
            cluster.members[name].kill()
            others = [other for other in ("a", "b", "c") if other != name]
            assert await cluster.wait_for_ids(*others) < 1.0, "much sooner than the lease of 20 s"
            await cluster.goes_on()
            await cluster.join(name, *seal, timeout_ms=20_000)
            await cluster.wait_for_ids("a", "b", "c")

    run(cluster, story)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_members_are_stopped_at_random_moments(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)

    async def story() -> None:
        names = ["a", "b", "c"]
        for name in names:
            await cluster.join(name)
        await cluster.wait_for_ids(*names)
        for _ in range(12):
            member = cluster.members[chance.choice(names)]
            await asyncio.sleep(chance.random() / 50)
            losses = len(member.read("lost"))
            member.stop()
            await cluster.goes_on()
            if chance.random() < 0.3:
                others = [name for name in names if name != member.name]
                assert await cluster.wait_for_ids(*others) < TIMEOUT_MS / 1e3 + PATIENCE_S
                await cluster.goes_on()
                member.go_on()
                await member.reported("lost", losses + 1)
            member.go_on()
            await cluster.wait_for_ids(*names)
        counted = await the_books_agree(cluster)
        assert counted > 100

    run(cluster, story)


WORST_MOMENTS = [
    ("--stop-after", "append", 20),
    ("--stop-before", "renewal", 20),
    ("--stop-before", "link", 2),
]
MORE_MOMENTS = [
    ("--stop-before", "append", 20),
    ("--stop-before", "sync", 20),
    ("--stop-after", "sync", 20),
    ("--stop-before", "next generation", 2),
    ("--stop-after", "link", 2),
    ("--stop-before", "link", 1),
    ("--stop-after", "link", 1),
    ("--stop-before", "removal", 2),
]


@pytest.mark.parametrize(
    ("when", "where", "count"),
    [*WORST_MOMENTS, *(pytest.param(*moment, marks=pytest.mark.long) for moment in MORE_MOMENTS)],
)
def test_a_member_stops_in_the_midst_of_a_change(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, when: str, where: str, count: int
) -> None:
    """Where a lock would be held, if there were one; and in the turn from one generation of the journal to the next."""
    seal = "20000"
    monkeypatch.setattr(LocalMachine, "seal_bytes", int(seal))

    async def first() -> None:
        """Alone, so that nobody else is quicker to make the next generation."""
        stopping = await cluster.join("s", "--seal-bytes", seal, when, where, "--stop-count", str(count))
        await becomes_true(stopping.is_stopped)

    async def story() -> None:
        await cluster.join("a", "--seal-bytes", seal)
        await cluster.wait_for_ids("a", patience_s=TIMEOUT_MS / 1e3 + 5)
        await cluster.goes_on()
        cluster.members["s"].go_on()
        await cluster.wait_for_ids("a", "s")
        await cluster.goes_on()

    run(cluster, story, first=first)


async def the_books_agree(cluster: Cluster) -> int:
    """No acknowledged increment is lost, none is made twice."""
    for member in cluster.members.values():
        member.stop()
    await cluster.wait_for_ids()
    counted = await cluster.count()
    acked = unknown = 0
    for member in cluster.members.values():
        losses = len(member.read("lost"))
        member.go_on()
        await member.reported("lost", losses + 1)
        for report in member.read("lost")[: losses + 1]:
            acked += int(report[1])
            unknown += int(report[2])
        member.stop()
    assert acked <= counted <= acked + unknown
    return counted

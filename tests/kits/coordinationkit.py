"""Stores to run one contract against: each home of the coordination port, on a loop that suits it."""

from __future__ import annotations

import asyncio
import atexit
import functools
import itertools
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from kazoo.client import KazooClient

from peers.zookeeper import ZooKeeper
from tidelog.coordination.embedded import EmbeddedCoordination, EmbeddedSession
from tidelog.coordination.memory import MemoryCoordination
from tidelog.coordination.port import Event, Session, SessionState, Watch
from tidelog.coordination.zookeeper import ZooKeeperCoordination, ZooKeeperSession
from tidelog.host.clock import SystemClock
from tidelog.lab.machine import SimMachine
from tidelog.lab.world import World
from tidelog.ports import Clock

T = TypeVar("T")
TIMEOUT_MS = 10_000
_PATIENCE_S = 20.0


class Store(Protocol):
    """A home under test."""

    async def connect(self, timeout_ms: int = TIMEOUT_MS) -> Session: ...

    async def expire(self, session: Session) -> None:
        """End it without its doing, as the store does when its time is over."""
        ...


Story = Callable[[Store], Coroutine[Any, Any, None]]


class RestartingStore(Store, Protocol):
    """A home with a server that can be killed."""

    async def restart(self, away_s: float) -> None:
        """Kill the server; it is back after so long, when this returns."""
        ...


RestartingStory = Callable[[RestartingStore], Coroutine[Any, Any, None]]


class _MemoryStore:
    def __init__(self, world: World) -> None:
        chance = world.chance_for("coordination")
        self.coordination = MemoryCoordination(
            world.host("store").clock, delay_s=lambda: chance.choice((0, chance.random() / 1e3))
        )

    async def connect(self, timeout_ms: int = TIMEOUT_MS) -> Session:
        return await self.coordination.connect(timeout_ms)

    async def expire(self, session: Session) -> None:
        self.coordination.expire(session.id)

    async def restart(self, away_s: float) -> None:
        await self.coordination.restart(away_s)


class _EmbeddedStore:
    """Every session has a home of its own, as in a process of its own, unless they are to share one."""

    def __init__(self, directory: Path, *, shared: bool, machine: SimMachine | None = None) -> None:
        self._directory = str(directory)
        self._machine = machine
        self._clock: Clock = SystemClock() if machine is None else machine.clock
        self._shared = self._home() if shared else None
        self._sessions: list[Session] = []

    def _home(self) -> EmbeddedCoordination:
        return EmbeddedCoordination(self._directory, self._clock, self._machine)

    async def connect(self, timeout_ms: int = TIMEOUT_MS) -> Session:
        home = self._shared or self._home()
        session = await home.connect(timeout_ms)
        self._sessions.append(session)
        return session

    async def expire(self, session: Session) -> None:
        """Another process writes that it is over."""
        other = await self._home().connect(TIMEOUT_MS)
        assert isinstance(other, EmbeddedSession)
        await other._attachment.end(session.id)
        await other.close()

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()


class _ZooKeeperStore:
    """A chroot of its own on the one server of this run."""

    _numbers = itertools.count(1)

    def __init__(self, server: ZooKeeper) -> None:
        self.server = server
        self.coordination = ZooKeeperCoordination(
            f"{server.connect}/contract/{next(self._numbers)}", SystemClock(), connection_timeout_ms=TIMEOUT_MS
        )
        self._sessions: list[Session] = []

    async def connect(self, timeout_ms: int = TIMEOUT_MS) -> Session:
        session = await self.coordination.connect(timeout_ms)
        self._sessions.append(session)
        return session

    async def expire(self, session: Session) -> None:
        """Somebody with its password takes it over and closes it; the server does not tell that from its owner."""
        assert isinstance(session, ZooKeeperSession)
        await asyncio.to_thread(_close_for, self.server.connect, session._link.client.client_id)

    async def restart(self, away_s: float) -> None:
        self.server.kill()
        await asyncio.sleep(away_s)
        self.server.start()  # on this thread: the server ends with the thread that started it

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()


def _close_for(connect: str, client_id: tuple[int, bytes]) -> None:
    usurper = KazooClient(connect, client_id=client_id)
    usurper.start()
    usurper.stop()
    usurper.close()


@functools.cache
def zookeeper_server() -> ZooKeeper:
    """Started when first asked for; ends with this process."""
    directory = Path(tempfile.mkdtemp(prefix="tidelog-zookeeper-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    server = ZooKeeper(directory)
    atexit.register(server.kill)
    server.start()
    return server


def run_in_memory(story: Story | RestartingStory, directory: Path, seed: int = 1) -> None:
    with World(seed) as world:
        world.run(story(_MemoryStore(world)))


def run_embedded(story: Story, directory: Path, *, shared: bool = False) -> None:
    async def main() -> None:
        store = _EmbeddedStore(directory, shared=shared)
        try:
            await asyncio.wait_for(story(store), _PATIENCE_S)
        finally:
            await store.close()

    asyncio.run(main())


def run_embedded_in_the_lab(story: Story, directory: Path) -> None:
    with World(1) as world:

        async def main() -> None:
            store = _EmbeddedStore(directory, shared=False, machine=SimMachine(world))
            await world.host("member").start(story(store))

        world.run(main())


def run_on_zookeeper(story: Story | RestartingStory, directory: Path) -> None:
    async def main() -> None:
        store = _ZooKeeperStore(zookeeper_server())
        try:
            await asyncio.wait_for(story(store), _PATIENCE_S)
        finally:
            await store.close()

    asyncio.run(main())


HOMES: dict[str, Callable[[Story, Path], None]] = {
    "memory": run_in_memory,
    "embedded": run_embedded,
    "embedded, one process": lambda story, directory: run_embedded(story, directory, shared=True),
    "embedded, in the lab": run_embedded_in_the_lab,
    "zookeeper": run_on_zookeeper,
}
HOMES_WITH_A_SERVER: dict[str, Callable[[RestartingStory, Path], None]] = {
    "memory": run_in_memory,
    "zookeeper": run_on_zookeeper,
}
NEEDS_JAVA = frozenset({"zookeeper"})


def home(name: str) -> object:
    """As a parameter of a test."""
    return pytest.param(name, marks=[pytest.mark.jvm] if name in NEEDS_JAVA else [])


async def catch_up(session: Session) -> None:
    """A session reads no state older than its own last write, so after one it has all that was there before."""
    await session.set("/", b"")


async def becomes_true(check: Callable[[], Awaitable[T]], patience_s: float = _PATIENCE_S) -> T:
    """The first answer that is true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while not (answer := await check()):
        assert loop.time() < deadline, "waited in vain"
        await asyncio.sleep(0.002)
    return answer


class Heard:
    """A watch that remembers, and can be waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def watch(self) -> Watch:
        """A new one each time: one and the same that is left twice hears once."""
        return lambda event: self.events.append(event)

    async def wait(self, count: int = 1) -> list[Event]:
        async def enough() -> bool:
            return len(self.events) >= count

        await becomes_true(enough)
        return self.events


async def wait_for_state(session: Session, state: SessionState) -> None:
    async def reached() -> bool:
        return session.state is state

    await becomes_true(reached)

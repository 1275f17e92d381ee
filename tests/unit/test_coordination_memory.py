"""The store in memory, in a world of hosts that die and freeze: leases, and trouble on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.kits.coordinationkit import Heard
from tidelog.coordination.memory import MemoryCoordination, MemorySession
from tidelog.coordination.port import (
    ConnectionLostError,
    CoordinationError,
    Event,
    EventKind,
    SessionLostError,
    SessionState,
)
from tidelog.lab.process import PROCESS
from tidelog.lab.world import World

TIMEOUT_MS = 6000


class Member:
    """A process on a host that holds an ephemeral node and writes down what happens to it."""

    def __init__(self, world: World, store: MemoryCoordination, name: str) -> None:
        self.host = world.host(name)
        self.states: list[tuple[float, SessionState]] = []
        self.acted_at: list[float] = []
        self.errors: list[CoordinationError] = []
        self.events: list[Event] = []
        self.session: MemorySession
        self._store = store
        self.host.start(self._live())

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        self.session = session = await self._store.connect(TIMEOUT_MS)
        session.listen(lambda state: self.states.append((loop.time(), state)))
        await session.create(f"/{self.host.name}", ephemeral=True)
        await session.children("/", self._told)
        while True:
            if session.is_current():
                self.acted_at.append(loop.time())
            try:
                await session.exists("/")
            except CoordinationError as error:
                self.errors.append(error)
            await asyncio.sleep(0.1)

    def _told(self, event: Event) -> None:
        process = PROCESS.get()
        assert process is not None
        assert process.host == self.host.name, "a watch is called in the process that left it"
        self.events.append(event)


@pytest.fixture
def world() -> Iterator[World]:
    with World(7) as world:
        yield world


@pytest.fixture
def store(world: World) -> MemoryCoordination:
    return MemoryCoordination(world.host("store").clock)


def test_a_living_member_keeps_its_session(world: World, store: MemoryCoordination) -> None:
    async def main() -> None:
        member = Member(world, store, "a")
        await asyncio.sleep(60)
        assert member.session.is_current()
        assert store.tree.children("/") == ["a"]
        assert member.states == []

    world.run(main())


def test_the_session_of_a_killed_process_expires(world: World, store: MemoryCoordination) -> None:
    async def main() -> None:
        killed, living = Member(world, store, "a"), Member(world, store, "b")
        await asyncio.sleep(1)
        heard = Heard()
        watcher = await store.connect(TIMEOUT_MS)
        await watcher.exists("/a", heard.watch())
        killed.host.kill()
        await asyncio.sleep(TIMEOUT_MS / 1e3 - 2.1)
        assert heard.events == []
        await asyncio.sleep(2.2)
        assert heard.events == [Event(EventKind.DELETED, "/a")]
        assert living.session.is_current()
        assert killed.states == []

    world.run(main())


def test_a_frozen_process_wakes_up_to_a_lost_session(world: World, store: MemoryCoordination) -> None:
    async def main() -> None:
        frozen = Member(world, store, "a")
        await asyncio.sleep(1)
        frozen.host.freeze()
        await asyncio.sleep(TIMEOUT_MS / 1e3 + 0.1)
        assert store.tree.children("/") == []
        assert frozen.states == []
        frozen.host.thaw()
        await asyncio.sleep(0.5)
        assert [state for _, state in frozen.states] == [SessionState.LOST]
        assert max(frozen.acted_at) <= 1, "it never believed to be current again"
        assert all(isinstance(error, SessionLostError) for error in frozen.errors)
        assert frozen.events == [], "nor did it hear of its own end as of news"

    world.run(main())


def test_a_short_freeze_costs_nothing(world: World, store: MemoryCoordination) -> None:
    async def main() -> None:
        frozen = Member(world, store, "a")
        await asyncio.sleep(1)
        frozen.host.freeze()
        await asyncio.sleep(3)
        frozen.host.thaw()
        await asyncio.sleep(60)
        assert frozen.session.is_current()
        assert frozen.states == []

    world.run(main())


def test_nobody_answers_for_a_while(world: World, store: MemoryCoordination) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        member, other = Member(world, store, "a"), Member(world, store, "b")
        await asyncio.sleep(1)
        heard = Heard()
        await member.session.children("/", heard.watch())
        store.suspend(member.session.id)
        await asyncio.sleep(0.5)
        await other.session.create("/news")
        await asyncio.sleep(0.5)
        assert member.session.state is SessionState.SUSPENDED
        assert {type(error) for error in member.errors} == {ConnectionLostError}
        assert heard.events == []
        store.resume(member.session.id)
        await asyncio.sleep(10)
        assert [state for _, state in member.states] == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert heard.events == [Event(EventKind.CHILDREN, "/")], "what it missed it was told afterwards"
        assert member.session.is_current()
        assert member.acted_at[-1] > loop.time() - 0.2

    world.run(main())


def test_a_session_that_is_not_answered_is_not_current_and_is_lost_when_it_hears_of_its_end(
    world: World, store: MemoryCoordination
) -> None:
    async def main() -> None:
        members = [Member(world, store, name) for name in ("a", "b")]
        await asyncio.sleep(1)
        store.suspend()
        with pytest.raises(ConnectionLostError):
            await store.connect(TIMEOUT_MS)
        await asyncio.sleep(TIMEOUT_MS / 1e3 + 0.1)
        assert store.tree.children("/") == []
        assert not any(member.session.is_current() for member in members)
        store.resume()
        await asyncio.sleep(0.5)
        for member in members:
            (suspended_s, suspended), (_, lost) = member.states
            assert (suspended, lost) == (SessionState.SUSPENDED, SessionState.LOST)
            assert max(member.acted_at) <= suspended_s + TIMEOUT_MS / 1e3
        assert (await store.connect(TIMEOUT_MS)).is_current()

    world.run(main())


def test_edge_41_a_store_that_restarts_gives_its_sessions_back(world: World, store: MemoryCoordination) -> None:
    """Again and again, each time for longer than a session lasts."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        member = Member(world, store, "a")
        await asyncio.sleep(1)
        for _ in range(3):
            stopped_s = loop.time()
            heard = Heard()
            await member.session.children("/", heard.watch())
            await store.restart(2 * TIMEOUT_MS / 1e3)
            assert not member.session.is_current(), "it is current only when it has heard from the store again"
            assert stopped_s + TIMEOUT_MS / 1e3 >= member.acted_at[-1] > stopped_s + TIMEOUT_MS / 1e3 - 2.2
            await asyncio.sleep(0.2)
            assert member.session.is_current()
            assert member.acted_at[-1] > loop.time() - 0.2
            assert store.tree.children("/") == ["a"], "its nodes outlive the absence of the server"
            await (await store.connect(TIMEOUT_MS)).create("/news")
            await asyncio.sleep(0.1)
            assert heard.events == [Event(EventKind.CHILDREN, "/")]
            await member.session.delete("/news")
        assert [state for _, state in member.states] == [SessionState.SUSPENDED, SessionState.CONNECTED] * 3

    world.run(main())


def test_edge_41_a_session_whose_owner_died_expires_a_timeout_after_the_last_restart(
    world: World, store: MemoryCoordination
) -> None:
    async def main() -> None:
        member = Member(world, store, "a")
        await asyncio.sleep(1)
        member.host.kill()
        for _ in range(3):
            await asyncio.sleep(TIMEOUT_MS / 1e3 - 3)
            await store.restart(1.0)
        await asyncio.sleep(TIMEOUT_MS / 1e3 - 0.1)
        assert store.tree.children("/") == ["a"]
        await asyncio.sleep(0.2)
        assert store.tree.children("/") == []

    world.run(main())


def test_no_session_is_reconnected_while_the_server_is_away(world: World, store: MemoryCoordination) -> None:
    """Seed 548214451: one that was asked a server which was not there, and waited for ever."""

    async def main() -> None:
        session = await store.connect(TIMEOUT_MS)
        store.stop()
        store.resume()
        store.resume(session.id)
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionLostError):
            await asyncio.wait_for(session.exists("/a"), 1.0)
        store.start()
        await asyncio.sleep(0.1)
        assert await session.exists("/a") is None

    world.run(main())


def test_what_is_on_the_way_to_a_store_that_stops_is_lost(world: World) -> None:
    store = MemoryCoordination(world.host("store").clock, delay_s=lambda: 0.01)

    async def main() -> None:
        session = await store.connect(TIMEOUT_MS)
        creating, connecting = asyncio.ensure_future(session.create("/a")), asyncio.ensure_future(store.connect(1000))
        await asyncio.sleep(0)
        await store.restart(1.0)
        for call in (creating, connecting):
            with pytest.raises(CoordinationError):
                await call
        assert store.tree.children("/") == []
        await asyncio.sleep(0.1)
        await session.create("/a")

    world.run(main())


def test_a_call_in_flight_when_the_line_breaks_may_have_counted(world: World, store: MemoryCoordination) -> None:
    async def main() -> None:
        session = await store.connect(TIMEOUT_MS)
        creating = asyncio.ensure_future(session.create("/a"))
        await asyncio.sleep(0)
        store.suspend(session.id)
        with pytest.raises(ConnectionLostError):
            await creating
        assert store.tree.exists("/a") is not None

    world.run(main())


def test_expiry_on_demand_holds_from_that_moment(world: World, store: MemoryCoordination) -> None:
    async def main() -> None:
        member = Member(world, store, "a")
        await asyncio.sleep(1)
        member.host.freeze()
        store.expire(member.session.id)
        assert store.tree.children("/") == []
        assert not member.session.is_current()
        member.host.thaw()
        await asyncio.sleep(0.01)
        assert [state for _, state in member.states] == [SessionState.LOST]

    world.run(main())


def test_no_call_ends_in_the_turn_it_began_in(world: World, store: MemoryCoordination) -> None:
    async def main() -> None:
        session = await store.connect(TIMEOUT_MS)
        turns: list[int] = []
        loop = asyncio.get_running_loop()
        loop.call_soon(turns.append, 1)
        await session.exists("/")
        assert turns == [1]
        store.expire(session.id)
        loop.call_soon(turns.append, 2)
        with pytest.raises(SessionLostError):
            await session.exists("/")
        assert turns == [1, 2]

    world.run(main())


def test_equal_seeds_tell_equal_stories() -> None:
    def trace() -> list[tuple[float, SessionState]]:
        with World(3) as world:
            chance = world.chance_for("coordination")
            store = MemoryCoordination(world.host("store").clock, delay_s=lambda: chance.random() / 100)

            async def main() -> list[tuple[float, SessionState]]:
                members = [Member(world, store, name) for name in ("a", "b", "c")]
                await asyncio.sleep(1 + chance.random())
                store.suspend(members[0].session.id)
                members[1].host.freeze()
                await asyncio.sleep(chance.random() * 10)
                store.resume()
                members[1].host.thaw()
                await asyncio.sleep(10)
                return [state for member in members for state in member.states]

            return world.run(main())

    assert trace() == trace()

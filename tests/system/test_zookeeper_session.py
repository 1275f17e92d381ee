"""Sessions with a real ZooKeeper when the line to it is bad: cut, silent, or the server frozen."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.kits.coordinationkit import Heard, becomes_true, wait_for_state, zookeeper_server
from tidelog.coordination.port import ConnectionLostError, Event, EventKind, SessionLostError, SessionState
from tidelog.coordination.zookeeper import ZooKeeperCoordination, ZooKeeperSession, ZooKeeperUnreachableError
from tidelog.errors import TidelogError
from tidelog.host.clock import SystemClock

TIMEOUT_MS = 3_000
SHORTEST_TIMEOUT_MS = 1_000
"""The least that the server grants, with a tick of 500 ms."""


class Line:
    """What lies between a session and the server: it can be cut, or hold all that is said."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._is_cut = False
        self._open = asyncio.Event()
        self._open.set()
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers += [writer, back]
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.ensure_future(self._carry(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._open.wait()
                target.write(data)
        except ConnectionError:
            pass
        finally:
            target.close()

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def mend(self) -> None:
        self._is_cut = False

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()


@asynccontextmanager
async def line_to(port: int) -> AsyncIterator[tuple[Line, str]]:
    line = Line(port)
    server = await asyncio.start_server(line.accept, "127.0.0.1", 0)
    try:
        yield line, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        line.cut()
        server.close()


Story = Callable[[Line, ZooKeeperCoordination, ZooKeeperSession], Coroutine[Any, Any, None]]


def tell(story: Story, chroot: str) -> None:
    """With a line that can be harmed, and a session of somebody else whose line cannot."""

    async def main() -> None:
        server = zookeeper_server()
        direct = await ZooKeeperCoordination(f"{server.connect}/{chroot}", SystemClock()).connect(10_000)
        async with line_to(server.port) as (line, address):
            await asyncio.wait_for(
                story(line, ZooKeeperCoordination(f"{address}/{chroot}", SystemClock()), direct), 60.0
            )
        await direct.close()

    asyncio.run(main())


@pytest.mark.jvm
def test_a_cut_line_suspends_and_what_was_missed_is_told_afterwards() -> None:
    async def story(line: Line, coordination: ZooKeeperCoordination, other: ZooKeeperSession) -> None:
        session = await coordination.connect(10_000)
        states: list[SessionState] = []
        session.listen(states.append)
        heard, calm = Heard(), Heard()
        for name in ("changed", "deleted", "parent", "replaced", "calm"):
            await session.create(f"/{name}")
        await session.create("/mine", ephemeral=True)
        for name in ("changed", "deleted", "replaced", "absent"):
            await session.exists(f"/{name}", heard.watch())
        await session.children("/parent", heard.watch())
        for name in ("calm", "still-absent"):
            await session.exists(f"/{name}", calm.watch())
        await session.children("/calm", calm.watch())
        line.cut()
        await wait_for_state(session, SessionState.SUSPENDED)
        assert session.is_current()
        with pytest.raises(ConnectionLostError):
            await session.get("/changed")
        await other.set("/changed", b"x")
        await other.delete("/deleted")
        await other.delete("/replaced")
        await other.create("/replaced")
        await other.create("/absent")
        await other.create("/parent/child")
        assert heard.events == []
        line.mend()
        await wait_for_state(session, SessionState.CONNECTED)
        assert (await session.get("/changed")).data == b"x"
        assert sorted(heard.events, key=lambda event: event.path) == [
            Event(EventKind.CREATED, "/absent"),
            Event(EventKind.CHANGED, "/changed"),
            Event(EventKind.DELETED, "/deleted"),
            Event(EventKind.CHILDREN, "/parent"),
            Event(EventKind.DELETED, "/replaced"),
        ]
        assert calm.events == []
        await other.set("/calm", b"x")
        await other.create("/calm/child")
        await other.create("/still-absent")
        assert len(await calm.wait(3)) == 3
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert await other.exists("/mine") is not None
        await session.close()
        assert await other.exists("/mine") is None

    tell(story, "missed")


@pytest.mark.jvm
def test_a_session_that_is_cut_off_is_not_current_before_the_server_ends_it_and_is_lost_when_it_hears_so() -> None:
    async def story(line: Line, coordination: ZooKeeperCoordination, other: ZooKeeperSession) -> None:
        session = await coordination.connect(SHORTEST_TIMEOUT_MS)
        states: list[SessionState] = []
        session.listen(states.append)
        heard = Heard()
        await session.create("/mine", ephemeral=True)
        await session.exists("/mine", heard.watch())
        await other.exists("/mine", (gone := Heard()).watch())
        line.cut()

        async def is_over() -> bool:
            return not session.is_current()

        await becomes_true(is_over)
        assert gone.events == [], "it must know before anybody else does"
        assert session.state is SessionState.SUSPENDED, "the server may yet give it back"
        assert await gone.wait() == [Event(EventKind.DELETED, "/mine")]
        with pytest.raises(ConnectionLostError):
            await session.get("/")
        line.mend()
        await wait_for_state(session, SessionState.LOST)
        assert not session.is_current()
        fresh = await coordination.connect(SHORTEST_TIMEOUT_MS)
        assert fresh.id != session.id
        with pytest.raises(SessionLostError):
            await session.get("/")
        assert states == [SessionState.SUSPENDED, SessionState.LOST]
        assert heard.events == []
        await fresh.close()

    tell(story, "alone")


@pytest.mark.jvm
def test_calls_that_nobody_answers_fail_before_the_session_is_over() -> None:
    async def story(line: Line, coordination: ZooKeeperCoordination, other: ZooKeeperSession) -> None:
        session = await coordination.connect(TIMEOUT_MS)
        line.hold()
        # One call after another, so that kazoo never finds the time to ping.
        calls = []
        while session.state is SessionState.CONNECTED:
            calls.append(asyncio.ensure_future(session.set("/", b"")))
            await asyncio.sleep(0.05)
        assert session.state is SessionState.SUSPENDED
        assert session.is_current()
        for failure in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(failure, ConnectionLostError)
        line.release()
        await wait_for_state(session, SessionState.CONNECTED)
        await session.set("/", b"")
        await session.close()

    tell(story, "silent")


@pytest.mark.jvm
def test_a_thousand_calls_on_a_line_that_was_just_cut_do_not_hold_up_the_loop() -> None:
    async def story(line: Line, coordination: ZooKeeperCoordination, other: ZooKeeperSession) -> None:
        session = await coordination.connect(10_000)
        heard = Heard()
        calls = [session.exists("/absent", heard.watch()) for _ in range(1000)]
        line.cut()
        before = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert asyncio.get_running_loop().time() - before < 2.0
        assert {type(answer) for answer in answers} <= {type(None), ConnectionLostError}
        line.mend()
        await wait_for_state(session, SessionState.CONNECTED)
        answered = answers.count(None)
        many = await asyncio.gather(*(session.exists("/absent", heard.watch()) for _ in range(1000)))
        assert len(many) == 1000
        await other.create("/absent")
        assert len(await heard.wait(answered + 1000)) == answered + 1000
        await session.close()

    tell(story, "many")


@pytest.mark.jvm
def test_a_frozen_server_suspends_its_sessions_and_they_go_on_when_it_does() -> None:
    async def story(line: Line, coordination: ZooKeeperCoordination, other: ZooKeeperSession) -> None:
        session = await coordination.connect(TIMEOUT_MS)
        await session.create("/mine", ephemeral=True)
        with zookeeper_server().frozen():
            await wait_for_state(session, SessionState.SUSPENDED)
        await wait_for_state(session, SessionState.CONNECTED)
        stat = await session.exists("/mine")
        assert stat is not None
        assert stat.owner == session.id
        await session.close()

    tell(story, "frozen")


@pytest.mark.jvm
def test_edge_41_a_server_that_was_killed_gives_sessions_back_after_any_time() -> None:
    """It is away for longer than the session lasts, twice. Watches that were left before hear of what comes after."""

    async def story(line: Line, coordination: ZooKeeperCoordination, other: ZooKeeperSession) -> None:
        server = zookeeper_server()
        direct = ZooKeeperCoordination(f"{server.connect}/killed", SystemClock())
        session = await direct.connect(TIMEOUT_MS)
        states: list[SessionState] = []
        session.listen(states.append)
        await session.create("/mine", ephemeral=True)
        heard = Heard()
        await session.exists("/news", heard.watch())
        for _ in range(2):
            server.kill()
            await asyncio.sleep(1.2 * TIMEOUT_MS / 1e3)
            assert not session.is_current()
            assert session.state is SessionState.SUSPENDED
            server.start()  # on this thread: the server ends with the thread that started it
            await asyncio.wait_for(wait_for_state(session, SessionState.CONNECTED), 1.0)
            assert session.is_current()
            stat = await session.exists("/mine")
            assert stat is not None
            assert stat.owner == session.id
        await wait_for_state(other, SessionState.CONNECTED)
        await other.create("/news")
        assert await heard.wait() == [Event(EventKind.CREATED, "/news")]
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED] * 2
        await session.close()

    tell(story, "killed")


@pytest.mark.jvm
def test_edge_41_a_server_that_was_frozen_for_longer_than_a_session_gives_it_back_or_says_that_it_is_over() -> None:
    """Which of the two is up to the server. Either way the owner is not current meanwhile, and knows soon after."""

    async def story(line: Line, coordination: ZooKeeperCoordination, other: ZooKeeperSession) -> None:
        session = await coordination.connect(SHORTEST_TIMEOUT_MS)
        await session.create("/mine", ephemeral=True)
        with zookeeper_server().frozen():
            await asyncio.sleep(2 * SHORTEST_TIMEOUT_MS / 1e3)
            assert not session.is_current()

        async def is_decided() -> bool:
            return session.is_current() or session.state is SessionState.LOST

        await becomes_true(is_decided, 2.0)
        await wait_for_state(other, SessionState.CONNECTED)
        stat = await other.exists("/mine")
        assert (stat is not None and stat.owner == session.id) == session.is_current()
        await session.close()

    tell(story, "thawed")


@pytest.mark.jvm
def test_pings_keep_an_idle_session_for_as_long_as_the_server_grants() -> None:
    async def story(line: Line, coordination: ZooKeeperCoordination, other: ZooKeeperSession) -> None:
        modest, greedy = await coordination.connect(SHORTEST_TIMEOUT_MS), await coordination.connect(3_600_000)
        assert greedy._link.timeout_ms == 10_000
        before = modest._link.current_until_ns

        async def renewed_over_and_over() -> bool:
            assert modest.is_current()
            return modest._link.current_until_ns > before + 2 * SHORTEST_TIMEOUT_MS * 1_000_000

        await becomes_true(renewed_over_and_over)
        assert modest.state is SessionState.CONNECTED
        await modest.close()
        await greedy.close()

    tell(story, "idle")


def test_nobody_there_names_the_setting_and_the_address() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        coordination = ZooKeeperCoordination(f"{address}/kafka", SystemClock(), connection_timeout_ms=200)
        with pytest.raises(ZooKeeperUnreachableError, match=f"{address}/kafka .*200 ms.*zookeeper.connect"):
            asyncio.run(coordination.connect(TIMEOUT_MS))


@pytest.mark.parametrize("connect", ["host:port", "127.0.0.1:2181/a//b", "127.0.0.1:2181/.."])
def test_what_is_no_address_is_said_to_be_none(connect: str) -> None:
    with pytest.raises(TidelogError, match=r"zookeeper\.connect"):
        asyncio.run(ZooKeeperCoordination(connect, SystemClock()).connect(TIMEOUT_MS))

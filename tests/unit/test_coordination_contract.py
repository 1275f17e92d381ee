"""What every home of the coordination port promises. Written against the port alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kits.coordinationkit import HOMES, Heard, Store, Story, becomes_true, catch_up, home, wait_for_state
from tidelog.coordination.port import (
    BadVersionError,
    Check,
    CoordinationError,
    Create,
    Delete,
    Event,
    EventKind,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Session,
    SessionLostError,
    SessionState,
    Set,
    Stat,
)

Run = Callable[[Story], None]
_A_MOMENT_S = 0.0001
"""A read of the embedded store takes no time in the lab, so a loop of reads alone would never end there."""


@pytest.fixture(params=[home(name) for name in HOMES])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return lambda story: HOMES[request.param](story, tmp_path / "store")


# Nodes


def test_a_node_is_created_read_set_and_deleted(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        assert await session.create("/a", b"one") == "/a"
        data, stat = await session.get("/a")
        assert (data, stat.version, stat.children_version, stat.owner) == (b"one", 0, 0, 0)
        assert stat.created_id == stat.modified_id > 0
        changed = await session.set("/a", b"two")
        assert changed.version == 1
        assert changed.created_id == stat.created_id < changed.modified_id
        assert await session.get("/a") == (b"two", changed)
        assert await session.exists("/a") == changed
        await session.delete("/a")
        assert await session.exists("/a") is None

    run(story)


def test_data_is_any_bytes(run: Run) -> None:
    data = bytes(range(256)) * 40

    async def story(store: Store) -> None:
        one, other = await store.connect(), await store.connect()
        await one.create("/ä", data)
        await catch_up(other)
        assert (await other.get("/ä")).data == data

    run(story)


@pytest.mark.parametrize("home", [name for name in HOMES if name != "zookeeper"])
def test_a_name_may_hold_a_line_break_but_not_in_zookeeper(home: str, tmp_path: Path) -> None:
    async def story(store: Store) -> None:
        one, other = await store.connect(), await store.connect()
        await one.create("/a\nb", b"x")
        await catch_up(other)
        assert await other.children("/") == ["a\nb"]

    HOMES[home](story, tmp_path / "store")


def test_children_are_names_in_order_and_count_a_version(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        await session.create("/p")
        for name in ("b", "c", "a"):
            await session.create(f"/p/{name}")
        assert await session.children("/p") == ["a", "b", "c"]
        await session.create("/p/a/deeper")
        assert (await session.get("/p")).stat.children_version == 3
        assert (await session.get("/p")).stat.version == 0
        await session.delete("/p/b")
        assert await session.children("/p") == ["a", "c"]
        assert (await session.get("/p")).stat.children_version == 4
        assert await session.children("/p/c") == []

    run(story)


def test_what_cannot_be_done_says_why_and_where(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        await session.create("/a")
        await session.create("/a/b")
        await session.create("/e", ephemeral=True)
        await fails(session.get("/no"), NoNodeError, "/no")
        await fails(session.children("/no"), NoNodeError, "/no")
        await fails(session.set("/no", b""), NoNodeError, "/no")
        await fails(session.delete("/no"), NoNodeError, "/no")
        await fails(session.create("/no/child"), NoNodeError, "/no/child")
        await fails(session.create("/a"), NodeExistsError, "/a")
        await fails(session.set("/a", b"", 1), BadVersionError, "/a")
        await fails(session.delete("/a/b", 7), BadVersionError, "/a/b")
        await fails(session.delete("/a"), NotEmptyError, "/a")
        await fails(session.create("/e/child"), NoChildrenForEphemeralsError, "/e/child")
        assert await session.children("/a") == ["b"]

    run(story)


def test_a_path_that_is_none_is_a_fault_of_the_caller(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        for path in ("", "a", "/a/", "//a", "/a/../b"):
            with pytest.raises(ValueError, match="path"):
                await session.create(path)
            with pytest.raises(ValueError, match="path"):
                await session.get(path)

    run(story)


def test_versions_guard_against_lost_updates(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        await session.create("/a")
        assert (await session.set("/a", b"1", 0)).version == 1
        await fails(session.set("/a", b"2", 0), BadVersionError, "/a")
        assert (await session.set("/a", b"2", 1)).version == 2
        await session.delete("/a", 2)
        await session.create("/a")
        assert (await session.get("/a")).stat.version == 0

    run(story)


def test_ensure_makes_what_is_missing(run: Run) -> None:
    async def story(store: Store) -> None:
        sessions = [await store.connect() for _ in range(3)]
        await asyncio.gather(*(session.ensure("/x/y/z") for session in sessions))
        await sessions[0].set("/x/y", b"kept")
        await sessions[0].ensure("/x/y/z")
        await sessions[0].ensure("/")
        assert (await sessions[0].get("/x/y")).data == b"kept"
        assert await sessions[0].children("/x/y/z") == []

    run(story)


def test_sequential_names_grow_and_are_never_given_twice(run: Run) -> None:
    async def story(store: Store) -> None:
        session, other = await store.connect(), await store.connect()
        await session.create("/q")
        paths = [await session.create("/q/n-", sequential=True) for _ in range(3)]
        await session.delete(paths[-1])
        paths.append(await other.create("/q/n-", sequential=True))
        paths += await asyncio.gather(*(s.create("/q/n-", sequential=True) for s in (session, other) for _ in range(5)))
        assert len(set(paths)) == len(paths)
        assert paths[:4] == sorted(paths[:4])
        assert all(path.startswith("/q/n-") and len(path) == len("/q/n-") + 10 for path in paths)
        assert max(paths[:4]) < min(paths[4:])

    run(story)


def test_created_ids_only_grow(run: Run) -> None:
    async def story(store: Store) -> None:
        one, other = await store.connect(), await store.connect()
        ids = []
        for session in (one, other, one, other):
            await session.create("/a", ephemeral=True)
            ids.append((await session.get("/a")).stat.created_id)
            await session.delete("/a")
        assert ids == sorted(set(ids))

    run(story)


# Multi


def test_multi_is_one_change(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        await session.create("/epoch", b"1")
        results = await session.multi(
            [
                Create("/controller", b"me", ephemeral=True),
                Set("/epoch", b"2", 0),
                Create("/d"),
                Create("/d/n-", sequential=True),
                Delete("/d/n-0000000000"),
                Check("/epoch", 1),
            ]
        )
        controller, epoch = await session.get("/controller"), await session.get("/epoch")
        assert results == ["/controller", epoch.stat, "/d", "/d/n-0000000000", None, None]
        assert controller.stat.created_id == epoch.stat.modified_id
        assert controller.stat.owner == session.id
        assert await session.multi([]) == []

    run(story)


def test_a_multi_that_fails_changes_nothing_and_names_the_first_failure(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        heard = Heard()
        await session.create("/a", b"1")
        await session.create("/a/old")
        before = await session.get("/a", heard.watch())
        await session.children("/a", heard.watch())
        await session.exists("/new", heard.watch())
        ops = [Set("/a", b"2"), Delete("/a/old"), Create("/new", ephemeral=True), Create("/a/n-", sequential=True)]
        await fails(session.multi([*ops, Check("/a", 0), Delete("/no")]), BadVersionError, "/a")
        await fails(session.multi([*ops, Delete("/no"), Check("/a", 0)]), NoNodeError, "/no")
        assert await session.get("/a") == before
        assert await session.children("/a") == ["old"]
        assert await session.exists("/new") is None
        assert heard.events == []

    run(story)


# Sessions


@pytest.mark.parametrize("end", ["close", "expire"])
def test_ephemeral_nodes_go_with_their_session(run: Run, end: str) -> None:
    async def story(store: Store) -> None:
        member, other = await store.connect(), await store.connect()
        heard = Heard()
        await other.ensure("/ids")
        await member.create("/ids/1", ephemeral=True)
        await member.create("/ids/2")
        await catch_up(other)
        stat = await other.exists("/ids/1", heard.watch())
        assert stat is not None
        assert stat.owner == member.id != other.id
        await (member.close() if end == "close" else store.expire(member))
        assert await heard.wait() == [Event(EventKind.DELETED, "/ids/1")]
        assert await other.children("/ids") == ["2"]
        assert other.state is SessionState.CONNECTED
        assert other.is_current()

    run(story)


@pytest.mark.parametrize("end", ["close", "expire"])
def test_a_session_that_is_over_says_so(run: Run, end: str) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        heard: list[SessionState] = []
        session.listen(heard.append)
        assert session.is_current()
        await session.create("/a")
        await (session.close() if end == "close" else store.expire(session))
        await wait_for_state(session, SessionState.LOST)
        assert not session.is_current()
        calls = (session.get("/a"), session.exists("/a"), session.children("/"), session.set("/a", b""))
        for call in (*calls, session.create("/b"), session.delete("/a"), session.multi([]), session.ensure("/c")):
            with pytest.raises(SessionLostError):
                await call
        await session.close()
        assert heard in ([SessionState.LOST], [SessionState.SUSPENDED, SessionState.LOST])
        fresh = await store.connect()
        assert fresh.id > session.id
        assert await fresh.children("/") == ["a"]

    run(story)


def test_an_unanswered_call_of_a_session_that_ends_fails(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        closing = asyncio.ensure_future(session.close())
        await asyncio.sleep(0)
        with pytest.raises(SessionLostError):
            await session.create("/late", ephemeral=True)
        await closing
        assert await (await store.connect()).exists("/late") is None

    run(story)


# Watches


def test_a_watch_hears_the_first_change_and_no_other(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        node, absent, names = Heard(), Heard(), Heard()
        await session.create("/a")
        await session.get("/a", node.watch())
        await session.exists("/a/b", absent.watch())
        await session.children("/a", names.watch())
        await session.create("/a/b")
        await session.create("/a/c")
        await session.set("/a/b", b"")
        await session.set("/a", b"1")
        await session.set("/a", b"2")
        assert node.events == [Event(EventKind.CHANGED, "/a")]
        assert absent.events == [Event(EventKind.CREATED, "/a/b")]
        assert names.events == [Event(EventKind.CHILDREN, "/a")]

    run(story)


def test_a_deleted_node_is_heard_of_by_all_its_watches(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        node, present, names, parent = Heard(), Heard(), Heard(), Heard()
        await session.create("/a")
        await session.get("/a", node.watch())
        await session.exists("/a", present.watch())
        await session.children("/a", names.watch())
        await session.children("/", parent.watch())
        both = Heard()
        one_watch = both.watch()
        await session.get("/a", one_watch)
        await session.children("/a", one_watch)
        await session.delete("/a")
        for heard in (node, present, names, both):
            assert heard.events == [Event(EventKind.DELETED, "/a")]
        assert parent.events == [Event(EventKind.CHILDREN, "/")]

    run(story)


def test_a_read_that_fails_leaves_no_watch(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        heard = Heard()
        await fails(session.get("/a", heard.watch()), NoNodeError, "/a")
        await fails(session.children("/a", heard.watch()), NoNodeError, "/a")
        await session.create("/a")
        await session.create("/a/b")
        assert heard.events == []

    run(story)


def test_a_change_is_told_before_it_can_be_read(run: Run) -> None:
    async def story(store: Store) -> None:
        writer, reader = await store.connect(), await store.connect()
        await writer.create("/n", b"0")
        await catch_up(reader)
        writing = asyncio.ensure_future(write_numbers(writer))
        told = Heard()
        data, _ = await reader.get("/n", told.watch())
        while data != b"30":
            await asyncio.sleep(_A_MOMENT_S)
            newer, _ = await reader.get("/n")
            assert newer == data or told.events
            if newer != data:
                told = Heard()
                data, _ = await reader.get("/n", told.watch())
        await writing

    async def write_numbers(session: Session) -> None:
        for number in range(1, 31):
            await session.set("/n", b"%d" % number)

    run(story)


def test_all_changes_have_one_order(run: Run) -> None:
    async def story(store: Store) -> None:
        writers = [await store.connect() for _ in range(3)]
        readers = [await store.connect() for _ in range(2)]
        await writers[0].create("/log")
        seen: list[list[tuple[int, int]]] = [[] for _ in readers]
        done = False

        async def read(session: Session, into: list[tuple[int, int]]) -> None:
            while not done:
                stat = await session.exists("/log")
                if stat is not None and (not into or into[-1][0] != stat.version):
                    into.append((stat.version, stat.modified_id))
                await asyncio.sleep(_A_MOMENT_S)

        reading = [asyncio.ensure_future(read(*pair)) for pair in zip(readers, seen, strict=True)]
        await asyncio.gather(*(writer.set("/log", b"") for writer in writers for _ in range(10)))
        done = True
        await asyncio.gather(*reading)
        for states in seen:
            assert states == sorted(states)
        agreed = dict(seen[0])
        assert all(agreed.get(version, changed) == changed for version, changed in seen[1])

    run(story)


# Races


def test_concurrent_compare_and_set_loses_no_update(run: Run) -> None:
    async def add(session: Session, times: int) -> None:
        while times:
            data, stat = await session.get("/counter")
            try:
                await session.set("/counter", b"%d" % (int(data) + 1), stat.version)
                times -= 1
            except BadVersionError:
                await catch_up(session)

    async def story(store: Store) -> None:
        sessions = [await store.connect() for _ in range(5)]
        await sessions[0].create("/counter", b"0")
        for session in sessions:
            await catch_up(session)
        await asyncio.gather(*(add(session, 4) for session in sessions))
        await catch_up(sessions[0])
        data, stat = await sessions[0].get("/counter")
        assert (data, stat.version) == (b"20", 20)

    run(story)


def test_one_of_many_wins_an_election_and_the_next_after_it(run: Run) -> None:
    async def story(store: Store) -> None:
        sessions = {session.id: session for session in [await store.connect() for _ in range(5)]}
        for _ in range(3):
            won = await asyncio.gather(*(stand(session) for session in sessions.values()))
            assert sum(won) == 1
            any_session = next(iter(sessions.values()))
            winner = (await any_session.get("/controller")).stat.owner
            assert won[list(sessions).index(winner)]
            heard = Heard()
            others = [session for number, session in sessions.items() if number != winner]
            assert await others[0].exists("/controller", heard.watch()) is not None
            await sessions.pop(winner).close()
            assert await heard.wait() == [Event(EventKind.DELETED, "/controller")]

    async def stand(session: Session) -> bool:
        try:
            await session.create("/controller", ephemeral=True)
        except NodeExistsError:
            return False
        return True

    run(story)


def test_a_session_reads_what_it_wrote_even_without_waiting(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        writing = asyncio.ensure_future(session.create("/a", b"x"))
        await asyncio.sleep(0)
        assert (await session.get("/a")).data == b"x"
        await writing

    run(story)


def test_a_cancelled_caller_harms_nobody(run: Run) -> None:
    async def story(store: Store) -> None:
        session = await store.connect()
        await session.create("/a")
        for call in (session.set("/a", b"x"), session.get("/a"), session.create("/a"), session.create("/b")):
            task = asyncio.ensure_future(call)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        connecting = asyncio.ensure_future(store.connect())
        await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await session.set("/a", b"y")
        assert (await session.get("/a")).data == b"y"

        async def b_is_there() -> Stat | None:
            return await session.exists("/b")

        await becomes_true(b_is_there)

    run(story)


async def fails(call: object, kind: type[CoordinationError], path: str) -> None:
    with pytest.raises(kind) as raised:
        await call  # type: ignore[misc]
    assert raised.value.path == path

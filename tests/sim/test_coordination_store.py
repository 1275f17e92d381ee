"""The embedded coordination store on a simulated machine: kills, freezes, power losses, full and failing disks.

The random runs are in tests/kits/storekit.py; each single story here is one of the ways in which such a store can lie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.kits.storekit import TIMEOUT_MS, Books, Members, run, watched
from tidelog.coordination.embedded import EmbeddedSession
from tidelog.coordination.entries import Ended, to_line
from tidelog.coordination.journal import latest_generation
from tidelog.coordination.machine import NoRoomError
from tidelog.coordination.port import ConnectionLostError, SessionLostError, SessionState
from tidelog.errors import StorageError
from tidelog.lab.loop import SimulationError
from tidelog.lab.machine import SimMachine, SimSessionFile
from tidelog.lab.shared_disk import SharedFile
from tidelog.lab.store import EmbeddedStore
from tidelog.lab.world import World

DIRECTORY = "/store/coordination"


@pytest.mark.parametrize("seed", range(6))
def test_random_faults_lose_no_confirmed_change(seed: int) -> None:
    _, books = run(seed)
    assert len(books.confirmed) > 20


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 200))
def test_random_faults_lose_no_confirmed_change_in_many_runs(seed: int) -> None:
    run(seed)


def test_a_run_is_its_seed() -> None:
    assert run(3)[0] == run(3)[0]


# The checker can fail


def _trust_what_a_failed_sync_left(patch: pytest.MonkeyPatch) -> None:
    write_again = SharedFile.write_again

    def only_leases(self: SharedFile, position: int, data: bytes) -> None:
        if "journal" not in self.path:
            write_again(self, position, data)

    patch.setattr(SharedFile, "write_again", only_leases)


def _sync_no_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimMachine, "sync_directory", lambda self, path: None)


def _sync_no_parents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimMachine, "make_directory", lambda self, path: self.disk.make_directory(path))


def _renew_a_lease_without_a_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimSessionFile, "has_name", lambda self: True)


def _believe_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedFile, "sync", lambda self: None)


@pytest.mark.parametrize(
    ("mutate", "faults"),
    [
        (_trust_what_a_failed_sync_left, ("failing sync", "power loss")),
        (_sync_no_names, ("kill", "power loss")),
        (_sync_no_parents, ("kill", "power loss")),
        (_renew_a_lease_without_a_file, ("removed session file", "kill")),
        (_believe_before_the_sync, ("kill", "power loss")),
    ],
)
def test_each_promise_that_is_broken_is_seen(
    mutate: Callable[[pytest.MonkeyPatch], None], faults: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(SimulationError, match=r"is not the same for all|whose owner believes in it|is lost"):
        _run_many(20, faults)


def _run_many(seeds: int, faults: tuple[str, ...]) -> None:
    for seed in range(seeds):
        run(seed, faults)


# Single stories

Story = Callable[[EmbeddedStore, World], Coroutine[Any, Any, None]]


def tell(story: Story, seed: int = 1) -> None:
    with World(seed) as world:
        world.run(story(EmbeddedStore(world), world))


def on(world: World, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return world.host(name).start(work)


async def hold(store: EmbeddedStore, sessions: dict[str, EmbeddedSession], name: str, path: str = "") -> None:
    """A process that has a session, and perhaps an ephemeral node, and does nothing."""
    session = sessions[name] = await store.connect(TIMEOUT_MS)
    if path:
        await session.create(path, ephemeral=True)
    await asyncio.get_running_loop().create_future()


def test_the_lab_knows_all_that_is_confirmed_also_when_a_journal_was_sealed_since_it_last_looked() -> None:
    async def story(store: EmbeddedStore, world: World) -> None:
        store.machine.seal_bytes = 1500

        async def write() -> None:
            session = await store.connect(TIMEOUT_MS)
            await session.create("/a")
            for number in range(100):
                await session.set("/a", b"%d" % number)
                if number % 7 == 0:
                    assert store.tree.get("/a").data == b"%d" % number

        await on(world, "b1", write())
        assert latest_generation(store.machine, DIRECTORY) > 2

    tell(story)


@pytest.mark.parametrize("change", range(1, 25))
def test_the_first_generation_outlives_a_power_loss_at_any_moment(change: int) -> None:
    """Also the directories above it: two processes make them at once, and one or the other dies in between."""

    async def story(store: EmbeddedStore, world: World) -> None:
        made: list[str] = []

        async def make(name: str) -> None:
            session = await store.connect(TIMEOUT_MS)
            made.append(await session.create(f"/{name}"))
            await asyncio.get_running_loop().create_future()

        on(world, "a", make("a"))
        on(world, "b", make("b"))
        store.machine.die_at(change)
        await asyncio.sleep(0.3)
        confirmed = list(made)
        store.machine.power_loss()

        async def look() -> list[str]:
            return await (await store.connect(TIMEOUT_MS)).children("/")

        found = await on(world, "c", look())
        assert [f"/{name}" for name in found if f"/{name}" in confirmed] == sorted(confirmed)

    tell(story, change)


def test_a_full_disk_fails_changes_and_no_session() -> None:
    async def story(store: EmbeddedStore, world: World) -> None:
        async def work() -> None:
            session = await store.connect(TIMEOUT_MS)
            await session.create("/before")
            store.machine.fill(20)
            for _ in range(5):
                with pytest.raises(ConnectionLostError, match=r"No space left.*tidelog.coordination.dir"):
                    await session.create("/full")
                await asyncio.sleep(1)
            with pytest.raises(NoRoomError, match=DIRECTORY):
                await store.connect(TIMEOUT_MS)
            assert session.is_current()
            store.machine.disk.mend()
            await session.create("/after")
            assert await session.children("/") == ["after", "before"]

        await on(world, "a", work())

    tell(story)


def test_a_disk_that_is_full_at_the_seal_ends_no_session() -> None:
    """The generation is sealed and the next one cannot be made: all wait for room, and go on when it comes."""

    async def story(store: EmbeddedStore, world: World) -> None:
        store.machine.seal_bytes = 1500
        sessions: dict[str, EmbeddedSession] = {}
        for name in ("a", "b"):
            on(world, name, hold(store, sessions, name, f"/{name}"))
        await asyncio.sleep(0.2)

        async def fill_up() -> None:
            while True:
                used = store.machine.disk.used_bytes
                await sessions["a"].set("/", b"x" * 100)
                if used > 1500:
                    store.machine.fill(150)  # for the seal, and for no snapshot

        world.host("w").start(_until_refused(fill_up()))
        await asyncio.sleep(3 * TIMEOUT_MS / 1e3)
        assert store.machine.list(DIRECTORY)[0] == "journal-1"
        assert "journal-2" not in store.machine.list(DIRECTORY)
        assert not [name for name in store.machine.list(DIRECTORY) if name.startswith("new-")]
        assert all(session.is_current() for session in sessions.values())
        store.machine.disk.mend()
        await asyncio.sleep(1)
        assert all(session.is_current() for session in sessions.values())
        assert "journal-2" in store.machine.list(DIRECTORY)
        assert store.tree.children("/") == ["a", "b"]

    tell(story)


async def _until_refused(work: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(ConnectionLostError):
        await work


def test_a_failed_sync_ends_the_session_and_the_next_one_trusts_nothing() -> None:
    """The device refuses a line; the kernel forgets that. After a power loss the line would be a hole."""

    async def story(store: EmbeddedStore, world: World) -> None:
        async def work() -> None:
            session = await store.connect(TIMEOUT_MS)
            await session.create("/before")
            store.machine.disk.fail_next("sync", under=f"{DIRECTORY}/journal-1")
            with pytest.raises(SessionLostError):
                await session.create("/refused")
            assert session.state is SessionState.LOST
            again = await store.connect(TIMEOUT_MS)
            await again.create("/after")
            await asyncio.get_running_loop().create_future()

        on(world, "a", work())
        await asyncio.sleep(1)
        before = store.tree.snapshot()
        assert "after" in store.tree.children("/")
        store.machine.power_loss()
        assert store.tree.snapshot() == before

    for seed in range(5):
        tell(story, seed)


def test_a_device_that_fails_for_good_is_named() -> None:
    async def story(store: EmbeddedStore, world: World) -> None:
        async def work() -> None:
            store.machine.disk.fail_next("sync", count=None, under=f"{DIRECTORY}/")
            for _ in range(2):
                with pytest.raises(StorageError, match=f"{DIRECTORY}: Input/output error.*tidelog.coordination.dir"):
                    await store.connect(TIMEOUT_MS)
            store.machine.disk.mend()
            await store.connect(TIMEOUT_MS)

        await on(world, "a", work())

    tell(story)


@pytest.mark.parametrize("frozen_s", [0.5, 3.0])
def test_a_writer_that_freezes_changes_nothing_after_its_session(frozen_s: float) -> None:
    """It freezes with lines on their way to the journal; meanwhile others seal that journal again and again."""
    for seed in range(2):
        books = Books()
        with World(seed) as world, watched(books):

            async def freeze(world: World = world, books: Books = books) -> None:
                members = Members(world, books)
                members.machine.seal_bytes = 1000
                members.start()
                for _ in range(4):
                    await asyncio.sleep(0.2 + members.chance.random() / 50)
                    host = world.host(members.chance.choice(members.names))
                    host.freeze()
                    await asyncio.sleep(frozen_s)
                    host.thaw()
                await members.settle()

            world.run(freeze())


def test_a_session_file_that_was_removed_ends_the_session_at_its_owner_first() -> None:
    books = Books()

    async def story(store: EmbeddedStore, world: World) -> None:
        sessions: dict[str, EmbeddedSession] = {}
        on(world, "a", hold(store, sessions, "a", "/a"))
        await asyncio.sleep(0.2)
        process = world.host("a").process
        assert process is not None
        books.sessions[sessions["a"].id] = sessions["a"], process
        [file] = [name for name in store.machine.list(DIRECTORY) if name.startswith("session-")]
        store.machine.remove(f"{DIRECTORY}/{file}")
        on(world, "b", hold(store, sessions, "b"))  # it never saw the file
        while not books.ended:
            await asyncio.sleep(0.01)
        assert 0.9 < world.loop.time() < 1.8

    with watched(books):
        tell(story)


def test_a_wall_clock_that_jumps_ends_no_session() -> None:
    async def story(store: EmbeddedStore, world: World) -> None:
        sessions: dict[str, EmbeddedSession] = {}
        for name in ("a", "b"):
            on(world, name, hold(store, sessions, name, f"/{name}"))
        await asyncio.sleep(0.2)
        for jump_ms in (3_600_000, -7_200_000):
            store.machine.clock.jump(jump_ms)
            world.host("a").clock.jump(-jump_ms)
            await asyncio.sleep(3 * TIMEOUT_MS / 1e3)
            assert all(session.is_current() for session in sessions.values())

    tell(story)


def test_a_torn_line_at_the_end_is_dropped_by_all_and_the_next_line_counts() -> None:
    async def story(store: EmbeddedStore, world: World) -> None:
        sessions: dict[str, EmbeddedSession] = {}
        for name in ("a", "b"):
            on(world, name, hold(store, sessions, name, f"/{name}"))
        await asyncio.sleep(0.2)
        line = to_line(Ended(sessions["a"].id))
        for cut in range(1, len(line) - 1):
            store.machine.open(f"{DIRECTORY}/journal-1").append(line[:cut])
            path = f"/n{cut}"

            async def write(path: str = path) -> None:
                await sessions["b"].create(path)

            await on(world, "w", write())
            assert store.tree.exists(path) is not None
        assert store.tree.exists("/a") is not None

    tell(story)

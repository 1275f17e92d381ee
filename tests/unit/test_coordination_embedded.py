"""What the embedded home promises beyond the port: it outlives its processes, and its files stay small and whole."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.kits.coordinationkit import Heard, becomes_true, catch_up, wait_for_state
from tidelog.coordination import journal
from tidelog.coordination.embedded import EmbeddedCoordination
from tidelog.coordination.entries import Changed, Ended, Entry, LineCutter, Opened, Sealed, Snapshot, to_line
from tidelog.coordination.journal import FellBehindError, Journal, latest_generation
from tidelog.coordination.lease import Lease, Probe
from tidelog.coordination.local_machine import LocalMachine
from tidelog.coordination.port import Check, ConnectionLostError, Create, Delete, SessionLostError, SessionState, Set
from tidelog.coordination.replica import DivergedError, Replica
from tidelog.errors import StorageError
from tidelog.host.clock import SystemClock

EMPTY = Snapshot({"change": 0, "sessions": [], "nodes": []}, [])
MACHINE = LocalMachine()
T = TypeVar("T")


class JumpingClock(SystemClock):
    """Shows a later time when told to, as it does to a process that was stopped."""

    ahead_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "store")


def home(directory: str) -> EmbeddedCoordination:
    return EmbeddedCoordination(directory, SystemClock())


def whole(steps: Generator[float, None, T]) -> T:
    """What comes of steps that no other process disturbs."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def open_latest(directory: str) -> Journal:
    return whole(Journal.open_latest(MACHINE, directory))


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


def test_nodes_outlive_the_processes(directory: str) -> None:
    async def first() -> None:
        session = await home(directory).connect(5000)
        await session.create("/kept", b"\x00\xff")
        await session.create("/gone", ephemeral=True)
        # No close: as if killed, but for the lock, which goes with the loop's threads.

    async def second() -> None:
        session = await home(directory).connect(5000)
        assert (await session.get("/kept")).data == b"\x00\xff"

        async def is_gone() -> bool:
            return await session.exists("/gone") is None

        await becomes_true(is_gone, 2.0)
        await session.close()
        await becomes_true(no_sessions_left)

    async def no_sessions_left() -> bool:
        return os.listdir(directory) == ["journal-1"]

    run(first())
    run(second())


def test_the_last_session_takes_threads_and_files_with_it(directory: str) -> None:
    async def story() -> None:
        shared = home(directory)
        of_others = threading.enumerate()
        sessions = [await shared.connect(5000) for _ in range(3)]
        threads = [thread for thread in threading.enumerate() if thread not in of_others]
        assert sorted(thread.name for thread in threads) == ["coordination-guard", "coordination-journal"]
        for session in sessions:
            await session.close()

        async def all_over() -> bool:
            return not any(thread.is_alive() for thread in threads) and os.listdir(directory) == ["journal-1"]

        await becomes_true(all_over)
        await (await shared.connect(5000)).close()

    run(story())


def test_the_journal_starts_anew_when_it_has_grown(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalMachine, "seal_bytes", 2000)

    async def story() -> None:
        sessions = [await home(directory).connect(5000) for _ in range(3)]
        heard = Heard()
        await sessions[0].create("/n", b"0")
        await sessions[0].create("/e", ephemeral=True)
        for number in range(40):
            await asyncio.gather(
                *(session.create("/e/x-", b"%d" % number) for session in sessions), return_exceptions=True
            )
            await asyncio.gather(*(session.set("/n", b"%d" % number) for session in sessions))
        assert latest_generation(MACHINE, directory) > 5
        await catch_up(sessions[1])
        node = await sessions[1].get("/n", heard.watch())
        assert (node.data, node.stat.version) == (b"39", 120)
        await sessions[2].set("/n", b"40")
        await heard.wait()
        assert all(session.state is SessionState.CONNECTED for session in sessions)
        late = await home(directory).connect(5000)
        assert (await late.get("/n")).stat.version == 121
        assert (await late.get("/e")).stat.owner == sessions[0].id
        for session in (*sessions, late):
            await session.close()
        assert len(os.listdir(directory)) <= 6

    run(story())


def test_it_works_without_inotify(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoInotify:
        def inotify_init1(self, flags: int) -> int:
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: NoInotify())

    async def story() -> None:
        writer, reader = await home(directory).connect(5000), await home(directory).connect(5000)
        heard = Heard()
        await reader.exists("/a", heard.watch())
        await writer.create("/a")
        await heard.wait()
        await writer.close()
        await reader.close()

    run(story())


def test_a_process_that_slept_through_its_lease_knows_at_once(directory: str) -> None:
    clock = JumpingClock()

    async def story() -> None:
        session = await EmbeddedCoordination(directory, clock).connect(5000)
        heard: list[SessionState] = []
        session.listen(heard.append)
        await session.create("/e", ephemeral=True)
        assert session.is_current()
        clock.ahead_ns = 5_000_000_000
        assert not session.is_current()
        with pytest.raises(SessionLostError):
            await session.create("/harm")
        await asyncio.sleep(0)
        assert heard == [SessionState.LOST]
        other = await home(directory).connect(5000)
        assert await other.exists("/harm") is None
        await other.close()

    run(story())


def test_a_loop_that_hangs_loses_its_session(directory: str) -> None:
    """Its threads go on, but nobody acts for it any more."""

    async def story() -> None:
        session = await home(directory).connect(150)
        heard = threading.Event()
        heard.wait(0.25)
        assert not session.is_current()
        await wait_for_state(session, SessionState.LOST)

    run(story())


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def story() -> None:
        store = home(str(tmp_path / "file" / "store"))
        for _ in range(2):
            with pytest.raises(StorageError, match="file/store"):
                await store.connect(5000)

    run(story())


def test_a_full_disk_fails_the_change_and_not_the_session(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        session = await home(directory).connect(5000)

        def no_room(self: Journal, lines: bytes) -> None:
            raise StorageError("no room")

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "append", no_room)
            with pytest.raises(ConnectionLostError):
                await session.create("/a")
        await session.create("/b")
        assert await session.children("/") == ["b"]
        await session.close()

    run(story())


def test_a_device_that_fails_ends_the_sessions(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        store = home(directory)
        session = await store.connect(5000)

        def failing(file: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", failing)
            with pytest.raises(SessionLostError):
                await session.create("/a")
            with pytest.raises(StorageError, match="Input/output error"):
                await store.connect(5000)
        await (await store.connect(5000)).close()

    run(story())


# The files


def test_a_forked_child_does_not_keep_the_session_alive(directory: str) -> None:
    os.makedirs(directory)
    lease = Lease(MACHINE, directory, 60_000, SystemClock())
    now_ns = SystemClock().monotonic_ns()
    probe = Probe(MACHINE, directory, lease.name, 60_000, now_ns)
    assert not probe.is_dead(now_ns)
    assert not os.get_inheritable(lease._file._file)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        assert not probe.is_dead(now_ns)
        lease.release()
        deadline = SystemClock().monotonic_ns() + 2_000_000_000  # the child may not have come to close it yet
        while not probe.is_dead(now_ns):
            assert SystemClock().monotonic_ns() < deadline
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    probe.close()


def test_others_let_a_lease_lapse_after_its_owner_does(directory: str) -> None:
    os.makedirs(directory)
    clock = JumpingClock()
    lease = Lease(MACHINE, directory, 1000, clock)
    probe = Probe(MACHINE, directory, lease.name, 1000, clock.monotonic_ns())
    clock.ahead_ns = 900_000_000
    lease.beat()
    lease.renew()
    clock.ahead_ns = 1_800_000_000
    assert lease.is_current()
    clock.ahead_ns = 1_900_000_000
    assert not lease.is_current()
    assert not probe.is_dead(lease.over_ns)
    assert probe.is_dead(lease.over_ns + 100_000_000)
    lease.beat()
    lease.renew()
    assert not lease.is_current(), "others may have seen it lapse"
    lease.release()
    assert probe.is_dead(0)
    probe.close()


def test_a_lease_whose_file_was_removed_lapses_and_others_wait_for_that(directory: str) -> None:
    os.makedirs(directory)
    clock = JumpingClock()
    lease = Lease(MACHINE, directory, 1000, clock)
    os.unlink(os.path.join(directory, lease.name))
    probe = Probe(MACHINE, directory, lease.name, 1000, clock.monotonic_ns())
    clock.ahead_ns = 900_000_000
    lease.beat()
    lease.renew()
    assert lease.is_current()
    assert not probe.is_dead(clock.monotonic_ns())
    clock.ahead_ns = 1_040_000_000
    assert not lease.is_current(), "it was not renewed"
    assert not probe.is_dead(lease.over_ns)
    clock.ahead_ns = 1_200_000_000
    assert probe.is_dead(clock.monotonic_ns())
    lease.release()


def test_a_lease_that_cannot_be_written_lapses(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.makedirs(directory)
    clock = JumpingClock()
    lease = Lease(MACHINE, directory, 1000, clock)

    def failing(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", failing)
    clock.ahead_ns = 900_000_000
    lease.beat()
    lease.renew()
    clock.ahead_ns = 1_100_000_000
    assert not lease.is_current()
    lease.release()


def test_a_session_without_room_for_its_file_leaves_none(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.makedirs(directory)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match=r"deep/store: No space left on device.*tidelog\.coordination\.dir"):
        Lease(MACHINE, directory, 1000, SystemClock())
    assert os.listdir(directory) == []


def test_names_are_synced_before_anything_in_a_generation_counts(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory, its ancestors, and for every generation the directory again, by each process that opens it."""
    synced: list[str] = []
    monkeypatch.setattr(LocalMachine, "sync_directory", lambda self, path: synced.append(path))
    first = open_latest(directory)
    parent = os.path.dirname(directory)
    assert synced[:2] == [parent, os.path.dirname(parent)]
    assert synced[-1] == directory
    synced.clear()
    open_latest(directory)
    assert {parent, directory} <= set(synced), "the process that made it may have died before its sync"
    first.append(to_line(Sealed(1)))
    whole(first.read())
    synced.clear()
    whole(first.following(EMPTY))
    assert synced == [directory]


def test_what_is_found_in_a_journal_is_written_once_more(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only that: later lines are synced as they come. No byte changes, and none is added."""
    first = open_latest(directory)
    first.append(to_line(Opened("a", 1)))
    path = os.path.join(directory, "journal-1")
    content = Path(path).read_bytes()
    written: list[tuple[int, bytes]] = []
    pwrite = os.pwrite

    def noted(file: int, data: bytes, position: int) -> int:
        written.append((position, data))
        return pwrite(file, data, position)

    monkeypatch.setattr(os, "pwrite", noted)
    second = open_latest(directory)
    assert second.cutter.feed(whole(second.read())) == [EMPTY, Opened("a", 1)]
    assert written == [(0, content)]
    assert Path(path).read_bytes() == content
    second.append(to_line(Ended(1)))
    assert second.cutter.feed(whole(second.read())) == [Ended(1)]
    assert len(written) == 1
    assert Path(path).read_bytes() == content + to_line(Ended(1))


def test_a_replica_that_read_other_lines_does_not_go_on() -> None:
    replica = Replica()
    replica.apply(EMPTY)
    replica.apply(Opened("a", 1))
    replica.apply(replica.snapshot())
    with pytest.raises(DivergedError):
        replica.apply(EMPTY)


def test_torn_lines_are_dropped_and_the_next_counts() -> None:
    lines = [to_line(entry) for entry in ENTRIES]
    for cut in range(1, len(lines[0])):
        torn = lines[0][:cut]
        found = LineCutter(1).feed(torn + lines[1] + lines[2])
        whole = cut == len(lines[0]) - 1  # all but the newline, which the next line brings
        assert found == (ENTRIES[:3] if whole else ENTRIES[1:3])


def test_lines_come_out_as_they_went_in_however_they_are_cut() -> None:
    data = b"".join(to_line(entry) for entry in ENTRIES)
    assert LineCutter(1).feed(data) == ENTRIES
    cutter, found = LineCutter(1), []
    for position in range(len(data)):
        found += cutter.feed(data[position : position + 1])
    assert found == ENTRIES


def test_nothing_behind_a_seal_counts_and_a_late_seal_does_not() -> None:
    data = b"".join(map(to_line, [Sealed(1), Opened("a", 1), Sealed(2), Opened("b", 1)]))
    assert LineCutter(2).feed(data) == [Opened("a", 1), Sealed(2)]


def test_a_generation_that_was_put_back_is_not_followed(directory: str) -> None:
    """Its maker was stopped before the link, and the others have long removed that generation."""
    first = open_latest(directory)
    whole(journal.make_generation(MACHINE, directory, 3, EMPTY))
    whole(journal.make_generation(MACHINE, directory, 2, EMPTY))
    with pytest.raises(FellBehindError):
        whole(first.following(EMPTY))
    assert open_latest(directory).generation == 3


def test_a_slow_reader_follows_through_sealed_generations(directory: str) -> None:
    slow, quick = open_latest(directory), open_latest(directory)
    for generation in (1, 2):
        quick.append(to_line(Sealed(generation)))
        quick = whole(quick.following(EMPTY))
    slow = whole(slow.following(EMPTY))
    assert slow.cutter.feed(whole(slow.read()))[-1] == Sealed(2)
    assert whole(slow.following(EMPTY)).generation == 3


ENTRIES: list[Entry] = [
    Changed(3, 1, [Create("/ä", b"\n\x00\xff", True, False), Set("/a", b"x", -1), Delete("/b", 2), Check("/c", 0)]),
    Opened("session-x", 6000),
    Ended(7),
    Snapshot({"change": 5, "sessions": [3], "nodes": [["/", "", 0, 1, 0, 0, 0, 0]]}, [(3, "session-x", 6000)]),
]

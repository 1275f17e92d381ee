"""What a simulated disk forgets, refuses and delays."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import StorageError, SyncError
from tidelog.lab.clock import EPOCH_MS
from tidelog.lab.disk import SimDisk
from tidelog.lab.world import World
from tidelog.ports import Clock


class StoppedClock(Clock):
    """A clock that shows what it is told to show."""

    def __init__(self) -> None:
        self.now_ms = EPOCH_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


@pytest.fixture
def disk() -> SimDisk:
    return _disk()


def _disk() -> SimDisk:
    disk = SimDisk(StoppedClock(), random.Random(1))
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


Change = tuple[str, int, bytes]
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3000), st.binary(min_size=1, max_size=1500)),
        st.tuples(st.just("truncate"), st.integers(0, 4000), st.just(b"")),
        st.tuples(st.just("sync"), st.just(0), st.just(b"")),
    ),
    max_size=12,
)


@given(changes=CHANGES, seed=st.integers(0, 2**32))
def test_every_synced_byte_survives_a_power_loss(changes: list[Change], seed: int) -> None:
    """Synced and not touched since: the same byte. Touched since: only a byte that stood there at some time, or 0."""
    disk = _disk()
    file = disk.open("/d/f", create=True)
    disk.sync_directory("/d")
    synced = b""
    touched: set[int] = set()
    cut_at = 1 << 30
    history: list[bytes] = [b""]
    for action, position, data in changes:
        if action == "write":
            file.write_at(position, [data])
            touched.update(range(position, position + len(data)))
        elif action == "truncate":
            cut_at = min(cut_at, position)
            file.truncate(position)
        else:
            file.sync()
            synced, cut_at = file.read_at(0, 1 << 20), 1 << 30
            touched.clear()
            history = []
        history.append(file.read_at(0, 1 << 20))
    disk.power_loss(random.Random(seed))
    left = disk.read_file("/d/f")
    kept = min(len(synced), cut_at)
    assert len(left) >= kept
    for position in range(kept):
        if position not in touched:
            assert left[position] == synced[position]
    assert len(left) <= max(map(len, history))
    for position, byte in enumerate(left):
        assert byte == 0 or any(state[position : position + 1] == bytes([byte]) for state in history)


def test_a_power_loss_does_all_it_may() -> None:
    """Over many seeds: everything lost, everything kept, a torn tail, and holes before bytes that made it."""
    seen = set()
    for seed in range(200):
        disk = _disk()
        file = disk.open("/d/f", create=True)
        disk.sync_directory("/d")
        file.write_at(0, [b"s" * 600])
        file.sync()
        for number in range(4):
            file.write_at(600 + 600 * number, [b"u" * 600])
        disk.power_loss(random.Random(seed))
        left = disk.read_file("/d/f")
        assert left[:600] == b"s" * 600
        tail = left[600:]
        if not tail:
            seen.add("lost")
        elif tail == b"u" * 2400:
            seen.add("kept")
        elif tail == b"u" * len(tail):
            seen.add("torn")
        elif b"\0u" in tail:
            seen.add("hole")
    assert seen == {"lost", "kept", "torn", "hole"}


def test_what_a_power_loss_left_is_on_the_platter() -> None:
    for seed in range(20):
        disk = _disk()
        disk.open("/d/f", create=True).write_at(0, [b"x" * 3000])
        disk.power_loss(random.Random(seed))
        left = [(name, disk.read_file(f"/d/{name}")) for name in disk.list("/d")]
        disk.power_loss(random.Random(seed + 1))
        assert [(name, disk.read_file(f"/d/{name}")) for name in disk.list("/d")] == left


def _names_left(prepare: str, changes: str) -> set[tuple[str, ...]]:
    """Which sets of names a power loss can leave. Letters: + makes, - removes, > renames, ! syncs the directory."""
    outcomes = set()
    for seed in range(100):
        disk = _disk()
        for step in (prepare + " " + changes).split():
            if step == "!":
                disk.sync_directory("/d")
            elif step[0] == "+":
                disk.open(f"/d/{step[1:]}", create=True).sync()
            elif step[0] == "-":
                disk.remove(f"/d/{step[1:]}")
            else:
                source, target = step.split(">")
                disk.rename(f"/d/{source}", f"/d/{target}")
        disk.power_loss(random.Random(seed))
        outcomes.add(tuple(disk.list("/d")))
    return outcomes


@pytest.mark.parametrize(
    ("prepare", "changes", "outcomes"),
    [
        ("", "+a", {(), ("a",)}),
        ("+a !", "", {("a",)}),
        ("+a !", "-a", {(), ("a",)}),
        ("+a !", "-a !", {()}),
        ("+a !", "a>b", {("a",), ("b",)}),
        ("+a +b !", "a>b", {("a", "b"), ("b",)}),
        ("", "+a a>b", {(), ("a",), ("b",)}),
        ("", "+a +b", {(), ("a",), ("a", "b")}),
    ],
)
def test_names_survive_once_their_directory_is_synced(
    prepare: str, changes: str, outcomes: set[tuple[str, ...]]
) -> None:
    assert _names_left(prepare, changes) == outcomes


def test_a_removed_directory_may_come_back_with_what_was_in_it() -> None:
    outcomes = set()
    for seed in range(100):
        disk = _disk()
        disk.write_file("/d/f", b"x")
        disk.remove_directory("/d")
        disk.power_loss(random.Random(seed))
        outcomes.add((disk.exists("/d"), disk.exists("/d/f")))
    assert outcomes == {(False, False), (True, False), (True, True)}


@given(seed=st.integers(0, 2**32))
def test_write_file_is_the_old_or_the_new(seed: int) -> None:
    disk = _disk()
    disk.write_file("/d/checkpoint", b"old")
    disk.fail_next("sync", under="/d/checkpoint.tmp")
    with pytest.raises(StorageError):
        disk.write_file("/d/checkpoint", b"new")
    disk.power_loss(random.Random(seed))
    assert disk.read_file("/d/checkpoint") == b"old"
    disk.write_file("/d/checkpoint", b"newer")
    disk.power_loss(random.Random(seed))
    assert disk.read_file("/d/checkpoint") == b"newer"


def test_a_kill_keeps_the_page_cache(disk: SimDisk) -> None:
    file = disk.open("/d/f", create=True)
    file.write_at(0, [b"not synced"])
    lock = disk.lock("/d/.lock")
    disk.kill()
    with pytest.raises(ValueError, match="closed"):
        file.size()
    disk.lock("/d/.lock")
    lock.release()  # of the dead: it frees nothing
    with pytest.raises(StorageError):
        disk.lock("/d/.lock")
    assert disk.read_file("/d/f") == b"not synced"


def test_a_full_disk_takes_what_fits(disk: SimDisk) -> None:
    file = disk.open("/d/f", create=True)
    file.write_at(0, [b"12345678"])
    disk.capacity_bytes = 10
    assert disk.free_bytes("/d") == 2
    with pytest.raises(StorageError, match=r"cannot write /d/f: .*\(ENOSPC\)"):
        file.write_at(8, [b"abc", b"def"])
    assert file.read_at(0, 100) == b"12345678ab"
    file.write_at(0, [b"overwriting needs no room"[:10]])
    file.truncate(4)
    file.write_at(4, [b"fits"])
    disk.remove("/d/f")
    assert disk.free_bytes("/d") == 10


def test_failures_come_as_ordered(disk: SimDisk) -> None:
    file = disk.open("/d/f", create=True)
    other = disk.open("/d/other", create=True)
    disk.fail_next("write", count=2, under="/d/f")
    other.write_at(0, [b"fine"])
    for _ in range(2):
        with pytest.raises(StorageError, match="EIO"):
            file.write_at(0, [b"x" * 100])
    assert set(file.read_at(0, 200)) <= {ord("x")}
    disk.fail_next("read", error=errno.ENODEV)
    with pytest.raises(StorageError, match="ENODEV"):
        other.read_at(0, 1)
    file.write_at(0, [b"good"])
    disk.fail_next("sync", count=None)
    for _ in range(5):
        with pytest.raises(StorageError, match="sync"):
            file.sync()
    disk.mend()
    file.sync()


def test_times_come_from_the_clock() -> None:
    clock = StoppedClock()
    disk = SimDisk(clock, random.Random(1))
    file = disk.open("f", create=True)
    assert disk.modified_ms("f") == EPOCH_MS
    clock.now_ms += 5000
    file.write_at(0, [b"x"])
    assert disk.modified_ms("f") == EPOCH_MS + 5000


def test_bytes_are_cold_by_chance(disk: SimDisk) -> None:
    file = disk.open("/d/f", create=True)
    file.write_at(0, [b"abc"])
    answers = [file.read_cached(0, 3) for _ in range(200)]
    assert 5 < answers.count(None) < 60
    assert set(map(bytes, filter(None, answers))) == {b"abc"}
    disk.cold_chance = 1.0
    assert file.read_cached(0, 3) is None


@pytest.fixture
def world() -> Iterator[World]:
    with World(3) as world:
        yield world


def test_submitted_work_takes_time_and_keys_overtake_each_other(world: World) -> None:
    disk = world.host("b1").disk
    disk.work.delay_ms = (1.0, 10.0)
    done: list[str] = []

    async def main() -> None:
        futures = [disk.submit(key, lambda key=key: done.append(key)) for key in "abcdefghij"]  # type: ignore[misc]
        assert done == []
        await asyncio.gather(*futures)
        assert 0.001 < world.loop.time() < 0.011

    world.run(main())
    assert sorted(done) == list("abcdefghij")
    assert done != sorted(done)


def test_work_of_a_killed_process_is_not_done(world: World) -> None:
    host = world.host("b1")
    done: list[str] = []

    async def process() -> None:
        host.disk.submit("k", lambda: done.append("before"))
        await asyncio.sleep(1)
        host.disk.submit("k", lambda: done.append("after"))
        await asyncio.sleep(1)

    async def main() -> None:
        host.start(process())
        await asyncio.sleep(1)
        host.kill()
        await asyncio.sleep(1)
        assert done == ["before"]
        assert await host.disk.submit("k", lambda: "next life") == "next life"

    world.run(main())


def test_news_of_work_comes_in_the_order_it_was_done() -> None:
    """Within a key, also if the second piece is quick and the news of the first takes long."""
    for seed in range(50):
        with World(seed) as world:
            disk = world.host("b1").disk
            done: list[int] = []
            heard: list[int] = []

            async def main() -> None:
                futures = []
                for number in range(20):
                    future = disk.submit("k", lambda number=number: done.append(number))  # type: ignore[misc] # noqa: B023
                    future.add_done_callback(lambda _, number=number: heard.append(number))  # type: ignore[misc] # noqa: B023
                    futures.append(future)
                await asyncio.gather(*futures)

            world.run(main())
            assert done == list(range(20))
            assert heard == done


def test_work_is_done_before_there_is_news_of_what_came_before_it() -> None:
    """Real threads do not wait for the loop: so a crash may find two pieces done that nobody has heard of."""
    with World(1) as world:
        disk = world.host("b1").disk
        events: list[str] = []

        async def main() -> None:
            futures = []
            for number in range(200):
                future = disk.submit("k", lambda number=number: events.append(f"done {number}"))  # type: ignore[misc]
                future.add_done_callback(lambda _, number=number: events.append(f"heard {number}"))  # type: ignore[misc]
                futures.append(future)
            await asyncio.gather(*futures)

        world.run(main())
    assert any(events.index(f"done {number + 1}") < events.index(f"heard {number}") for number in range(199))


# A sync that failed


def _after_failed_sync(disk: SimDisk) -> None:
    file = disk.open("/d/f", create=True)
    disk.sync_directory("/d")
    file.write_at(0, [b"a" * 1000])
    file.sync()
    file.write_at(1000, [b"b" * 1000])
    disk.fail_next("sync", under="/d/f")
    with pytest.raises(SyncError):
        file.sync()
    assert disk.read_file("/d/f") == b"a" * 1000 + b"b" * 1000, "the page cache shows all of it"
    file.close()


def _left(act: Callable[[SimDisk], None], seed: int) -> bytes:
    """What is left of the file after a failed sync, some action and a power loss."""
    disk = SimDisk(StoppedClock(), random.Random(seed))
    disk.make_directory("/d")
    disk.sync_directory("/")
    _after_failed_sync(disk)
    act(disk)
    disk.power_loss(random.Random(seed))
    return disk.read_file("/d/f")


def _sync_again(disk: SimDisk) -> None:
    disk.kill()
    file = disk.open("/d/f")
    assert file.read_at(0, 5000) == b"a" * 1000 + b"b" * 1000, "and so it does for the next process"
    file.sync()


def _write_again(disk: SimDisk) -> None:
    file = disk.open("/d/f")
    file.write_at(1000, [file.read_at(1000, 1000)])
    file.sync()


def _write_more(disk: SimDisk) -> None:
    file = disk.open("/d/f")
    file.write_at(2000, [b"c" * 1000])
    file.sync()


def test_after_a_failed_sync_the_next_one_proves_nothing() -> None:
    left = [_left(_sync_again, seed) for seed in range(40)]
    assert all(content[:1000] == b"a" * 1000 and set(content[1000:]) <= set(b"b\0") for content in left)
    assert min(map(len, left)) == 1000, "all that the failed sync was for can be gone"
    assert max(map(len, left)) == 2000, "or it was on the platter before the failure"


def test_what_is_written_again_after_a_failed_sync_is_synced_by_the_next_one() -> None:
    assert {_left(_write_again, seed) for seed in range(40)} == {b"a" * 1000 + b"b" * 1000}


def test_a_later_write_is_synced_although_the_bytes_before_it_are_not() -> None:
    left = [_left(_write_more, seed) for seed in range(40)]
    assert {content[2000:] for content in left} == {b"c" * 1000}
    assert b"a" * 1000 + bytes(1000) + b"c" * 1000 in left, "a hole is left where the bytes never came"


def test_a_truncation_is_not_forgotten_by_a_failed_sync() -> None:
    for seed in range(20):
        disk = SimDisk(StoppedClock(), random.Random(seed))
        disk.make_directory("/d")
        disk.sync_directory("/")
        file = disk.open("/d/f", create=True)
        disk.sync_directory("/d")
        file.write_at(0, [b"a" * 1000])
        file.sync()
        file.truncate(10)
        disk.fail_next("sync", under="/d/f")
        with pytest.raises(SyncError):
            file.sync()
        disk.power_loss(random.Random(seed))
        assert disk.read_file("/d/f") == b"a" * 10

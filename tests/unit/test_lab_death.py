"""Processes that die in the midst of a change to their disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import pytest

from tidelog.lab.process import ProcessDied
from tidelog.lab.world import SimHost, World

How = Literal["kill", "power loss"]


def outcome(
    seed: int, work: Callable[[SimHost], None], change: int, how: How = "kill", *, on_loop: bool = False
) -> str:
    """How a process ended that does this, beginning with an empty directory /d; what is on its disk is in `world`."""
    with World(seed) as world:
        return _outcome(world, work, change, how, on_loop)


def _outcome(world: World, work: Callable[[SimHost], None], change: int, how: How, on_loop: bool) -> str:
    host = world.host("b1")
    host.disk.make_directory("/d")
    host.disk.sync_directory("/")

    async def process() -> None:
        if on_loop:
            work(host)
        else:
            await host.disk.submit("k", lambda: work(host))

    async def main() -> str:
        host.die_at(change, how)
        task = host.start(process())
        ended = await host.ended()
        assert task.done() == (ended == "exit")
        return ended

    return world.run(main())


def three_files(host: SimHost) -> None:
    for name in "abc":
        host.disk.open(f"/d/{name}", create=True)


def names_left(change: int, *, on_loop: bool) -> set[tuple[str, str]]:
    outcomes = set()
    for seed in range(20):
        with World(seed) as world:
            ended = _outcome(world, three_files, change, "kill", on_loop)
            outcomes.add((ended, "".join(world.host("b1").disk.list("/d"))))
    return outcomes


@pytest.mark.parametrize("on_loop", [False, True])
def test_it_dies_with_that_change_done_or_not(on_loop: bool) -> None:
    assert names_left(1, on_loop=on_loop) == {("kill", ""), ("kill", "a")}
    assert names_left(2, on_loop=on_loop) == {("kill", "a"), ("kill", "ab")}
    assert names_left(3, on_loop=on_loop) == {("kill", "ab"), ("kill", "abc")}
    assert names_left(4, on_loop=on_loop) == {("exit", "abc")}


def test_a_write_is_torn_anywhere() -> None:
    sizes = set()
    for seed in range(60):
        with World(seed) as world:
            _outcome(world, lambda host: host.disk.open("/d/f", create=True).write_at(0, [b"1234"]), 2, "kill", False)
            sizes.add(world.host("b1").disk.read_file("/d/f"))
    assert sizes == {b"1234"[:size] for size in range(5)}


def test_power_may_be_lost_inside_too() -> None:
    def work(host: SimHost) -> None:
        host.disk.open("/d/f", create=True).write_at(0, [b"unsynced"])
        host.disk.sync_directory("/d")

    left = set()
    for seed in range(40):
        with World(seed) as world:
            assert _outcome(world, work, 3, "power loss", False) == "power loss"
            disk = world.host("b1").disk
            left.add(disk.exists("/d/f") and disk.read_file("/d/f"))
    assert {False, b"", b"unsynced"} < left


def changes_of(work: Callable[[SimHost], None]) -> int:
    """How many changes it makes: it gets through if it would die only at the one after."""
    return next(change - 1 for change in range(1, 50) if outcome(1, work, change) == "exit")


@pytest.mark.parametrize(
    ("work", "count"),
    [
        (lambda host: host.disk.write_file("/d/f", b"data"), 6),  # create, truncate, write, sync, rename, directory
        (lambda host: host.disk.make_directory("/d/e/f"), 2),
        (lambda host: host.disk.sync_directory("/d"), 1),
        (lambda host: (three_files(host), host.disk.rename("/d/a", "/d/z"), host.disk.remove("/d/b")), 5),
        (lambda host: (three_files(host), host.disk.remove_directory("/d")), 7),
        (lambda host: host.disk.lock("/d/.lock"), 1),
        (lambda host: (host.disk.exists("/d/f"), host.disk.list("/d"), host.disk.free_bytes("/d")), 0),
    ],
)
def test_every_change_counts_and_nothing_else(work: Callable[[SimHost], None], count: int) -> None:
    assert changes_of(work) == count


@pytest.mark.parametrize("change", range(1, 7))
@pytest.mark.parametrize("how", ["kill", "power loss"])
def test_write_file_is_the_old_or_the_new_wherever_it_dies(change: int, how: How) -> None:
    for seed in range(20):
        with World(seed) as world:
            disk = world.host("b1").disk
            disk.make_directory("/d")
            disk.sync_directory("/")
            disk.write_file("/d/f", b"old")
            assert _outcome(world, lambda host: host.disk.write_file("/d/f", b"new"), change, how, False) == how
            assert disk.read_file("/d/f") in (b"old", b"new")


@pytest.mark.parametrize("on_loop", [False, True])
def test_the_dead_repair_nothing(on_loop: bool) -> None:
    """Its `finally` and `except` blocks on the way out find a disk that refuses them."""
    refused = []

    def work(host: SimHost) -> None:
        file = host.disk.open("/d/f", create=True)
        lock = host.disk.lock("/d/.lock")
        try:
            file.write_at(0, [b"x"])
        except BaseException:
            for attempt in (
                lambda: host.disk.remove("/d/f"),
                lambda: host.disk.write_file("/d/f", b"repaired"),
                lambda: host.disk.open("/d/new", create=True),
                lambda: host.disk.exists("/d/f"),
                lambda: file.truncate(0),
                lambda: file.read_at(0, 1),
                lambda: host.disk.submit("k", lambda: None),
            ):
                with pytest.raises(ProcessDied):
                    attempt()
                refused.append(attempt)
            file.close()
            lock.release()
        # It has swallowed its own death, and goes on as if nothing had been.

    with World(2) as world:
        assert _outcome(world, work, 3, "kill", on_loop) == "kill"
        assert len(refused) == 7
        assert world.host("b1").disk.list("/d") == [".lock", "f"]


def test_nothing_else_of_the_process_runs_after_it() -> None:
    events: list[str] = []

    async def process(host: SimHost) -> None:
        ticking = asyncio.ensure_future(background())
        host.disk.submit("other", lambda: events.append("other work"))
        host.disk.work.delay_ms = (0.001, 0.002)
        try:
            await host.disk.submit("k", lambda: host.disk.make_directory("/e"))
        finally:
            events.append("clean-up")
        await ticking

    async def background() -> None:
        while True:
            events.append("tick")
            await asyncio.sleep(1)

    with World(3) as world:
        host = world.host("b1")

        async def main() -> str:
            host.start(process(host))
            host.die_at(1)
            assert await host.ended() == "kill"
            await asyncio.sleep(10)
            assert await host.start(asyncio.sleep(1, "next life")) == "next life"
            return await host.disk.submit("k", lambda: "work of the next life")

        assert world.run(main()) == "work of the next life"
        assert events == ["tick"]


def test_a_callback_of_the_loop_may_be_where_it_dies() -> None:
    with World(4) as world:
        host = world.host("b1")

        async def process() -> None:
            asyncio.get_running_loop().call_later(1, host.disk.make_directory, "/e")
            await asyncio.sleep(5)

        async def main() -> None:
            host.start(process())
            host.die_at(1)
            assert await host.ended() == "kill"
            assert world.loop.time() == 1

        world.run(main())


def test_a_process_that_ends_before_takes_its_doom_along() -> None:
    with World(5) as world:
        host = world.host("b1")

        async def process() -> None:
            host.disk.make_directory("/e")

        async def main() -> None:
            host.die_at(2)
            host.disk.make_directory("/of")  # by the lab: not counted
            host.disk.make_directory("/the/lab")
            await host.start(process())
            host.disk.remove_directory("/e")
            await host.start(process())
            assert await host.ended() == "exit"

        world.run(main())
        with pytest.raises(ValueError, match="the next one is 1"):
            host.die_at(0)


def test_the_same_seed_dies_the_same_way() -> None:
    def left(seed: int) -> tuple[str, bytes]:
        with World(seed) as world:
            _outcome(world, lambda host: host.disk.write_file("/d/f", bytes(2000)), 3, "power loss", False)
            disk = world.host("b1").disk
            file = "/d/f.tmp"
            return world.trace.digest(), disk.read_file(file) if disk.exists(file) else b"none"

    assert [left(seed) for seed in range(10)] == [left(seed) for seed in range(10)]

"""Hosts and their processes: born, killed, frozen; clocks and chance of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tidelog.lab.chance import stream
from tidelog.lab.clock import EPOCH_MS, SimClock
from tidelog.lab.loop import SimulationError
from tidelog.lab.world import SimHost, World
from tidelog.ports import Ports


@pytest.fixture
def world() -> Iterator[World]:
    with World(5) as world:
        yield world


def test_a_host_is_the_ports(world: World) -> None:
    host = world.host("b1")
    ports: Ports = host
    assert ports.clock.wall_ms() == EPOCH_MS
    assert ports.disk.list("/") == []
    assert world.host("b1") is host


def test_nothing_of_a_killed_process_runs_again(world: World) -> None:
    host = world.host("b1")
    events: list[str] = []

    async def background() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                events.append("tick")
        finally:
            events.append("clean-up")

    async def process() -> None:
        task = asyncio.ensure_future(background())
        asyncio.get_running_loop().call_later(5, events.append, "timer")
        try:
            await task
        finally:
            events.append("clean-up")

    async def main() -> None:
        host.start(process())
        await asyncio.sleep(2.5)
        host.kill()
        await asyncio.sleep(10)

    world.run(main())
    assert events == ["tick", "tick"]


def test_a_host_has_one_process_at_a_time(world: World) -> None:
    host = world.host("b1")

    async def main() -> None:
        first = host.start(asyncio.sleep(10))
        second = asyncio.sleep(10)
        with pytest.raises(RuntimeError, match="b1#1 is still running"):
            host.start(second)
        await first
        await host.start(second)

    world.run(main())


def test_a_process_that_ends_leaves_nothing_running(world: World) -> None:
    host = world.host("b1")
    events: list[str] = []

    async def straggler() -> None:
        await asyncio.sleep(5)
        events.append("still here")

    async def process() -> str:
        host.disk.lock("/.lock")
        process.straggler = asyncio.ensure_future(straggler())  # type: ignore[attr-defined]
        return "done"

    async def main() -> None:
        assert await host.start(process()) == "done"
        await asyncio.sleep(10)
        assert host.process is None
        host.disk.lock("/.lock").release()

    world.run(main())
    assert events == []


def test_a_process_that_fails_fails_the_run(world: World) -> None:
    async def process() -> None:
        await asyncio.sleep(1)
        raise ZeroDivisionError("broken")

    async def main() -> None:
        world.host("b1").start(process())
        await asyncio.sleep(100)

    with pytest.raises(SimulationError, match=r"b1#1 failed: .*broken"):
        world.run(main())
    assert world.loop.time() == 1


def test_a_frozen_process_loses_time_but_no_events(world: World) -> None:
    host = world.host("b1")
    seen: list[float] = []

    async def process() -> None:
        for _ in range(5):
            await asyncio.sleep(1)
            seen.append(world.loop.time())

    async def main() -> None:
        running = host.start(process())
        await asyncio.sleep(1.5)
        host.freeze()
        await asyncio.sleep(10)
        host.thaw()
        await running

    world.run(main())
    assert seen == [1.0, 11.5, 12.5, 13.5, 14.5]


def test_power_loss_forgets_what_was_not_synced() -> None:
    outcomes = set()
    for seed in range(30):
        with World(seed) as world:
            host = world.host("b1")

            async def main() -> None:
                host.disk.open("/f", create=True).write_at(0, [b"unsynced"])  # noqa: B023
                host.power_loss()  # noqa: B023

            world.run(main())
            outcomes.add(host.disk.exists("/f") and host.disk.read_file("/f"))
    assert {False, b"", b"unsynced"} < outcomes


def test_clocks_are_skewed_each_by_its_own() -> None:
    class Loop:
        now = 0.0

        def time(self) -> float:
            return self.now

    loop = Loop()
    right, ahead, fast = SimClock(loop), SimClock(loop, offset_ms=500), SimClock(loop, drift_ppm=1000)
    loop.now = 100.0
    assert right.wall_ms() == EPOCH_MS + 100_000
    assert ahead.wall_ms() == EPOCH_MS + 100_500
    assert fast.wall_ms() == EPOCH_MS + 100_100
    assert fast.monotonic_ns() == 100_100_000_000
    ahead.jump(-1000)
    assert ahead.wall_ms() == EPOCH_MS + 99_500
    assert ahead.monotonic_ns() == 100_000_000_000


def test_streams_of_chance_do_not_disturb_each_other() -> None:
    assert stream(1, "a").random() == stream(1, "a").random()
    assert len({stream(seed, name).random() for seed in (1, 2) for name in "abc"}) == 6
    assert stream(1, "a").getrandbits(32) == 618735177, "pinned: equal on every machine and under every PYTHONHASHSEED"


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_failure_that_a_dead_process_has_not_looked_at_is_not_missed(is_killed: bool) -> None:
    """Seed 2461: a connection was closed in the moment in which its process died."""

    async def main(host: SimHost) -> None:
        failures: list[asyncio.Future[None]] = []

        async def process() -> None:
            failures.append(asyncio.get_running_loop().create_future())
            await asyncio.sleep(100)

        host.start(process())
        await asyncio.sleep(1)
        failures[0].set_exception(OSError("closed"))
        if is_killed:
            host.kill()
        failures.clear()
        await asyncio.sleep(1)

    with World(1) as world:
        host = world.host("b1")
        if is_killed:
            world.run(main(host))
        else:
            with pytest.raises(SimulationError, match="never retrieved"):
                world.run(main(host))

"""Virtual time, deterministic order, and no way out of the simulator."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest

import tidelog.lab.loop as loop_module
from tidelog.lab.loop import DeadlockError, SimLoop, SimulationError
from tidelog.lab.world import World


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop()
    yield loop
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()


def test_time_jumps_to_the_next_timer(loop: SimLoop) -> None:
    async def main() -> list[float]:
        await asyncio.sleep(86_400)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.25):
                await asyncio.sleep(10)
        return [loop.time()]

    assert loop.run_until_complete(main()) == [86_400.25]


def test_timers_of_one_instant_run_in_the_order_they_were_set(loop: SimLoop) -> None:
    order: list[int] = []
    for number in range(100):
        loop.call_at(1.0, order.append, number)
    loop.call_at(0.5, order.append, -1)
    loop.call_at(2.0, loop.stop)
    loop.run_forever()
    assert order == [-1, *range(100)]


def test_cancelled_timers_do_not_move_time_and_do_not_pile_up(loop: SimLoop) -> None:
    for _ in range(10_000):
        loop.call_later(30, print).cancel()
    assert len(loop._timers) < 1000
    with pytest.raises(DeadlockError):
        loop.run_until_complete(loop.create_future())
    assert loop.time() == 0.0


def test_call_soon_threadsafe_is_call_soon_here(loop: SimLoop) -> None:
    order: list[int] = []
    loop.call_soon(order.append, 1)
    loop.call_soon_threadsafe(order.append, 2)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert order == [1, 2]


def test_a_deadlock_is_found_and_names_who_waits(loop: SimLoop) -> None:
    async def waits_in_vain() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.sleep(3)
        await waits_in_vain()

    with pytest.raises(DeadlockError, match=r"no timer is set at 3.*waits_in_vain:\d+ > Event.wait"):
        loop.run_until_complete(main())


def test_a_loop_that_never_lets_time_pass_is_found(loop: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_MOST_STEPS_AT_ONE_TIME", 1000)

    async def polls() -> None:
        while loop.time() < 1:
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match="time stands still"):
        loop.run_until_complete(polls())


def test_a_run_has_a_limit() -> None:
    async def for_ever() -> None:
        while True:
            await asyncio.sleep(1)

    with World(1) as world, pytest.raises(SimulationError, match=r"not done after 60.0 s; waiting: lab .*for_ever"):
        world.run(for_ever(), limit_s=60.0)


def test_an_exception_in_a_callback_fails_the_run(loop: SimLoop) -> None:
    def broken() -> None:
        raise ZeroDivisionError("in a callback")

    async def main() -> None:
        loop.call_later(1, broken)
        await asyncio.sleep(100)

    with pytest.raises(SimulationError, match="in a callback") as caught:
        loop.run_until_complete(main())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert loop.time() == 1


def test_an_exception_of_a_task_nobody_waits_for_fails_the_run(loop: SimLoop) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("in a task")

    async def main() -> None:
        task = asyncio.ensure_future(broken())
        await asyncio.sleep(1)
        del task
        await asyncio.sleep(100)

    with pytest.raises(SimulationError, match=r"never retrieved.*in a task"):
        loop.run_until_complete(main())


def test_sets_of_tasks_are_walked_in_one_order(loop: SimLoop) -> None:
    """TaskGroup cancels the members of a set; by their addresses that would be another order in each run."""
    cancelled: list[int] = []

    async def member(number: int) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def fails() -> None:
        await asyncio.sleep(1)
        raise ZeroDivisionError

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(member(number))
            group.create_task(fails())

    with pytest.raises(ExceptionGroup):
        loop.run_until_complete(main())
    numbers = [hash(loop.create_future()) for _ in range(5)]
    assert numbers == list(range(numbers[0], numbers[0] + 5))
    again = SimLoop()
    first, cancelled[:] = list(cancelled), []
    with pytest.raises(ExceptionGroup):
        again.run_until_complete(main())
    again.close()
    assert sorted(first) == list(range(50))
    assert cancelled == first


def test_tasks_have_the_same_names_in_every_loop() -> None:
    def names() -> list[str]:
        loop = SimLoop()

        async def main() -> list[str]:
            tasks = [asyncio.ensure_future(asyncio.sleep(1)) for _ in range(3)]
            await asyncio.gather(*tasks)
            return [task.get_name() for task in tasks]

        try:
            return loop.run_until_complete(main())
        finally:
            loop.close()

    assert names() == names()


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (lambda loop: asyncio.to_thread(print), "no threads"),
        (lambda loop: asyncio.create_subprocess_exec("true"), "no operating system processes"),
        (lambda loop: loop.create_connection(asyncio.Protocol, "b1", 1, ssl=True), "ssl"),
        (lambda loop: loop.create_server(asyncio.Protocol, sock=object()), "sock"),
        (lambda loop: loop.create_datagram_endpoint(asyncio.DatagramProtocol), "streams only"),
        (lambda loop: loop.add_signal_handler(15, print), "no signals"),
        (lambda loop: loop.add_reader(0, print), "no file descriptors"),
    ],
)
def test_the_real_world_is_refused(loop: SimLoop, attempt: Any, reason: str) -> None:
    async def main() -> None:
        result = attempt(loop)
        await result

    with pytest.raises(SimulationError, match=reason):
        loop.run_until_complete(main())


def test_garbage_is_collected_at_fixed_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_STEPS_BETWEEN_COLLECTIONS", 100)
    collected: list[int] = []

    class Cycle:
        def __init__(self, loop: SimLoop) -> None:
            self.me = self
            self.loop = loop

        def __del__(self) -> None:
            collected.append(self.loop.steps)

    with World(1) as world:

        async def main() -> None:
            assert not gc.isenabled()
            for _ in range(50):
                Cycle(world.loop)
            for _ in range(500):
                await asyncio.sleep(0)

        world.run(main())
    assert gc.isenabled()
    assert collected == [100] * 50

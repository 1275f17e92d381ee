"""The slow lane: how much all requests together work in one turn of the loop, and who is served when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.kits.netkit import simulated
from tidelog.broker.pacing import FIRST, SLICE, Pace, SlowLane


class Turns:
    """Counts the turns of the loop, and what is worked on in each of them."""

    def __init__(self) -> None:
        self.number = 0
        self.worked: Counter[int] = Counter()
        self._ticking = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)

    def work(self, elements: int) -> None:
        self.worked[self.number] += elements

    def stop(self) -> None:
        self._ticking.cancel()


async def walk(turns: Turns, pace: Pace, elements: int) -> int:
    """Works on so many elements, one after the other. The turn in which the last one is done."""
    async for _ in pace.each(range(elements)):
        turns.work(1)
    return turns.number


async def walk_in_parts(turns: Turns, pace: Pace, elements: int) -> int:
    async for part in pace.slices(range(elements)):
        turns.work(len(part))
    return turns.number


async def in_turns(story: Callable[[Turns, SlowLane], Awaitable[None]]) -> Turns:
    turns = Turns()
    await story(turns, SlowLane())
    turns.stop()
    return turns


@simulated
async def test_many_large_requests_that_begin_together_share_a_turn():
    for way in (walk, walk_in_parts):

        async def story(turns: Turns, lane: SlowLane, way: Callable[[Turns, Pace, int], Awaitable[int]] = way) -> None:
            await asyncio.gather(*(way(turns, Pace(lane), 2 * SLICE) for _ in range(64)))

        turns = await in_turns(story)
        assert sum(turns.worked.values()) == 64 * 2 * SLICE
        assert max(turns.worked.values()) <= 2 * SLICE + FIRST


@simulated
async def test_large_steps_that_begin_together_are_taken_one_in_a_turn():
    """One step may be larger than a slice: then the others wait for the next turn."""

    async def story(turns: Turns, lane: SlowLane) -> None:
        async def step() -> None:
            await Pace(lane).spend(3 * SLICE)
            turns.work(3 * SLICE)

        await asyncio.gather(*(step() for _ in range(20)))

    turns = await in_turns(story)
    assert sum(turns.worked.values()) == 60 * SLICE
    assert max(turns.worked.values()) == 3 * SLICE


@simulated
async def test_a_small_request_does_not_wait_for_the_large_ones():
    async def story(turns: Turns, lane: SlowLane) -> None:
        large = [asyncio.ensure_future(walk(turns, Pace(lane), 10 * SLICE)) for _ in range(100)]
        for _ in range(200):
            await asyncio.sleep(0)
        begun = turns.number
        assert await walk(turns, Pace(lane), 10) <= begun + 2
        for task in large:
            task.cancel()

    await in_turns(story)


@simulated
async def test_first_slices_are_given_in_the_order_they_were_asked_for():
    """Those who begin while others wait for their first slice do not overtake them."""

    async def story(turns: Turns, lane: SlowLane) -> None:
        done: list[int] = []

        async def small(number: int) -> None:
            await walk(turns, Pace(lane), FIRST)
            done.append(number)

        tasks = []
        for number in range(60):
            tasks.append(asyncio.ensure_future(small(number)))
            if number % 10 == 9:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert done == sorted(done)

    turns = await in_turns(story)
    assert max(turns.worked.values()) <= 2 * SLICE


@simulated
async def test_brokers_and_clients_are_served_alternately():
    for own_class, others_class in ((True, False), (False, True)):

        async def story(turns: Turns, lane: SlowLane, own: bool = own_class, others: bool = others_class) -> None:
            large = [asyncio.ensure_future(walk(turns, Pace(lane, others), 10 * SLICE)) for _ in range(100)]
            for _ in range(200):
                await asyncio.sleep(0)
            begun = turns.number
            slices = 5
            done = await walk(turns, Pace(lane, own), FIRST + slices * SLICE)
            assert done <= begun + 3 * slices + 3, "it does not wait for a hundred others before each slice"
            for task in large:
                task.cancel()

        await in_turns(story)


@simulated
async def test_who_gives_up_waiting_keeps_none_of_the_others_waiting():
    async def story(turns: Turns, lane: SlowLane) -> None:
        large = [asyncio.ensure_future(walk(turns, Pace(lane), 10 * SLICE)) for _ in range(100)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in large[1:]:
            task.cancel()
        begun = turns.number
        assert await large[0] <= begun + 25

    await in_turns(story)


@simulated
async def test_a_request_alone_does_not_wait_in_vain():
    async def story(turns: Turns, lane: SlowLane) -> None:
        pace = Pace(lane)
        assert not pace.is_used_up
        assert await walk(turns, pace, FIRST) <= 1
        assert pace.is_used_up
        assert await walk(turns, pace, SLICE) <= 4

    await in_turns(story)

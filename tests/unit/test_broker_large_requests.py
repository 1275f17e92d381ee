"""Places for large requests: how many are decoded and handled at a time, and how they get out of the way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.kits.netkit import simulated
from tidelog.broker.large_requests import LargeRequests, Place
from tidelog.metrics import Metrics


def made(max_elements: int = 10) -> LargeRequests:
    return LargeRequests("client", max_elements, Metrics())


def call() -> Any:
    return SimpleNamespace(connection=SimpleNamespace(is_closed=False), when_gone=None)


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def entered(room: LargeRequests, elements: int) -> Place:
    place = await room.enter(call(), elements)
    assert place is not None
    return place


@simulated
async def test_places_are_given_in_order_and_only_a_request_alone_exceeds_them():
    room = made(10)
    first = await entered(room, 25)
    tasks = [asyncio.ensure_future(entered(room, elements)) for elements in (6, 5, 4)]
    await settle()
    assert not any(task.done() for task in tasks)
    first.leave()
    await settle()
    assert [task.done() for task in tasks] == [True, False, False], "the small one does not overtake"
    tasks[0].result().leave()
    await settle()
    assert all(task.done() for task in tasks)


@simulated
async def test_what_a_request_turns_out_not_to_have_makes_room():
    room = made(10)
    first = await entered(room, 10)
    second = asyncio.ensure_future(entered(room, 5))
    await settle()
    first.shrink(12)
    await settle()
    assert not second.done()
    first.shrink(5)
    await settle()
    assert second.done()


@simulated
async def test_a_place_is_free_when_its_last_user_has_left():
    room = made(10)
    place = await entered(room, 10)
    place.share()
    second = asyncio.ensure_future(entered(room, 5))
    place.leave()
    await settle()
    assert not second.done()
    place.leave()
    await settle()
    assert second.done()


@simulated
async def test_clients_that_go_while_they_wait_are_passed_over():
    room = made(10)
    place = await entered(room, 10)
    gone, closed = call(), call()
    waiting = [asyncio.ensure_future(room.enter(one, 9)) for one in (gone, call())]
    await settle()
    gone.when_gone()
    closed.connection.is_closed = True
    assert await room.enter(closed, 1) is None
    place.leave()
    await settle()
    assert waiting[0].result() is None
    assert waiting[1].result() is not None


@simulated
async def test_those_who_are_cancelled_leave_no_place_behind():
    room = made(10)
    for turns in (0, 1):
        place = await entered(room, 10)
        cancelled = asyncio.ensure_future(room.enter(call(), 10))
        await settle()
        for _ in range(turns):
            place.leave()  # it is admitted, and cancelled before it knows
        cancelled.cancel()
        await settle()
        if not turns:
            place.leave()
        assert cancelled.cancelled()
        (await entered(room, 10)).leave()
        assert room._held == 0


@simulated
async def test_a_request_that_only_waits_makes_room_and_too_many_of_them_are_given_up():
    room = made(10)
    given_up: list[int] = []
    places = []
    for number in range(3):
        place = await asyncio.wait_for(entered(room, 4), 1)
        place.rest(lambda number=number: given_up.append(number))
        places.append(place)
    assert (room._held, given_up) == (0, [0]), "the first has waited for the longest time"
    places[1].rest(lambda: given_up.append(1))  # it waits for something else now
    for place in places:
        assert place.leave()
    assert (room._held, room._resting, room._resting_elements) == (0, {}, 0)
    large = await entered(room, 25)
    large.rest(lambda: given_up.append(25))
    assert given_up == [0], "one that is alone may be larger"
    large.leave()
    assert room._resting_elements == 0

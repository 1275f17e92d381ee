"""Waiting takes the same steps of the simulated loop on every Python: a seed is the same run on all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tidelog.lab.loop import SimLoop

Story = Callable[[], Coroutine[Any, Any, object]]


def steps(story: Story) -> tuple[int, object]:
    """The callbacks that it takes, and what it comes to."""
    loop = SimLoop()
    try:
        result = loop.run_until_complete(loop.create_task(story()))
        return loop.steps, result
    finally:
        loop.close()


async def nothing() -> str:
    return "nothing"


async def two_turns() -> str:
    await asyncio.sleep(0)
    return "two turns"


async def deaf() -> str:
    """Ends well though it is cancelled."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(9)
    return "deaf"


async def failing() -> None:
    raise OSError("failing")


def _done(result: str) -> asyncio.Future[str]:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


async def _outcome(waiting: Awaitable[object]) -> object:
    try:
        return await waiting
    except Exception as failure:
        return type(failure)


async def done_at_once() -> object:
    return await asyncio.wait_for(nothing(), 1)


async def done_later() -> object:
    return await asyncio.wait_for(two_turns(), 1)


async def too_late() -> object:
    return await _outcome(asyncio.wait_for(asyncio.sleep(9), 1))


async def deaf_to_the_timeout() -> object:
    return await asyncio.wait_for(deaf(), 1)


async def fails() -> object:
    return await _outcome(asyncio.wait_for(failing(), 1))


async def no_time() -> object:
    return await _outcome(asyncio.wait_for(nothing(), 0))


async def no_timeout() -> object:
    return await asyncio.wait_for(two_turns(), None)


async def cancelled_from_outside() -> object:
    waiting = asyncio.ensure_future(asyncio.wait_for(asyncio.sleep(9), 5))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return waiting.cancelled()


async def gathered_when_done() -> object:
    return await asyncio.gather(_done("a"), _done("b"))


async def gathered_twice() -> object:
    one = _done("a")
    return await asyncio.gather(one, two_turns(), one)


async def gathered_failed() -> object:
    failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    failed.set_exception(OSError())
    found = await asyncio.gather(failed, _done("b"), return_exceptions=True)
    return type(found[0]), found[1]


@pytest.mark.parametrize(
    ("story", "expected"),
    [  # counted with the asyncio of Python 3.11
        (done_at_once, (5, "nothing")),
        (done_later, (6, "two turns")),
        (too_late, (8, TimeoutError)),
        (deaf_to_the_timeout, (8, "deaf")),
        (fails, (5, OSError)),
        (no_time, (5, TimeoutError)),
        (no_timeout, (3, "two turns")),
        (cancelled_from_outside, (12, True)),
        (gathered_when_done, (5, ["a", "b"])),
        (gathered_twice, (7, ["a", "two turns", "a"])),
        (gathered_failed, (5, (OSError, "b"))),
    ],
    ids=lambda given: given.__name__ if callable(given) else "",
)
def test_waiting_takes_the_same_steps_on_every_python(story: Story, expected: tuple[int, object]) -> None:
    assert steps(story) == expected


def test_asyncio_is_as_before_when_the_loop_has_stopped() -> None:
    before = asyncio.wait_for, asyncio.gather
    steps(done_at_once)
    assert (asyncio.wait_for, asyncio.gather) == before

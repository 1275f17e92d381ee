"""Attempts of which one is enough: one after the other, or side by side where an earlier one takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tidelog.errors import TidelogError

T = TypeVar("T")


class NoneSucceededError(Exception):
    """All attempts failed; `failures` says how, in the order in which they did."""

    def __init__(self, failures: list[TidelogError]) -> None:
        super().__init__("; ".join(map(str, failures)))
        self.failures = failures


async def first_success(
    attempts: Sequence[Callable[[], Coroutine[Any, Any, T]]], patience_s: float, discard: Callable[[T], None]
) -> tuple[int, T]:
    """The number of the attempt that succeeded first, and what it returned.

    The next attempt begins when one fails, or when the last one has not ended within `patience_s`. The others are
    cancelled, and have ended when this returns. If one of them succeeded meanwhile, its result goes to `discard`.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Queue[int] = asyncio.Queue()
    tasks: list[asyncio.Task[T]] = []
    failures: list[TidelogError] = []
    winner: int | None = None

    def begin(number: int) -> None:
        task = loop.create_task(attempts[number]())
        task.add_done_callback(lambda _: ended.put_nowait(number))
        tasks.append(task)

    try:
        while len(failures) < len(attempts):
            if len(tasks) < len(attempts):
                begin(len(tasks))
            number = await _next(ended, patience_s if len(tasks) < len(attempts) else None)
            if number is None:
                continue
            try:
                result = tasks[number].result()
            except TidelogError as failure:
                failures.append(failure)
            else:
                winner = number
                return number, result
        raise NoneSucceededError(failures)
    finally:
        others = [task for number, task in enumerate(tasks) if number != winner]
        for task in others:
            task.cancel()
        for outcome in await asyncio.gather(*others, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                discard(outcome)


async def _next(ended: asyncio.Queue[int], patience_s: float | None) -> int | None:
    """The next attempt that has ended; None if none does in time."""
    try:
        async with asyncio.timeout(patience_s):
            return await ended.get()
    except TimeoutError:
        return None

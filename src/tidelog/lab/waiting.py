"""`asyncio.wait_for` and `asyncio.gather` with the same steps on every Python.

Python 3.12 changed both. `wait_for` no longer starts a task for what it waits for, and `gather` no longer waits a turn
for futures that are done. The results are the same, but callbacks run in another order. So a seed would be another run
on another Python, and the seeds that the tests have recorded would show nothing there. While a simulated loop runs,
both therefore take the steps of Python 3.11.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_CHANGED = sys.version_info >= (3, 12)
_wait_for = asyncio.wait_for
_gather = asyncio.gather


@contextlib.contextmanager
def same_steps() -> Iterator[None]:
    """What runs within waits as it does on Python 3.11, which is left as it is."""
    if not _CHANGED:
        yield
        return
    before = asyncio.wait_for, asyncio.gather
    _set(wait_for, gather)
    try:
        yield
    finally:
        _set(*before)


def _set(wait_for: Callable[..., Any], gather: Callable[..., Any]) -> None:
    asyncio.wait_for = wait_for
    asyncio.gather = gather


async def wait_for(awaitable: Awaitable[T], timeout: float | None) -> T:
    """What is waited for runs in a task of its own, and is told to the waiter by a callback."""
    if timeout is None or timeout <= 0:
        return await _wait_for(awaitable, timeout)
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()
    timer = loop.call_later(timeout, _release, waiter)
    future = asyncio.ensure_future(awaitable)  # it may be a future already

    def ended(_: object) -> None:
        _release(waiter)

    future.add_done_callback(ended)
    try:
        try:
            await waiter
        except asyncio.CancelledError:
            if future.done():
                return future.result()
            future.remove_done_callback(ended)
            await _cancel(future)
            raise
        if future.done():
            return future.result()
        future.remove_done_callback(ended)
        await _cancel(future)
        try:
            return future.result()
        except asyncio.CancelledError as cancelled:
            raise TimeoutError from cancelled
    finally:
        timer.cancel()


async def _cancel(future: asyncio.Future[Any]) -> None:
    """Cancel it, and wait until it has ended."""
    waiter = asyncio.get_running_loop().create_future()

    def ended(_: object) -> None:
        _release(waiter)

    future.add_done_callback(ended)
    try:
        future.cancel()
        await waiter
    finally:
        future.remove_done_callback(ended)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def gather(*awaitables: Awaitable[Any], return_exceptions: bool = False) -> asyncio.Future[list[Any]]:
    """What is done already is noticed in the next turn, as if it ended only now."""
    seen: dict[int, _Later] = {}
    given = [
        seen.setdefault(id(one), _Later(one)) if asyncio.isfuture(one) and one.done() else one for one in awaitables
    ]
    return _gather(*given, return_exceptions=return_exceptions)


class _Later:
    """A future that is done and does not say so: then `gather` asks it for a callback, which comes in the next turn."""

    _asyncio_future_blocking = False

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def done(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._future, name)

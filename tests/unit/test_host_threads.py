"""The disk threads: order per key, and nothing is lost or done twice, whenever the threads take turns."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from tidelog.host.threads import DiskThreads

KEYS = 7
ROUNDS = 3_000


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns after a few steps of the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_each_key_has_its_work_done_in_order_and_once() -> None:
    done: dict[str, list[int]] = {f"key {number}": [] for number in range(KEYS)}
    busy: set[str] = set()
    together: list[str] = []

    def work(key: str, number: int) -> int:
        if key in busy:
            together.append(key)
        busy.add(key)
        done[key].append(number)
        busy.discard(key)
        return number

    async def story() -> None:
        threads = DiskThreads(4)
        futures = []
        for number in range(ROUNDS):
            key = f"key {number % KEYS}"
            futures.append(threads.submit(key, lambda key=key, number=number: work(key, number)))  # type: ignore[misc]
            if number % 3 == 0:
                await asyncio.sleep(0)  # queues become empty, and new again, in between
            if number % 101 == 0:
                await futures[-1]
        assert await asyncio.gather(*futures) == list(range(ROUNDS))
        threads.close()

    asyncio.run(asyncio.wait_for(story(), 60))
    assert together == []
    assert done == {f"key {key}": list(range(key, ROUNDS, KEYS)) for key in range(KEYS)}


def test_work_that_two_threads_call_ready_is_done_once() -> None:
    """As where a job comes in the moment in which the one before it is taken out."""
    begun: list[int] = []
    may_end = threading.Event()

    def work() -> None:
        begun.append(1)
        may_end.wait()

    async def story() -> None:
        threads = DiskThreads(2)
        first = threads.submit("a", work)
        threads._ready.put(threads._queues["a"])
        await threads.submit("b", lambda: None)  # the second thread has come past what was called ready twice
        may_end.set()
        await first
        threads.close()

    asyncio.run(asyncio.wait_for(story(), 60))
    assert begun == [1]


def test_close_waits_for_all_that_was_submitted() -> None:
    may_begin = threading.Event()
    done: list[int] = []

    async def story() -> None:
        threads = DiskThreads(2)
        threads.submit("a", may_begin.wait)
        futures = [threads.submit("a", lambda number=number: done.append(number)) for number in range(10)]  # type: ignore[misc]
        asyncio.get_running_loop().call_soon(may_begin.set)
        await asyncio.sleep(0)
        threads.close()
        assert done == list(range(10))
        await asyncio.gather(*futures)
        with pytest.raises(RuntimeError, match="closed"):
            threads.submit("a", lambda: None)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_idle_keys_are_forgotten() -> None:
    async def story() -> None:
        threads = DiskThreads(2)
        for number in range(1_000):
            await threads.submit(f"key {number}", lambda: None)
        assert len(threads._queues) <= 64
        threads.close()
        threads.close()

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.usefixtures("hasty")
def test_the_results_of_a_key_come_in_the_order_of_its_work() -> None:
    """What a flush has synced counts, unless it was cut since: the log relies on hearing of both in their order."""
    told: list[int] = []
    is_over = threading.Event()

    def disturb() -> None:
        while not is_over.is_set():
            sum(range(50))

    async def story() -> None:
        threads = DiskThreads(8)
        futures = []
        for number in range(20_000):
            future = threads.submit("key", int)
            future.add_done_callback(lambda _, number=number: told.append(number))  # type: ignore[misc]
            futures.append(future)
            if number % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*futures)
        threads.close()

    others = [threading.Thread(target=disturb) for _ in range(2)]
    for other in others:
        other.start()
    try:
        asyncio.run(asyncio.wait_for(story(), 60))
    finally:
        is_over.set()
        for other in others:
            other.join()
    assert told == list(range(20_000))


def test_a_thread_without_work_holds_nothing() -> None:
    class Large:
        pass

    async def story() -> None:
        threads = DiskThreads(2)
        large = [Large() for _ in range(4)]
        alive = list(map(weakref.ref, large))
        while large:
            await threads.submit(f"key {len(large)}", partial(id, large.pop()))
        while any(held() is not None for held in alive):  # a result is told before its job is dropped
            gc.collect()
            await asyncio.sleep(0)
        threads.close()

    asyncio.run(asyncio.wait_for(story(), 60))

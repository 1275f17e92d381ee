"""A loop on a thread of its own: it goes on in between, and ends with its owner or with the interpreter."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from tidelog.host.loop_thread import LoopThread

DEADLINE_S = 30


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread("a loop")
    yield thread
    thread.close()


def test_what_was_begun_goes_on_while_nothing_is_run(loop_thread: LoopThread) -> None:
    done = threading.Event()

    async def begin() -> str:
        asyncio.get_running_loop().call_later(0.01, done.set)
        return "begun"

    assert loop_thread.run(begin()) == "begun"
    assert done.wait(DEADLINE_S)


def test_a_failure_is_the_callers(loop_thread: LoopThread) -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        loop_thread.run(fail())


def test_an_interrupted_caller_cancels_what_it_waits_for(loop_thread: LoopThread) -> None:
    cancelled = threading.Event()

    async def wait() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop_thread.run(wait())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(DEADLINE_S)


def test_an_interrupt_while_the_work_is_handed_over_cancels_it(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, cancelled = threading.Event(), threading.Event()
    hand_over = loop_thread._loop.call_soon_threadsafe

    async def wait() -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    def interrupted(callback: Callable[[], object]) -> None:
        monkeypatch.undo()
        hand_over(callback)
        assert started.wait(DEADLINE_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop_thread._loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop_thread.run(wait())
    assert cancelled.wait(DEADLINE_S)


def test_closing_cancels_and_waits_for_the_thread() -> None:
    loop_thread = LoopThread("a loop that ends")
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("cancelled")

    async def begin() -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(linger())

    loop_thread.run(begin())
    loop_thread.run(asyncio.sleep(0))
    loop_thread.close()
    loop_thread.close()
    assert ended == ["cancelled"]
    assert "a loop that ends" not in [thread.name for thread in threading.enumerate()]


def test_the_interpreter_exits_although_it_is_not_closed() -> None:
    program = "import asyncio; from tidelog.host.loop_thread import LoopThread; LoopThread('x').run(asyncio.sleep(0))"
    assert subprocess.run([sys.executable, "-c", program], timeout=DEADLINE_S, check=False).returncode == 0

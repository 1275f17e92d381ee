"""Members that are objects of this process: each polls in a thread of its own, and is called only there."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from driver import DEADLINE_S, ClientError, Record
from group_driver import Member, Offsets, Part, Parts

_HELD_S = 0.02


class PolledConsumer:
    """A client's consumer, all calls of which wait until they are done."""

    def poll(self) -> list[Record]:
        """What came; returns after a short time if nothing did."""
        raise NotImplementedError

    def idle(self, seconds: float) -> None:
        """Do not poll, but let the client's own tasks run, where they have no thread of their own."""
        time.sleep(seconds)

    def assignment(self) -> Parts:
        raise NotImplementedError

    def commit(self, offsets: Offsets | None) -> None:
        raise NotImplementedError

    def commit_async(self) -> None:
        raise NotImplementedError

    def committed(self, part: Part) -> int | None:
        raise NotImplementedError

    def position(self, part: Part) -> int:
        raise NotImplementedError

    def pause(self, part: Part) -> None:
        raise NotImplementedError

    def resume(self, part: Part) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class ThreadMember(Member):
    """Made with a function that makes the consumer, which runs in the thread too."""

    def __init__(self, make: Callable[[Member], PolledConsumer]) -> None:
        super().__init__()
        self._asked: queue.SimpleQueue[tuple[Callable[[PolledConsumer], Any], Future[Any]]] = queue.SimpleQueue()
        self._share: Parts = frozenset()
        self._leaving = threading.Event()
        self._polls = threading.Event()
        self._polls.set()
        self._thread = threading.Thread(target=self._run, args=[make], daemon=True)
        self._thread.start()

    def _run(self, make: Callable[[Member], PolledConsumer]) -> None:
        try:
            consumer = make(self)
            try:
                while not self._leaving.is_set():
                    self._turn(consumer)
            finally:
                consumer.close()
        except ClientError as error:
            self.error = error
        finally:
            self._share = frozenset()

    def _turn(self, consumer: PolledConsumer) -> None:
        """A poll, if it is not held, and then what was asked meanwhile."""
        if self._polls.is_set():
            self.read += consumer.poll()
            self._share = consumer.assignment()
        else:
            consumer.idle(_HELD_S)
        while not self._asked.empty():
            work, answer = self._asked.get()
            try:
                answer.set_result(work(consumer))
            except Exception as error:
                answer.set_exception(error)

    def _ask(self, work: Callable[[PolledConsumer], Any]) -> Any:
        answer: Future[Any] = Future()
        self._asked.put((work, answer))
        return answer.result(DEADLINE_S)

    def share(self) -> Parts:
        return self._share

    def commit(self, offsets: Offsets | None = None) -> None:
        self._ask(lambda consumer: consumer.commit(offsets))

    def commit_async(self) -> None:
        self._ask(lambda consumer: consumer.commit_async())

    def committed(self, part: Part) -> int | None:
        offset: int | None = self._ask(lambda consumer: consumer.committed(part))
        return offset

    def position(self, part: Part) -> int:
        return int(self._ask(lambda consumer: consumer.position(part)))

    def pause(self, part: Part) -> None:
        self._ask(lambda consumer: consumer.pause(part))

    def resume(self, part: Part) -> None:
        self._ask(lambda consumer: consumer.resume(part))

    @contextmanager
    def held(self) -> Iterator[None]:
        self._polls.clear()
        self._ask(lambda consumer: None)  # the poll that was under way has ended
        try:
            yield
        finally:
            self._polls.set()

    def leave(self) -> None:
        self._leaving.set()
        self._polls.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "did not close"

"""The thread that writes the journal and reads it, so that the loop never waits for the device."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from tidelog.coordination.entries import Entry, Sealed, Snapshot, to_line
from tidelog.coordination.journal import Journal
from tidelog.coordination.machine import DirectoryFullError, Machine, Steps, Worker
from tidelog.errors import StorageError

T = TypeVar("T")

_LOOK_ANYWAY_S = 0.25
"""Should a notice ever be missed, it is made good after this time."""
_ROOM_RETRY_S = 0.1


class _Task(NamedTuple):
    """Something else that may wait for the device."""

    work: Callable[[], Any]
    future: asyncio.Future[Any]


class _Stop:
    """Nothing more will come."""


class Readers(NamedTuple):
    """Whom to tell, on the loop."""

    read: Callable[[Sequence[Entry]], None]
    not_written: Callable[[Sequence[Entry], StorageError], None]
    """Whether they count is not known."""
    failed: Callable[[StorageError], None]
    """The end: the thread is over."""


class Scribe:
    """Entries in at one end, those of all processes out at the other, in the one order.

    Behind a seal it neither reads nor writes until `go_on` brings the snapshot: what was submitted before that is void,
    as is what it wrote behind the seal, and must be submitted again.
    """

    def __init__(self, machine: Machine, directory: str, loop: asyncio.AbstractEventLoop, readers: Readers) -> None:
        self._machine = machine
        self._directory = directory
        self._loop = loop
        self._readers = readers
        self._queue: deque[Entry | _Task | _Stop] = deque()
        self._worker = machine.start("coordination-journal", self._run)

    def submit(self, entry: Entry) -> None:
        self._put(entry)

    def go_on(self, snapshot: Snapshot) -> None:
        self._put(snapshot)

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._put(_Task(work, future))
        return future

    def stop(self) -> None:
        """Behind all that was submitted."""
        self._put(_Stop())

    def _put(self, item: Entry | _Task | _Stop) -> None:
        self._queue.append(item)
        self._worker.ring()

    def _run(self, worker: Worker) -> Steps:
        try:
            self._journal = yield from Journal.open_latest(self._machine, self._directory)
            try:
                worker.watch(self._journal.path)
                while (yield from self._write()) and (yield from self._read(worker)):
                    if not self._queue:
                        yield _LOOK_ANYWAY_S
            finally:
                self._journal.close()
        except StorageError as error:
            self._tell(self._readers.failed, error)
        except Exception as error:  # a line of another version, or a fault of ours: no caller must wait for ever
            unreadable = StorageError(f"cannot follow the cluster's journal in {self._directory}: {error!r}")
            self._tell(self._readers.failed, unreadable)

    def _write(self) -> Generator[float, None, bool]:
        """All that is waiting, so that it is written and synced together."""
        entries: list[Entry] = []
        stopping = False
        for item in [self._queue.popleft() for _ in range(len(self._queue))]:
            if isinstance(item, _Task):
                self._do(item)
            elif isinstance(item, _Stop):
                stopping = True
            else:
                entries.append(item)
        if self._journal.is_due:
            entries.append(Sealed(self._journal.generation))
        if entries:
            yield 0.0
            try:
                self._journal.append(b"".join(map(to_line, entries)))
            except StorageError as error:
                self._tell(self._readers.not_written, entries, error)
            yield 0.0
        return not stopping and not self._loop.is_closed()

    def _read(self, worker: Worker) -> Generator[float, None, bool]:
        while data := (yield from self._journal.read()):
            entries = self._journal.cutter.feed(data)
            self._tell(self._readers.read, entries)
            if entries and isinstance(entries[-1], Sealed):
                snapshot = yield from self._await_snapshot()
                if snapshot is None or not (yield from self._go_over(snapshot)):
                    return False
                worker.watch(self._journal.path)
        return True

    def _await_snapshot(self) -> Generator[float, None, Snapshot | None]:
        """One by one, for what stands behind the snapshot in the queue is not void."""
        while not self._loop.is_closed():
            if not self._queue:
                yield _LOOK_ANYWAY_S
                continue
            item = self._queue.popleft()
            if isinstance(item, Snapshot):
                return item
            if isinstance(item, _Stop):
                return None
            if isinstance(item, _Task):
                self._do(item)
        return None

    def _go_over(self, snapshot: Snapshot) -> Generator[float, None, bool]:
        """To the next generation. While there is no room for it, what is submitted fails and sessions live on."""
        while not self._loop.is_closed():
            try:
                self._journal = yield from self._journal.following(snapshot)
                return True
            except DirectoryFullError as error:
                if not self._refuse_all(error):
                    return False
            yield _ROOM_RETRY_S
        return False

    def _refuse_all(self, error: StorageError) -> bool:
        """All that is waiting. False if it is time to stop."""
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, _Stop):
                return False
            if isinstance(item, _Task):
                self._do(item)
            else:
                self._tell(self._readers.not_written, [item], error)
        return True

    def _do(self, task: _Task) -> None:
        try:
            result = task.work()
        except Exception as error:
            self._tell(_fail, task.future, error)
        else:
            self._tell(_finish, task.future, result)

    def _tell(self, hear: Callable[..., None], *what: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(hear, *what)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


def _finish(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

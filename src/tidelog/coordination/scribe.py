"""The thread that writes the journal and reads it, so that the loop never waits for the device."""

from __future__ import annotations

import asyncio
import threading  # noqa: TID251  behind the Coordination port: a sync of the journal may take long
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from tidelog.coordination.entries import Entry, Sealed, Snapshot, to_line
from tidelog.coordination.journal import Journal
from tidelog.coordination.notice import Notice
from tidelog.errors import StorageError

T = TypeVar("T")


class _Task(NamedTuple):
    """Something else that may wait for the device."""

    work: Callable[[], Any]
    future: asyncio.Future[Any]


class _Stop:
    """Nothing more will come."""


class Readers(NamedTuple):
    """Whom to tell, on the loop."""

    read: Callable[[Sequence[Entry]], None]
    not_written: Callable[[Sequence[Entry]], None]
    """Whether they count is not known."""
    failed: Callable[[StorageError], None]
    """The end: the thread is over."""


class Scribe:
    """Entries in at one end, those of all processes out at the other, in the one order.

    Behind a seal it neither reads nor writes until `go_on` brings the snapshot: what was submitted before that is void,
    as is what it wrote behind the seal, and must be submitted again.
    """

    def __init__(self, directory: str, loop: asyncio.AbstractEventLoop, readers: Readers) -> None:
        self._directory = directory
        self._loop = loop
        self._readers = readers
        self._queue: deque[Entry | _Task | _Stop] = deque()
        self._notice = Notice()
        self._thread = threading.Thread(target=self._run, name="coordination-journal", daemon=True)
        self._thread.start()

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
        self._notice.ring()

    def _run(self) -> None:
        try:
            self._journal = Journal.open_latest(self._directory)
            try:
                self._notice.watch(self._journal.path)
                while self._write(self._next_items()) and self._read():
                    pass
            finally:
                self._journal.close()
        except StorageError as error:
            self._tell(self._readers.failed, error)
        except Exception as error:  # a line of another version, or a fault of ours: nobody must wait for ever
            unreadable = StorageError(f"cannot follow the cluster's journal in {self._directory}: {error!r}")
            self._tell(self._readers.failed, unreadable)
        finally:
            self._notice.close()

    def _next_items(self) -> list[Entry | _Task | _Stop]:
        """All that is waiting, so that it is written and synced together; nothing, if it is time to read."""
        if not self._queue:
            self._notice.wait()
        return [self._queue.popleft() for _ in range(len(self._queue))]

    def _write(self, items: list[Entry | _Task | _Stop]) -> bool:
        entries: list[Entry] = []
        stopping = False
        for item in items:
            if isinstance(item, _Task):
                self._do(item)
            elif isinstance(item, _Stop):
                stopping = True
            else:
                entries.append(item)
        if self._journal.is_due:
            entries.append(Sealed(self._journal.generation))
        if entries:
            try:
                self._journal.append(b"".join(map(to_line, entries)))
            except StorageError:
                self._tell(self._readers.not_written, entries)
        return not stopping and not self._loop.is_closed()

    def _read(self) -> bool:
        while data := self._journal.read():
            entries = self._journal.cutter.feed(data)
            self._tell(self._readers.read, entries)
            if entries and isinstance(entries[-1], Sealed):
                snapshot = self._await_snapshot()
                if snapshot is None:
                    return False
                self._journal = self._journal.following(snapshot)
                self._notice.watch(self._journal.path)
        return True

    def _await_snapshot(self) -> Snapshot | None:
        """One by one, for what stands behind the snapshot in the queue is not void."""
        while not self._loop.is_closed():
            if not self._queue:
                self._notice.wait()
                continue
            item = self._queue.popleft()
            if isinstance(item, Snapshot):
                return item
            if isinstance(item, _Stop):
                return None
            if isinstance(item, _Task):
                self._do(item)
        return None

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

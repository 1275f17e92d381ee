"""One log's way to the disk threads: in order, and with one answer to a failing disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidelog.errors import NoDescriptorError, StorageError, TidelogError
from tidelog.ports import Disk

T = TypeVar("T")

_READS = "read"


async def to_the_end(steps: Coroutine[Any, Any, T]) -> T:
    """Await it, and if the one who waits is cancelled, pass that on only when it is done.

    For what must not stop halfway: disk threads cannot be called back, so memory has to follow what they do.
    """
    task = asyncio.create_task(steps)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(TidelogError):
            await asyncio.shield(task)
        raise


class LogDeletedError(StorageError):
    """The log is gone, and its directory may be another's by now. Says nothing about the disk."""


class FileWork:
    """Work on the files of one directory runs one piece at a time, in the order it was asked for.

    A StorageError in any of it is told to `on_failure`, also where nobody waits for the result. So is a file that
    is missing where this log writes: somebody took it away, and what is appended from then on would be lost.

    After such a failure no work is begun any more, not even what was asked for before the loop heard of it: a sync
    that follows a failed one succeeds without having written anything.
    """

    def __init__(self, disk: Disk, directory: str, on_failure: Callable[[StorageError], None]) -> None:
        self._disk = disk
        self._key = directory
        self._on_failure = on_failure
        self._over = False
        self._broken: StorageError | None = None
        """Set by the disk thread that met a failure."""

    async def run(self, work: Callable[[], T]) -> T:
        """Wait for it."""
        return await self._reported(self._submit(self._key, lambda: self._guarded(work)))

    async def end_with(self, last: Callable[[], None]) -> None:
        """The last work of all, once the reads that have begun are over; whoever comes later is refused.

        Its paths may soon belong to another log of the same name.
        """
        ending = [self._submit(self._key, last), self._submit(f"{self._key}#{_READS}", lambda: None)]
        self._over = True
        for future in ending:
            await self._reported(future)

    def start(self, work: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Do not wait for it; `then` is called on the loop if it succeeds. After the end nothing happens."""

        def done(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            failure = future.exception()
            if isinstance(failure, (StorageError, FileNotFoundError)):
                self._on_failure(_as_storage_error(failure))
            elif failure is not None:
                raise failure
            elif then is not None:
                then()

        if not self._over:
            self._submit(self._key, lambda: self._guarded(work)).add_done_callback(done)

    async def beside(self, work: Callable[[], T], lane: str = _READS) -> T:
        """Reads and cleaning: they wait neither for the writes of this log nor these for them."""
        try:
            return await self._submit(f"{self._key}#{lane}", work)
        except (LogDeletedError, NoDescriptorError):
            raise
        except StorageError as failure:
            self._on_failure(failure)
            raise

    def _guarded(self, work: Callable[[], T]) -> T:
        """On a disk thread."""
        if self._broken is not None:
            raise type(self._broken)(f"nothing more is written to {self._key}: {self._broken}") from self._broken
        try:
            return work()
        except (StorageError, FileNotFoundError) as failure:
            self._broken = _as_storage_error(failure)
            raise

    async def _reported(self, future: asyncio.Future[T]) -> T:
        try:
            return await future
        except (StorageError, FileNotFoundError) as failure:
            told = _as_storage_error(failure)
            self._on_failure(told)
            raise told from failure

    def _submit(self, key: str, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._over:
            raise LogDeletedError(f"{self._key} has been deleted")
        return self._disk.submit(key, work)


def _as_storage_error(failure: StorageError | FileNotFoundError) -> StorageError:
    return failure if isinstance(failure, StorageError) else StorageError(f"a file of the log is missing: {failure}")

"""One log's way to the disk threads: in order, and with one answer to a failing disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tidelog.errors import StorageError
from tidelog.ports import Disk

T = TypeVar("T")


class FileWork:
    """Work on the files of one directory runs one piece at a time, in the order it was asked for.

    A StorageError in any of it is told to `on_failure`, also where nobody waits for the result.
    """

    def __init__(self, disk: Disk, directory: str, on_failure: Callable[[StorageError], None]) -> None:
        self._disk = disk
        self._key = directory
        self._on_failure = on_failure

    async def run(self, work: Callable[[], T]) -> T:
        """Wait for it."""
        try:
            return await self._disk.submit(self._key, work)
        except StorageError as failure:
            self._on_failure(failure)
            raise

    def start(self, work: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Do not wait for it; `then` is called on the loop if it succeeds."""

        def done(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            failure = future.exception()
            if isinstance(failure, StorageError):
                self._on_failure(failure)
            elif failure is not None:
                raise failure
            elif then is not None:
                then()

        self._disk.submit(self._key, work).add_done_callback(done)

    async def beside(self, work: Callable[[], T], lane: str = "read") -> T:
        """Reads and cleaning: they wait neither for the writes of this log nor these for them."""
        try:
            return await self._disk.submit(f"{self._key}#{lane}", work)
        except StorageError as failure:
            self._on_failure(failure)
            raise
